// The runs of the daemon: attaching, opening, finding and closing roots.
#ifndef CKPTD_DAEMON_ENGINE_ROOTS_RUN_TABLE_H_
#define CKPTD_DAEMON_ENGINE_ROOTS_RUN_TABLE_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/run/local_authority.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/run/session_table.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/save_id.h"
#include "storage/base/clock.h"

namespace ckptd {

// Owns the Run objects, the roots that each session has attached, and the remaining state of runs that were
// closed because no process used them. A root is opened once, with the rights of the user who attached it
// first; other attaches wait meanwhile. A run that all classes consider idle is closed after a while, or when
// its user has too many roots and wants another one, and is opened again when a process asks for it.
class RunTable {
 public:
  struct Options {
    Duration lock_timeout = Duration::zero();    // For a root that another daemon has locked.
    Duration attach_timeout = Duration::zero();  // For a root to open.
    Duration idle_timeout = Duration::zero();    // Zero: idle runs are closed only to make room.
    int roots_per_uid = 0;                       // Open at a time.
    int file_systems_per_uid = 0;
    std::function<std::string(const std::string& own_path)> shared_folder = nullptr;  // As in EngineOptions.
  };
  struct Hooks {
    // As LocalAuthority::Publish, for this run.
    std::function<void(Run*, const SaveId&, LocalAuthority::Decided)> publish;
    // RootIo::Open is about to be called.
    std::function<void(Run*)> opening;
    // The root was opened: loads its content into the run. May correct Run::uid.
    std::function<void(Run*, RootSnapshot)> load;
    // The run is open; the attaches that wait for it are accepted after this.
    std::function<void(Run*)> opened;
    // The attaches have been accepted.
    std::function<void(Run*)> accepted;
    // Whether closing the run would lose no state of other classes.
    std::function<bool(const Run&)> is_idle;
    // The description to show while the run is closed.
    std::function<v1::Run(const Run&)> describe;
    // The Run object is about to be destroyed.
    std::function<void(Run*)> closing;
    // Whether a closed run has to be opened for work of the daemon's own.
    std::function<bool(const std::string& name)> is_due;
    // Opening a closed run has failed.
    std::function<void(const std::string& name)> reopen_failed;
  };

  RunTable(Options options, Clock* clock, EngineObserver* observer, const SessionTable* sessions,
           Hooks hooks);

  void SetOptions(const Options& options) { options_ = options; }

  // ---- finding

  using Runs = std::map<std::string, std::unique_ptr<Run>>;
  // By name; those that are being opened included.
  const Runs& all() const { return runs_; }
  // Null: there is no such run, or it is closed.
  Run* Find(const std::string& name) const;
  // An open run that the caller may see. UNKNOWN_RUN, WRONG_UID, FOREIGN_NAMESPACE. A closed run is opened,
  // and UNKNOWN_RUN asks the caller to try again.
  absl::StatusOr<Run*> Find(const Caller& caller, const std::string& name);
  // The run of `runs/{run}/checkpoints/{tag}`, and the tag.
  absl::StatusOr<Run*> FindByCheckpoint(const Caller& caller, const std::string& name, std::string* tag);
  bool Sees(const Caller& caller, const Run& run) const;
  // Descriptions of the closed runs that the caller may see.
  std::vector<v1::Run> ClosedRuns(const Caller& caller) const;

  // ---- attaching, opening, closing

  // `session` 0: the daemon itself, for a root that it knows from before.
  void Attach(SessionId session, RootAttachment attachment, Reply<std::string> reply);
  // Calls `then` with the reply when the run is open, if it was closed for being idle; else at once.
  template <typename T>
  void WhenOpen(const Caller& caller, const std::string& name, Reply<T> reply,
                absl::AnyInvocable<void(Reply<T>)> then) {
    const auto closed = closed_.find(name);
    if (closed == closed_.end() || (!caller.privileged && caller.uid != closed->second.uid))
      return then(std::move(reply));
    Reopen(name, [reply = std::move(reply), then = std::move(then)](absl::StatusOr<std::string> run) mutable {
      if (!run.ok()) return reply(run.status());
      then(std::move(reply));
    });
  }

  // Retries locked roots, and ends attaches whose deadline has passed.
  void OnTick(Run* run, Instant now);
  // Closes runs that have been idle for long enough, and opens closed ones that are due.
  void CloseIdleRuns(Instant now);
  // Closes the idle ones of these runs, whose roots are then opened anew at their next use. Returns the paths of
  // the others.
  std::vector<std::string> CloseIdle(const std::function<bool(const Run&)>& which);
  void OnSessionEnded(SessionId session);

 private:
  // An attach that waits until the root is open.
  struct PendingAttach {
    SessionId session = 0;
    RootAttachment attachment;
    Reply<std::string> reply;
    Instant deadline = Instant::max();
  };
  struct State {
    uid_t opener = 0;  // The user who attached first: the root is opened with this user's rights.
    std::vector<PendingAttach> waiting;
    Instant lock_deadline;                                 // Until then a locked root is tried again.
    std::optional<Instant> open_again_at;                  // It was locked; nothing is under way until then.
    std::set<SessionId> attached;                          // Open sessions that have attached the root.
    std::set<SessionId> tenants;                           // Those of `attached` in other namespaces.
    std::set<std::shared_ptr<const void>> known;           // Entries in the list of known roots.
    int remembering = 0;                                   // Attaches that wait for such an entry.
    std::function<void(RootAttachment::Reopened)> reopen;  // As the last attach found the root.
    std::optional<Instant> idle_since;
  };
  // A run that was closed because it was not in use.
  struct Closed {
    v1::Run description;  // As it was then.
    uid_t uid = 0;
    std::function<void(RootAttachment::Reopened)> reopen;
    std::vector<Reply<std::string>> waiting;  // Calls that wait until it is open again.
  };
  // The open roots of a user, counting one more.
  struct Usage {
    int roots = 1;
    std::set<uint64_t> devices;
    Run* longest_idle = nullptr;
  };

  absl::StatusOr<Run*> FindClosed(const Caller& caller, const std::string& name);
  bool HasAttached(const Caller& caller, const Run& run) const;
  void Create(SessionId session, const std::string& name, RootAttachment attachment, Reply<std::string> reply,
              Instant deadline);
  void Accept(Run* run, PendingAttach attach);
  void Open(Run* run);
  void Opened(Run* run, absl::StatusOr<RootSnapshot> snapshot);
  void RefuseOpening(Run* run, const absl::Status& why);
  static void ExpireAttaches(const Run& run, State& state, Instant now);
  bool IsUnused(const Run& run) const;
  bool IsIdle(const Run& run) const;
  void Close(Run* run);
  // Of the run that has this directory; perhaps it is not open yet.
  std::string NameOf(const RootAttachment& attachment) const;
  Usage UsageOf(uid_t uid, uint64_t device);
  // Closes idle runs of the user, the longest idle first, until the user may have one more root.
  absl::Status MakeRoomFor(const RootAttachment& attachment);
  void Reopen(const std::string& name, Reply<std::string> done);
  void Reopened(const std::string& name, const absl::StatusOr<std::string>& run);

  Options options_;
  Clock* const clock_;
  EngineObserver* const observer_;
  const SessionTable* const sessions_;
  const Hooks hooks_;
  Runs runs_;
  RunStates<State> states_;
  std::map<std::string, Closed> closed_;  // By name.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ROOTS_RUN_TABLE_H_
