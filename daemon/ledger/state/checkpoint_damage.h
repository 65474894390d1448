// The damage marks of a run's checkpoints in etcd.
#ifndef CKPTD_DAEMON_LEDGER_STATE_CHECKPOINT_DAMAGE_H_
#define CKPTD_DAEMON_LEDGER_STATE_CHECKPOINT_DAMAGE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/ended_removals.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"

namespace ckptd {

// One key for each checkpoint in which a reader on any node has found damage. While a checkpoint is marked,
// no attempt resumes from it (EtcdLedger::DecideResume), and retention does not count it
// (CheckpointReaders::Evict). The key stays when the checkpoint is repaired, which it then records, and when
// the checkpoint is removed: no other checkpoint ever has its sequence.
//
// Answers come after the call has returned, and never after the destruction of this object. Errors:
// NODE_REPLACED, and those of etcd_errors.h; after them the change may have been made, and the call may be
// repeated.
class CheckpointDamage {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;                                                // For messages.
    std::shared_ptr<const EndedRemovals> ended_removals = nullptr;  // Null: none. May change.
  };
  // `etcd` must outlive it.
  CheckpointDamage(Etcd* etcd, Options options);

  // Called on any node, with the tag, the sequence and the time of the damage. An earlier mark stays.
  // BEING_REMOVED if the checkpoint is being removed, or was: the reader may have seen the removal.
  void Mark(const storage::v1::Damage& damage, Done marked);
  // As Mark, for an old mark: no-op if etcd has or had a mark of the checkpoint.
  void Remember(const storage::v1::Damage& damage, Done marked);
  // The checkpoint has been repaired. BEING_REMOVED as for Mark.
  void Clear(int64_t sequence, Done cleared);

 private:
  void Set(int64_t sequence, const storage::v1::Damage* damage, bool only_if_unknown, Done done);

  Etcd* const etcd_;
  const Options options_;
  const LedgerKeys keys_;
  CallbackScope callbacks_;
};

// The marked sequences, from the keys found under LedgerKeys::Damages.
std::set<int64_t> DamagedOf(const std::vector<etcdserverpb::KeyValue>& found);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_CHECKPOINT_DAMAGE_H_
