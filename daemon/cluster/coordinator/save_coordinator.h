// The coordinator's side of saves that span nodes: decides on each save, and publishes it.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_SAVE_COORDINATOR_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_SAVE_COORDINATOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/cluster/coordinator/absent_nodes.h"
#include "daemon/cluster/coordinator/checkpoint_publication.h"
#include "daemon/cluster/coordinator/old_saves.h"
#include "daemon/cluster/coordinator/prepared_saves.h"
#include "daemon/cluster/coordinator/save_watch.h"
#include "daemon/cluster/coordinator/unknown_outcomes.h"
#include "daemon/engine/seams/shared_root_io.h"
#include "daemon/etcd/backoff.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/nodes/run_coordinator.h"
#include "daemon/ledger/save/change_save.h"
#include "daemon/ledger/save/save_admission.h"
#include "daemon/ledger/save/save_publication.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "daemon/ledger/state/save_view.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Lives while this node leads (RunCoordinator::Leadership::mine); the next coordinator continues from etcd
// and the root. The watches only show when a decision may be due: each decision is a transaction that reads
// the keys anew, and counts only while this node leads. So this object does no harm if it acts on an old
// state, or after it has lost the leadership.
//
//   - It makes the in-flight directory of each save that is proposed. No other node makes one: a late request
//     could bring back a name that was removed.
//   - Once the active attempt has saved, it prepares the next save, with its directory (PreparedSaves), so
//     that a Begin waits for nothing but the nodes' votes.
//   - Saves are published in the order of their sequences: each waits until all earlier saves have ended.
//   - It ends a save when no node waits for its admission any longer. Nodes themselves reject a save at its
//     deadline, but a save whose daemons have all started again would hold up all later ones.
//   - A node that is not registered for the grace period is lost. That ends the saves for which its files are
//     not durable.
//
// Used on one thread, the engine's.
class SaveCoordinator {
 public:
  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;                                  // For messages.
    Duration grace = std::chrono::seconds(30);        // For a node to come back.
    Duration visibility = std::chrono::seconds(5);    // For how long names in the root may be old.
    Duration ended_kept_for = std::chrono::hours(1);  // As OldSaves::Options::kept_for.
  };
  struct Hooks {
    // Runs once, when this node may publish, remove, and write pointers.
    std::function<void()> term_begun;
    // Of the checkpoints that the root has shown to this node; 0: there was none. Those to come get a later time.
    std::function<int64_t()> latest_begin_us;
    // Runs once, when this object stops deciding: NOT_COORDINATOR, or an error of etcd_errors.h except
    // LEDGER_UNAVAILABLE and LEDGER_FULL.
    std::function<void(const absl::Status&)> lost;
  };
  // `etcd`, `clock` and `root` must outlive it. The hooks must not destroy the object.
  SaveCoordinator(Etcd* etcd, Clock* clock, SharedRootIo* root, Options options,
                  const RunCoordinator::Leadership& leadership, Hooks hooks);

  void Start();
  void OnTick();  // Call it several times a second.
  // As Authority::SettleSave; the answer may come within the call.
  void SettleSave(const std::string& tag, bool is_checkpoint, UnknownOutcomes::Answer answer);
  // Whether this node may publish: hooks.term_begun has run.
  bool term_begun() const { return term_begun_; }
  int64_t term() const { return leadership_.term; }
  // Whether no save is under way, none has an unknown outcome, and nothing is left to do in the root.
  bool idle() const;
  // What the next checkpoint waits for, for messages; empty: nothing.
  std::string WaitsFor() const;
  // Why this coordinator cannot publish what the nodes have written; empty: it can.
  std::string Obstacle() const;
  // The names of the nodes that this save waits for: by its phase, those that have not voted, not sealed, or
  // not reported durable files. Empty: none, or the save is not known.
  std::vector<std::string> MissedNodes(int64_t attempt, const std::string& tag, int64_t ordinal) const;
  // Since when this save waits for its directory, without which it is not admitted; nullopt: the directory is
  // there, or the save is not known.
  std::optional<Instant> DirectoryAwaitedSince(int64_t attempt, const std::string& tag,
                                               int64_t ordinal) const;

 private:
  struct Save {
    SharedSave save;
    bool changed = true;    // Since etcd was asked last.
    bool asking = false;    // A decision is under way.
    bool making = false;    // The directory was asked for.
    Instant making_since;   // When it was asked for.
    std::string inflight;   // The directory that was made; empty: none yet.
    absl::Status unusable;  // Why no directory could be made.
    Instant seen_at;        // When this coordinator first saw the save.
    bool overdue = false;   // No node waits for its admission any longer.
    Backoff backoff;
  };
  using Answer = SavePublication::Answer<SharedSave>;

  const Save* Find(int64_t attempt, const std::string& tag, int64_t ordinal) const;
  void OnStates(const std::vector<std::string>& keys);
  void OnState(const SharedSave& save);
  void Follow(const SharedSave& save);
  void Ended(const SharedSave& save);
  void OnVotes(int64_t sequence);
  void OnWatched();
  void FollowVotes();
  void CheckDeadlines();
  void Changed(int64_t sequence);
  void AllChanged();

  void Act(int64_t sequence);
  void MakeInflight(Save& save);
  // Decides what it can by now.
  void Decide(Save& save, const SaveView& view);
  bool IsOverdue(const std::string& absent);
  std::optional<std::string> LostNode(const Save& save, const SaveView& view);
  ledger::v1::SaveEnd NoDirectory(const SharedSave& save, const absl::Status& why) const;
  Answer Decided(Save& save);
  void BeginTerm();
  void PublishIfNext(const Save& save, const SaveView& view);
  void Sweep();
  void OnLost(const absl::Status& why);

  Clock* const clock_;
  SharedRootIo* const root_;
  const Options options_;
  const RunCoordinator::Leadership leadership_;
  const LedgerKeys keys_;
  const Hooks hooks_;
  SaveAdmission admission_;
  SavePublication decisions_;
  CheckpointReaders readers_;
  EtcdMirror states_;
  SaveWatch watch_;
  PreparedSaves prepared_;
  UnknownOutcomes unknown_;
  OldSaves old_;
  bool reading_states_ = false;  // Nothing is decided meanwhile.
  bool lost_ = false;
  bool beginning_term_ = false, term_begun_ = false;
  absl::Status term_error_;  // Of the last try.
  Backoff term_backoff_;

  std::map<int64_t, Save> saves_;  // By sequence: those that have not ended, as far as `states_` shows.
  std::unique_ptr<CheckpointPublication> publication_;
  // The nodes of these saves, by name, and the registrations that had sealed parts, by the value of their key.
  AbsentNodes absent_;

  bool states_known_ = false;
  int64_t last_sequence_ = 0;
  int64_t unused_ = 0;  // The last sequence for which a directory was made that no save uses.
  bool sweep_needed_ = false, sweeping_ = false;
  Backoff sweep_backoff_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_SAVE_COORDINATOR_H_
