// ckptctl's exit statuses. They are stable; --help and docs/ckptctl.md list them.
#ifndef CKPTD_CLIENT_CKPTCTL_COMMANDS_EXIT_CODES_H_
#define CKPTD_CLIENT_CKPTCTL_COMMANDS_EXIT_CODES_H_

#include "absl/status/status.h"
#include "storage/base/errors.h"

namespace ckptd::ctl {

enum ExitCode {
  kOk = 0,
  kNotSo = 1,        // The expected state does not hold: not found, failed, damaged, or not reached in time.
  kUsage = 2,        // The command line is wrong.
  kUnreachable = 3,  // No daemon answers.
  kRefused = 4,      // Not permitted, or not possible in the present state.
  kNotDrained = 5,   // The daemon has not finished what it had begun, at the deadline of `drain`.
};

inline ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kInvalidArgument:
      return kUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return kUnreachable;
    case absl::StatusCode::kDeadlineExceeded:  // Without a reason the daemon hangs. With one, it answered.
      return ReasonOf(status).empty() ? kUnreachable : kNotSo;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:  // Something else has the name.
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
      return kRefused;
    default:
      return kNotSo;
  }
}

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_COMMANDS_EXIT_CODES_H_
