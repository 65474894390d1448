// Brings a checkpoint from a bucket into a root on disk.
//
// It is put together in <root>/.fetch/<tag>, which no daemon takes for a checkpoint, made durable, and
// renamed to <root>/<tag>. A fetch that fails removes what it has brought. A process that dies in between
// leaves that directory; the next fetch into the root removes it. One process at a time fetches into a root:
// it holds <root>/.fetch/lock.
#ifndef CKPTD_STORAGE_BUCKET_FETCH_H_
#define CKPTD_STORAGE_BUCKET_FETCH_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "storage/bucket/transfer.h"
#include "storage/format/manifest.h"
#include "storage/fs/file_system.h"
#include "storage/object/object_store.h"

namespace ckptd {

// Of a root that several nodes share: the term of its coordinator, in whose directory the checkpoint is put together,
// without a lock. A later coordinator moves it away (storage/commit/shared/run/shared_term.h).
struct FetchTerm {
  int64_t number = 0;  // 0: the root has one node.
  // Asked before the checkpoint gets its tag. Null: it may.
  std::function<absl::Status()> may_commit = nullptr;
};

// Every chunk is checked. NOT_FOUND, reason NO_CHECKPOINT, if there is no committed checkpoint.
// ALREADY_EXISTS, reason TAG_TAKEN or TAG_FOREIGN, if the root has something else at that tag; OK if it has
// this checkpoint. RESOURCE_EXHAUSTED, reason NO_SPACE, if the disk has no room for it. DATA_LOSS, reason
// CORRUPT_FILE or CORRUPT_MANIFEST, if it is damaged.
absl::StatusOr<storage::v1::ManifestSummary> FetchCheckpoint(ObjectStore& store, const std::string& prefix,
                                                             const std::string& tag, FileSystem& fs,
                                                             Handle root, const TransferOptions& options,
                                                             const FetchTerm& term = {});

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BUCKET_FETCH_H_
