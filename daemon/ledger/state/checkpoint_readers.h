// What a run's nodes read is not removed, and what is removed they do not begin to read.
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

// Checkpoints are named by their sequences. Answers come later, and not after the end of this object. Errors:
// NODE_REPLACED, and those of etcd_errors.h; then what was asked for was done or not, and may be asked again.
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

  // From OK on no node removes or replaces the checkpoint, until this node ends reading it or its
  // registration ends. Once for all readers of this node. BEING_REMOVED if that has been decided already.
  // Files are opened after OK.
  void Begin(int64_t sequence, Done begun);
  void End(int64_t sequence, Done ended);

  // What retention knew when it decided that enough others are kept.
  struct Count {
    std::set<int64_t> damaged;                         // Did not count.
    std::shared_ptr<const std::set<int64_t>> listed;   // May have counted; null: none.
    std::shared_ptr<const std::set<int64_t>> leaving;  // Did not count, of `listed`; null: none. May grow.
  };

  // The checkpoint that is removed.
  struct Victim {
    int64_t sequence = 0;
    std::string tag = "";
    uint64_t inode = 0;  // Of its directory; 0: any, because an earlier decision may not have named it.
  };

  // By the coordinator: from OK on no node begins to read it. BEING_READ names the nodes that do.
  // For retention. DAMAGE_FOUND if other checkpoints are marked as damaged than those of `count`,
  // REMOVAL_FOUND if one is being removed that may have counted.
  void Evict(const Victim& victim, const Count& count, const CompareAndSwap::Held& leadership, Done evicting);
  // The directory of an Evict is gone, durably: the decision is over. No-op if there is another decision.
  void EndEviction(const Victim& victim, const CompareAndSwap::Held& leadership, Done ended);
  // For a save that is being published and has its tag: nodes that listed it do so until that one has ended.
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

// The nodes that read a checkpoint, of what was found under LedgerKeys::Readers.
std::vector<std::string> ReadersOf(const std::vector<etcdserverpb::KeyValue>& found);
// Decides that the checkpoint is removed. Counts only if no node read it when its readers were found.
// `replaced_by`: 0 for none.
etcdserverpb::RequestOp PutEvicting(const LedgerKeys& keys, int64_t sequence, int64_t replaced_by);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_CHECKPOINT_READERS_H_
