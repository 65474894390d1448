// The small records of a root, each a file that is replaced as a whole: run record, pins, damage marks, swap
// intent.
//
// A missing file is an empty record. A file that is torn, damaged or unreadable is never taken for an empty
// one: loading it fails with FAILED_PRECONDITION, reason ROOT_UNREADABLE, and names the file, what it held,
// and the repair.
#ifndef CKPTD_STORAGE_COMMIT_STEPS_RECORDS_H_
#define CKPTD_STORAGE_COMMIT_STEPS_RECORDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// `node` is the node's directory, and `node_path` its path for messages.
absl::StatusOr<std::optional<storage::v1::RunRecord>> LoadRunRecord(FileSystem& fs, Handle node,
                                                                    const std::string& node_path);
absl::Status StoreRunRecord(FileSystem& fs, Handle node, const storage::v1::RunRecord& record);

// Of the coordinator of a term, in <root>/.ckptd/shared; see shared_record.h.
absl::StatusOr<std::optional<storage::v1::SharedRunRecord>> LoadSharedRunRecord(FileSystem& fs, Handle shared,
                                                                                int64_t term);
absl::Status StoreSharedRunRecord(FileSystem& fs, Handle shared, const storage::v1::SharedRunRecord& record);

absl::StatusOr<std::optional<storage::v1::SwapIntent>> LoadSwapIntent(FileSystem& fs, Handle node,
                                                                      const std::string& node_path);
absl::Status StoreSwapIntent(FileSystem& fs, Handle node, const storage::v1::SwapIntent& intent);
absl::Status RemoveSwapIntent(FileSystem& fs, Handle node);  // Durable on return.

// The pinned checkpoints, in memory and in <root>/.ckptd/pins.
class Pins {
 public:
  static absl::StatusOr<Pins> Load(FileSystem& fs, Handle ours);
  bool Contains(const std::string& tag, int64_t sequence) const { return pins_.contains({tag, sequence}); }
  // Durable on return. After an error nothing has changed in memory.
  absl::Status Set(FileSystem& fs, Handle ours, const std::string& tag, int64_t sequence, bool pinned);
  // Writes all pins to another directory, durably.
  absl::Status Store(FileSystem& fs, Handle ours) const;

 private:
  std::set<std::pair<std::string, int64_t>> pins_;
};

// The damage marks of committed checkpoints, in memory and in <root>/.ckptd/damaged.
class Damages {
 public:
  static absl::StatusOr<Damages> Load(FileSystem& fs, Handle ours);
  // Null if the checkpoint is not marked.
  const storage::v1::Damage* Find(const std::string& tag, int64_t sequence) const;
  // Marks a checkpoint, and fills in tag and sequence; an earlier mark stays. Nullopt removes the mark.
  // Durable on return. After an error nothing has changed in memory.
  absl::Status Set(FileSystem& fs, Handle ours, const std::string& tag, int64_t sequence,
                   const std::optional<storage::v1::Damage>& damage);
  // Writes all marks to another directory, durably.
  absl::Status Store(FileSystem& fs, Handle ours) const;
  // Drops the marks of checkpoints for which `gone(tag, sequence)` is true. On disk with the next Set.
  template <typename Gone>
  void Prune(Gone gone) {
    std::erase_if(damages_, [&](const auto& entry) { return gone(entry.second.tag(), entry.first); });
  }

 private:
  std::map<int64_t, storage::v1::Damage> damages_;  // By sequence.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_STEPS_RECORDS_H_
