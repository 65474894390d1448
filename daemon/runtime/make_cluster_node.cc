#include "daemon/runtime/make_cluster_node.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/log/log.h"
#include "daemon/runtime/part_options.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

std::vector<std::string> EarlierIncarnations(const StateDirectory& state) {
  absl::StatusOr<std::vector<std::string>> found = state.ReadIncarnations();
  if (found.ok()) return *std::move(found);
  Log(LogLevel::kWarning,
      "this daemon does not know how the one before it was registered: its name is free when that lease has "
      "ended",
      {{"error", std::string(found.status().message())}});
  return {};
}

NodeRegistration::Remember RememberIn(const ClusterParts& parts) {
  return [parts](const std::vector<std::string>& incarnations, NodeRegistration::Done remembered) {
    parts.state_worker->Submit([parts, incarnations, remembered = std::move(remembered)]() mutable {
      parts.post([remembered = std::move(remembered),
                  written = parts.state->RememberIncarnations(incarnations)]() mutable {
        remembered(std::move(written));
      });
    });
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClusterNode>> MakeClusterNode(const config::v1::DaemonConfig& config,
                                                             ClusterParts parts) {
  if (!config.has_cluster()) return nullptr;
  CKPTD_ASSIGN_OR_RETURN(ClusterNode::Options options, ClusterOptionsOf(config));
  NodeMembership::Options& membership = options.membership;
  membership.incarnations = EarlierIncarnations(*parts.state);
  if (!options.etcd.user.empty() && !options.etcd.tls) {
    Log(LogLevel::kWarning, "etcd's endpoints are http: the password of etcd's user is sent in clear",
        {{"user", options.etcd.user}});
  }
  ClusterNode::Hooks hooks;
  hooks.post = parts.post;
  hooks.remember = RememberIn(parts);
  hooks.new_incarnation = [instance = parts.instance, registrations = 0]() mutable {
    return absl::StrCat(instance, "-", ++registrations);
  };
  hooks.call_ended = [metrics = parts.metrics](Duration took, const absl::Status& outcome) {
    metrics->OnEtcdRequest(std::chrono::duration<double>(took).count(), outcome);
  };
  Log(LogLevel::kInfo, "registering as a node",
      {{"node", membership.name},
       {"etcd", absl::StrJoin(options.etcd.endpoints, ",")},
       {"etcd_prefix", membership.prefix}});
  return ClusterNode::Make(std::move(options), std::move(hooks));
}

}  // namespace ckptd
