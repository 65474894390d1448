#include "daemon/ledger/nodes/launch_roots.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd_listing.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/keys/ledger_reasons.h"
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

// Compares `root` with the keys of the other nodes. Each node writes its own key before it reads the others',
// so of two nodes that have found different runs the one that reads last notices.
void CompareRoots(Etcd* etcd, const std::string& folder, const std::string& node, const LaunchRoot& root,
                  const std::string& purpose, absl::AnyInvocable<void(absl::Status)> compared) {
  ListPrefix(etcd, folder, purpose,
             [=, compared = std::move(compared)](const absl::StatusOr<EtcdListing>& listing) mutable {
               if (!listing.ok()) return compared(listing.status());
               for (const etcdserverpb::KeyValue& claim : listing->keys) {
                 ledger::v1::RootOfLaunch said;
                 said.ParseFromString(claim.value());
                 const std::string other = claim.key().substr(folder.size());
                 if (other != node && said.run() != root.run)
                   return compared(NotShared(root, node, other, said.run()));
               }
               compared(absl::OkStatus());
             });
}

}  // namespace

void ClaimRoot(Etcd* etcd, const NodeIdentity& node, const LaunchRoot& root,
               absl::AnyInvocable<void(absl::Status)> claimed) {
  // One key for each node, under its lease, so no key of the launch outlives its nodes. The key is written
  // even if the root is then refused: if the folder was removed and made again, the other nodes will find the
  // new run, too.
  const std::string folder =
      absl::StrCat(root.prefix, "launches/", KeyPart(root.launch_id), "/", KeyPart(root.path), "/");
  ledger::v1::RootOfLaunch mine;
  mine.set_run(root.run);
  CompareAndSwap swap;
  swap.ranges = {{folder + node.name}};
  swap.held = {node.Held()};
  swap.decide = [key = folder + node.name, value = mine.SerializeAsString(),
                 lease = node.lease](const CompareAndSwap::Found& found) -> std::vector<RequestOp> {
    const bool claimed_before =
        !found[0].empty() && found[0][0].value() == value && found[0][0].lease() == lease;
    if (claimed_before) return {};
    return {Put(key, value, lease)};
  };
  swap.purpose = absl::StrCat("comparing the root ", root.path, " of all nodes");
  const std::string purpose = swap.purpose;
  SwapIn(etcd, std::move(swap),
         [=, name = node.name, claimed = std::move(claimed)](const absl::Status& written) mutable {
           if (!written.ok()) return claimed(written);
           CompareRoots(etcd, folder, name, root, purpose, std::move(claimed));
         });
}

}  // namespace ckptd
