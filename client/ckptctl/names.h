// What people write for a run or a checkpoint, into the names of the protocol.
#ifndef CKPTD_CLIENT_CKPTCTL_NAMES_H_
#define CKPTD_CLIENT_CKPTCTL_NAMES_H_

#include <string>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"

namespace ckptd::ctl {

// RUN: `runs/<id>`, or a root directory by any path that leads to it. The directory's device and inode
// decide, for a client may call its root what it likes; only a path that this process cannot look at is
// compared with what the runs call theirs, and then one run alone may call it so. NOT_FOUND, reason
// UNKNOWN_RUN, says what there is.
absl::StatusOr<v1::Run> FindRun(const v1::ListRunsResponse& runs, const std::string& run);

// NAME: `runs/<id>/checkpoints/<tag>`, or ROOT/TAG, or a tag alone where there is but one run. Gives
// `runs/<id>/checkpoints/<tag>`.
absl::StatusOr<std::string> CheckpointName(const v1::ListRunsResponse& runs, const std::string& name);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_NAMES_H_
