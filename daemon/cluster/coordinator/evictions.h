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

// For each: it is decided in etcd, once no node reads the checkpoint, and then carried out. Lives as long as
// this node leads. Used on one thread.
class Evictions {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // The pointers must outlive it.
  Evictions(Etcd* etcd, Clock* clock, SharedRootIo* root, CheckpointReaders::Options options,
            CompareAndSwap::Held leadership);
  // NOT_COORDINATOR for those that are under way: they are removed or not.
  ~Evictions();

  // OK: nothing of it is at its tag any more, durably. Tries again while nodes read it, and while etcd or the
  // file system does not answer; other errors end it. `damaged` and `listed`: when retention decided that
  // enough others are kept, the checkpoints that did not count, and those that may have counted; what is
  // being removed in this way does not count. A removal of this sequence that is under way ends first.
  // POINTED, PINNED, NO_CHECKPOINT: something in the root keeps it, or it is not there; nothing was decided.
  void Evict(const std::string& tag, int64_t sequence, std::set<int64_t> damaged,
             std::shared_ptr<const std::set<int64_t>> listed, Done done);
  // For a checkpoint whose removal an earlier coordinator has begun, and of which etcd may have forgotten the
  // decision. Only the directory with the victim's inode is removed: another one at the tag was put back.
  void ContinueRemoval(const CheckpointReaders::Victim& victim, std::set<int64_t> damaged, Done done);
  // Continues what an earlier coordinator has decided, and perhaps begun to remove.
  void Finish(const CheckpointReaders::Victim& victim, Done done);
  // The coordinator's term has begun in the root. Before that it is not known what keeps a checkpoint there,
  // so nothing is decided or removed.
  void TermBegun();
  bool IsUnderWay(int64_t sequence) const { return evictions_.contains(sequence); }
  void OnTick();

 private:
  struct Eviction {
    CheckpointReaders::Victim victim;
    CheckpointReaders::Count count;
    Done done;
    bool checked = false;  // By CheckRemovable, or it was decided before.
    bool decided = false;
    bool removed = false;
    bool asking = false;
    Backoff backoff{std::chrono::milliseconds(100), std::chrono::seconds(1)};
    std::unique_ptr<Eviction>
        next;  // Was asked for while this one was under way, and begins when it has ended.
  };

  void Step(int64_t sequence);
  void Checked(int64_t sequence, const absl::StatusOr<uint64_t>& inode);
  void Decide(int64_t sequence);
  void Decided(int64_t sequence, const absl::Status& decided);
  void Removed(int64_t sequence, const absl::StatusOr<bool>& gone);
  void Ended(int64_t sequence, const absl::Status& ended);
  static bool MayMendItself(const absl::Status& error);
  void End(int64_t sequence, const absl::Status& result);
  void Retry(Eviction& eviction);

  Clock* const clock_;
  SharedRootIo* const root_;
  const std::string run_;
  const CompareAndSwap::Held leadership_;
  CheckpointReaders readers_;
  std::map<int64_t, Eviction> evictions_;  // By sequence.
  // Those that retention has decided to remove under this coordinator, and that a listing may still name.
  const std::shared_ptr<std::set<int64_t>> leaving_ = std::make_shared<std::set<int64_t>>();
  bool term_begun_ = false;
  bool deciding_ = false;  // One at a time: each compares what another one would change.
  CallbackScope callbacks_;
};

// FAILED_PRECONDITION, reason NOT_COORDINATOR.
absl::Status NotCoordinator(const std::string& what, const std::string& run);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_EVICTIONS_H_
