#include "daemon/ledger/state/user_use.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

std::string UsesOf(const std::string& cluster_prefix, uint32_t uid) {
  return absl::StrCat(cluster_prefix, "users/", uid, "/");
}

absl::Status CheckUse(uint32_t uid, const std::vector<etcdserverpb::KeyValue>& uses, const UseBound& bound) {
  int64_t keys = 0, bytes = 0;
  ledger::v1::RunUse largest;
  std::string largest_id;
  for (const etcdserverpb::KeyValue& pair : uses) {
    ledger::v1::RunUse use;
    use.ParseFromString(pair.value());
    keys += std::max(use.keys(), kLeastKeysOfRun);
    bytes += std::max(use.bytes(), kLeastBytesOfRun);
    if (!largest_id.empty() && use.bytes() <= largest.bytes()) continue;
    largest = use;
    largest_id = LastPartOf(pair.key());
  }
  const bool too_many = bound.keys > 0 && keys >= bound.keys;
  if (!too_many && (bound.bytes == 0 || bytes < bound.bytes)) return absl::OkStatus();
  const std::string field = too_many ? "limits.etcd_keys_per_uid" : "limits.etcd_bytes_per_uid";
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kLimitExceeded,
      absl::StrCat(
          "the ", uses.size(), " runs of uid ", uid, " have ", keys, " keys of ", bytes,
          " bytes in etcd, and may have ", too_many ? bound.keys : bound.bytes, too_many ? " keys" : " bytes",
          " (", field, "); the largest is that of ", largest.path(), ", run ", largest_id, ", with ",
          largest.keys(), " keys of ", largest.bytes(),
          " bytes. Delete the keys of runs that are over (operations.md, \"Limits of shared roots\"), "
          "or raise the limit on all nodes"),
      {{"limit", field}});
}

}  // namespace ckptd
