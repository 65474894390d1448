#include "daemon/ledger/nodes/node_registration.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "storage/base/errors.h"

namespace ckptd {

using etcdserverpb::RequestOp;

CompareAndSwap::Held NodeIdentity::Held() const {
  return {
      key, value,
      MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kNodeReplaced,
                absl::StrCat("etcd no longer knows this daemon as node \"", name,
                             "\": its lease has ended, or a daemon that was started later has the name"))};
}

NodeRegistration::NodeRegistration(Etcd* etcd, Clock* clock, Options options, Remember remember,
                                   std::function<void(const absl::Status& why)> lost)
    : etcd_(etcd),
      options_(std::move(options)),
      remember_(std::move(remember)),
      lost_(std::move(lost)),
      lease_(etcd, clock, options_.lease_seconds, absl::StrCat("living as node ", options_.name),
             [this](const absl::Status& why) { Lost(why); }) {
  ledger::v1::Node node;
  node.set_incarnation(options_.incarnation);
  node.set_host(options_.host);
  node.set_version(options_.version);
  node.set_register_time_us(clock->UnixMicros());
  identity_.name = options_.name;
  identity_.key = absl::StrCat(options_.prefix, "nodes/", options_.name);
  identity_.value = node.SerializeAsString();
}

NodeRegistration::~NodeRegistration() = default;

void NodeRegistration::OnTick() { lease_.OnTick(); }

// Stores the new incarnation in the state directory before etcd can know it. In the other order, a daemon
// that ended in between would leave a name that its successor may not take.
void NodeRegistration::Register(Done answer) {
  std::vector<std::string> incarnations = options_.predecessors;
  // An earlier try with this incarnation may have stored it.
  if (std::find(incarnations.begin(), incarnations.end(), options_.incarnation) == incarnations.end()) {
    incarnations.push_back(options_.incarnation);
  }
  remember_(incarnations,
            callbacks_.Guard([this, answer = std::move(answer)](const absl::Status& remembered) mutable {
              if (!remembered.ok()) return answer(remembered);
              Acquire(std::move(answer));
            }));
}

void NodeRegistration::Acquire(Done answer) {
  lease_.Acquire([this, answer = std::move(answer)](const absl::StatusOr<int64_t>& lease) mutable {
    if (!lease.ok()) return answer(lease.status());
    identity_.lease = *lease;
    identity_.lease_end = lease_.end();
    TakeName(std::move(answer));
  });
}

void NodeRegistration::TakeName(Done answer) {
  auto predecessor = std::make_shared<Predecessor>();
  CompareAndSwap swap;
  swap.ranges = {{identity_.key}};
  swap.decide = [this, predecessor,
                 here = CallbackScope::Observer(callbacks_)](const CompareAndSwap::Found& found) {
    return here.ended() ? std::vector<RequestOp>() : Decide(found, predecessor.get());
  };
  swap.purpose = absl::StrCat("registering as node ", options_.name);
  SwapIn(
      etcd_, std::move(swap),
      callbacks_.Guard([this, predecessor, answer = std::move(answer)](const absl::Status& written) mutable {
        if (!written.ok()) return answer(written);
        if (!predecessor->refused.ok()) return answer(predecessor->refused);
        if (predecessor->found) return EndPredecessor(predecessor->lease, std::move(answer));
        RememberOnlyThis(std::move(answer));
      }));
}

std::vector<RequestOp> NodeRegistration::Decide(const CompareAndSwap::Found& found,
                                                Predecessor* predecessor) {
  predecessor->refused = absl::OkStatus();
  const RequestOp put = Put(identity_.key, identity_.value, identity_.lease);
  if (found[0].empty()) return {put};
  const etcdserverpb::KeyValue& holder = found[0][0];
  if (holder.value() == identity_.value && holder.lease() == identity_.lease) return {};
  ledger::v1::Node node;
  node.ParseFromString(holder.value());
  const auto& known = options_.predecessors;
  if (std::find(known.begin(), known.end(), node.incarnation()) == known.end()) {
    predecessor->refused = Taken(node.host());
    return {};
  }
  *predecessor = {true, holder.lease(), absl::OkStatus()};
  return {put};
}

absl::Status NodeRegistration::Taken(const std::string& host) const {
  return MakeError(absl::StatusCode::kAlreadyExists, ledger_reason::kNodeNameTaken,
                   absl::StrCat("a daemon on host ", host, " is known to etcd as node \"", options_.name,
                                "\"; give each daemon a name of its own. If that daemon has ended, and its "
                                "state directory is lost, its name is free ",
                                options_.lease_seconds, " s after its end"));
}

// A late copy of the predecessor's own registration could register the predecessor again once this daemon's
// key is gone. Without the predecessor's lease, etcd refuses that copy.
void NodeRegistration::EndPredecessor(int64_t lease, Done answer) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  auto done = callbacks_.Guard([this, answer = std::move(answer)](const absl::Status& ended) mutable {
    if (!ended.ok() && ReasonOf(ended) != ledger_reason::kLeaseEnded) return answer(ended);
    RememberOnlyThis(std::move(answer));
  });
  etcd_->RevokeLease(
      request, absl::StrCat("taking over the name of node ", options_.name),
      [done = std::move(done)](const absl::StatusOr<etcdserverpb::LeaseRevokeResponse>& revoked) mutable {
        done(revoked.status());
      });
}

void NodeRegistration::RememberOnlyThis(Done answer) {
  remember_({options_.incarnation},
            callbacks_.Guard([this, answer = std::move(answer)](const absl::Status& remembered) mutable {
              if (!remembered.ok()) return answer(remembered);
              if (!lease_.held()) return answer(identity_.Held().lost);
              registered_ = true;
              answer(absl::OkStatus());
            }));
}

void NodeRegistration::Lost(const absl::Status& why) {
  if (std::exchange(registered_, false)) lost_(why);
}

}  // namespace ckptd
