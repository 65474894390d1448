#include "daemon/root_io/shared/shared_disk_root.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/steps/commit_rules.h"
#include "storage/commit/steps/run_marks.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::NodePartRecord;
using storage::v1::PartRecord;
using storage::v1::SharedRunRecord;

// Errors of BuildSharedManifest and ReadNodeParts that a retry cannot mend, because the parts do not change.
bool IsForGood(const absl::Status& error) {
  const std::string reason = ReasonOf(error);
  return reason == reason::kFileConflict || reason == reason::kInvalidArgument ||
         reason == reason::kMetricsTooLarge || reason == "CORRUPT_PART_RECORD";
}

LedgerFacts FactsOf(const SharedRootIo::Publication& publication) {
  return {.tag = publication.save.tag,
          .sequence = publication.save.sequence,
          .attempt = publication.attempt,
          .ordinal = publication.ordinal,
          .times = publication.times,
          .ranks = publication.ranks,
          .replaces = publication.replaces,
          .inherited_pointers = publication.inherited_pointers};
}

}  // namespace

absl::Status SharedDiskRoot::CheckOpen() const { return store == nullptr ? RootNotOpen() : absl::OkStatus(); }

absl::StatusOr<NodePart*> SharedDiskRoot::FindPart(InflightId64 id) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  const auto found = parts.find(id);
  if (found == parts.end()) return absl::NotFoundError(absl::StrCat("no part of a save has the number ", id));
  return &found->second;
}

absl::StatusOr<RootSnapshot> SharedDiskRoot::Open(FileSystemWorkers& workers,
                                                  const ThreadedRootIoOptions& options, Clock* clock) {
  if (store == nullptr) {
    CKPTD_RETURN_IF_ERROR(OpenDirectory());
    CKPTD_ASSIGN_OR_RETURN(store, SharedRootStore::Open(fs.get(), dir.get(), clock,
                                                        {.node = identity.node,
                                                         .io_backend = options.backend,
                                                         .queues = options.queues,
                                                         .staleness = options.staleness}));
  }
  probe_ = store->probe();
  absl::Status started = workers.StartIo(options.backend, probe_);
  if (!started.ok()) {
    store.reset();
    return started;
  }
  open.store(true);
  return Scan();
}

absl::StatusOr<RootSnapshot> SharedDiskRoot::Scan() {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  CKPTD_RETURN_IF_ERROR(store->LoadRecord({}).status());
  CKPTD_ASSIGN_OR_RETURN(SharedRootScan scan, store->Scan());
  for (auto& [sequence, checkpoint] : scan.checkpoints) Mark(checkpoint);
  committed = scan.checkpoints;
  known_tags.clear();
  for (const auto& [sequence, checkpoint] : committed) known_tags.insert(checkpoint.summary.tag());
  for (const auto& each : scan.damaged) known_tags.insert(each.tag);
  scanned_in_term = coordinates;
  RootSnapshot snapshot;
  snapshot.probe = probe_;
  snapshot.committed = std::move(scan.checkpoints);
  snapshot.damaged = std::move(scan.damaged);
  snapshot.highest_sequence = scan.highest_sequence;
  snapshot.highest_term = scan.highest_term;
  snapshot.foreign = std::move(scan.foreign);
  snapshot.half_removed = std::move(scan.half_removed);
  CKPTD_ASSIGN_OR_RETURN(snapshot.pointers, UpdatePointers(committed));
  RecordMarksIfPossible(&snapshot.pointers);
  return snapshot;
}

void SharedDiskRoot::Mark(CommittedCheckpoint& checkpoint) const {
  const auto found = damage.find(checkpoint.summary.sequence());
  if (found != damage.end()) checkpoint.damage = found->second;
}

NodePartRecord SharedDiskRoot::RecordOf(const std::vector<PartRecord>& ranks) const {
  NodePartRecord record;
  record.set_format_version(1);
  record.set_node(identity.node);
  record.set_incarnation(identity.incarnation);
  std::vector<FileRecord> files;
  if (!ranks.empty()) *record.mutable_checkpoint() = ranks.front().checkpoint();
  for (const PartRecord& rank : ranks) {
    record.add_ranks(rank.rank());
    files.insert(files.end(), rank.files().begin(), rank.files().end());
    MergePart(rank.checkpoint(), *record.mutable_checkpoint());  // One that was written early knows less.
  }
  std::sort(record.mutable_ranks()->begin(), record.mutable_ranks()->end());
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path() < b.path(); });
  record.mutable_files()->Add(files.begin(), files.end());
  return record;
}

absl::StatusOr<LoadedCheckpoint> SharedDiskRoot::Load(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  // What other coordinators have removed since the last look is not what a pointer may name.
  if (coordinates && !scanned_in_term) CKPTD_RETURN_IF_ERROR(Scan().status());
  LoadedCheckpoint loaded;
  CKPTD_ASSIGN_OR_RETURN(loaded.checkpoint, store->FindCheckpoint(tag, sequence));
  Mark(loaded.checkpoint);
  std::erase_if(committed, [&tag](const auto& other) { return other.second.summary.tag() == tag; });
  committed[sequence] = loaded.checkpoint;
  known_tags.insert(tag);
  CKPTD_ASSIGN_OR_RETURN(loaded.pointers, UpdatePointers(committed));
  return loaded;
}

absl::StatusOr<PointerFiles> SharedDiskRoot::SetDamage(int64_t sequence,
                                                       const std::optional<storage::v1::Damage>& mark) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  damage[sequence] = mark;
  record_is_old_ = true;
  if (const auto found = committed.find(sequence); found != committed.end()) Mark(found->second);
  CKPTD_ASSIGN_OR_RETURN(PointerFiles pointers, UpdatePointers(committed));
  RecordMarksIfPossible(&pointers);
  return pointers;
}

absl::Status SharedDiskRoot::SetPinned(const std::string& tag, int64_t sequence, bool pinned) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  pins[sequence] = {tag, pinned};
  record_is_old_ = true;
  store->SetPinned(sequence, pinned);
  if (const auto found = committed.find(sequence); found != committed.end()) found->second.pinned = pinned;
  return coordinates ? RecordMarks() : absl::OkStatus();
}

void SharedDiskRoot::Forget(int64_t sequence) {
  if (const auto gone = committed.extract(sequence); !gone.empty())
    known_tags.erase(gone.mapped().summary.tag());
  const auto marked = damage.find(sequence);
  if (marked == damage.end() || !marked->second) return;
  marked->second.reset();
  record_is_old_ = true;
}

absl::Status SharedDiskRoot::RecordMarks() {
  CKPTD_ASSIGN_OR_RETURN(const SharedRunRecord known, store->LoadRecord({}));
  SharedRunRecord record = known;
  auto& marks = *record.mutable_damages()->mutable_damages();
  for (const auto& [sequence, mark] : damage) {
    const auto before = std::find_if(marks.begin(), marks.end(),
                                     [of = sequence](const auto& each) { return each.sequence() == of; });
    if (before != marks.end()) marks.erase(before);
    if (mark) *marks.Add() = *mark;
  }
  for (const auto& [sequence, pin] : pins) ckptd::SetPinned(record, pin.tag, sequence, pin.pinned);
  record_is_old_ = false;
  if (record.SerializeAsString() == known.SerializeAsString()) return absl::OkStatus();
  const absl::Status stored = store->StoreRecord(std::move(record)).status();
  record_is_old_ = !stored.ok();
  return stored;
}

void SharedDiskRoot::RecordMarksIfPossible(PointerFiles* pointers) {
  if (!coordinates || !record_is_old_) return;
  if (const absl::Status recorded = RecordMarks(); !recorded.ok()) {
    pointers->warnings.push_back(absl::StrCat(
        "the record of damaged and pinned checkpoints is not up to date: ", std::string(recorded.message())));
  }
}

absl::StatusOr<PointerFiles> SharedDiskRoot::UpdatePointers(
    const std::map<int64_t, CommittedCheckpoint>& checkpoints) {
  if (!coordinates) return PointerFiles{.known = false};
  CKPTD_ASSIGN_OR_RETURN(known_pointers, store->UpdatePointers(checkpoints));
  return known_pointers;
}

absl::StatusOr<PointerFiles> SharedDiskRoot::ReleasePointers(int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  if (coordinates && !scanned_in_term) CKPTD_RETURN_IF_ERROR(Scan().status());
  if (!committed.contains(sequence)) {
    return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                     absl::StrCat("no checkpoint of sequence ", sequence, " is in this root"));
  }
  CKPTD_ASSIGN_OR_RETURN(known_pointers, store->ReleasePointers(committed, sequence));
  return known_pointers;
}

absl::Status SharedDiskRoot::BeginTerm(int64_t term) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  CKPTD_RETURN_IF_ERROR(store->BeginTerm(term));
  coordinates = true;
  scanned_in_term = false;
  known_pointers = {.known = false};
  record_is_old_ = !damage.empty() || !pins.empty();
  return absl::OkStatus();
}

void SharedDiskRoot::EndTerm() {
  coordinates = scanned_in_term = false;
  known_pointers = {.known = false};
}

// A removal cannot be undone, so this checks everything that keeps a checkpoint: the engine may know the
// pointer files only as they were before another coordinator changed them.
absl::StatusOr<uint64_t> SharedDiskRoot::CheckRemovable(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  if (!coordinates) return absl::UnavailableError("this node has begun no term as the run's coordinator");
  if (!scanned_in_term || !known_pointers.known) CKPTD_RETURN_IF_ERROR(Scan().status());
  const auto keeps = [&](const char* reason, const std::string& why) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason, absl::StrCat(tag, " stays: ", why),
                     {{"tag", tag}, {"sequence", absl::StrCat(sequence)}});
  };
  if (known_pointers.holders.contains(sequence))
    return keeps(reason::kPointed, "a pointer file names it, until that names a newer checkpoint");
  const auto found = committed.find(sequence);
  if (found != committed.end() && found->second.pinned) return keeps(reason::kPinned, "it is pinned");
  return store->InodeOf(tag, sequence);
}

absl::StatusOr<SharedRootIo::Replaced> SharedDiskRoot::FindReplaced(
    const SharedRootIo::Publication& publication) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  absl::StatusOr<SharedRootStore::Replaced> found =
      store->FindReplaced(publication.save, FactsOf(publication), publication.digests);
  if (IsForGood(found.status()) || IsRefusal(found.status())) return SharedRootIo::Replaced();
  CKPTD_RETURN_IF_ERROR(found.status());
  return SharedRootIo::Replaced{found->sequence, std::move(found->pointers)};
}

absl::StatusOr<SharedRootIo::Published> SharedDiskRoot::Publish(
    const SharedRootIo::Publication& publication) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  const absl::StatusOr<int64_t> published =
      store->Publish(publication.save, FactsOf(publication), publication.digests);
  if (published.ok() && *published != 0) return SharedRootIo::Published{*published, absl::OkStatus()};
  if (published.ok()) {
    known_tags.insert(publication.save.tag);
    const NewCheckpoints found = FindNewCheckpoints(*fs, dir.get(), known_tags);
    // At least 1: all nodes also rescan for a checkpoint that cannot be read.
    const int64_t moved_in = found.any ? std::max<int64_t>(found.highest_sequence, 1) : 0;
    return SharedRootIo::Published{0, absl::OkStatus(), moved_in};
  }
  if (IsRefusal(published.status())) return SharedRootIo::Published{0, published.status()};
  if (!IsForGood(published.status())) return published.status();
  // The save is out of the way before any node is told that it is given up: no coordinator can publish it
  // later.
  CKPTD_RETURN_IF_ERROR(store->Discard(publication.save.name));
  return SharedRootIo::Published{0, published.status()};
}

absl::StatusOr<std::vector<std::string>> SharedDiskRoot::Sweep(int64_t last,
                                                               const std::set<int64_t>& unfinished) {
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  const auto has_ended = [&](const SharedInflight& save) {
    return save.sequence <= last && !unfinished.contains(save.sequence);
  };
  CKPTD_ASSIGN_OR_RETURN(const std::vector<SharedInflight> in_flight, store->InFlight());
  for (const SharedInflight& save : in_flight) {
    if (has_ended(save)) CKPTD_RETURN_IF_ERROR(store->Discard(save.name));
  }
  CKPTD_ASSIGN_OR_RETURN(const std::vector<SharedInflight> in_trash, store->InTrash());
  std::vector<std::string> removable;
  for (const SharedInflight& save : in_trash) {
    if (has_ended(save)) removable.push_back(save.name);
  }
  return removable;
}

}  // namespace ckptd
