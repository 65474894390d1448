#include "daemon/ledger/nodes/node_membership.h"

#include <algorithm>
#include <utility>

#include "storage/base/errors.h"

namespace ckptd {

NodeMembership::NodeMembership(Etcd* etcd, Clock* clock, Options options, NodeRegistration::Remember remember,
                               NewIncarnation new_incarnation, Changed changed)
    : etcd_(etcd),
      clock_(clock),
      options_(std::move(options)),
      remember_(std::move(remember)),
      new_incarnation_(std::move(new_incarnation)),
      changed_(std::move(changed)),
      remembered_(options_.incarnations),
      wait_(options_.shortest_wait) {}

const NodeIdentity* NodeMembership::identity() const {
  return registered_ && registration_->held() ? &registration_->identity() : nullptr;
}

void NodeMembership::OnTick() {
  if (released_) return;
  if (!given_up_.ok()) Lost(absl::Status(given_up_));
  if (std::exchange(over_, false)) registration_ = nullptr;
  if (registration_ != nullptr) return registration_->OnTick();
  if (clock_->Now() >= next_try_) Register();
}

// After a failed registration the next try uses the same incarnation: nothing but the registration was
// written under it, and the list in the state directory stays short.
void NodeMembership::Register() {
  if (incarnation_.empty()) incarnation_ = new_incarnation_();
  NodeRegistration::Options options;
  options.prefix = options_.prefix;
  options.name = options_.name;
  options.host = options_.host;
  options.version = options_.version;
  options.incarnation = incarnation_;
  options.predecessors = remembered_;
  options.lease_seconds = options_.lease_seconds;
  registration_ = std::make_unique<NodeRegistration>(
      etcd_, clock_, std::move(options),
      [this](const std::vector<std::string>& incarnations, NodeRegistration::Done remembered) {
        Remember(incarnations, std::move(remembered));
      },
      [this](const absl::Status& why) { Lost(why); });
  registration_->Register([this](const absl::Status& status) { Registered(status); });
}

void NodeMembership::Remember(const std::vector<std::string>& incarnations,
                              NodeRegistration::Done remembered) {
  remember_(incarnations, callbacks_.Guard([this, incarnations,
                                            remembered = std::move(remembered)](absl::Status status) mutable {
    if (status.ok()) remembered_ = incarnations;
    remembered(std::move(status));
  }));
}

void NodeMembership::Registered(const absl::Status& status) {
  if (status.ok()) {
    registered_ = true;
    last_reason_.clear();
    wait_ = options_.shortest_wait;
    return changed_(registration_->identity());
  }
  over_ = true;
  next_try_ = clock_->Now() + wait_;
  wait_ = std::min<Duration>(wait_ * 2, std::chrono::seconds(options_.lease_seconds));
  const std::string reason(ReasonOf(status));
  if (std::exchange(last_reason_, reason) != reason) changed_(status);
}

void NodeMembership::RegisterAnew(const absl::Status& why) {
  if (registered_) given_up_ = why;
}

void NodeMembership::Lost(const absl::Status& why) {
  registered_ = false;
  given_up_ = absl::OkStatus();
  over_ = true;
  incarnation_.clear();
  next_try_ = clock_->Now();
  last_reason_ = ReasonOf(why);
  changed_(why);
}

void NodeMembership::Release(NodeRegistration::Done released) {
  released_ = true;
  if (identity() != nullptr) return registration_->Release(std::move(released));
  registration_ = nullptr;  // Keys that it may have written are removed when its lease ends.
  registered_ = false;
  released(absl::OkStatus());
}

}  // namespace ckptd
