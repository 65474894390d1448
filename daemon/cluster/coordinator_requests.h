// Operators' requests that only a run's coordinator carries out, sent from any node through etcd.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_REQUESTS_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_REQUESTS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/cluster/node/ledger_calls.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Sends this node's requests, and, while this node leads, serves those of all nodes. A request has a key
// under its node's lease, so that it ends with its node's registration. Keys of answered requests are reused:
// a node has as many keys as it ever had requests in flight. The next coordinator serves what an earlier one
// has not answered, so a request may be carried out twice, and must be idempotent. Used on one thread.
class CoordinatorRequests {
 public:
  using Request = ledger::v1::CoordinatorRequest;
  using Reply = ledger::v1::CoordinatorRequest::Answer;
  using Done = absl::AnyInvocable<void(absl::StatusOr<Reply>)>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    std::string run;     // For messages.
    Duration patience = std::chrono::seconds(30);
    LedgerCalls::WhyUnregistered why_unregistered = nullptr;
  };
  struct Hooks {
    // Carries the request out on this node, which leads. NOT_COORDINATOR: it has stepped down meanwhile.
    std::function<void(const Request&, Done)> serve;
    // Whether this node knows a coordinator of the run.
    std::function<bool()> has_coordinator;
    // Etcd refuses to show the requests: an error of EtcdMirror.
    std::function<void(const absl::Status& why)> ended;
  };
  // `etcd` and `clock` must outlive it.
  CoordinatorRequests(Etcd* etcd, Clock* clock, Options options, Hooks hooks);

  // The present registration; null: none. On null, requests that etcd has fail with LEDGER_UNAVAILABLE; the
  // others are sent with the next registration.
  void SetNode(const NodeIdentity* node);
  // This node's leadership; null: it does not lead.
  void SetLeadership(const CompareAndSwap::Held* leadership);
  void OnTick();
  bool idle() const { return pending_.empty(); }

  // Answers with the coordinator's answer, or its error. There is no deadline while a coordinator is known,
  // because it may have to wait for readers. LEDGER_UNAVAILABLE if no coordinator is known for the patience: the
  // request was not carried out. LEDGER_UNAVAILABLE also if etcd does not answer for that long, or this node's
  // registration ends: the request may or may not be carried out.
  void Ask(Request request, Done done);

 private:
  struct Pending {
    int64_t number = 0;
    Done done;  // Null until etcd has the request.
    bool withdrawn = false;
    Instant patient_until{};
  };

  void Send(Request request, Done done);
  void OnOwnKeys(const std::vector<std::string>& keys);
  void OnOwnKey(int place, const std::string* value);
  void End(int place, absl::StatusOr<Reply> answer);
  void Withdraw(int place, const absl::Status& why);
  void OnAllKeys(const std::vector<std::string>& keys);
  void Serve(const std::string& key, const Request& request);
  void WriteAnswer(const std::string& key, const Request& request, const Reply& reply,
                   const CompareAndSwap::Held& held, Instant deadline,
                   LedgerCalls::Answer<absl::Status> done);

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  const Hooks hooks_;
  const LedgerKeys keys_;
  LedgerCalls calls_;

  // Of the present registration.
  std::optional<NodeIdentity> node_;
  std::map<int, Pending> pending_;  // By place.
  int64_t last_number_ = 0;
  std::unique_ptr<EtcdMirror> own_;  // The keys of this node, while a request is under way.

  // Of the present leadership.
  std::optional<CompareAndSwap::Held> leadership_;
  std::unique_ptr<EtcdMirror> all_;
  std::map<std::string, Request> serving_;  // By key: the requests that are being carried out.
  std::optional<CallbackScope> leading_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_REQUESTS_H_
