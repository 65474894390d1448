// The index of a prefix: empty objects whose names say which checkpoints lie there, so that a listing of them, of 1000
// names a page, is enough, and no manifest need be read.
//
// A name is PREFIX/.ckptd/index/TAG!INFO. INFO is, in the base64 for URLs and without padding: the CRC32C of the tag
// and of what follows (u32, little-endian); a byte of flags; a ManifestSummary without its tag.
//
// The manifest alone is the commit. A name is put after it, and removed before it: what a process that dies leaves is a
// checkpoint without a name, never a name without its checkpoint. That comes only of what keeps no names: an earlier
// version of ckptd, or a copy or a removal by hand. ListBucket (list.h) says how it is found out. So it does no harm to
// remove a name.
#ifndef CKPTD_STORAGE_BUCKET_INDEX_H_
#define CKPTD_STORAGE_BUCKET_INDEX_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/object/object_store.h"

namespace ckptd {

struct IndexName {
  storage::v1::ManifestSummary summary;
  bool by_daemon = false;
  bool is_complete = true;  // False: the name has no room for the metrics and pointers.
};

// The key; nullopt if the prefix is so long that there is no room for it.
std::optional<std::string> IndexKey(const std::string& prefix, const IndexName& name);
// What follows the folder in a key. nullopt: it is damaged, or of a later version.
std::optional<IndexName> ParseIndexName(std::string_view name);

// Puts the name of a checkpoint whose manifest is there; does nothing if there is no room for it.
absl::Status PutIndexName(ObjectStore& store, const std::string& prefix, const IndexName& name);
// Removes the names of a tag, all but those of the checkpoint `but`, unless it is null.
absl::Status RemoveIndexNames(ObjectStore& store, const std::string& prefix, const std::string& tag,
                              const storage::v1::ManifestSummary* but = nullptr);

struct TagNames {
  std::vector<std::string> keys;
  // nullopt: the names are of several checkpoints, or cannot be parsed.
  std::optional<IndexName> agreed;
};
// By tag.
absl::StatusOr<std::map<std::string, TagNames>> ReadIndex(ObjectStore& store, const std::string& prefix);

// What is to be changed so that each checkpoint has its name, and no other name is there.
struct IndexRepairs {
  std::vector<IndexName> missing;
  std::vector<std::string> wrong;  // Keys.
};
absl::Status RepairIndex(ObjectStore& store, const std::string& prefix, const IndexRepairs& repairs,
                         int threads);

// Sequence and commit time identify a checkpoint.
bool IsSameCheckpoint(const storage::v1::ManifestSummary& a, const storage::v1::ManifestSummary& b);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BUCKET_INDEX_H_
