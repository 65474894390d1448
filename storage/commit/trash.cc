#include "storage/commit/trash.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint_dir.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

constexpr int64_t kBytesPerStep = int64_t{1} << 30;
constexpr int64_t kNamesPerStep = 256;

}  // namespace

absl::Status Trash::Load() {
  entries_.clear();
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs_->List(dir_));
  for (const DirEntry& entry : entries) {
    const std::optional<InflightId> id = ParseInflightName(entry.name);
    if (!id.has_value() || entry.type != FileType::kDirectory) continue;
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle tree, OpenScoped(*fs_, dir_, entry.name, OpenMode::kDirectory));
    CKPTD_ASSIGN_OR_RETURN(const int64_t bytes, TreeBytes(*fs_, tree.get()));
    entries_[entry.name] = Entry{id->sequence, bytes, false};
  }
  return absl::OkStatus();
}

Trash::Moved Trash::Move(Handle from, const std::string& name, const std::string& trash_name, int64_t bytes) {
  const absl::Status renamed = fs_->Rename(from, name, dir_, trash_name, RenameMode::kReplace);
  if (!renamed.ok()) return {false, Annotate(renamed, absl::StrCat("moving ", name, " to trash"))};
  const std::optional<InflightId> id = ParseInflightName(trash_name);
  entries_[trash_name] = Entry{id.has_value() ? id->sequence : 0, bytes, false};
  absl::Status synced = fs_->Sync(dir_, SyncMode::kAll);
  if (synced.ok()) synced = fs_->Sync(from, SyncMode::kAll);
  if (!synced.ok()) synced = Annotate(synced, absl::StrCat("syncing after ", name, " was moved to trash"));
  return {true, synced};
}

absl::StatusOr<bool> Trash::EmptyStep(const std::vector<int64_t>& keep_sequences) {
  for (auto place = entries_.begin(); place != entries_.end(); ++place) {
    Entry& entry = place->second;
    if (entry.stuck ||
        std::find(keep_sequences.begin(), keep_sequences.end(), entry.sequence) != keep_sequences.end()) {
      continue;
    }
    RemovalBudget budget{.names = kNamesPerStep, .bytes = kBytesPerStep};
    const absl::StatusOr<bool> gone = RemoveTreeWithin(*fs_, dir_, place->first, budget);
    entry.bytes = std::max<int64_t>(0, entry.bytes - budget.removed_bytes);
    if (!gone.ok()) {
      entry.stuck = true;
      return Annotate(gone.status(), absl::StrCat("emptying trash/", place->first));
    }
    if (!*gone) return true;
    entries_.erase(place);
    // Not for durability. The file system gives blocks back, and a disk mounted with `discard` stops for that
    // (2 GiB took 0.8 s), at its next commit: now, and not at the first sync of the next save.
    CKPTD_RETURN_IF_ERROR(Annotate(fs_->Sync(dir_, SyncMode::kAll), "syncing trash"));
    return true;
  }
  // What could not be removed is tried again, after everything else: what was wrong may be over.
  bool again = false;
  for (auto& [name, entry] : entries_) again |= std::exchange(entry.stuck, false);
  return again;
}

int64_t Trash::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, entry] : entries_) bytes += entry.bytes;
  return bytes;
}

int64_t Trash::highest_sequence() const {
  int64_t highest = 0;
  for (const auto& [name, entry] : entries_) highest = std::max(highest, entry.sequence);
  return highest;
}

}  // namespace ckptd
