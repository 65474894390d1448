// The trash of a node: checkpoints and in-flight directories that are to be deleted, one small step at a
// time.
//
// A directory goes to trash by one rename, and nothing in it is removed before that rename is durable: else a
// crash could bring back, at its old name, a checkpoint with holes. Files are unlinked, never cut: a reader
// of ours or of a framework's own loader that has one open or mapped keeps it whole, and so does a hard link.
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
  // `dir` stays the caller's.
  Trash(FileSystem* fs, Handle dir) : fs_(fs), dir_(dir) {}

  // Forgets what it knew and looks what is there. Entries whose names are not ours are left alone for ever.
  absl::Status Load();

  // Moves `from`/`name` in as `trash_name` (a FreshName, or the unique name that it has already), then syncs
  // both directories. `renamed` says whether it got that far; when it did and the status is not OK, nobody
  // knows which name a crash would leave.
  struct Moved {
    bool renamed = false;
    absl::Status status;
  };
  Moved Move(Handle from, const std::string& name, const std::string& trash_name, int64_t bytes);
  // `trash_name` was renamed elsewhere by the caller.
  void Forget(const std::string& trash_name) { entries_.erase(trash_name); }

  // Removes some files of one entry: 1 GiB or a few hundred names, but at least one file however large. False
  // when nothing is left that it may remove. An entry that cannot be removed is reported and then passed
  // over until nothing else is left.
  absl::StatusOr<bool> EmptyStep(const std::vector<int64_t>& keep_sequences);

  // The same in three calls, so that the removal, which may take a second, can run on another thread:
  // Next, Remove, Removed. One step at a time; every other call may be made meanwhile.
  struct Removal {
    absl::StatusOr<bool> gone = false;  // Whether all of the entry is.
    int64_t bytes = 0;                  // That were removed, also where it failed.
  };
  std::optional<std::string> Next(const std::vector<int64_t>& keep_sequences);  // nullopt: nothing is left.
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
