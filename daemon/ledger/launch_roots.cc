#include "daemon/ledger/launch_roots.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/compare_and_swap.h"
#include "daemon/ledger/keys.h"
#include "daemon/ledger/ledger_reasons.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using etcdserverpb::RequestOp;

absl::Status NotShared(const LaunchRoot& root, const std::string& here, const std::string& other_node,
                       const std::string& other_run) {
  return MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kRootNotShared,
                   absl::StrCat("the root ", root.path, " is not one folder on all nodes: on node \"", here,
                                "\" it holds run ", root.run, ", and on node \"", other_node, "\" run ",
                                other_run, "; mount the same file system there on every node"));
}

}  // namespace

void ClaimRoot(Etcd* etcd, const NodeIdentity& node, const LaunchRoot& root,
               absl::AnyInvocable<void(absl::Status)> claimed) {
  // One key for each node, under its lease: so the last node that leaves takes the launch's last key along.
  const std::string folder =
      absl::StrCat(root.prefix, "launches/", KeyPart(root.launch_id), "/", KeyPart(root.path), "/");
  auto refused = std::make_shared<absl::Status>();
  CompareAndSwap swap;
  swap.ranges = {{folder, true}};
  swap.held = {node.Held()};
  swap.decide = [=](const CompareAndSwap::Found& found) -> std::vector<RequestOp> {
    *refused = absl::OkStatus();
    bool claimed_before = false;
    for (const etcdserverpb::KeyValue& claim : found[0]) {
      ledger::v1::RootOfLaunch said;
      said.ParseFromString(claim.value());
      const std::string other = claim.key().substr(folder.size());
      const bool same_run = said.run() == root.run;
      if (other == node.name) claimed_before = same_run && claim.lease() == node.lease;
      if (other != node.name && !same_run) *refused = NotShared(root, node.name, other, said.run());
    }
    if (claimed_before) return {};
    // Also where it is refused: if the folder was removed and made again, the other nodes will say so, too.
    ledger::v1::RootOfLaunch mine;
    mine.set_run(root.run);
    return {Put(folder + node.name, mine.SerializeAsString(), node.lease)};
  };
  swap.purpose = absl::StrCat("comparing the root ", root.path, " of all nodes");
  SwapIn(etcd, std::move(swap), [refused, claimed = std::move(claimed)](const absl::Status& written) mutable {
    claimed(written.ok() ? *refused : written);
  });
}

}  // namespace ckptd
