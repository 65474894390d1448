// The trash of a node: checkpoints and in-flight directories that are deleted in small steps.
//
// A directory gets here by one rename, and nothing in it is removed before that rename is durable. Otherwise
// a crash could bring back, at its old name, a checkpoint with holes. Files are unlinked and never truncated:
// a reader that has one open or mapped, and a hard link, keep it whole.
#ifndef CKPTD_STORAGE_COMMIT_TRASH_H_
#define CKPTD_STORAGE_COMMIT_TRASH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

class Trash {
 public:
  // `dir` must outlive this object.
  Trash(FileSystem* fs, Handle dir) : fs_(fs), dir_(dir) {}

  // Forgets everything and lists the directory. Entries whose names are not ckptd's stay for ever.
  absl::Status Load();

  // Moves `from`/`name` to `trash_name` (a FreshName, or the unique name that it has already), then syncs
  // both directories. `renamed`: the rename was done. If it was and the status is not OK, nobody knows which
  // name a crash would leave.
  struct Moved {
    bool renamed = false;
    absl::Status status;
  };
  Moved Move(Handle from, const std::string& name, const std::string& trash_name, int64_t bytes);
  // The caller has renamed `trash_name` to somewhere else.
  void Forget(const std::string& trash_name) { entries_.erase(trash_name); }

  // Removes some files of one entry: 1 GiB or a few hundred names, but at least one file of any size. False
  // if nothing is left that may be removed. Reports an entry that cannot be removed, and skips it until
  // nothing else is left.
  absl::StatusOr<bool> EmptyStep(const std::vector<int64_t>& keep_sequences);

  // The same in three calls, so that the removal, which may take a second, can run on another thread: Next,
  // Remove, Removed. One step at a time; all other calls may be made meanwhile.
  struct Removal {
    absl::StatusOr<bool> gone = false;  // True if the whole entry is removed.
    int64_t bytes = 0;                  // Removed bytes, also after an error.
  };
  std::optional<std::string> Next(const std::vector<int64_t>& keep_sequences);  // nullopt: none is left.
  Removal Remove(const std::string& name) const;                                // On any thread.
  absl::Status Removed(const std::string& name, const Removal& removal);

  int64_t bytes() const;
  int64_t highest_sequence() const;  // 0 when empty.

 private:
  struct Entry {
    int64_t sequence = 0;
    int64_t bytes = 0;
    bool stuck = false;
  };

  FileSystem* const fs_;
  const Handle dir_;
  std::map<std::string, Entry> entries_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_TRASH_H_
