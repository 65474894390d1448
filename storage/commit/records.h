// The small records of a root, each one file replaced as a whole: the run record, the pins, the damages, the
// swap intent.
//
// A file that is not there is no record. One that is there but torn, damaged or unreadable is never taken for
// none: loading it fails with FAILED_PRECONDITION, reason ROOT_UNREADABLE, naming the file, what it held and
// the repair.
#ifndef CKPTD_STORAGE_COMMIT_RECORDS_H_
#define CKPTD_STORAGE_COMMIT_RECORDS_H_

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

// `node` is the node's directory and `node_path` its path, for messages.
absl::StatusOr<std::optional<storage::v1::RunRecord>> LoadRunRecord(FileSystem& fs, Handle node,
                                                                    const std::string& node_path);
absl::Status StoreRunRecord(FileSystem& fs, Handle node, const storage::v1::RunRecord& record);

absl::StatusOr<std::optional<storage::v1::SwapIntent>> LoadSwapIntent(FileSystem& fs, Handle node,
                                                                      const std::string& node_path);
absl::Status StoreSwapIntent(FileSystem& fs, Handle node, const storage::v1::SwapIntent& intent);
absl::Status RemoveSwapIntent(FileSystem& fs, Handle node);  // Durable on return.

// Which checkpoints are pinned, in memory and in <root>/.ckptd/pins.
class Pins {
 public:
  static absl::StatusOr<Pins> Load(FileSystem& fs, Handle ours);
  bool Contains(const std::string& tag, int64_t sequence) const { return pins_.contains({tag, sequence}); }
  // Durable on return; after an error nothing has changed in memory.
  absl::Status Set(FileSystem& fs, Handle ours, const std::string& tag, int64_t sequence, bool pinned);

 private:
  std::set<std::pair<std::string, int64_t>> pins_;
};

// Which committed checkpoints are not what was saved, in memory and in <root>/.ckptd/damaged.
class Damages {
 public:
  static absl::StatusOr<Damages> Load(FileSystem& fs, Handle ours);
  // Null: none is known.
  const storage::v1::Damage* Find(const std::string& tag, int64_t sequence) const;
  // Its tag and sequence are filled in. Nullopt forgets it. What was said first stays. Durable on return;
  // after an error nothing has changed in memory.
  absl::Status Set(FileSystem& fs, Handle ours, const std::string& tag, int64_t sequence,
                   const std::optional<storage::v1::Damage>& damage);
  // Forgets, on disk with the next change, those that `gone(tag, sequence)` says are not there any more.
  template <typename Gone>
  void Prune(Gone gone) {
    std::erase_if(damages_, [&](const auto& entry) { return gone(entry.second.tag(), entry.first); });
  }

 private:
  std::map<int64_t, storage::v1::Damage> damages_;  // By sequence.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_RECORDS_H_
