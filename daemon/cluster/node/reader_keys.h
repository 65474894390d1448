// The reader keys of this node: no node removes a checkpoint while this node has a key for it.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_READER_KEYS_H_
#define CKPTD_DAEMON_CLUSTER_NODE_READER_KEYS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/cluster/node/ledger_calls.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "storage/base/clock.h"

namespace ckptd {

// CheckpointReaders writes one key of this node for each checkpoint; this class counts the readers that share
// the key. Used on one thread.
class ReaderKeys {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    std::string run;     // For messages.
    Duration patience = std::chrono::seconds(30);
    LedgerCalls::WhyUnregistered why_unregistered = nullptr;
    std::shared_ptr<const EndedRemovals> ended_removals = nullptr;  // See CheckpointReaders.
  };
  // `etcd` and `clock` must outlive it.
  ReaderKeys(Etcd* etcd, Clock* clock, Options options);

  // The present registration; null: none. Without a registration reads continue, and the next one writes the
  // keys again. If a checkpoint has been removed meanwhile, its readers find no files.
  void SetNode(const NodeIdentity* node);
  void OnTick();
  // Whether this node has no reader key.
  bool idle() const { return reading_.empty(); }

  // After OK no node removes the checkpoint until Release, which must be called once for each OK.
  // BEING_REMOVED if the removal is already decided; LEDGER_UNAVAILABLE after `patience`.
  void Acquire(int64_t sequence, Done acquired);
  // Between Acquire and Release: asks etcd once more, because a registration may have been lost meanwhile.
  // OK: no node has removed the checkpoint since Acquire. BEING_REMOVED; LEDGER_UNAVAILABLE after the
  // patience.
  void Confirm(int64_t sequence, Done confirmed);
  void Release(int64_t sequence);

 private:
  enum class Key { kNone, kBeginning, kHeld, kEnding };
  struct Reading {
    int readers = 0;  // Those whose Acquire was answered with OK.
    std::vector<Done> waiting;
    Key key = Key::kNone;
    // A Begin has failed, but etcd may have applied it, or may apply it later: the key must be removed.
    bool unsure = false;
  };

  void Step(int64_t sequence);
  void Begin(int64_t sequence, Instant deadline);
  void Begun(int64_t sequence, const absl::Status& begun);
  void End(int64_t sequence, Instant deadline);

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  LedgerCalls calls_;
  std::unique_ptr<CheckpointReaders> readers_;  // Of the present registration.
  std::map<int64_t, Reading> reading_;          // By sequence.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_READER_KEYS_H_
