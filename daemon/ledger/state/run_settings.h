// What operators have set for a run, in etcd: pins of checkpoints, and the retention policy in the place of
// those that saves name.
#ifndef CKPTD_DAEMON_LEDGER_STATE_RUN_SETTINGS_H_
#define CKPTD_DAEMON_LEDGER_STATE_RUN_SETTINGS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/ended_removals.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"

namespace ckptd {

// Any node may write them. The removal of a checkpoint (CheckpointReaders::Evict and Replace) and the
// publication of a save in its place (SavePublication::Publish) compare its pin, and a pin compares the
// removal, so that one of the two fails. A key stays when the checkpoint is unpinned or removed: no other
// checkpoint ever has its sequence.
//
// Each call answers with the key's present value; no-op if it says that already. Answers come after the call
// has returned, and never after the destruction of this object. Errors: NODE_REPLACED, and those of
// etcd_errors.h; after them the change may have been made, and the call may be repeated.
class RunSettings {
 public:
  template <typename T>
  using Answer = absl::AnyInvocable<void(absl::StatusOr<T>)>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;                                                // For messages.
    std::shared_ptr<const EndedRemovals> ended_removals = nullptr;  // Null: none. May change.
  };
  // `etcd` must outlive it.
  RunSettings(Etcd* etcd, Options options);

  // BEING_REMOVED if a checkpoint is to be pinned whose removal was decided.
  void SetPinned(const std::string& tag, int64_t sequence, bool pinned,
                 Answer<ledger::v1::CheckpointPin> set);
  // Pins the checkpoint, as SetPinned; no-op if etcd has a key of it, whatever that says.
  void RememberPin(const std::string& tag, int64_t sequence, Answer<ledger::v1::CheckpointPin> set);
  // Unset: the policies of the saves count.
  void SetRetention(const std::optional<storage::v1::RetentionPolicy>& policy,
                    Answer<ledger::v1::RetentionOverride> set);

 private:
  void Pin(const ledger::v1::CheckpointPin& pin, int64_t sequence, bool only_if_unknown,
           Answer<ledger::v1::CheckpointPin> set);

  Etcd* const etcd_;
  const Options options_;
  const LedgerKeys keys_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_RUN_SETTINGS_H_
