#include "daemon/runtime/cluster/cluster_node.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/log/log.h"
#include "storage/base/boot_clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

std::string NodesPrefix(const NodeMembership::Options& membership) {
  return absl::StrCat(membership.prefix, "nodes/");
}

void SetError(const absl::Status& status, v1::ClusterError* error) {
  error->set_reason(ReasonOf(status));
  error->set_message(std::string(status.message()));
}

void SetTime(int64_t unix_us, google::protobuf::Timestamp* time) {
  time->set_seconds(unix_us / 1'000'000);
  time->set_nanos(static_cast<int32_t>(unix_us % 1'000'000) * 1000);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterNode>> ClusterNode::Make(Options options, Hooks hooks) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<GrpcEtcd> etcd,
                         GrpcEtcd::Make(options.etcd, &SystemClock(), hooks.post));
  etcd->OnCallEnded(std::move(hooks.call_ended));
  return std::unique_ptr<ClusterNode>(new ClusterNode(std::move(options), std::move(hooks), std::move(etcd)));
}

ClusterNode::ClusterNode(Options options, Hooks hooks, std::unique_ptr<GrpcEtcd> etcd)
    : options_(std::move(options)),
      etcd_(std::move(etcd)),
      membership_(etcd_.get(), &BootClock(), options_.membership, std::move(hooks.remember),
                  std::move(hooks.new_incarnation),
                  [this](const absl::StatusOr<NodeIdentity>& changed) { MembershipChanged(changed); }),
      summaries_(etcd_.get(), &BootClock(), options_.membership.prefix) {}

void ClusterNode::OnTick(const NodeSummaries::Status& status) {
  etcd_->OnTick();
  membership_.OnTick();
  summaries_.OnTick(membership_.identity(), status);
  LogFullEtcd();
  if (nodes_ == nullptr || (!nodes_error_.ok() && BootClock().Now() >= next_nodes_)) FollowNodes();
}

void ClusterNode::MembershipChanged(const absl::StatusOr<NodeIdentity>& changed) {
  const bool was_registered = registration_.has_value();
  error_ = changed.status();
  if (!changed.ok()) {
    if (was_registered) ++lost_leases_;
    LogFailure(changed.status(), was_registered);
    registration_.reset();
    if (was_registered) TellFollowers();
    return;
  }
  registration_ = *changed;
  registered_us_ = BootClock().UnixMicros();
  Log(LogLevel::kInfo, "registered as a node",
      {{"node", changed->name}, {"etcd_prefix", options_.membership.prefix}});
  TellFollowers();
}

void ClusterNode::Release(NodeRegistration::Done released) {
  if (std::exchange(registration_, std::nullopt)) TellFollowers();
  membership_.Release(std::move(released));
}

std::shared_ptr<const ClusterNode::Follower> ClusterNode::Follow(Follower follower) {
  auto added = std::make_shared<const Follower>(std::move(follower));
  followers_.push_back(added);
  (*added)(registration_ ? &*registration_ : nullptr);
  return added;
}

// Followers may come and go in these calls. One that comes is told by Follow.
void ClusterNode::TellFollowers() {
  std::erase_if(followers_, [](const auto& follower) { return follower.expired(); });
  const std::vector<std::weak_ptr<const Follower>> present = followers_;
  for (const auto& follower : present) {
    if (const auto tell = follower.lock()) (*tell)(registration_ ? &*registration_ : nullptr);
  }
}

void ClusterNode::LogFailure(const absl::Status& why, bool was_registered) const {
  const bool taken = ReasonOf(why) == ledger_reason::kNodeNameTaken;
  Log(taken ? LogLevel::kError : LogLevel::kWarning,
      was_registered ? "no longer registered as a node; it is tried again, and runs of one node are served"
                     : "not registered as a node; it is tried again, and runs of one node are served",
      {{"node", options_.membership.name}, {"reason", ReasonOf(why)}, {"error", std::string(why.message())}});
}

absl::Status ClusterNode::WhyUnregistered() const {
  if (registration_) return absl::OkStatus();
  const std::string reason = ReasonOf(error_);
  const bool may_come = error_.ok() || reason == ledger_reason::kUnavailable ||
                        reason == ledger_reason::kFull || reason == ledger_reason::kLeaseEnded ||
                        reason == ledger_reason::kNodeReplaced;
  const std::string what = absl::StrCat("node \"", options_.membership.name, "\" is not registered in etcd");
  if (!may_come) return Annotate(error_, what);
  return MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                   absl::StrCat(what, error_.ok() ? " yet" : ": ", std::string(error_.message()),
                                "; look whether it reaches etcd (ckptctl status)"));
}

// What is read is shown, and nothing is decided by it, so it may be late.
void ClusterNode::FollowNodes() {
  nodes_error_ = absl::OkStatus();
  nodes_ = std::make_unique<EtcdMirror>(
      etcd_.get(), NodesPrefix(options_.membership), "following the nodes",
      [this](const std::vector<std::string>&) { LogLostNodes(); },
      [this](const absl::Status& why) {
        nodes_error_ = why;
        next_nodes_ = BootClock().Now() + std::chrono::seconds(options_.membership.lease_seconds);
      });
  nodes_->Start();
}

// One line on each node for each node that goes, and for each of these that comes back.
void ClusterNode::LogLostNodes() {
  const size_t prefix = NodesPrefix(options_.membership).size();
  std::map<std::string, std::string> present;
  for (const auto& [key, value] : nodes_->keys()) {
    ledger::v1::Node node;
    node.ParseFromString(value.value());
    if (key.substr(prefix) != options_.membership.name) present[key.substr(prefix)] = node.host();
  }
  for (const auto& [name, host] : known_nodes_) {
    if (present.contains(name)) continue;
    lost_nodes_.insert(name);
    Log(LogLevel::kWarning,
        "another node is no longer registered in etcd: its daemon has ended, or does not reach etcd",
        {{"node", options_.membership.name}, {"lost", name}, {"host", host}});
  }
  for (const auto& [name, host] : present) {
    if (lost_nodes_.erase(name) == 0) continue;
    Log(LogLevel::kInfo, "another node is registered in etcd again",
        {{"node", options_.membership.name}, {"back", name}, {"host", host}});
  }
  known_nodes_ = std::move(present);
}

void ClusterNode::LogFullEtcd() {
  const absl::Status& full = etcd_->full();
  if (std::exchange(full_, !full.ok()) != full.ok()) return;
  if (full.ok()) return Log(LogLevel::kInfo, "etcd takes writes again", {{"node", options_.membership.name}});
  Log(LogLevel::kError, "etcd is full: no node can register, and no save of several nodes goes on",
      {{"node", options_.membership.name},
       {"reason", ReasonOf(full)},
       {"error", std::string(full.message())}});
}

v1::ClusterStatus ClusterNode::Status() const {
  v1::ClusterStatus status;
  status.set_node(options_.membership.name);
  status.set_registered(identity() != nullptr);
  status.set_lost_leases(lost_leases_);
  if (status.registered()) {
    SetTime(registered_us_, status.mutable_register_time());
  } else if (registration_) {  // Nobody has noticed yet.
    SetError(MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kLeaseEnded,
                       "this daemon's lease has ended: etcd has not confirmed it in time"),
             status.mutable_error());
  } else if (!error_.ok()) {
    SetError(error_, status.mutable_error());
  }
  AddMembers(&status);
  AddNodes(&status);
  for (const std::string& name : lost_nodes_) status.add_lost_nodes(name);
  return status;
}

void ClusterNode::AddSummaries(v1::Status status, absl::AnyInvocable<void(absl::StatusOr<v1::Status>)> done) {
  summaries_.Read([status = std::move(status),
                   done = std::move(done)](const absl::StatusOr<NodeSummaries::ByNode>& read) mutable {
    v1::ClusterStatus& cluster = *status.mutable_cluster();
    if (!read.ok()) SetError(read.status(), cluster.mutable_summaries_error());
    for (v1::ClusterNode& node : *cluster.mutable_nodes()) {
      if (!read.ok()) break;
      if (const auto found = read->find(node.name()); found != read->end())
        *node.mutable_summary() = found->second;
    }
    done(std::move(status));
  });
}

void ClusterNode::AddMembers(v1::ClusterStatus* status) const {
  for (const EtcdMemberState& member : etcd_->members()) {
    v1::EtcdMemberStatus& added = *status->add_etcd_members();
    added.set_endpoint(member.endpoint);
    if (member.answers) added.set_answers(*member.answers);
    added.set_error(member.error);
  }
}

void ClusterNode::AddNodes(v1::ClusterStatus* status) const {
  if (!nodes_error_.ok()) SetError(nodes_error_, status->mutable_nodes_error());
  if (nodes_ == nullptr) return;
  const size_t prefix = NodesPrefix(options_.membership).size();
  for (const auto& [key, value] : nodes_->keys()) {
    ledger::v1::Node node;
    node.ParseFromString(value.value());
    v1::ClusterNode& added = *status->add_nodes();
    added.set_name(key.substr(prefix));
    added.set_host(node.host());
    added.set_daemon_version(node.version());
    if (node.register_time_us() > 0) SetTime(node.register_time_us(), added.mutable_register_time());
  }
}

}  // namespace ckptd
