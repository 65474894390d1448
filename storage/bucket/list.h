// What whole checkpoints lie beneath a prefix of a bucket.
#ifndef CKPTD_STORAGE_BUCKET_LIST_H_
#define CKPTD_STORAGE_BUCKET_LIST_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/bucket/transfer.h"
#include "storage/object/object_store.h"

namespace ckptd {

struct BucketCheckpoint {
  storage::v1::ManifestSummary summary;
  bool by_daemon = false;  // A daemon has uploaded it for its run, and not `ckptctl upload` alone.
};
struct BucketList {
  std::vector<BucketCheckpoint> checkpoints;  // In no order.
  // The tag, and what is wrong with its manifest.
  std::vector<std::pair<std::string, absl::Status>> damaged;
};

// Reads the heads of the manifests, `threads` at a time. Fails if one could not be read because of the store:
// a checkpoint must not vanish from the list for such a reason.
absl::StatusOr<BucketList> ListBucket(ObjectStore& store, const std::string& prefix, int threads);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BUCKET_LIST_H_
