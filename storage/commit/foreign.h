// Checkpoints that another program wrote into a root of ours, looked at and read: what adopting one of them
// (adopt.h) must know. Reads and syncs; changes nothing. Which directories they are: scan.h.
#ifndef CKPTD_STORAGE_COMMIT_FOREIGN_H_
#define CKPTD_STORAGE_COMMIT_FOREIGN_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/scan.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// One of a list, oldest first.
struct ForeignCheckpoint {
  ForeignTag tag;
  std::optional<int64_t> size_bytes;  // Nullopt, like the count: there are too many files to count them all.
  std::optional<int32_t> file_count;
};
absl::StatusOr<std::vector<ForeignCheckpoint>> ListForeign(FileSystem& fs, Handle root);

// Everything in one foreign checkpoint, as it is named and stamped now.
struct ForeignTree {
  ForeignTag tag;
  FileStat directory = {};                // Of the tag itself.
  std::map<std::string, FileStat> files;  // By path beneath the tag.
  std::set<std::string> directories;      // Likewise, without the tag itself.
  int64_t size_bytes = 0;
};

// Walks `dir`, which was opened at root/`tag`. Refuses, naming what is in the way: reason NO_CHECKPOINT
// (nothing is there), FOREIGN_UNFINISHED (no marker), FOREIGN_UNSUITABLE (a symbolic link, a special file,
// another file system, something called .ckptd), WRONG_UID (a file of another user than `owner`), INVALID_TAG
// or INVALID_PATH (a name that no checkpoint of ours may have).
absl::StatusOr<ForeignTree> WalkForeign(FileSystem& fs, Handle root, const std::string& tag, uid_t owner);

// ABORTED, reason FOREIGN_CHANGED, naming the first thing that is not the same: size, times, inode, owner,
// name.
absl::Status CheckUnchanged(const ForeignTree& before, const ForeignTree& now);

// A foreign checkpoint that was read, and is on disk: all it takes to adopt it.
struct ForeignSurvey {
  ForeignTree tree;
  uid_t owner = 0;
  int32_t chunk_bytes = 0;
  std::vector<storage::v1::FileRecord> files;  // In the order of their paths; of rank 0.
};

// What a manifest says of it; the caller adds what only it knows: the run's id, the sequence.
storage::v1::ManifestSummary SummaryOfForeign(const ForeignSurvey& survey);

// Shared by the one who reads, the one who shows how far that is, and the one who calls it off.
struct SurveyProgress {
  std::atomic<int64_t> size_bytes{0};  // 0 until it is known.
  std::atomic<int64_t> read_bytes{0};
  std::atomic<bool> stop{false};
};

// Reads one foreign checkpoint in steps of a bounded size: each file synced, then read and checksummed, and
// at last every directory synced, up to the root. Used by one thread at a time. `fs` and `root` outlive it.
class ForeignReader {
 public:
  ForeignReader(FileSystem* fs, Handle root, std::string tag, uid_t owner, int32_t chunk_bytes,
                std::shared_ptr<SurveyProgress> progress);

  // True: there is more to do. Errors as WalkForeign; FOREIGN_CHANGED for a file whose size is not what it
  // was; DATA_LOSS, reason FOREIGN_UNSYNCED, where a sync failed: then no second one must be believed;
  // CANCELLED once `stop` is set.
  absl::StatusOr<bool> Step();
  // When there is no more to do. Once.
  ForeignSurvey Take() { return std::move(survey_); }

 private:
  absl::Status Begin();
  absl::Status OpenNext();
  absl::Status ReadOn();
  absl::Status SyncDirectories();
  absl::Status Sync(Handle handle, const std::string& what);

  FileSystem* const fs_;
  const Handle root_;
  const std::shared_ptr<SurveyProgress> progress_;
  ForeignSurvey survey_;
  ScopedHandle dir_;
  std::map<std::string, FileStat>::const_iterator next_;  // The file that is read, or is to be.
  ScopedHandle file_;
  int64_t offset_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_FOREIGN_H_
