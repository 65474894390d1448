// The damage marks of a run's checkpoints in etcd: no attempt on any node resumes from a marked checkpoint.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_DAMAGE_KEYS_H_
#define CKPTD_DAEMON_CLUSTER_NODE_DAMAGE_KEYS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/cluster/node/ledger_calls.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/state/checkpoint_damage.h"
#include "storage/base/clock.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

// Keeps the marks of all nodes, which the owner passes to OnMark, across registrations, and writes those of
// this node. Used on one thread.
class DamageKeys {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using Damage = std::optional<storage::v1::Damage>;  // Unset: the checkpoint has been repaired.
  // Runs when a mark is made or cleared on any node.
  using Changed = std::function<void(int64_t sequence, const Damage& damage)>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    std::string run;     // For messages.
    Duration patience = std::chrono::seconds(30);
    LedgerCalls::WhyUnregistered why_unregistered = nullptr;
    std::shared_ptr<const EndedRemovals> ended_removals = nullptr;  // See CheckpointDamage.
  };
  // `etcd` and `clock` must outlive it.
  DamageKeys(Etcd* etcd, Clock* clock, Options options, Changed changed);

  // The present registration; null: none.
  void SetNode(const NodeIdentity* node);
  void OnTick() { calls_.OnTick(); }

  // Etcd shows this value of `damaged/<sequence>`; null: there is no such key.
  void OnMark(int64_t sequence, const std::string* value);

  // OK: the checkpoint is marked, and `changed` has run. Errors of CheckpointDamage; LEDGER_UNAVAILABLE after
  // the patience.
  void Mark(const storage::v1::Damage& damage, Done marked);
  void Clear(int64_t sequence, Done cleared);

  // Sets the mark of a checkpoint that was found in the root to etcd's mark. Writes a mark that only the root
  // has, as in a run that has come from another etcd, to etcd.
  void Apply(CommittedCheckpoint* checkpoint);
  // The sequences of all marked checkpoints, also of those that have been removed since.
  std::set<int64_t> damaged() const;

 private:
  void Set(int64_t sequence, const Damage& damage);
  void Remember(const storage::v1::Damage& damage);

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  const Changed changed_;
  LedgerCalls calls_;
  std::unique_ptr<CheckpointDamage> ledger_;  // Of the present registration.
  std::map<int64_t, Damage> known_;           // By sequence.
  std::set<int64_t> remembering_;             // Their marks are being written to etcd.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_DAMAGE_KEYS_H_
