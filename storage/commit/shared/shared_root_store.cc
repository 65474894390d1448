#include "storage/commit/shared/shared_root_store.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/run/shared_run_id.h"
#include "storage/commit/shared/run/shared_term.h"
#include "storage/commit/steps/commit_rules.h"
#include "storage/commit/steps/root_sharing.h"
#include "storage/commit/steps/run_marks.h"
#include "storage/commit/steps/scratch_probe.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;
using storage::v1::NodePartRecord;
using storage::v1::SharedRunRecord;

absl::Status NoCheckpoint(const std::string& tag, int64_t sequence) {
  return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                   absl::StrCat("no checkpoint ", tag, " of sequence ", sequence, " is in this root"),
                   {{"tag", tag}, {"sequence", absl::StrCat(sequence)}});
}

absl::Status Lost(const SharedInflight& save) {
  return MakeError(absl::StatusCode::kAborted, reason::kRootChanged,
                   absl::StrCat("the directory .ckptd of the root was removed, and with it the files of ",
                                save.tag, "; save again"),
                   {{"tag", save.tag}});
}

std::string SharedPath() {
  return absl::StrCat(std::string(kOurDirectory), "/", std::string(kSharedDirectory));
}

}  // namespace

SharedRootStore::SharedRootStore(SharedLayout layout, Clock* clock, SharedRootStoreOptions options)
    : layout_(std::move(layout)),
      fs_(*layout_.fs),
      options_(std::move(options)),
      scanner_(&layout_, clock, options_.staleness),
      records_(&layout_) {}

absl::StatusOr<std::unique_ptr<SharedRootStore>> SharedRootStore::Open(FileSystem* fs, Handle root,
                                                                       Clock* clock,
                                                                       SharedRootStoreOptions options) {
  CKPTD_RETURN_IF_ERROR(CheckTag(options.node));
  CKPTD_RETURN_IF_ERROR(CheckNotOfOneNode(*fs, root));
  CKPTD_ASSIGN_OR_RETURN(SharedLayout layout, OpenSharedLayout(fs, root));
  std::unique_ptr<SharedRootStore> store(new SharedRootStore(std::move(layout), clock, std::move(options)));
  CKPTD_RETURN_IF_ERROR(store->Start());
  return store;
}

absl::Status SharedRootStore::Start() {
  CKPTD_ASSIGN_OR_RETURN(shared_stat_, fs_.Stat(layout_.root, SharedPath()));
  return Probe();
}

absl::Status SharedRootStore::EnsureDirectory() {
  const absl::StatusOr<FileStat> now = fs_.Stat(layout_.root, SharedPath());
  if (!now.ok() && !MayBeAnothersChange(now.status())) return absl::OkStatus();
  if (now.ok() && now->device == shared_stat_.device && now->inode == shared_stat_.inode)
    return absl::OkStatus();
  return MakeDirectoryAnew();
}

absl::Status SharedRootStore::MakeDirectoryAnew() {
  absl::StatusOr<SharedLayout> layout = OpenSharedLayout(layout_.fs, layout_.root);
  if (IsMissing(layout.status())) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kRootChanged,
        "the root's directory was removed, with all its checkpoints; make it again, and start the "
        "job anew");
  }
  if (!layout.ok()) return Annotate(layout.status(), "the directory .ckptd of the root was removed");
  if (!run_id_.empty()) CKPTD_RETURN_IF_ERROR(RestoreSharedRunId(*layout, run_id_));
  Term term;
  if (term_.number > 0) {
    CKPTD_ASSIGN_OR_RETURN(term, OpenTerm(*layout, term_.number));
  }
  CKPTD_ASSIGN_OR_RETURN(const FileStat now, fs_.Stat(layout_.root, SharedPath()));
  const bool is_another = now.device != shared_stat_.device || now.inode != shared_stat_.inode;
  shared_stat_ = now;
  layout_ = *std::move(layout);
  term_ = std::move(term);
  if (is_another) lost_.merge(made_);
  // Best effort: it is a copy of what the ledger knows.
  if (term_.number > 0) records_.Store(record_, term_.number).IgnoreError();
  return absl::OkStatus();
}

absl::Status SharedRootStore::Probe() {
  const std::string name = absl::StrCat(std::string(kScratchDirectory), ".", options_.node);
  const std::string path = absl::StrCat(SharedPath(), "/", name);
  CKPTD_ASSIGN_OR_RETURN(
      probe_, ProbeInScratch(fs_, layout_.shared.get(), name, path, options_.io_backend, options_.queues));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SharedRootStore::FreeBytes() {
  CKPTD_ASSIGN_OR_RETURN(const SpaceInfo space, fs_.Space(layout_.root));
  return space.free_bytes;
}

absl::StatusOr<std::string> SharedRootStore::RunId() {
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  CKPTD_ASSIGN_OR_RETURN(run_id_, SharedRunId(layout_));
  return run_id_;
}

absl::StatusOr<SharedRunRecord> SharedRootStore::LoadRecord(RecordVersion at_least) {
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  CKPTD_ASSIGN_OR_RETURN(record_, records_.Load(at_least));
  return record_;
}

absl::StatusOr<SharedRootScan> SharedRootStore::Scan() {
  CKPTD_ASSIGN_OR_RETURN(SharedRootScan scan, scanner_.Look());
  MarkCheckpoints(scan.checkpoints);
  return scan;
}

absl::StatusOr<CommittedCheckpoint> SharedRootStore::FindCheckpoint(const std::string& tag,
                                                                    int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  CKPTD_ASSIGN_OR_RETURN(const Target target, InspectTarget(fs_, layout_.root, tag));
  if (target.kind != TargetKind::kCheckpoint || target.summary.sequence() != sequence)
    return LookAgain(absl::StrCat("checkpoint ", tag, " of sequence ", sequence), "it is not at its tag");
  std::map<int64_t, CommittedCheckpoint> one = {{sequence, {.summary = target.summary}}};
  MarkCheckpoints(one);
  return one.at(sequence);
}

absl::Status SharedRootStore::CheckTarget(const std::string& tag, const std::vector<std::string>& pointers) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  CKPTD_ASSIGN_OR_RETURN(const int64_t half_removed, SequenceBeingRemoved(layout_, tag));
  CKPTD_ASSIGN_OR_RETURN(const Target target, InspectTarget(fs_, layout_.root, tag));
  if (half_removed == 0)
    CKPTD_RETURN_IF_ERROR(CheckTargetIsFree(tag, target, Pinned().contains(target.summary.sequence())));
  return CheckPointerTargets(fs_, layout_.root, pointers);
}

absl::StatusOr<NodePart> SharedRootStore::BeginPart(const SharedInflight& save, EarlierDaemon earlier) {
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  if (lost_.contains(save.name)) return Lost(save);
  return BeginNodePart(layout_, save, options_.node, earlier);
}

absl::Status SharedRootStore::MakeRoomFor(const NodePart& part, const std::vector<std::string>& paths) {
  return ckptd::MakeRoomFor(fs_, part, paths);
}

absl::StatusOr<std::string> SharedRootStore::FinishPart(const NodePart& part, const NodePartRecord& record) {
  return FinishNodePart(fs_, part, record);
}

absl::StatusOr<SharedRootStore::OpenedCheckpoint> SharedRootStore::OpenCheckpoint(const std::string& tag,
                                                                                  int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  absl::StatusOr<ScopedHandle> dir = OpenScoped(fs_, layout_.root, tag, OpenMode::kDirectory);
  if (IsMissing(dir.status()) || IsInTheWay(dir.status())) return NoCheckpoint(tag, sequence);
  CKPTD_RETURN_IF_ERROR(dir.status());
  absl::StatusOr<Manifest> manifest = ReadWholeManifest(fs_, dir->get(), "");
  if (IsMissing(manifest.status())) return NoCheckpoint(tag, sequence);
  if (!manifest.ok()) return Annotate(manifest.status(), tag);
  if (manifest->summary.sequence() != sequence || manifest->summary.tag() != tag)
    return NoCheckpoint(tag, sequence);
  const absl::Status files = CheckFiles(fs_, dir->get(), manifest->body.files());
  // A removal renames `.ckptd` before it removes a file.
  if (!files.ok() && IsMissing(ReadSummary(fs_, dir->get(), "").status())) return NoCheckpoint(tag, sequence);
  CKPTD_RETURN_IF_ERROR(files);
  return OpenedCheckpoint{*std::move(dir), *std::move(manifest)};
}

absl::StatusOr<SharedRootStore::Term> SharedRootStore::OpenTerm(const SharedLayout& layout, int64_t term) {
  CKPTD_ASSIGN_OR_RETURN(ScopedHandle dir, ckptd::BeginTerm(layout, term));
  Term begun{term, std::move(dir), nullptr};
  begun.pointers = std::make_unique<PointerWriter>(&fs_, layout.root, begun.dir.get());
  return begun;
}

absl::Status SharedRootStore::BeginTerm(int64_t term) {
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  CKPTD_ASSIGN_OR_RETURN(term_, OpenTerm(layout_, term));
  return absl::OkStatus();
}

absl::Status SharedRootStore::CheckTermBegun() const {
  if (term_.number > 0) return absl::OkStatus();
  return absl::FailedPreconditionError("this daemon has begun no term as the run's coordinator");
}

absl::StatusOr<SharedInflight> SharedRootStore::MakeInflight(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  absl::StatusOr<SharedInflight> made = MakeSharedInflight(layout_, tag, sequence);
  // The client of a network file system may show a directory that another node has removed as if it were there.
  if (ErrnoOf(made.status()) == ESTALE) {
    CKPTD_RETURN_IF_ERROR(MakeDirectoryAnew());
    made = MakeSharedInflight(layout_, tag, sequence);
  }
  if (made.ok()) made_.insert(made->name);
  return made;
}

absl::StatusOr<SharedPlace> SharedRootStore::Find(const SharedInflight& save) {
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  CKPTD_ASSIGN_OR_RETURN(const SharedPlace place, FindShared(layout_, save));
  return place == SharedPlace::kNowhere && lost_.contains(save.name) ? SharedPlace::kLost : place;
}

absl::StatusOr<int64_t> SharedRootStore::SequenceAt(const std::string& tag) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  CKPTD_ASSIGN_OR_RETURN(const int64_t half_removed, SequenceBeingRemoved(layout_, tag));
  if (half_removed != 0) return half_removed;
  CKPTD_ASSIGN_OR_RETURN(const Target target, InspectTarget(fs_, layout_.root, tag));
  return target.kind == TargetKind::kCheckpoint ? target.summary.sequence() : 0;
}

absl::StatusOr<Manifest> SharedRootStore::MakeManifest(const SharedInflight& save, const LedgerFacts& facts,
                                                       const std::map<std::string, std::string>& digests) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<NodePartRecord> parts, ReadNodeParts(layout_, save, digests));
  return BuildSharedManifest(facts, parts);
}

absl::StatusOr<int64_t> SharedRootStore::Publish(const SharedInflight& save, const LedgerFacts& facts,
                                                 const std::map<std::string, std::string>& digests) {
  CKPTD_RETURN_IF_ERROR(CheckTermBegun());
  CKPTD_ASSIGN_OR_RETURN(const SharedPlace place, Find(save));
  if (place == SharedPlace::kPublished) return 0;
  CKPTD_ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest(save, facts, digests));
  // The ledger has decided that this one goes, so that a pin of it is an old one.
  std::set<int64_t> pinned = Pinned();
  pinned.erase(facts.replaces);
  const absl::StatusOr<int64_t> published =
      PublishShared(layout_, save, manifest, term_.number, facts.replaces, pinned);
  if (published.ok() && *published == 0) made_.erase(save.name);
  // Its node has said that the file is durable: its size is not seen yet, or another program has cut or
  // removed it.
  if (ReasonOf(published.status()) == reason::kShortFile)
    return LookAgain(absl::StrCat("a file of ", save.tag), published.status());
  return published;
}

void SharedRootStore::MarkCheckpoints(std::map<int64_t, CommittedCheckpoint>& checkpoints) const {
  ckptd::MarkCheckpoints(record_, checkpoints);
  for (auto& [sequence, checkpoint] : checkpoints) {
    if (const auto decided = decided_pins_.find(sequence); decided != decided_pins_.end())
      checkpoint.pinned = decided->second;
  }
}

std::set<int64_t> SharedRootStore::Pinned() const {
  std::set<int64_t> pinned;
  for (const auto& pin : record_.pins().pins()) pinned.insert(pin.sequence());
  for (const auto& [sequence, is_pinned] : decided_pins_) {
    if (is_pinned) pinned.insert(sequence);
    if (!is_pinned) pinned.erase(sequence);
  }
  return pinned;
}

absl::StatusOr<SharedRootStore::Replaced> SharedRootStore::FindReplaced(
    const SharedInflight& save, const LedgerFacts& facts, const std::map<std::string, std::string>& digests) {
  CKPTD_ASSIGN_OR_RETURN(const int64_t sequence, SequenceAt(save.tag));
  if (sequence == 0) return Replaced();
  // A ledger that was restored from a backup may not know that the save was published, or given up: it
  // replaces nothing, least of all itself.
  CKPTD_ASSIGN_OR_RETURN(const SharedPlace place, Find(save));
  if (place != SharedPlace::kInFlight && place != SharedPlace::kNowhere) return Replaced();
  CKPTD_ASSIGN_OR_RETURN(const Manifest manifest, MakeManifest(save, facts, digests));
  CKPTD_ASSIGN_OR_RETURN(const Target target, InspectTarget(fs_, layout_.root, save.tag));
  // Of one whose removal has begun, the pointers were released before.
  if (target.kind != TargetKind::kCheckpoint) return Replaced{sequence, {}};
  CKPTD_RETURN_IF_ERROR(
      CheckMayReplace(target, Pinned().contains(target.summary.sequence()), manifest.summary));
  ManifestSummary whole = manifest.summary;
  CKPTD_RETURN_IF_ERROR(TakeOverPointers(fs_, layout_.root, target.summary, whole));
  Replaced replaced{target.summary.sequence(), {whole.pointers().begin(), whole.pointers().end()}};
  for (const auto& own : manifest.summary.pointers()) replaced.pointers.erase(own.first);
  return replaced;
}

absl::Status SharedRootStore::Discard(const std::string& name) {
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  made_.erase(name);
  return DiscardShared(layout_, name);
}

absl::StatusOr<bool> SharedRootStore::RemoveFromTrash(const std::string& name, RemovalBudget& budget) {
  return RemoveFromSharedTrash(layout_, name, budget);
}

absl::StatusOr<uint64_t> SharedRootStore::InodeOf(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  return InodeOfShared(layout_, tag, sequence);
}

absl::StatusOr<bool> SharedRootStore::Remove(const std::string& tag, int64_t sequence, RemovalBudget& budget,
                                             uint64_t inode) {
  return RemoveShared(layout_, tag, sequence, budget, inode);
}

absl::StatusOr<RecordVersion> SharedRootStore::StoreRecord(SharedRunRecord record) {
  CKPTD_RETURN_IF_ERROR(CheckTermBegun());
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  CKPTD_ASSIGN_OR_RETURN(const RecordVersion version, records_.Store(record, term_.number));
  record_ = std::move(record);
  return version;
}

absl::StatusOr<PointerFiles> SharedRootStore::UpdatePointers(
    const std::map<int64_t, CommittedCheckpoint>& committed) {
  CKPTD_RETURN_IF_ERROR(CheckTermBegun());
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  term_.pointers->Forget();  // Another coordinator may have written them.
  return term_.pointers->Update(committed);
}

absl::StatusOr<PointerFiles> SharedRootStore::ReleasePointers(
    const std::map<int64_t, CommittedCheckpoint>& committed, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckTermBegun());
  CKPTD_RETURN_IF_ERROR(EnsureDirectory());
  term_.pointers->Forget();
  return term_.pointers->Release(committed, sequence);
}

}  // namespace ckptd
