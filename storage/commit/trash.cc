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
    // A step that runs on another thread may remove it meanwhile.
    const absl::StatusOr<ScopedHandle> tree = OpenScoped(*fs_, dir_, entry.name, OpenMode::kDirectory);
    if (IsMissing(tree.status())) continue;
    if (!tree.ok()) return tree.status();
    const absl::StatusOr<int64_t> bytes = TreeBytes(*fs_, tree->get());
    if (!bytes.ok() && !IsMissing(bytes.status())) return bytes.status();
    entries_[entry.name] = Entry{id->sequence, bytes.ok() ? *bytes : 0, false};
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
  const std::optional<std::string> name = Next(keep_sequences);
  if (!name.has_value()) return false;
  CKPTD_RETURN_IF_ERROR(Removed(*name, Remove(*name)));
  return true;
}

std::optional<std::string> Trash::Next(const std::vector<int64_t>& keep_sequences) {
  // Entries that could not be removed are tried again after all others: the cause may have gone.
  for (const bool stuck : {false, true}) {
    for (auto& [name, entry] : entries_) {
      const bool kept =
          std::find(keep_sequences.begin(), keep_sequences.end(), entry.sequence) != keep_sequences.end();
      if (!kept && entry.stuck == stuck) return name;
    }
  }
  return std::nullopt;
}

Trash::Removal Trash::Remove(const std::string& name) const {
  RemovalBudget budget{.names = kNamesPerStep, .bytes = kBytesPerStep};
  Removal removal;
  removal.gone = RemoveTreeWithin(*fs_, dir_, name, budget);
  removal.bytes = budget.removed_bytes;
  if (!removal.gone.ok()) {
    removal.gone = Annotate(removal.gone.status(), absl::StrCat("emptying trash/", name));
  } else if (*removal.gone) {
    // This sync is not for durability. At its next commit the file system frees the blocks, and a disk
    // mounted with `discard` stops for that (2 GiB took 0.8 s). The sync makes it happen now, and not at the
    // next save's first sync.
    const absl::Status synced = fs_->Sync(dir_, SyncMode::kAll);
    if (!synced.ok()) removal.gone = Annotate(synced, "syncing trash");
  }
  return removal;
}

absl::Status Trash::Removed(const std::string& name, const Removal& removal) {
  const auto place = entries_.find(name);
  if (place == entries_.end()) return removal.gone.status();  // There was a scan in between.
  Entry& entry = place->second;
  entry.bytes = std::max<int64_t>(0, entry.bytes - removal.bytes);
  entry.stuck = !removal.gone.ok();
  if (removal.gone.ok() && *removal.gone) entries_.erase(place);
  return removal.gone.status();
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
