// The commands. Each writes its data to `out` and returns the exit status. On an error it returns a status,
// which main prints as one line on stderr.
#ifndef CKPTD_CLIENT_CKPTCTL_COMMANDS_COMMANDS_H_
#define CKPTD_CLIENT_CKPTCTL_COMMANDS_COMMANDS_H_

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands/exit_codes.h"

namespace ckptd::ctl {

struct Context {
  std::string endpoint;  // Empty: $CKPTD_ENDPOINT, or the default socket.
  bool json = false;
  // In seconds: for `wait`, until the level is reached; for `watch` and `adopt`, for the whole command; for
  // the others, for the daemon's answer. Unset: the command's default.
  std::optional<double> timeout_seconds;
  std::ostream* out = nullptr;  // For data.
  std::ostream* err = nullptr;  // For progress and remarks.
  bool live = false;            // Both are terminals: a line may be overwritten.
  bool color = false;           // `out` is a terminal that shows colors.
};

// Writes text for people to `out`, in color where that is shown.
void WriteText(const Context& context, const std::string& text);

// commands.cc
// A screen, or with `verbose` everything. JSON is always everything.
absl::StatusOr<ExitCode> ShowStatus(const Context& context, bool verbose);
// How the nodes are that share this daemon's etcd. kNotSo if one is missing or has not reported.
absl::StatusOr<ExitCode> ShowAllNodes(const Context& context);
absl::StatusOr<ExitCode> ListSessions(const Context& context);
// `run` may be empty: all runs. A root that the daemon does not know, or that no daemon can be asked about,
// is read from disk; so is a checkpoint of Describe.
absl::StatusOr<ExitCode> List(const Context& context, const std::string& run, bool all);
absl::StatusOr<ExitCode> Describe(const Context& context, const std::string& name);
absl::StatusOr<ExitCode> Wait(const Context& context, const std::string& name, const std::string& level);
absl::StatusOr<ExitCode> Abort(const Context& context, const std::string& name, const std::string& message);
absl::StatusOr<ExitCode> Prefetch(const Context& context, const std::string& name);
absl::StatusOr<ExitCode> SetPinned(const Context& context, const std::string& name, bool pinned);

// retention.cc
struct RetentionArguments {
  std::string run;
  std::string set;  // The policy, as retention_text.h reads it. Empty: show what keeps each checkpoint.
  bool clear = false;
  bool dry_run = false;  // Show what `set` would keep, and change nothing.
};
absl::StatusOr<ExitCode> Retention(const Context& context, const RetentionArguments& arguments);
absl::StatusOr<ExitCode> Delete(const Context& context, const std::string& name, bool force);
absl::StatusOr<ExitCode> ListTrash(const Context& context, const std::string& run);
// `sequence` 0: of those of the tag, the one with the highest sequence.
absl::StatusOr<ExitCode> Undelete(const Context& context, const std::string& name, int64_t sequence);
// A save whose outcome nobody knows is a checkpoint, or is none.
absl::StatusOr<ExitCode> ResolveSave(const Context& context, const std::string& name, bool is_checkpoint);

// history.cc: the newest entries, and how often to save.
struct HistoryArguments {
  std::string run;                      // Empty: all runs.
  int count = 100;                      // Of each run.
  double since_seconds = 0;             // Only entries that are not older; 0: all.
  double seconds_between_failures = 0;  // 0: as the entries show.
};
absl::StatusOr<ExitCode> History(const Context& context, const HistoryArguments& arguments);
// history.cc: what has become of a checkpoint. kNotSo if it is no whole one, and none is on its way.
absl::StatusOr<ExitCode> Why(const Context& context, const std::string& name);

// drain.cc: kNotDrained if work is still under way at the deadline.
struct DrainArguments {
  bool undo = false;
  std::string message;
  double deadline_seconds = 110;  // Less than the 2 min that most service managers and schedulers wait.
};
absl::StatusOr<ExitCode> Drain(const Context& context, const DrainArguments& arguments);

// top.cc: `once`: one screen, after one interval. Else until Ctrl-C.
absl::StatusOr<ExitCode> Top(const Context& context, bool once, double interval_seconds);

// adopt.cc: adopts all of a run's foreign checkpoints, or those in `tags`. kRefused if one was refused.
absl::StatusOr<ExitCode> Adopt(const Context& context, const std::string& run,
                               const std::vector<std::string>& tags, bool allow_removal);

// save.cc: saves files of this machine as a checkpoint, and waits until it is committed. Makes the root.
struct SaveArguments {
  std::string name;  // ROOT/TAG.
  std::vector<std::string> files;
  std::optional<int64_t> step;
};
absl::StatusOr<ExitCode> SaveFiles(const Context& context, const SaveArguments& arguments);

// watch.cc: kNotSo if a watched save ended without a checkpoint.
absl::StatusOr<ExitCode> Watch(const Context& context, const std::string& run, bool until_idle,
                               double interval_seconds);

// verify.cc: ROOT or ROOT/TAG. Works without a daemon, and tells one that is there of the damage that it
// finds.
absl::StatusOr<ExitCode> Verify(const Context& context, const std::string& what);
// verify.cc: clears a damage mark. Reads the checkpoint before, unless `unverified`: kNotSo if it is damaged.
absl::StatusOr<ExitCode> Repaired(const Context& context, const std::string& name, bool unverified);
// bucket.cc: ROOT/TAG to s3://BUCKET/PREFIX, and s3://BUCKET/PREFIX/TAG into the root `folder`.
absl::StatusOr<ExitCode> Upload(const Context& context, const std::string& what, const std::string& to);
absl::StatusOr<ExitCode> Fetch(const Context& context, const std::string& from, const std::string& folder);
// new_run.cc: gives a copy of a root that several nodes share a run of its own. Works without a daemon.
absl::StatusOr<ExitCode> NewRun(const Context& context, const std::string& root);
// doctor.cc: works without a daemon.
struct DoctorNodes {
  int count = 0;     // How many nodes run the command together; 0: this one alone.
  std::string name;  // Of this node; empty: that of the host.
};
absl::StatusOr<ExitCode> Doctor(const Context& context, const std::string& root,
                                const DoctorNodes& nodes = {});

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_COMMANDS_COMMANDS_H_
