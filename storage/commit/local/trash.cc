#include "storage/commit/local/trash.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

constexpr int64_t kBytesPerStep = int64_t{1} << 30;
constexpr int64_t kNamesPerStep = 256;

// How long the entry's grace period still is; 0: it is over, or there is none.
int64_t DueIn(int64_t moved_us, const TrashTerms& terms) {
  if (terms.grace_us == 0) return 0;
  return std::max<int64_t>(0, moved_us + terms.grace_us - terms.now_us);
}

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
    entries_[entry.name] = Inspect(entry.name, *id, bytes.ok() ? *bytes : 0);
  }
  return absl::OkStatus();
}

Trash::Entry Trash::Inspect(const std::string& name, const InflightId& id, int64_t bytes) const {
  Entry entry{.sequence = id.sequence, .bytes = bytes};
  const absl::StatusOr<storage::v1::ManifestSummary> summary = ReadSummary(*fs_, dir_, name);
  const absl::StatusOr<FileStat> stat = fs_->Stat(dir_, name);
  if (!summary.ok() || !stat.ok()) return entry;
  if (summary->tag() != id.tag || summary->sequence() != id.sequence) return entry;
  entry.whole = *summary;
  entry.moved_us = stat->changed_ns / 1000;
  return entry;
}

Trash::Moved Trash::MoveUnpublished(Handle from, const Inflight& inflight, int64_t bytes) {
  if (absl::Status removed = RemoveManifest(*fs_, inflight.dir.get(), ""); !removed.ok())
    return {false, Annotate(removed, absl::StrCat("removing the manifest of ", inflight.name))};
  return Move(from, inflight.name, inflight.name, bytes);
}

Trash::Moved Trash::Move(Handle from, const std::string& name, const std::string& trash_name, int64_t bytes) {
  const absl::Status renamed = fs_->Rename(from, name, dir_, trash_name, RenameMode::kReplace);
  if (!renamed.ok()) return {false, Annotate(renamed, absl::StrCat("moving ", name, " to trash"))};
  entries_[trash_name] =
      Inspect(trash_name, ParseInflightName(trash_name).value_or(InflightId{"", 0}), bytes);
  absl::Status synced = fs_->Sync(dir_, SyncMode::kAll);
  if (synced.ok()) synced = fs_->Sync(from, SyncMode::kAll);
  if (!synced.ok()) synced = Annotate(synced, absl::StrCat("syncing after ", name, " was moved to trash"));
  return {true, synced};
}

absl::StatusOr<bool> Trash::EmptyStep(const std::vector<int64_t>& keep_sequences, const TrashTerms& terms) {
  const std::optional<std::string> name = Next(keep_sequences, terms);
  if (!name.has_value()) return false;
  CKPTD_RETURN_IF_ERROR(Removed(*name, Remove(*name)));
  return true;
}

std::optional<std::string> Trash::Next(const std::vector<int64_t>& keep_sequences, const TrashTerms& terms) {
  using Place = std::map<std::string, Entry>::iterator;
  std::optional<Place> due, oldest, stuck;
  for (Place place = entries_.begin(); place != entries_.end(); ++place) {
    Entry& entry = place->second;
    const bool kept =
        std::find(keep_sequences.begin(), keep_sequences.end(), entry.sequence) != keep_sequences.end();
    if (terms.grace_us > 0)  // The clock may have been set back since.
      entry.moved_us = std::min(entry.moved_us, terms.now_us);
    if (kept) continue;
    if (entry.whole.has_value() && DueIn(entry.moved_us, terms) > 0) {
      if (!oldest || entry.moved_us < (*oldest)->second.moved_us) oldest = place;
    } else if (std::optional<Place>& first = entry.stuck ? stuck : due; !first) {
      first = place;
    }
  }
  // Entries that could not be removed are tried again after all others: the cause may have gone.
  std::optional<Place> next = due;
  if (!next && terms.room_bytes > 0) next = oldest;
  if (!next) next = stuck;
  if (!next) return std::nullopt;
  (*next)->second.whole.reset();
  return (*next)->first;
}

Trash::Removal Trash::Remove(const std::string& name) const {
  RemovalBudget budget{.names = kNamesPerStep, .bytes = kBytesPerStep};
  Removal removal;
  if (absl::Status unmade = RemoveManifest(*fs_, dir_, name); !unmade.ok()) {
    removal.gone = Annotate(unmade, absl::StrCat("emptying trash/", name));
    return removal;
  }
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

std::vector<TrashedCheckpoint> Trash::Whole() const {
  std::vector<TrashedCheckpoint> whole;
  for (const auto& [name, entry] : entries_) {
    if (entry.whole.has_value())
      whole.push_back({.checkpoint = {.summary = *entry.whole}, .moved_us = entry.moved_us});
  }
  return whole;
}

std::optional<Trash::Found> Trash::FindWhole(const std::string& tag, int64_t sequence) const {
  std::optional<Found> found;
  for (const auto& [name, entry] : entries_) {
    if (!entry.whole.has_value() || entry.whole->tag() != tag) continue;
    if (sequence != 0 && entry.sequence != sequence) continue;
    if (!found || entry.sequence > found->summary.sequence()) found = Found{name, *entry.whole};
  }
  return found;
}

bool Trash::Holds(int64_t sequence) const {
  return std::any_of(entries_.begin(), entries_.end(), [sequence](const auto& entry) {
    return entry.second.sequence == sequence && entry.second.whole.has_value();
  });
}

TrashLeft Trash::Left(const TrashTerms& terms) const {
  TrashLeft left{.bytes = bytes()};
  for (const auto& [name, entry] : entries_) {
    const int64_t due_in = entry.whole.has_value() ? DueIn(entry.moved_us, terms) : 0;
    if (due_in == 0) continue;
    left.in_grace_bytes += entry.bytes;
    left.due_in_us = left.due_in_us == 0 ? due_in : std::min(left.due_in_us, due_in);
  }
  return left;
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
