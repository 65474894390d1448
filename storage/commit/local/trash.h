// The trash of a node: checkpoints and in-flight directories that are deleted in small steps.
//
// A directory gets here by one rename, and nothing in it is removed before that rename is durable. Otherwise
// a crash could bring back, at its old name, a checkpoint with holes. Files are unlinked and never truncated:
// a reader that has one open or mapped, and a hard link, keep it whole.
//
// An entry with a valid manifest of the tag and the sequence in its name is a whole checkpoint, which may be
// brought back: what a failed save leaves loses its manifest before it gets here, and a checkpoint loses it
// before its first file is removed. It has been here since the change time (st_ctime) of its directory: the
// rename sets that, and nothing else changes the directory until it is emptied.
#ifndef CKPTD_STORAGE_COMMIT_LOCAL_TRASH_H_
#define CKPTD_STORAGE_COMMIT_LOCAL_TRASH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/steps/types.h"
#include "storage/format/names.h"
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
  // The same for a save that was not published. It has its name already, and `inflight` open.
  Moved MoveUnpublished(Handle from, const Inflight& inflight, int64_t bytes);
  // The caller has renamed `trash_name` to somewhere else.
  void Forget(const std::string& trash_name) { entries_.erase(trash_name); }

  // Removes some files of one entry: 1 GiB or a few hundred names, but at least one file of any size. False
  // if nothing is left that may be removed. Reports an entry that cannot be removed, and skips it until
  // nothing else is left.
  absl::StatusOr<bool> EmptyStep(const std::vector<int64_t>& keep_sequences, const TrashTerms& terms = {});

  // The same in three calls, so that the removal, which may take a second, can run on another thread: Next,
  // Remove, Removed. One step at a time; all other calls may be made meanwhile. What Next has named cannot be
  // brought back any more. The caller subtracts from `terms` what a step has removed.
  struct Removal {
    absl::StatusOr<bool> gone = false;  // True if the whole entry is removed.
    int64_t bytes = 0;                  // Removed bytes, also after an error.
  };
  std::optional<std::string> Next(const std::vector<int64_t>& keep_sequences,
                                  const TrashTerms& terms = {});  // nullopt: none is left.
  Removal Remove(const std::string& name) const;                  // On any thread.
  absl::Status Removed(const std::string& name, const Removal& removal);

  std::vector<TrashedCheckpoint> Whole() const;
  struct Found {
    std::string name;
    storage::v1::ManifestSummary summary;
  };
  // The whole checkpoint of the tag with this sequence, or with the highest one if `sequence` is 0.
  std::optional<Found> FindWhole(const std::string& tag, int64_t sequence) const;
  bool Holds(int64_t sequence) const;  // A whole checkpoint.

  TrashLeft Left(const TrashTerms& terms) const;
  int64_t bytes() const;
  int64_t highest_sequence() const;  // 0 when empty.

 private:
  struct Entry {
    int64_t sequence = 0;
    int64_t bytes = 0;
    bool stuck = false;
    int64_t moved_us = 0;
    std::optional<storage::v1::ManifestSummary> whole = std::nullopt;  // Set: a whole checkpoint.
  };
  Entry Inspect(const std::string& name, const InflightId& id, int64_t bytes) const;

  FileSystem* const fs_;
  const Handle dir_;
  std::map<std::string, Entry> entries_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_LOCAL_TRASH_H_
