// From one daemon to the next: what every rank has sealed is kept until it is on disk, and what an earlier
// daemon had sealed is written and committed here as if it had been sealed here.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

// For a root that nobody opens: its file system is not mounted, or its directory is gone.
constexpr Duration kInheritPatience = std::chrono::minutes(10);
constexpr int64_t kDiskSlack = 1 << 20;

}  // namespace

storage::v1::SealedSave Engine::Impl::SealedRecord(const Save& save) const {
  storage::v1::SealedSave record;
  record.set_format_version(1);
  record.set_device(save.run->device);
  record.set_inode(save.run->inode);
  record.set_path(save.run->path);
  record.set_uid(save.run->uid);
  *record.mutable_checkpoint() = SummaryOf(save);
  if (save.num_kept_ckpts) record.set_num_kept_ckpts(*save.num_kept_ckpts);
  for (const auto& entry : save.parts) {
    const Part& part = entry.second;
    storage::v1::SealedPart& sealed = *record.add_parts();
    sealed.set_rank(part.rank);
    sealed.set_instance(part.instance);
    for (const v1::FileSpec& spec : part.files) {
      storage::v1::SealedFile& file = *sealed.add_files();
      file.set_path(spec.path());
      file.set_size_bytes(spec.size_bytes());
      file.set_offset(part.placed.at(spec.path()).offset());
    }
    for (const SegmentRef& ref : part.segments) {
      storage::v1::SealedSegment& segment = *sealed.add_segments();
      segment.set_id(ref.id);
      segment.set_size_bytes(ref.size);
    }
  }
  return record;
}

// Before the last rank hears that its part is sealed.
void Engine::Impl::KeepSealed(Save* save) {
  if (journal_ == nullptr) return;
  for (const auto& entry : save->parts) {
    for (const SegmentRef& segment : entry.second.segments) {
      if (!segment.kept) return;  // The pool has said why.
    }
  }
  storage::v1::SealedSave record = SealedRecord(*save);
  if (absl::Status kept = journal_->Keep(record); !kept.ok()) {
    observer_->OnWarning(absl::StrCat("the sealed save ", save->key.tag, " of ", save->run->path,
                                      " is lost if this daemon is killed: ", std::string(kept.message())));
    return;
  }
  record.clear_parts();
  save->kept = std::move(record);
}

// Before its memory goes, and before anybody hears that it is COMMITTED or FAILED.
void Engine::Impl::DropKept(Save* save) {
  if (!save->kept) return;
  Forget(*std::exchange(save->kept, std::nullopt));
}

void Engine::Impl::Forget(const storage::v1::SealedSave& record) {
  if (journal_ == nullptr) return;
  if (absl::Status dropped = journal_->Drop(record); !dropped.ok()) {
    observer_->OnWarning(std::string(dropped.message()));
  }
}

void Engine::Impl::Inherit(std::vector<storage::v1::SealedSave> saves) {
  for (storage::v1::SealedSave& record : saves) {
    std::vector<SegmentId> ids;
    for (const storage::v1::SealedPart& part : record.parts()) {
      for (const storage::v1::SealedSegment& segment : part.segments()) ids.push_back(segment.id());
    }
    absl::StatusOr<SegmentPool::Inherited> memory = pool_->Inherit(ids);
    if (!memory.ok()) {
      observer_->OnWarning(absl::StrCat("the sealed save ", record.checkpoint().tag(), " of ", record.path(),
                                        " is lost: ", std::string(memory.status().message())));
      Forget(record);
      continue;
    }
    inherited_.push_back({std::move(record), *std::move(memory), clock_->Now() + kInheritPatience});
  }
}

bool Engine::Impl::IsOf(const Run& run, const InheritedSave& save) {
  return save.record.device() == run.device && save.record.inode() == run.inode;
}

int64_t Engine::Impl::HighestInherited(const Run& run) const {
  int64_t highest = 0;
  for (const InheritedSave& save : inherited_) {
    if (IsOf(run, save)) highest = std::max(highest, save.record.checkpoint().sequence());
  }
  return highest;
}

// The root is open and recovered: what the disk had of these saves is published, or gone.
void Engine::Impl::AdoptInherited(Run* run) {
  std::vector<InheritedSave> ours;
  for (auto save = inherited_.begin(); save != inherited_.end();) {
    if (!IsOf(*run, *save)) {
      ++save;
      continue;
    }
    ours.push_back(std::move(*save));
    save = inherited_.erase(save);
  }
  std::sort(ours.begin(), ours.end(), [](const InheritedSave& a, const InheritedSave& b) {
    return a.record.checkpoint().sequence() < b.record.checkpoint().sequence();
  });
  for (InheritedSave& save : ours) {
    const std::string obstacle = ObstacleTo(run, save.record);
    if (obstacle.empty()) {
      AdoptSave(run, std::move(save));
    } else {
      LetGo(save, obstacle);
    }
  }
}

// Why this sealed save of an earlier daemon is not written any more; empty when it is.
std::string Engine::Impl::ObstacleTo(Run* run, const storage::v1::SealedSave& record) {
  const storage::v1::ManifestSummary& checkpoint = record.checkpoint();
  if (record.uid() != run->uid) return absl::StrCat("the run belongs to uid ", run->uid);
  if (run->committed.contains(checkpoint.sequence())) return "it is committed";
  const SaveId key{checkpoint.attempt(), checkpoint.tag(), checkpoint.ordinal()};
  if (std::optional<v1::Checkpoint> past = PastSave(run, key)) {
    return absl::StrCat("it ended ", v1::Level_Name(past->level()));
  }
  for (const auto& entry : run->committed) {
    if (entry.second.summary.tag() == checkpoint.tag() && entry.first > checkpoint.sequence()) {
      return absl::StrCat("the tag holds a newer one (sequence ", entry.first, ")");
    }
  }
  if (run->saves.contains(checkpoint.sequence())) return "its sequence is another save's";
  return "";
}

void Engine::Impl::LetGo(const InheritedSave& save, const std::string& why) {
  observer_->OnInfo(absl::StrCat("the sealed save ", save.record.checkpoint().tag(), " of ",
                                 save.record.path(), " (sequence ", save.record.checkpoint().sequence(),
                                 ") of an earlier daemon is let go: ", why));
  Forget(save.record);
  pool_->Release(save.memory.reservation);
}

void Engine::Impl::AdoptSave(Run* run, InheritedSave inherited) {
  const storage::v1::SealedSave& record = inherited.record;
  const storage::v1::ManifestSummary& checkpoint = record.checkpoint();
  auto save = std::make_unique<Save>();
  save->run = run;
  save->key = SaveId{checkpoint.attempt(), checkpoint.tag(), checkpoint.ordinal()};
  save->sequence = checkpoint.sequence();
  if (checkpoint.has_step()) save->step = checkpoint.step();
  save->world_size = checkpoint.world_size();
  if (record.has_num_kept_ckpts()) save->num_kept_ckpts = record.num_kept_ckpts();
  save->metrics = {checkpoint.metrics().begin(), checkpoint.metrics().end()};
  save->pointers = {checkpoint.pointers().begin(), checkpoint.pointers().end()};
  save->phase = SavePhase::kAdmitted;
  save->level = v1::SEALED;
  save->reservation = inherited.memory.reservation;
  save->disk_reserved = kDiskSlack;
  save->begun_at = save->sealed_at = clock_->Now();
  save->begun_unix_us = checkpoint.create_time_us();
  save->admission_deadline = save->commit_deadline = Instant::max();  // All is sealed: nothing is waited for.
  size_t next_segment = 0;
  for (const storage::v1::SealedPart& sealed : record.parts()) {
    Part& part = save->parts[sealed.rank()];
    part.rank = sealed.rank();
    part.instance = sealed.instance();
    part.begun = part.granted = part.sealed = true;
    for (const storage::v1::SealedFile& file : sealed.files()) {
      v1::FileSpec& spec = part.files.emplace_back();
      spec.set_path(file.path());
      spec.set_size_bytes(file.size_bytes());
      v1::FilePlacement& placement = part.placed[file.path()];
      placement.set_path(file.path());
      placement.set_size_bytes(file.size_bytes());
      placement.set_offset(file.offset());
      part.end = std::max(part.end, file.offset() + file.size_bytes());
      save->owner_of_path.emplace(file.path(), part.rank);
    }
    for (int i = 0; i < sealed.segments_size(); ++i) {
      part.segments.push_back(inherited.memory.segments[next_segment++]);
    }
    save->disk_reserved += part.end;
  }
  sizes_.Remember(*save);
  save->kept = record;
  save->kept->clear_parts();
  Save* added = saves_.Add(std::move(save));
  observer_->OnInfo(absl::StrCat("the sealed save ", added->key.tag, " of ", run->path, " (sequence ",
                                 added->sequence, ") of an earlier daemon is taken over"));
  StartInflight(added);
  Notify(*added);
}

// Saves in roots that nobody has opened for too long: their memory is wanted by others.
void Engine::Impl::ExpireInherited() {
  const Instant now = clock_->Now();
  for (auto save = inherited_.begin(); save != inherited_.end();) {
    const bool opening =
        std::any_of(runs_.begin(), runs_.end(), [&](const auto& run) { return IsOf(*run.second, *save); });
    if (opening || now < save->deadline) {
      ++save;
      continue;
    }
    observer_->OnWarning(
        absl::StrCat("the sealed save ", save->record.checkpoint().tag(), " of ", save->record.path(),
                     " of an earlier daemon is lost: its root was not to be opened for too long"));
    Forget(save->record);
    pool_->Release(save->memory.reservation);
    save = inherited_.erase(save);
  }
}

}  // namespace ckptd
