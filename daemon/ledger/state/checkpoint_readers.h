// Prevents the removal of checkpoints that a node reads, and the reading of checkpoints that are being
// removed.
#ifndef CKPTD_DAEMON_LEDGER_STATE_CHECKPOINT_READERS_H_
#define CKPTD_DAEMON_LEDGER_STATE_CHECKPOINT_READERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/ended_removals.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"

namespace ckptd {

// Checkpoints are named by their sequences. Answers come after the call has returned, and never after the
// destruction of this object. Errors: NODE_REPLACED, and those of etcd_errors.h; after them the change may have
// been made, and the call may be repeated.
class CheckpointReaders {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;                                                // For messages.
    std::shared_ptr<const EndedRemovals> ended_removals = nullptr;  // Null: none. May change.
  };
  // `etcd` must outlive it.
  CheckpointReaders(Etcd* etcd, Options options);

  // After OK no node removes or replaces the checkpoint until End, or until this node's registration ends.
  // Call it once for all readers of this node, and open files after OK. BEING_REMOVED if the removal has
  // already been decided.
  void Begin(int64_t sequence, Done begun);
  void End(int64_t sequence, Done ended);

  // What retention knew when it counted the checkpoints that are kept.
  struct Count {
    std::set<int64_t> damaged;                         // Not counted.
    std::shared_ptr<const std::set<int64_t>> listed;   // May have been counted; null: none.
    std::shared_ptr<const std::set<int64_t>> leaving;  // Not counted, of `listed`; null: none. May grow.
  };

  // The checkpoint that is removed.
  struct Victim {
    int64_t sequence = 0;
    std::string tag = "";
    uint64_t inode = 0;  // Of its directory; 0: any, for a decision that names none.
  };

  // Called by the coordinator, for retention: after OK no node begins to read the checkpoint, or pins it.
  // BEING_READ names the nodes that read it. PINNED (RunSettings). DAMAGE_FOUND if other checkpoints are marked as damaged than those of
  // `count`; REMOVAL_FOUND if a checkpoint that may have been counted is being removed.
  void Evict(const Victim& victim, const Count& count, const CompareAndSwap::Held& leadership, Done evicting);
  // The directory of an Evict is durably gone, so its decision is over. No-op if etcd has another decision.
  void EndEviction(const Victim& victim, const CompareAndSwap::Held& leadership, Done ended);
  // Called by the coordinator, for a save that is being published at the checkpoint's tag: after OK no node
  // begins to read the checkpoint, or pins it. BEING_READ and PINNED as for Evict. Nodes that list the checkpoint do so until the
  // save has ended.
  void Replace(int64_t sequence, int64_t replaced_by, const CompareAndSwap::Held& leadership, Done evicting);

 private:
  void Remove(const Victim& victim, int64_t replaced_by, const std::optional<Count>& count,
              const CompareAndSwap::Held& leadership, Done evicting);
  void Set(int64_t sequence, bool reading, const std::string& what, Done done);
  void Finish(CompareAndSwap swap, std::shared_ptr<absl::Status> refused, Done done);

  Etcd* const etcd_;
  const Options options_;
  const LedgerKeys keys_;
  CallbackScope callbacks_;
};

// The nodes that read a checkpoint, from the keys found under LedgerKeys::Readers.
std::vector<std::string> ReadersOf(const std::vector<etcdserverpb::KeyValue>& found);
// Writes the decision to remove the checkpoint. Use it in a transaction that compares its readers, and only
// if there are none. `replaced_by`: 0 for none.
etcdserverpb::RequestOp PutEvicting(const LedgerKeys& keys, int64_t sequence, int64_t replaced_by);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_CHECKPOINT_READERS_H_
