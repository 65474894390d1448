// The checkpoints that this node lists in the root of a run that several nodes share.
#ifndef CKPTD_DAEMON_CLUSTER_CHECKPOINT_LIST_H_
#define CKPTD_DAEMON_CLUSTER_CHECKPOINT_LIST_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/ended_removals.h"
#include "storage/base/clock.h"

namespace ckptd {

// Merges three sources, each of which may be behind the others: the last scan of the root, the saves that etcd
// has as committed, and the removals that are decided. Lives over all registrations of the node. Used on one
// thread.
class CheckpointList {
 public:
  // A checkpoint whose removal is decided, until that decision is over and this node cannot see the directory
  // any more.
  struct Removal {
    ledger::v1::Evicting decision;
    std::string value;     // The value of its key,
    int64_t revision = 0;  // and etcd's revision at which the key got it.
    std::string tag;       // Empty: not known.
    std::optional<Instant> over_since;
    bool hidden = false;  // A scan has shown the checkpoint, and the list leaves it out.
  };
  struct Hooks {
    // The state of a save, as etcd has shown it to this registration; nullopt: not yet.
    std::function<std::optional<ledger::v1::SaveState>(int64_t sequence)> save_state;
    // The states are shown as they were at this revision of etcd or a later one; 0: nothing is shown yet.
    std::function<int64_t()> saves_revision;
    std::function<void(int64_t sequence)> removed;  // As those of Authority::Hooks.
    std::function<void(const std::string& message)> noticed;
    std::function<void()> root_changed;
  };
  // `visibility`: how late this node may see changes that another node has made in the root.
  CheckpointList(Clock* clock, Duration visibility, Hooks hooks)
      : clock_(clock), longest_look_(visibility + std::chrono::seconds(2)), hooks_(std::move(hooks)) {}

  // ---- etcd

  // A save of this sequence is a checkpoint.
  void OnCommitted(int64_t sequence, const std::string& tag);
  // Likewise, and the engine of this node lists it from now on.
  void OnCommittedHere(int64_t sequence, const std::string& tag);
  // Etcd holds this key, which is LedgerKeys::Evicting of the sequence.
  void OnRemoval(int64_t sequence, const etcdserverpb::KeyValue& key);
  // Etcd has shown all such keys to this registration.
  void OnRemovalsKnown() { removals_known_ = true; }
  // The registration is over: the next one is shown them anew.
  void OnRegistrationEnded() { removals_known_ = false; }
  void OnTick();  // Call it several times a second.

  // ---- scans

  // Whether the scan that began at `begun` may have missed a checkpoint because this node sees names late.
  // False once that time is over: another program has removed the missing checkpoint.
  bool IsStale(const RootSnapshot& root, Instant begun);
  // Takes the checkpoints whose removal is decided out of `root`, and sets root->leaving.
  void Apply(RootSnapshot* root);

  // ---- queries

  // The latest time of begin of the checkpoints that scans have shown, Unix time in microseconds; 0: there was none.
  int64_t latest_begin_us() const { return latest_begin_us_; }
  bool IsBeingRemoved(int64_t sequence) const { return removals_.contains(sequence); }
  const std::map<int64_t, Removal>& removals() const { return removals_; }
  // The checkpoints that retention may count, as far as this node knows.
  std::shared_ptr<const std::set<int64_t>> sequences();
  std::shared_ptr<const EndedRemovals> ended_removals() const { return ended_removals_; }

 private:
  void KeepKnown(RootSnapshot* root) const;
  void TakeOutRemoved(RootSnapshot* root);
  void NoticePutBack(const RootSnapshot& root);
  int64_t LastReplacing() const;
  std::optional<bool> HasReplaced(const Removal& removal) const;
  int64_t MissingIn(const RootSnapshot& root) const;

  Clock* const clock_;
  const Duration longest_look_;  // For a checkpoint that etcd knows; longer than `visibility`.
  const Hooks hooks_;
  // Tags by sequence: the checkpoints that etcd has as committed or a scan has shown, and that are not being
  // removed. missing_: one that the root lacks, as this node sees it, and since when.
  std::map<int64_t, std::string> known_;
  std::optional<std::pair<int64_t, Instant>> missing_;
  std::shared_ptr<const std::set<int64_t>> sequences_;  // The keys of known_; null: known_ has changed since.
  std::map<int64_t, std::string> shown_;                // The last scan after Apply: tags by sequence.
  std::map<int64_t, Removal> removals_;                 // By sequence; kept across registrations.
  bool removals_known_ = false;
  const std::shared_ptr<EndedRemovals> ended_removals_ = std::make_shared<EndedRemovals>();
  int64_t latest_begin_us_ = 0;
  int64_t highest_evicted_ = 0;  // The highest sequence that retention has removed.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_CHECKPOINT_LIST_H_
