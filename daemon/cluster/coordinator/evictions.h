// Removals of checkpoints by the coordinator of a run.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_EVICTIONS_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_EVICTIONS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/seams/shared_root_io.h"
#include "daemon/etcd/backoff.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Decides each removal in etcd, once no node reads the checkpoint, and then carries it out. Lives as long as
// this node leads. Used on one thread.
class Evictions {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // The pointers must outlive it.
  Evictions(Etcd* etcd, Clock* clock, SharedRootIo* root, CheckpointReaders::Options options,
            CompareAndSwap::Held leadership);
  // Answers removals under way with NOT_COORDINATOR: their checkpoints may have been removed.
  ~Evictions();

  // OK: the checkpoint is durably gone from its tag. Retries while nodes read the checkpoint, and while etcd
  // or the file system does not answer; other errors end the removal. `damaged`: the checkpoints that retention
  // did not count as kept; `listed`: those that it may have counted, except those that Evict is removing. If a
  // removal of this sequence is under way, this one begins when that one has ended. POINTED, PINNED: something
  // in the root keeps the checkpoint; NO_CHECKPOINT: it is not there. In these cases no removal was decided.
  void Evict(const std::string& tag, int64_t sequence, std::set<int64_t> damaged,
             std::shared_ptr<const std::set<int64_t>> listed, Done done);
  // For a checkpoint whose removal an earlier coordinator has begun, when etcd may have lost the decision.
  // Removes only the directory with the victim's inode: another directory at the tag was put back since.
  void ContinueRemoval(const CheckpointReaders::Victim& victim, std::set<int64_t> damaged, Done done);
  // Continues a removal that an earlier coordinator has decided, and perhaps begun.
  void Finish(const CheckpointReaders::Victim& victim, Done done);
  // The coordinator's term has begun in the root. Before this call nothing is decided or removed, because it
  // is not known which checkpoints the root keeps.
  void TermBegun();
  bool IsUnderWay(int64_t sequence) const { return evictions_.contains(sequence); }
  bool idle() const { return evictions_.empty(); }
  void OnTick();

 private:
  struct Eviction {
    CheckpointReaders::Victim victim;
    CheckpointReaders::Count count;
    Done done;
    bool checked = false;  // CheckRemovable has passed, or the removal was decided before.
    bool decided = false;
    bool removed = false;
    bool asking = false;
    Backoff backoff{std::chrono::milliseconds(100), std::chrono::seconds(1)};
    // A request that came while this one was under way; it begins when this one has ended.
    std::unique_ptr<Eviction> next;
  };

  void Step(int64_t sequence);
  void Checked(int64_t sequence, const absl::StatusOr<uint64_t>& inode);
  void Decide(int64_t sequence);
  void Decided(int64_t sequence, const absl::Status& decided);
  void Removed(int64_t sequence, const absl::StatusOr<bool>& gone);
  void Ended(int64_t sequence, const absl::Status& ended);
  static bool IsTransient(const absl::Status& error);
  void End(int64_t sequence, const absl::Status& result);
  void Retry(Eviction& eviction);

  Clock* const clock_;
  SharedRootIo* const root_;
  const std::string run_;
  const CompareAndSwap::Held leadership_;
  CheckpointReaders readers_;
  std::map<int64_t, Eviction> evictions_;  // By sequence.
  // Checkpoints whose removal this coordinator has decided for retention; a listing may still have them.
  const std::shared_ptr<std::set<int64_t>> leaving_ = std::make_shared<std::set<int64_t>>();
  bool term_begun_ = false;
  bool deciding_ = false;  // One at a time: each compares keys that another one would change.
  CallbackScope callbacks_;
};

// FAILED_PRECONDITION, reason NOT_COORDINATOR.
absl::Status NotCoordinator(const std::string& what, const std::string& run);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_EVICTIONS_H_
