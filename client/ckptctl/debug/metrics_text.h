// Asks a daemon for its counters.
#ifndef CKPTD_CLIENT_CKPTCTL_DEBUG_METRICS_TEXT_H_
#define CKPTD_CLIENT_CKPTCTL_DEBUG_METRICS_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "ckptd/config/v1/config.pb.h"

namespace ckptd::ctl {

// The text of /metrics, from the socket if there is one, else from the port of loopback. Sends the token of
// `token_file`, which this process must be able to read. FAILED_PRECONDITION if metrics are off.
absl::StatusOr<std::string> ReadMetrics(const config::v1::MetricsConfig& metrics);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_DEBUG_METRICS_TEXT_H_
