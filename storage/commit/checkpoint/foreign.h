// Inspects and reads checkpoints that another program wrote into the root, as far as adopting them (adopt.h)
// needs. Reads and syncs, and changes nothing. scan.h says which directories count as such.
#ifndef CKPTD_STORAGE_COMMIT_CHECKPOINT_FOREIGN_H_
#define CKPTD_STORAGE_COMMIT_CHECKPOINT_FOREIGN_H_

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
#include "storage/commit/checkpoint/scan.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// An entry of a list, oldest first.
struct ForeignCheckpoint {
  ForeignTag tag;
  std::optional<int64_t> size_bytes;  // Unset, like the count, if there are too many files to count.
  std::optional<int32_t> file_count;
};
absl::StatusOr<std::vector<ForeignCheckpoint>> ListForeign(FileSystem& fs, Handle root);

// The names and stamps of everything in one foreign checkpoint, at one moment.
struct ForeignTree {
  ForeignTag tag;
  FileStat directory = {};                // The tag's directory.
  std::map<std::string, FileStat> files;  // By path relative to the tag.
  std::set<std::string> directories;      // Paths relative to the tag, without the tag itself.
  int64_t size_bytes = 0;
};

// Walks `dir`, which was opened at root/`tag`. A refusal names what is in the way:
//   NO_CHECKPOINT            nothing exists there
//   FOREIGN_UNFINISHED       it has no marker
//   FOREIGN_UNSUITABLE       it holds a link, a special file, another file system, or a .ckptd
//   WRONG_UID                it holds a file of another user than `owner`
//   INVALID_TAG, INVALID_PATH  it holds a name that no checkpoint of ckptd may have
absl::StatusOr<ForeignTree> WalkForeign(FileSystem& fs, Handle root, const std::string& tag, uid_t owner);

// ABORTED, reason FOREIGN_CHANGED, names the first difference: in size, times, inode, owner or name.
absl::Status CheckUnchanged(const ForeignTree& before, const ForeignTree& now);

// A foreign checkpoint that was read and synced: everything that adopting it needs.
struct ForeignSurvey {
  ForeignTree tree;
  uid_t owner = 0;
  int32_t chunk_bytes = 0;
  std::vector<storage::v1::FileRecord> files;  // Ordered by path; all of rank 0.
};

// The summary of its manifest. The caller adds the run's id and the sequence.
storage::v1::ManifestSummary SummaryOfForeign(const ForeignSurvey& survey);

// Shared by the reader, by whoever shows its progress, and by whoever cancels it.
struct SurveyProgress {
  std::atomic<int64_t> size_bytes{0};  // 0 until it is known.
  std::atomic<int64_t> read_bytes{0};
  std::atomic<bool> stop{false};
};

// Reads one foreign checkpoint in steps of bounded size: syncs each file, then reads and checksums it; at
// last syncs every directory, up to the root. One thread at a time. `fs` and `root` must outlive it.
class ForeignReader {
 public:
  ForeignReader(FileSystem* fs, Handle root, std::string tag, uid_t owner, int32_t chunk_bytes,
                std::shared_ptr<SurveyProgress> progress);

  // True if there is more to do. Errors: those of WalkForeign; FOREIGN_CHANGED if a file's size has changed;
  // DATA_LOSS, reason FOREIGN_UNSYNCED, if a sync failed (a second sync must not be believed); CANCELLED once
  // `stop` is set.
  absl::StatusOr<bool> Step();
  // The result, once Step has returned false. Call it once.
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
  std::map<std::string, FileStat>::const_iterator next_;  // The file that is being read, or is next.
  ScopedHandle file_;
  int64_t offset_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_CHECKPOINT_FOREIGN_H_
