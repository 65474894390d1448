// The text form of retention policies: "last=3,best=2:loss:min,every=1000,newer_than=7d", or "all".
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_RETENTION_TEXT_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_RETENTION_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"

namespace ckptd::ctl {

// INVALID_ARGUMENT names the part that is wrong. Whether the values are in range is for the daemon to say.
absl::StatusOr<v1::RetentionPolicy> ParseRetention(const std::string& text);
// The form that ParseRetention reads.
std::string RetentionText(const v1::RetentionPolicy& policy);
// A table of what keeps each checkpoint.
std::string RenderRetention(const v1::ExplainRetentionResponse& explained);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_RETENTION_TEXT_H_
