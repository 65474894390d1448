// The commands. Each writes what it found to `out` and answers with the exit status; an error is main's one
// line on stderr.
#ifndef CKPTD_CLIENT_CKPTCTL_COMMANDS_H_
#define CKPTD_CLIENT_CKPTCTL_COMMANDS_H_

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ckptctl/exit_codes.h"

namespace ckptd::ctl {

struct Context {
  std::string endpoint;  // Empty: $CKPTD_ENDPOINT, else the default.
  bool json = false;
  // How long: for `wait` until the level, for `watch` altogether, else for the daemon's answer.
  std::optional<double> timeout_seconds;
  std::ostream* out = nullptr;  // Data.
  std::ostream* err = nullptr;  // Talk.
  bool live = false;            // Both end at a terminal: a line may be written over.
};

// commands.cc
absl::StatusOr<ExitCode> ShowStatus(const Context& context);
absl::StatusOr<ExitCode> List(const Context& context, const std::string& run,
                              bool all);  // `run` may be empty: all runs.
absl::StatusOr<ExitCode> Describe(const Context& context, const std::string& name);
absl::StatusOr<ExitCode> Wait(const Context& context, const std::string& name, const std::string& level);
absl::StatusOr<ExitCode> Abort(const Context& context, const std::string& name, const std::string& message);
absl::StatusOr<ExitCode> Prefetch(const Context& context, const std::string& name);
absl::StatusOr<ExitCode> Repaired(const Context& context, const std::string& name);
absl::StatusOr<ExitCode> SetPinned(const Context& context, const std::string& name, bool pinned);

// adopt.cc: all of a run's foreign checkpoints, or those named. kRefused when one was.
absl::StatusOr<ExitCode> Adopt(const Context& context, const std::string& run,
                               const std::vector<std::string>& tags, bool allow_removal);

// watch.cc: kNotSo when a save that was watched ended without a checkpoint.
absl::StatusOr<ExitCode> Watch(const Context& context, const std::string& run, bool until_idle,
                               double interval_seconds);

// verify.cc and doctor.cc: no daemon.
absl::StatusOr<ExitCode> Verify(const Context& context, const std::string& what);  // ROOT or ROOT/TAG
absl::StatusOr<ExitCode> Doctor(const Context& context, const std::string& root);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_COMMANDS_H_
