#include "storage/commit/local/root_store.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/checkpoint_tree.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/local/adopt.h"
#include "storage/commit/local/layout.h"
#include "storage/commit/local/publish.h"
#include "storage/commit/local/recovery.h"
#include "storage/commit/local/trash.h"
#include "storage/commit/local/undelete.h"
#include "storage/commit/steps/pointers.h"
#include "storage/commit/steps/records.h"
#include "storage/commit/steps/root_sharing.h"
#include "storage/commit/steps/scratch_probe.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;
using storage::v1::PartRecord;
using storage::v1::RunRecord;

constexpr int64_t kForever = INT64_MAX / 2;

absl::Status NoCheckpoint(const std::string& tag, int64_t sequence) {
  return MakeError(
      absl::StatusCode::kNotFound, "NO_CHECKPOINT",
      absl::StrCat("no committed checkpoint ", tag, " of sequence ", sequence, " is in this root"),
      {{"tag", tag}, {"sequence", absl::StrCat(sequence)}});
}

// Makes the manifest's file and allocates its space, so that a disk that fills up meanwhile does not lose the
// checkpoint at the end.
absl::Status ReserveManifest(FileSystem& fs, Handle dir, int64_t bytes, bool can_allocate) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file,
                         OpenScoped(fs, dir, OurPath("", std::string(kManifestName)), OpenMode::kCreate));
  if (bytes <= 0) return absl::OkStatus();
  if (can_allocate) return fs.Allocate(file.get(), bytes);
  const std::string zeros(static_cast<size_t>(bytes), '\0');
  return WriteFully(fs, file.get(), 0, std::as_bytes(std::span(zeros)));
}

}  // namespace

class RootStore::Impl {
 public:
  Impl(Layout layout, Clock* clock, RootStoreOptions options)
      : layout_(std::move(layout)),
        fs_(*layout_.fs),
        clock_(*clock),
        options_(std::move(options)),
        trash_(layout_.fs, layout_.trash.get()),
        pointer_writer_(layout_.fs, layout_.root, layout_.node.get()) {}

  absl::Status Start();
  absl::Status Rescan();
  // Whether <root>/.ckptd is still the directory that was opened. True also if that cannot be found out.
  bool HasItsDirectory() const;
  // Writes the records and what is in flight of `before`, whose directory has gone, to this one; before
  // Start.
  absl::Status TakeOver(const Impl& before);

  absl::StatusOr<Inflight> CreateInflight(const std::string& tag, int64_t sequence, int64_t manifest_bytes);
  absl::Status WritePartRecord(const Inflight& inflight, const PartRecord& record);
  PublishResult Publish(const Inflight& inflight, const ManifestSummary& summary,
                        const std::vector<PartRecord>& parts);
  PublishResult Adopt(const ForeignSurvey& survey, const ManifestSummary& summary);
  absl::Status Discard(const Inflight& inflight);
  absl::Status Evict(const std::string& tag, int64_t sequence);
  absl::StatusOr<Undeleted> Undelete(const std::string& tag, int64_t sequence);
  absl::Status SetPinned(const std::string& tag, int64_t sequence, bool pinned);
  absl::StatusOr<PointerFiles> SetDamage(const std::string& tag, int64_t sequence,
                                         const std::optional<storage::v1::Damage>& damage);
  absl::StatusOr<PointerFiles> ReleasePointers(const std::string& tag, int64_t sequence);
  absl::StatusOr<ScopedHandle> OpenCheckpoint(const std::string& tag, int64_t sequence);

 private:
  friend class RootStore;

  absl::Status Probe();
  absl::Status LoadRecords();
  absl::Status RecoverAndScan();
  absl::Status FillInflight(const Inflight& inflight, int64_t manifest_bytes);
  void RemoveLeft();
  CommittedCheckpoint* Find(const std::string& tag, int64_t sequence);
  // Fills in what the root's records say of the checkpoint.
  CommittedCheckpoint WithMarks(CommittedCheckpoint checkpoint) const;
  PublishContext context() { return {layout_, probe_, pins_, trash_, clock_}; }
  // Refuses all changes until Rescan, because of `cause`.
  void Latch(const absl::Status& cause) { latched_ = cause; }
  absl::Status CheckWritable() const;
  // Not OK for a save whose in-flight directory was removed with the <root>/.ckptd that was there then.
  absl::Status CheckNotLost(const Inflight& inflight) const;
  void SawSequence(int64_t sequence) { highest_sequence_ = std::max(highest_sequence_, sequence); }

  // Constant after Start.
  const Layout layout_;
  FileSystem& fs_;
  Clock& clock_;
  const RootStoreOptions options_;
  ProbeResult probe_;  // But free_bytes and total_bytes are as of the last scan.

  Trash trash_;
  PointerWriter pointer_writer_;
  PointerFiles pointers_;
  Pins pins_;
  Damages damages_;
  RunRecord run_record_;
  std::vector<RecoveredSave> recovered_;
  std::map<int64_t, CommittedCheckpoint> committed_;
  std::vector<DamagedCheckpoint> damaged_;
  std::vector<ForeignTag> foreign_;
  int64_t highest_sequence_ = 0;
  FileStat node_stat_{};                 // Of the node's directory.
  std::set<std::string> names_;          // The directories in the root that this store knows of.
  std::set<std::string> live_;           // In-flight names of saves that are under way.
  std::set<std::string> left_;           // In-flight directories of no save, to be removed.
  std::set<std::string> lost_;           // Of saves that are under way and whose directories were removed.
  std::set<std::string> publish_tried_;  // Of these: they may have a manifest.
  absl::Status latched_ = absl::OkStatus();  // Not OK: the root is read-only, for this cause.
};

absl::Status RootStore::Impl::CheckWritable() const {
  if (latched_.ok()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_READ_ONLY",
                   absl::StrCat("this root takes no changes until it is scanned again: ",
                                std::string(latched_.message())));
}

absl::Status RootStore::Impl::CheckNotLost(const Inflight& inflight) const {
  if (!lost_.contains(inflight.name)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAborted, reason::kRootChanged,
                   absl::StrCat("the directory .ckptd of the root was removed while ", inflight.tag,
                                " was being written; save again"),
                   {{"tag", inflight.tag}});
}

bool RootStore::Impl::HasItsDirectory() const {
  const absl::StatusOr<FileStat> now = fs_.Stat(layout_.root, layout_.node_path);
  if (!now.ok()) return !IsMissing(now.status());
  return now->device == node_stat_.device && now->inode == node_stat_.inode;
}

absl::Status RootStore::Impl::TakeOver(const Impl& before) {
  if (before.run_record_.format_version() != 0)
    CKPTD_RETURN_IF_ERROR(StoreRunRecord(fs_, layout_.node.get(), before.run_record_));
  CKPTD_RETURN_IF_ERROR(before.pins_.Store(fs_, layout_.ours.get()));
  CKPTD_RETURN_IF_ERROR(before.damages_.Store(fs_, layout_.ours.get()));
  lost_ = before.lost_;
  lost_.insert(before.live_.begin(), before.live_.end());
  SawSequence(before.highest_sequence_);
  committed_ = before.committed_;
  return absl::OkStatus();
}

absl::Status RootStore::Impl::Start() {
  CKPTD_ASSIGN_OR_RETURN(node_stat_, fs_.Stat(layout_.node.get(), ""));
  // Read first: a root that cannot be understood is not changed.
  CKPTD_RETURN_IF_ERROR(LoadRecords());
  CKPTD_RETURN_IF_ERROR(SyncNames(layout_));
  // Before anything is removed from trash, which may hold the only copy of a checkpoint.
  CKPTD_RETURN_IF_ERROR(RecoverSwap(layout_));
  CKPTD_RETURN_IF_ERROR(trash_.Load());
  absl::Status probed = Probe();
  const TrashTerms oldest_first{.now_us = clock_.UnixMicros(), .grace_us = kForever, .room_bytes = 1};
  while (ReasonOf(probed) == "NO_SPACE" && trash_.bytes() > 0) {
    CKPTD_ASSIGN_OR_RETURN(const bool more, trash_.EmptyStep({}, oldest_first));
    if (!more) break;
    probed = Probe();
  }
  CKPTD_RETURN_IF_ERROR(probed);
  return RecoverAndScan();
}

absl::Status RootStore::Impl::Probe() {
  const std::string name(kScratchDirectory);
  CKPTD_ASSIGN_OR_RETURN(
      probe_, ProbeInScratch(fs_, layout_.node.get(), name, absl::StrCat(layout_.node_path, "/", name),
                             options_.io_backend, options_.queues));
  return absl::OkStatus();
}

absl::Status RootStore::Impl::LoadRecords() {
  CKPTD_ASSIGN_OR_RETURN(pins_, Pins::Load(fs_, layout_.ours.get()));
  CKPTD_ASSIGN_OR_RETURN(damages_, Damages::Load(fs_, layout_.ours.get()));
  CKPTD_ASSIGN_OR_RETURN(const std::optional<RunRecord> run,
                         LoadRunRecord(fs_, layout_.node.get(), layout_.node_path));
  run_record_ = run.value_or(RunRecord());
  return absl::OkStatus();
}

absl::Status RootStore::Impl::RecoverAndScan() {
  CKPTD_ASSIGN_OR_RETURN(recovered_, RecoverInflight(context(), live_));
  // What this run has saved, as far as the store remembers.
  std::set<std::pair<std::string, int64_t>> saved;
  for (const auto& [sequence, checkpoint] : committed_) saved.emplace(checkpoint.summary.tag(), sequence);
  for (const storage::v1::Outcome& outcome : run_record_.outcomes())
    saved.emplace(outcome.tag(), outcome.sequence());
  CKPTD_ASSIGN_OR_RETURN(RootScan scan,
                         ScanRoot(fs_, layout_.root, [&saved](const std::string& tag, int64_t sequence) {
                           return saved.contains({tag, sequence});
                         }));
  CKPTD_RETURN_IF_ERROR(SyncAdopted(layout_, scan));
  names_ = std::move(scan.directories);
  committed_.clear();
  damaged_.clear();
  foreign_ = std::move(scan.foreign);
  for (auto& [tag, status] : scan.damaged) {
    // Skipping it would make an older checkpoint the latest.
    if (ReasonOf(status) == "NEWER_FORMAT") return Annotate(status, tag);
    damaged_.push_back({tag, status});
  }
  for (auto& [sequence, summary] : scan.checkpoints) {
    committed_[sequence] = WithMarks({.summary = std::move(summary)});
    SawSequence(sequence);
  }
  for (const RecoveredSave& save : recovered_) SawSequence(save.sequence);
  SawSequence(trash_.highest_sequence());
  SawSequence(run_record_.last_sequence());
  pointer_writer_.Forget();
  pointers_ = pointer_writer_.Update(committed_);
  return absl::OkStatus();
}

absl::Status RootStore::Impl::Rescan() {
  CKPTD_RETURN_IF_ERROR(LoadRecords());
  CKPTD_RETURN_IF_ERROR(SyncNames(layout_));
  CKPTD_RETURN_IF_ERROR(RecoverSwap(layout_));
  CKPTD_RETURN_IF_ERROR(trash_.Load());
  CKPTD_RETURN_IF_ERROR(RecoverAndScan());
  CKPTD_ASSIGN_OR_RETURN(const SpaceInfo space, fs_.Space(layout_.root));
  probe_.free_bytes = space.free_bytes;
  probe_.total_bytes = space.total_bytes;
  latched_ = absl::OkStatus();
  return absl::OkStatus();
}

CommittedCheckpoint* RootStore::Impl::Find(const std::string& tag, int64_t sequence) {
  const auto place = committed_.find(sequence);
  return place != committed_.end() && place->second.summary.tag() == tag ? &place->second : nullptr;
}

absl::StatusOr<Inflight> RootStore::Impl::CreateInflight(const std::string& tag, int64_t sequence,
                                                         int64_t manifest_bytes) {
  CKPTD_RETURN_IF_ERROR(CheckWritable());
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  if (sequence < 1) {
    return InvalidArgument(absl::StrCat("sequence ", sequence));
  }
  RemoveLeft();
  Inflight inflight{FreshName(tag, sequence), tag, sequence, {}};
  const auto fill = [&]() -> absl::Status {
    CKPTD_RETURN_IF_ERROR(fs_.MakeDir(layout_.inflight.get(), inflight.name));
    CKPTD_ASSIGN_OR_RETURN(inflight.dir,
                           OpenScoped(fs_, layout_.inflight.get(), inflight.name, OpenMode::kDirectory));
    return FillInflight(inflight, manifest_bytes);
  };
  if (const absl::Status filled = fill(); !filled.ok()) {
    left_.insert(inflight.name);
    RemoveLeft();
    return Annotate(filled, absl::StrCat("preparing ", tag));
  }
  live_.insert(inflight.name);
  SawSequence(sequence);
  return inflight;
}

// A daemon that is out of descriptors cannot look into a directory that it has just made. The next save, or
// the next daemon's recovery, removes it.
void RootStore::Impl::RemoveLeft() {
  std::erase_if(left_, [this](const std::string& name) {
    const absl::Status removed = RemoveTree(fs_, layout_.inflight.get(), name);
    return removed.ok() || IsMissing(removed);
  });
}

absl::Status RootStore::Impl::FillInflight(const Inflight& inflight, int64_t manifest_bytes) {
  CKPTD_RETURN_IF_ERROR(fs_.MakeDir(inflight.dir.get(), kOurDirectory));
  CKPTD_RETURN_IF_ERROR(ReserveManifest(fs_, inflight.dir.get(), manifest_bytes, probe_.fallocate));
  CKPTD_RETURN_IF_ERROR(fs_.Sync(inflight.dir.get(), SyncMode::kAll));
  return fs_.Sync(layout_.inflight.get(), SyncMode::kAll);
}

absl::Status RootStore::Impl::WritePartRecord(const Inflight& inflight, const PartRecord& record) {
  CKPTD_RETURN_IF_ERROR(CheckNotLost(inflight));
  const ManifestSummary& checkpoint = record.checkpoint();
  if (record.sequence() != inflight.sequence || checkpoint.sequence() != inflight.sequence ||
      checkpoint.tag() != inflight.tag || record.chunk_bytes() != checkpoint.chunk_bytes()) {
    return InvalidArgument(absl::StrCat("the part record of rank ", record.rank(), " is of ",
                                        checkpoint.tag(), " sequence ", record.sequence(), ", and ",
                                        inflight.tag, " sequence ", inflight.sequence, " is in flight"));
  }
  const std::string bytes = EncodePartRecord(record);
  // Never write a record that recovery would reject.
  CKPTD_RETURN_IF_ERROR(DecodePartRecord(bytes).status());
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle ours,
                         OpenScoped(fs_, inflight.dir.get(), kOurDirectory, OpenMode::kDirectory));
  return ReplaceFileDurably(fs_, ours.get(), PartRecordName(record.rank()), bytes);
}

PublishResult RootStore::Impl::Publish(const Inflight& inflight, const ManifestSummary& summary,
                                       const std::vector<PartRecord>& parts) {
  if (const absl::Status writable = CheckWritable(); !writable.ok())
    return {.outcome = PublishOutcome::kFailed, .status = writable, .retryable = true};
  if (const absl::Status lost = CheckNotLost(inflight); !lost.ok())
    return {.outcome = PublishOutcome::kFailed, .status = lost};
  publish_tried_.insert(inflight.name);
  Published published = PublishInflight(context(), inflight, summary, parts);
  if (published.result.outcome != PublishOutcome::kFailed) publish_tried_.erase(inflight.name);
  switch (published.result.outcome) {
    case PublishOutcome::kFailed:
      break;  // It stays live until it is discarded.
    case PublishOutcome::kIndeterminate:
      live_.erase(inflight.name);
      Latch(published.result.status);
      break;
    case PublishOutcome::kCommitted:
      live_.erase(inflight.name);
      std::erase_if(committed_,
                    [&](const auto& entry) { return entry.second.summary.tag() == inflight.tag; });
      committed_[inflight.sequence].summary = std::move(published.summary);
      published.result.pointers = pointers_ = pointer_writer_.Update(committed_);
      names_.insert(inflight.tag);
      if (const NewCheckpoints moved_in = FindNewCheckpoints(fs_, layout_.root, names_); moved_in.any) {
        published.result.root_has_new_checkpoints = true;
        published.result.highest_new_sequence = moved_in.highest_sequence;
      }
      break;
  }
  return published.result;
}

PublishResult RootStore::Impl::Adopt(const ForeignSurvey& survey, const ManifestSummary& summary) {
  const absl::Status writable = CheckWritable();
  if (!writable.ok()) return {PublishOutcome::kFailed, writable};
  SawSequence(summary.sequence());
  Published adopted = AdoptForeign(context(), survey, summary);
  if (!adopted.left.empty()) left_.insert(adopted.left);
  RemoveLeft();
  if (adopted.result.outcome == PublishOutcome::kIndeterminate) Latch(adopted.result.status);
  if (adopted.result.outcome == PublishOutcome::kCommitted) {
    committed_[summary.sequence()].summary = std::move(adopted.summary);
    std::erase_if(foreign_, [&summary](const ForeignTag& tag) { return tag.tag == summary.tag(); });
    adopted.result.pointers = pointers_;  // An adopted checkpoint names no pointer.
  }
  return adopted.result;
}

absl::Status RootStore::Impl::Discard(const Inflight& inflight) {
  CKPTD_RETURN_IF_ERROR(CheckWritable());
  if (lost_.erase(inflight.name) > 0) return absl::OkStatus();  // It is gone already.
  live_.erase(inflight.name);  // If this fails, the next scan decides what happens to it.
  const absl::StatusOr<int64_t> bytes = TreeBytes(fs_, inflight.dir.get());
  const Handle from = layout_.inflight.get();
  // A daemon that is out of descriptors can move a directory, but not look for a manifest in it.
  const bool may_have_manifest = publish_tried_.erase(inflight.name) > 0;
  const Trash::Moved moved = may_have_manifest
                                 ? trash_.MoveUnpublished(from, inflight, bytes.ok() ? *bytes : 0)
                                 : trash_.Move(from, inflight.name, inflight.name, bytes.ok() ? *bytes : 0);
  if (moved.renamed && !moved.status.ok()) Latch(moved.status);
  return moved.status;
}

absl::Status RootStore::Impl::Evict(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckWritable());
  const CommittedCheckpoint* victim = Find(tag, sequence);
  if (victim == nullptr) return NoCheckpoint(tag, sequence);
  if (victim->pinned) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "PINNED",
                     absl::StrCat(tag, " is pinned: unpin it first"), {{"tag", tag}});
  }
  if (pointers_.holders.contains(sequence)) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kPointed,
        absl::StrCat("a pointer file names ", tag, ": it stays until the pointer names a newer one"),
        {{"tag", tag}});
  }
  // Another program may have replaced the directory: only remove what ckptd wrote.
  const absl::StatusOr<ScopedHandle> dir = OpenCheckpoint(tag, sequence);
  if (ReasonOf(dir.status()) == "NO_CHECKPOINT") committed_.erase(sequence);
  if (!dir.ok()) return dir.status();
  const Trash::Moved moved =
      trash_.Move(layout_.root, tag, FreshName(tag, sequence), victim->summary.size_bytes());
  if (moved.renamed) {
    committed_.erase(sequence);
    names_.erase(tag);
  }
  if (moved.renamed && !moved.status.ok()) Latch(moved.status);
  return moved.status;
}

absl::StatusOr<Undeleted> RootStore::Impl::Undelete(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckWritable());
  BroughtBack back = BringBack(layout_, probe_, pins_, trash_, tag, sequence);
  if (back.unknown) Latch(back.status);
  if (!back.status.ok()) return back.status;
  const int64_t number = back.summary.sequence();
  names_.insert(tag);
  committed_[number] = WithMarks({.summary = std::move(back.summary)});
  pointers_ = pointer_writer_.Update(committed_);
  return Undeleted{committed_[number], pointers_};
}

CommittedCheckpoint RootStore::Impl::WithMarks(CommittedCheckpoint checkpoint) const {
  const std::string& tag = checkpoint.summary.tag();
  const int64_t sequence = checkpoint.summary.sequence();
  checkpoint.pinned = pins_.Contains(tag, sequence);
  if (const storage::v1::Damage* damage = damages_.Find(tag, sequence)) checkpoint.damage = *damage;
  return checkpoint;
}

absl::Status RootStore::Impl::SetPinned(const std::string& tag, int64_t sequence, bool pinned) {
  CKPTD_RETURN_IF_ERROR(CheckWritable());
  CommittedCheckpoint* checkpoint = Find(tag, sequence);
  if (checkpoint == nullptr) return NoCheckpoint(tag, sequence);
  CKPTD_RETURN_IF_ERROR(pins_.Set(fs_, layout_.ours.get(), tag, sequence, pinned));
  checkpoint->pinned = pinned;
  return absl::OkStatus();
}

absl::StatusOr<PointerFiles> RootStore::Impl::SetDamage(const std::string& tag, int64_t sequence,
                                                        const std::optional<storage::v1::Damage>& damage) {
  CKPTD_RETURN_IF_ERROR(CheckWritable());
  CommittedCheckpoint* checkpoint = Find(tag, sequence);
  if (checkpoint == nullptr) return NoCheckpoint(tag, sequence);
  damages_.Prune(
      [this](const std::string& t, int64_t s) { return Find(t, s) == nullptr && !trash_.Holds(s); });
  CKPTD_RETURN_IF_ERROR(damages_.Set(fs_, layout_.ours.get(), tag, sequence, damage));
  const storage::v1::Damage* known = damages_.Find(tag, sequence);
  checkpoint->damage = known == nullptr ? std::nullopt : std::optional(*known);
  return pointers_ = pointer_writer_.Update(committed_);
}

absl::StatusOr<PointerFiles> RootStore::Impl::ReleasePointers(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckWritable());
  if (Find(tag, sequence) == nullptr) return NoCheckpoint(tag, sequence);
  absl::StatusOr<PointerFiles> released = pointer_writer_.Release(committed_, sequence);
  pointers_ = released.ok() ? *released : pointer_writer_.Update(committed_);
  return released;
}

absl::StatusOr<ScopedHandle> RootStore::Impl::OpenCheckpoint(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  absl::StatusOr<ScopedHandle> dir = OpenScoped(fs_, layout_.root, tag, OpenMode::kDirectory);
  if (IsMissing(dir.status()) || IsInTheWay(dir.status())) return NoCheckpoint(tag, sequence);
  if (!dir.ok()) return dir.status();
  const absl::StatusOr<ManifestSummary> summary = ReadSummary(fs_, dir->get(), "");
  if (IsMissing(summary.status())) return NoCheckpoint(tag, sequence);
  if (!summary.ok()) return Annotate(summary.status(), tag);
  if (summary->sequence() != sequence || summary->tag() != tag) return NoCheckpoint(tag, sequence);
  return dir;
}

RootStore::RootStore() = default;
RootStore::~RootStore() = default;

absl::StatusOr<std::unique_ptr<RootStore>> RootStore::Open(FileSystem* fs, Handle root, Clock* clock,
                                                           RootStoreOptions options) {
  CKPTD_RETURN_IF_ERROR(CheckNotShared(*fs, root));
  CKPTD_ASSIGN_OR_RETURN(Layout layout, OpenLayout(fs, root, options.node));
  std::unique_ptr<RootStore> store(new RootStore());
  CKPTD_RETURN_IF_ERROR(store->Use(std::make_shared<Impl>(std::move(layout), clock, std::move(options))));
  return store;
}

absl::Status RootStore::Use(std::shared_ptr<Impl> impl) {
  CKPTD_RETURN_IF_ERROR(impl->Start());
  MutexLock lock(mutex_);
  impl_ = std::move(impl);
  return absl::OkStatus();
}

absl::Status RootStore::RestoreDirectory() {
  const std::shared_ptr<Impl> kept = impl();
  const Impl& before = *kept;
  if (before.HasItsDirectory()) return absl::OkStatus();
  absl::StatusOr<Layout> layout = OpenLayout(&before.fs_, before.layout_.root, before.options_.node);
  if (IsMissing(layout.status())) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kRootChanged,
        absl::StrCat("the root's directory was removed, with all its checkpoints; make it again, and "
                     "start the job anew (",
                     std::string(layout.status().message()), ")"));
  }
  if (!layout.ok()) return Annotate(layout.status(), "the directory .ckptd of the root was removed");
  auto after = std::make_shared<Impl>(*std::move(layout), &before.clock_, before.options_);
  CKPTD_RETURN_IF_ERROR(after->TakeOver(before));
  return Use(std::move(after));
}

const ProbeResult& RootStore::probe() const { return impl()->probe_; }
const std::vector<RecoveredSave>& RootStore::recovered() const { return impl()->recovered_; }
const std::map<int64_t, CommittedCheckpoint>& RootStore::committed() const { return impl()->committed_; }
const std::vector<DamagedCheckpoint>& RootStore::damaged() const { return impl()->damaged_; }
const RunRecord& RootStore::run_record() const { return impl()->run_record_; }
int64_t RootStore::highest_sequence() const { return impl()->highest_sequence_; }
int64_t RootStore::trash_bytes() { return impl()->trash_.bytes(); }

const PointerFiles& RootStore::pointers() const { return impl()->pointers_; }

absl::Status RootStore::CheckTarget(const std::string& tag, const std::vector<std::string>& pointers) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  CKPTD_RETURN_IF_ERROR(CheckedTarget(impl()->layout_, impl()->pins_, tag).status());
  return CheckPointerTargets(impl()->fs_, impl()->layout_.root, pointers);
}

absl::StatusOr<Inflight> RootStore::CreateInflight(const std::string& tag, int64_t sequence,
                                                   int64_t manifest_bytes) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  return impl()->CreateInflight(tag, sequence, manifest_bytes);
}

absl::Status RootStore::MakeParents(const Inflight& inflight, const std::vector<std::string>& paths) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  CKPTD_RETURN_IF_ERROR(impl()->CheckNotLost(inflight));
  return ckptd::MakeParents(impl()->fs_, inflight.dir.get(), paths);
}

absl::Status RootStore::WritePartRecord(const Inflight& inflight, const PartRecord& record) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  return impl()->WritePartRecord(inflight, record);
}

PublishResult RootStore::Publish(const Inflight& inflight, const ManifestSummary& summary,
                                 const std::vector<PartRecord>& parts) {
  if (const absl::Status there = RestoreDirectory(); !there.ok())
    return {.outcome = PublishOutcome::kFailed, .status = there};
  return impl()->Publish(inflight, summary, parts);
}

PublishResult RootStore::Adopt(const ForeignSurvey& survey, const ManifestSummary& summary) {
  if (const absl::Status there = RestoreDirectory(); !there.ok())
    return {.outcome = PublishOutcome::kFailed, .status = there};
  return impl()->Adopt(survey, summary);
}

const std::vector<ForeignTag>& RootStore::foreign() const { return impl()->foreign_; }

absl::Status RootStore::Discard(const Inflight& inflight) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  return impl()->Discard(inflight);
}

absl::Status RootStore::Evict(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  return impl()->Evict(tag, sequence);
}

absl::StatusOr<bool> RootStore::EmptyTrashStep(const std::vector<int64_t>& keep_sequences,
                                               const TrashTerms& terms) {
  CKPTD_ASSIGN_OR_RETURN(const std::optional<std::string> name, NextInTrash(keep_sequences, terms));
  if (!name.has_value()) return false;
  CKPTD_RETURN_IF_ERROR(RemovedFromTrash(*name, RemoveFromTrash(*name)));
  return true;
}

absl::StatusOr<std::optional<std::string>> RootStore::NextInTrash(const std::vector<int64_t>& keep_sequences,
                                                                  const TrashTerms& terms) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  CKPTD_RETURN_IF_ERROR(impl()->CheckWritable());
  return impl()->trash_.Next(keep_sequences, terms);
}

TrashLeft RootStore::LeftInTrash(const TrashTerms& terms) { return impl()->trash_.Left(terms); }

std::vector<TrashedCheckpoint> RootStore::ListTrash() {
  std::vector<TrashedCheckpoint> list = impl()->trash_.Whole();
  for (TrashedCheckpoint& trashed : list) {
    trashed.checkpoint = impl()->WithMarks(std::move(trashed.checkpoint));
    trashed.checkpoint.pinned = false;  // A pin of before names nothing.
  }
  return list;
}

absl::StatusOr<Undeleted> RootStore::Undelete(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  return impl()->Undelete(tag, sequence);
}

Trash::Removal RootStore::RemoveFromTrash(const std::string& name) const {
  return impl()->trash_.Remove(name);
}

absl::Status RootStore::RemovedFromTrash(const std::string& name, const Trash::Removal& removal) {
  return impl()->trash_.Removed(name, removal);
}

absl::Status RootStore::SaveRunRecord(const RunRecord& record) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  CKPTD_RETURN_IF_ERROR(StoreRunRecord(impl()->fs_, impl()->layout_.node.get(), record));
  impl()->run_record_ = record;
  return absl::OkStatus();
}

absl::Status RootStore::SetPinned(const std::string& tag, int64_t sequence, bool pinned) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  return impl()->SetPinned(tag, sequence, pinned);
}

absl::StatusOr<PointerFiles> RootStore::SetDamage(const std::string& tag, int64_t sequence,
                                                  const std::optional<storage::v1::Damage>& damage) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  return impl()->SetDamage(tag, sequence, damage);
}

absl::StatusOr<PointerFiles> RootStore::ReleasePointers(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  return impl()->ReleasePointers(tag, sequence);
}

absl::StatusOr<Manifest> RootStore::ReadManifest(const std::string& tag, int64_t sequence) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, impl()->OpenCheckpoint(tag, sequence));
  return ReadWholeManifest(impl()->fs_, dir.get(), "");
}

absl::StatusOr<ScopedHandle> RootStore::OpenCheckpoint(const std::string& tag, int64_t sequence) {
  return impl()->OpenCheckpoint(tag, sequence);
}

absl::StatusOr<int64_t> RootStore::FreeBytes() {
  CKPTD_ASSIGN_OR_RETURN(const SpaceInfo space, impl()->fs_.Space(impl()->layout_.root));
  return space.free_bytes;
}

absl::Status RootStore::Rescan() {
  CKPTD_RETURN_IF_ERROR(RestoreDirectory());
  return impl()->Rescan();
}

}  // namespace ckptd
