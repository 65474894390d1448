#include "daemon/engine/save/save_recovery.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/save/member_files.h"
#include "storage/format/retention_record.h"

namespace ckptd {
namespace {

// How long a root may stay closed: its file system may not be mounted, or its directory may be gone.
constexpr Duration kOpenTimeout = std::chrono::minutes(10);
constexpr int64_t kSlackBytes = 1 << 20;  // On disk, for directories and records.

storage::v1::SealedPart SealedPartOf(const Part& part) {
  storage::v1::SealedPart sealed;
  sealed.set_rank(part.rank);
  sealed.set_instance(part.instance);
  for (const SealedFile& each : part.files) {
    storage::v1::SealedFile& file = *sealed.add_files();
    file.set_path(each.placed->path);
    file.set_size_bytes(each.size);
    file.set_offset(each.placed->offset);
  }
  for (const SegmentRef& ref : part.segments) {
    storage::v1::SealedSegment& segment = *sealed.add_segments();
    segment.set_id(ref.id);
    segment.set_size_bytes(ref.size);
  }
  return sealed;
}

storage::v1::SealedSave RecordOf(const Save& save, int32_t chunk_bytes) {
  storage::v1::SealedSave record;
  record.set_format_version(1);
  record.set_device(save.run->device);
  record.set_inode(save.run->inode);
  record.set_path(save.run->path);
  record.set_uid(save.run->uid);
  *record.mutable_checkpoint() = SummaryOf(save, chunk_bytes);
  if (save.retention) StoreRetention(*save.retention, &record);
  for (const auto& [rank, part] : save.parts) *record.add_parts() = SealedPartOf(part);
  return record;
}

std::vector<SegmentId> SegmentsOf(const storage::v1::SealedSave& record) {
  std::vector<SegmentId> ids;
  for (const storage::v1::SealedPart& part : record.parts()) {
    for (const storage::v1::SealedSegment& segment : part.segments()) ids.push_back(segment.id());
  }
  return ids;
}

std::string Words(const storage::v1::SealedSave& record) {
  return absl::StrCat("the sealed save ", record.checkpoint().tag(), " of ", record.path());
}

// The save as its record has it, without its parts.
std::unique_ptr<Save> SaveOf(const storage::v1::SealedSave& record, Run* run, Instant now) {
  const storage::v1::ManifestSummary& checkpoint = record.checkpoint();
  auto save = std::make_unique<Save>();
  save->run = run;
  save->key = SaveId{checkpoint.attempt(), checkpoint.tag(), checkpoint.ordinal()};
  save->sequence = checkpoint.sequence();
  if (checkpoint.has_step()) save->step = checkpoint.step();
  save->world_size = checkpoint.world_size();
  if (record.has_num_kept_ckpts() || record.has_retention()) save->retention = LoadRetention(record);
  save->metrics = {checkpoint.metrics().begin(), checkpoint.metrics().end()};
  save->pointers = {checkpoint.pointers().begin(), checkpoint.pointers().end()};
  save->suspect = checkpoint.suspect();
  save->life = SaveLifecycle(SavePhase::kAdmitted, v1::SEALED);
  save->begun_at = save->sealed_at = now;
  save->begun_unix_us = checkpoint.create_time_us();
  save->admission_deadline = save->commit_deadline = Instant::max();  // No rank is waited for.
  save->kept = record;
  save->kept->clear_parts();
  return save;
}

}  // namespace

SaveRecovery::SaveRecovery(Clock* clock, EngineObserver* observer, SegmentPool* pool, SealJournal* journal,
                           const std::map<std::string, std::unique_ptr<Run>>* runs, SaveTable* saves,
                           ExpectedSizes* sizes, int32_t chunk_bytes, Hooks hooks)
    : clock_(clock),
      observer_(observer),
      pool_(pool),
      journal_(journal),
      runs_(runs),
      saves_(saves),
      sizes_(sizes),
      chunk_bytes_(chunk_bytes),
      hooks_(std::move(hooks)) {}

// ---- for the next daemon

void SaveRecovery::Keep(Save* save) {
  if (journal_ == nullptr) return;
  for (const auto& [rank, part] : save->parts) {
    for (const SegmentRef& segment : part.segments) {
      if (!segment.kept) return;  // The pool has warned of it.
    }
  }
  storage::v1::SealedSave record = RecordOf(*save, chunk_bytes_);
  if (absl::Status kept = journal_->Keep(record); !kept.ok()) {
    observer_->OnWarning(
        absl::StrCat(Words(record), " is lost if this daemon is killed: ", std::string(kept.message())));
    return;
  }
  record.clear_parts();
  save->kept = std::move(record);
}

void SaveRecovery::Drop(Save* save) {
  if (save->kept) DropRecord(*std::exchange(save->kept, std::nullopt));
}

void SaveRecovery::DropRecord(const storage::v1::SealedSave& record) {
  if (journal_ == nullptr) return;
  if (absl::Status dropped = journal_->Drop(record); !dropped.ok())
    observer_->OnWarning(std::string(dropped.message()));
}

// ---- from the daemon before

void SaveRecovery::Inherit(std::vector<storage::v1::SealedSave> saves) {
  for (storage::v1::SealedSave& record : saves) {
    absl::StatusOr<SegmentPool::Inherited> memory = pool_->Inherit(SegmentsOf(record));
    if (!memory.ok()) {
      observer_->OnWarning(absl::StrCat(Words(record), " is lost: ", std::string(memory.status().message())));
      DropRecord(record);
      continue;
    }
    inherited_.push_back({std::move(record), *std::move(memory), clock_->Now() + kOpenTimeout});
  }
}

bool SaveRecovery::IsOf(const Run& run, const Inherited& save) {
  return save.record.device() == run.device && save.record.inode() == run.inode;
}

int64_t SaveRecovery::HighestSequence(const Run& run) const {
  int64_t highest = 0;
  for (const Inherited& save : inherited_) {
    if (IsOf(run, save)) highest = std::max(highest, save.record.checkpoint().sequence());
  }
  return highest;
}

int64_t SaveRecovery::HighestAttempt(const Run& run) const {
  int64_t highest = 0;
  for (const Inherited& save : inherited_) {
    if (IsOf(run, save)) highest = std::max(highest, save.record.checkpoint().attempt());
  }
  return highest;
}

bool SaveRecovery::Holds(const Run& run, int64_t sequence) const {
  return std::any_of(inherited_.begin(), inherited_.end(), [&](const Inherited& save) {
    return IsOf(run, save) && save.record.checkpoint().sequence() == sequence;
  });
}

// In the order of their sequences.
std::vector<SaveRecovery::Inherited> SaveRecovery::TakeInherited(const Run& run) {
  std::vector<Inherited> taken;
  for (auto save = inherited_.begin(); save != inherited_.end();) {
    if (!IsOf(run, *save)) {
      ++save;
      continue;
    }
    taken.push_back(std::move(*save));
    save = inherited_.erase(save);
  }
  std::sort(taken.begin(), taken.end(), [](const Inherited& a, const Inherited& b) {
    return a.record.checkpoint().sequence() < b.record.checkpoint().sequence();
  });
  return taken;
}

void SaveRecovery::OnRootOpened(Run* run) {
  for (Inherited& save : TakeInherited(*run)) {
    const std::string obstacle = ObstacleTo(*run, save.record);
    if (obstacle.empty()) {
      Recover(run, std::move(save));
    } else {
      observer_->OnInfo(absl::StrCat(Words(save.record), " (sequence ", save.record.checkpoint().sequence(),
                                     ") of an earlier daemon is let go: ", obstacle));
      LetGo(save);
    }
  }
}

std::string SaveRecovery::ObstacleTo(const Run& run, const storage::v1::SealedSave& record) const {
  const storage::v1::ManifestSummary& checkpoint = record.checkpoint();
  if (record.uid() != run.uid) return absl::StrCat("the run belongs to uid ", run.uid);
  if (run.catalog.Find(checkpoint.sequence()) != nullptr) return "it is committed";
  const SaveId key{checkpoint.attempt(), checkpoint.tag(), checkpoint.ordinal()};
  if (std::optional<v1::Checkpoint> past = hooks_.past(run, key))
    return absl::StrCat("it ended ", v1::Level_Name(past->level()));
  for (const auto& [sequence, committed] : run.catalog.committed()) {
    if (committed.summary.tag() == checkpoint.tag() && sequence > checkpoint.sequence())
      return absl::StrCat("the tag holds a newer one (sequence ", sequence, ")");
  }
  if (run.saves.contains(checkpoint.sequence())) return "its sequence is another save's";
  return "";
}

void SaveRecovery::LetGo(const Inherited& save) {
  DropRecord(save.record);
  pool_->Release(save.memory.reservation);
}

void SaveRecovery::Recover(Run* run, Inherited inherited) {
  std::unique_ptr<Save> save = SaveOf(inherited.record, run, clock_->Now());
  save->reservation = inherited.memory.reservation;
  save->disk_reserved = kSlackBytes;
  auto segment = inherited.memory.segments.begin();
  for (const storage::v1::SealedPart& sealed : inherited.record.parts()) {
    const auto end = segment + sealed.segments_size();
    RecoverPart(sealed, {segment, end}, save.get());
    segment = end;
  }
  sizes_->Remember(*save);
  Save* added = saves_->Add(std::move(save));
  observer_->OnInfo(absl::StrCat(Words(inherited.record), " (sequence ", added->sequence,
                                 ") of an earlier daemon is taken over"));
  hooks_.recovered(added);
}

void SaveRecovery::RecoverPart(const storage::v1::SealedPart& sealed, const std::vector<SegmentRef>& segments,
                               Save* save) const {
  Part& part = save->PartOf(sealed.rank());
  part.instance = sealed.instance();
  part.begun = part.granted = part.sealed = true;
  part.segments = segments;
  for (const storage::v1::SealedFile& file : sealed.files()) {
    const PlacedFile& placed = part.placed->Add(file.path(), file.size_bytes(), file.offset());
    part.files.push_back({&placed, placed.size});
    part.end = std::max(part.end, placed.offset + placed.size);
    save->claims.Add(placed.path, part.rank);
  }
  save->disk_reserved += part.end;
}

void SaveRecovery::OnTick(Instant now) {
  for (auto save = inherited_.begin(); save != inherited_.end();) {
    const bool is_opening = std::any_of(runs_->begin(), runs_->end(),
                                        [&](const auto& entry) { return IsOf(*entry.second, *save); });
    if (is_opening || now < save->deadline) {
      ++save;
      continue;
    }
    observer_->OnWarning(absl::StrCat(Words(save->record),
                                      " of an earlier daemon is lost: its root could not be opened in time"));
    LetGo(*save);
    save = inherited_.erase(save);
  }
}

}  // namespace ckptd
