// Recovery trusts only synced part records. A file that no record names may hold any bytes, and the manifest
// of an in-flight directory may be half written, so the manifest is made again from the records. A directory
// is complete if the records of ranks 0 to world size - 1 exist and are valid, if all have the sequence of
// the directory's name, and if every file that they name has the recorded size (the bytes were synced before
// the record was written).
//
// The sequence in the name matters after an exchange: then the in-flight name holds the old checkpoint,
// complete and with all its records, but with a lower sequence. It goes to trash, even if the tag has been
// removed meanwhile.
#include "storage/commit/local/recovery.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/steps/commit_rules.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;
using storage::v1::PartRecord;
using storage::v1::SwapIntent;

// What an in-flight directory holds.
struct Assessment {
  std::string why_not;      // Why it is not complete. Empty: it is.
  int64_t sequence = 0;     // Of its content.
  ManifestSummary summary;  // As the first part has it; PublishInflight merges the others. Set if complete.
  std::vector<PartRecord> parts;  // Set if complete.
};

bool SameSave(const ManifestSummary& a, const ManifestSummary& b) {
  return a.tag() == b.tag() && a.sequence() == b.sequence() && a.attempt() == b.attempt() &&
         a.ordinal() == b.ordinal() && a.world_size() == b.world_size() && a.chunk_bytes() == b.chunk_bytes();
}

// The lowest rank that has a part record.
absl::StatusOr<std::optional<int>> FirstRank(FileSystem& fs, Handle dir) {
  const absl::StatusOr<ScopedHandle> ours = OpenScoped(fs, dir, kOurDirectory, OpenMode::kDirectory);
  if (IsMissing(ours.status())) return std::nullopt;
  if (!ours.ok()) return ours.status();
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(ours->get()));
  for (const DirEntry& entry : entries) {
    if (const std::optional<int> rank = ParsePartRecordName(entry.name)) return rank;
  }
  return std::nullopt;
}

// Compares one record with its directory's name and with the first record. Returns what is wrong, or "".
std::string RecordFault(const PartRecord& record, const InflightId& id, const ManifestSummary& first) {
  if (record.sequence() < id.sequence)
    return absl::StrCat("an older generation, replaced by sequence ", id.sequence);
  if (record.checkpoint().tag() != id.tag || record.checkpoint().sequence() != id.sequence ||
      record.sequence() != id.sequence) {
    return absl::StrCat("the part of rank ", record.rank(), " is of another save");
  }
  if (!SameSave(record.checkpoint(), first) || record.chunk_bytes() != first.chunk_bytes()) {
    return absl::StrCat("the parts of ranks ", record.rank(), " and 0 are of different saves");
  }
  return "";
}

absl::StatusOr<Assessment> Assess(FileSystem& fs, Handle dir, const InflightId& id) {
  Assessment found;
  found.sequence = id.sequence;
  CKPTD_ASSIGN_OR_RETURN(const std::optional<int> first, FirstRank(fs, dir));
  if (!first.has_value()) {
    found.why_not = "no part of it is complete";
    return found;
  }
  int world_size = *first + 1;  // Until a record gives it.
  for (int rank = 0; rank < world_size; ++rank) {
    absl::StatusOr<PartRecord> record = ReadPartRecord(fs, dir, rank);
    if (IsMissing(record.status())) {
      found.why_not = absl::StrCat("the part of rank ", rank, " is missing");
      return found;
    }
    if (ProvesDamage(record.status())) {
      found.why_not = std::string(record.status().message());
      return found;
    }
    if (!record.ok()) return record.status();
    if (rank == 0) {
      found.summary = record->checkpoint();
      world_size = found.summary.world_size();
    }
    found.why_not = RecordFault(*record, id, found.summary);
    if (!found.why_not.empty()) {
      found.sequence = std::min(record->sequence(), id.sequence);
      return found;
    }
    const absl::Status files = CheckFiles(fs, dir, record->files());
    if (!files.ok() && ReasonOf(files) != "SHORT_FILE") return files;
    if (!files.ok()) {
      found.why_not = std::string(files.message());
      return found;
    }
    found.parts.push_back(*std::move(record));
  }
  return found;
}

// True for reasons why a complete directory is never published.
bool IsForGood(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return IsRefusal(status) || reason == "INVALID_ARGUMENT" || reason == "INVALID_TAG" ||
         reason == "METRICS_TOO_LARGE";
}

absl::Status ToTrash(const PublishContext& context, const Inflight& inflight, int64_t sequence) {
  CKPTD_ASSIGN_OR_RETURN(const int64_t bytes, TreeBytes(*context.layout.fs, inflight.dir.get()));
  const Handle from = context.layout.inflight.get();
  if (sequence == inflight.sequence) return context.trash.MoveUnpublished(from, inflight, bytes).status;
  return context.trash.Move(from, inflight.name, FreshName(inflight.tag, sequence), bytes).status;
}

absl::StatusOr<RecoveredSave> RecoverOne(const PublishContext& context, const std::string& name,
                                         const InflightId& id) {
  FileSystem& fs = *context.layout.fs;
  Inflight inflight{name, id.tag, id.sequence, {}};
  CKPTD_ASSIGN_OR_RETURN(inflight.dir,
                         OpenScoped(fs, context.layout.inflight.get(), name, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(Assessment found, Assess(fs, inflight.dir.get(), id));
  RecoveredSave save{id.tag, found.sequence, false, found.why_not, found.sequence < id.sequence};
  if (found.why_not.empty()) {
    const PublishResult result = PublishInflight(context, inflight, found.summary, found.parts).result;
    if (result.outcome == PublishOutcome::kCommitted) {
      save.published = true;
      save.why = "complete";
      return save;
    }
    if (result.outcome == PublishOutcome::kIndeterminate || !IsForGood(result.status)) return result.status;
    save.why = std::string(result.status.message());
  }
  CKPTD_RETURN_IF_ERROR(ToTrash(context, inflight, found.sequence));
  return save;
}

// True if the intent's new directory is whole: it was, because the intent was written after all of it was
// synced. Fails if that cannot be found out.
absl::StatusOr<bool> IsWhole(const Layout& layout, const SwapIntent& intent) {
  const absl::StatusOr<ManifestSummary> summary =
      ReadSummary(*layout.fs, layout.inflight.get(), intent.inflight_name());
  if (CouldNotFindOut(summary.status())) {
    return Annotate(summary.status(), absl::StrCat("ending the re-save of ", intent.tag()));
  }
  return summary.ok() && summary->sequence() == intent.sequence() && summary->tag() == intent.tag();
}

}  // namespace

absl::Status RecoverSwap(const Layout& layout) {
  FileSystem& fs = *layout.fs;
  CKPTD_ASSIGN_OR_RETURN(const std::optional<SwapIntent> intent,
                         LoadSwapIntent(fs, layout.node.get(), layout.node_path));
  if (!intent.has_value()) return absl::OkStatus();
  const absl::StatusOr<FileStat> tag = fs.Stat(layout.root, intent->tag());
  if (!tag.ok() && !IsMissing(tag.status())) return tag.status();
  if (!tag.ok()) {
    // The crash was between the two renames.
    CKPTD_ASSIGN_OR_RETURN(const bool forward, IsWhole(layout, *intent));
    const Handle from = forward ? layout.inflight.get() : layout.trash.get();
    const std::string& name = forward ? intent->inflight_name() : intent->trash_name();
    const absl::Status renamed = fs.Rename(from, name, layout.root, intent->tag(), RenameMode::kReplace);
    if (!renamed.ok() && !IsMissing(renamed))
      return Annotate(renamed, absl::StrCat("ending the re-save of ", intent->tag()));
  }
  CKPTD_RETURN_IF_ERROR(SyncNames(layout));
  return RemoveSwapIntent(fs, layout.node.get());
}

absl::StatusOr<std::vector<RecoveredSave>> RecoverInflight(const PublishContext& context,
                                                           const std::set<std::string>& live) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries,
                         context.layout.fs->List(context.layout.inflight.get()));
  std::vector<std::pair<InflightId, std::string>> left;
  for (const DirEntry& entry : entries) {
    const std::optional<InflightId> id = ParseInflightName(entry.name);
    if (!id.has_value() || entry.type != FileType::kDirectory || live.contains(entry.name)) continue;
    left.emplace_back(*id, entry.name);
  }
  std::sort(left.begin(), left.end(),
            [](const auto& a, const auto& b) { return a.first.sequence < b.first.sequence; });
  std::vector<RecoveredSave> saves;
  for (const auto& [id, name] : left) {
    absl::StatusOr<RecoveredSave> save = RecoverOne(context, name, id);
    if (!save.ok()) {
      return Annotate(
          save.status(),
          absl::StrCat("recovering ", context.layout.node_path, "/inflight/", name,
                       " (repair the file system, or remove that directory to give the checkpoint up)"));
    }
    saves.push_back(*std::move(save));
  }
  return saves;
}

}  // namespace ckptd
