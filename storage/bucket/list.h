// What whole checkpoints lie beneath a prefix of a bucket.
//
// A listing of the tags and one of the index (index.h) are compared. A tag with one name is believed. Of the others,
// that have no name or several, two requests each read what lies there.
//
// Names are wrong where something that keeps none has put another checkpoint in the place of one: an earlier version
// of ckptd, or a copy by hand. So they are believed only while nothing contradicts them: if a checkpoint has no name,
// and nobody is about to give it one, or if the manifest of one of the 64 newest is not there or is another one, then
// all manifests are read, as if there were no index.
#ifndef CKPTD_STORAGE_BUCKET_LIST_H_
#define CKPTD_STORAGE_BUCKET_LIST_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/bucket/index.h"
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
  // For whoever may write there. Until then each list reads what has no name.
  IndexRepairs repairs;
};

enum class ListDetail {
  kComplete,
  // Metrics and pointers may be missing, where there are so many that a name has no room for them. The others cost a
  // request for each such checkpoint.
  kAsNamed,
};

// Sends `threads` requests at a time. Fails if something could not be read because of the store: a checkpoint must not
// vanish from the list for such a reason.
absl::StatusOr<BucketList> ListBucket(ObjectStore& store, const std::string& prefix, int threads,
                                      ListDetail detail = ListDetail::kComplete);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BUCKET_LIST_H_
