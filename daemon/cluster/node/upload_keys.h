// What a run uploads to a bucket, as this node knows it from etcd.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_UPLOAD_KEYS_H_
#define CKPTD_DAEMON_CLUSTER_NODE_UPLOAD_KEYS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/cluster/node/ledger_calls.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// The policy is written by the node of a launch's rank 0, the record by the coordinator alone. Follows both, and
// keeps them across registrations. Used on one thread; answers come after the call has returned, unless a comment
// says otherwise.
class UploadKeys {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  struct Known {
    ledger::v1::UploadsOfLaunch policy;
    ledger::v1::RunUploads record;
  };

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    std::string run;     // For messages.
    Duration patience = std::chrono::seconds(30);
    LedgerCalls::WhyUnregistered why_unregistered = nullptr;
  };
  // `ended`: etcd refuses to show the keys: an error of EtcdMirror. `etcd` and `clock` must outlive it.
  UploadKeys(Etcd* etcd, Clock* clock, Options options, std::function<void(const absl::Status& why)> ended);

  // The present registration; null: none.
  void SetNode(const NodeIdentity* node);
  // This node's leadership; null: it does not coordinate.
  void SetLeadership(const CompareAndSwap::Held* leadership);
  void OnTick() { calls_.OnTick(); }

  // Rank 0 of this attempt, on this node, has joined with this policy; no URL: it uploads nothing. OK: the
  // coordinator counts every later commit by it, or a later attempt has joined. LEDGER_UNAVAILABLE after the
  // patience. May answer within the call.
  void SetPolicy(int64_t attempt, const storage::v1::UploadRecord& policy, Done set);

  // The last values of the keys that etcd has shown and that could be parsed; they may have changed since.
  const Known& shown() const { return shown_; }
  // Rises when shown() changes.
  int64_t version() const { return version_; }
  // What etcd has now. DATA_LOSS, reason CORRUPT_KEY, if a key is not what ckptd has written.
  void Read(absl::AnyInvocable<void(absl::StatusOr<Known>)> read);
  // Writes the record, and raises the run's last sequence to `sequences_above` if it is lower. Call it while this
  // node leads, one call at a time. NOT_COORDINATOR; errors of etcd_errors.h.
  void Write(const ledger::v1::RunUploads& record, int64_t sequences_above, Done written);

 private:
  void OnKeys(const std::vector<std::string>& changed);
  // Parses one of the two keys into `known`; after an error `known` is unchanged.
  absl::Status Take(const std::string& key, const std::string& value, Known* known) const;

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  const LedgerKeys keys_;
  const std::function<void(const absl::Status& why)> ended_;
  LedgerCalls calls_;
  // Of the present registration.
  std::optional<NodeIdentity> node_;
  std::optional<CompareAndSwap::Held> leadership_;
  std::unique_ptr<EtcdMirror> mirror_;
  int64_t version_ = 0;  // 0: etcd has shown nothing yet.
  Known shown_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_UPLOAD_KEYS_H_
