#include "daemon/engine/save/member_files.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/part_layout.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/format/manifest.h"
#include "storage/ledger/ledger.h"

namespace ckptd {
namespace {

// For how long the sealed parts of a save wait for the ranks that still copy.
constexpr Duration kLongestWriteHold = std::chrono::seconds(1);

// The space of the manifest, which is taken before the data is written.
int64_t ManifestBytes(const Save& save, int64_t expected_bytes, int32_t chunk_bytes) {
  const int64_t files = static_cast<int64_t>(save.claims.size());
  return kManifestHeadBytes + (64 << 10) + expected_bytes / chunk_bytes * 4 + save.claims.path_bytes() +
         40 * files;
}

absl::Status WritingFailed(const Save& save, int rank, const absl::Status& why) {
  ErrorDetails details = DetailsOf(why);
  details["tag"] = save.key.tag;
  details["ranks"] = absl::StrCat(rank);
  return MakeError(why.code(), ReasonOf(why),
                   absl::StrCat("writing the part of rank ", rank, " of ", save.key.tag, " in the root ",
                                save.run->path, ": ", std::string(why.message())),
                   details);
}

}  // namespace

storage::v1::ManifestSummary SummaryOf(const Save& save, int32_t chunk_bytes) {
  storage::v1::ManifestSummary summary;
  summary.set_format_version(1);
  summary.set_run_id(save.run->ledger->record().run_id());
  summary.set_tag(save.key.tag);
  if (save.step) summary.set_step(*save.step);
  summary.set_sequence(save.sequence);
  summary.set_attempt(save.key.attempt);
  summary.set_ordinal(save.key.ordinal);
  summary.set_world_size(save.world_size);
  summary.set_create_time_us(save.begun_unix_us);
  summary.set_chunk_bytes(chunk_bytes);
  summary.mutable_metrics()->insert(save.metrics.begin(), save.metrics.end());
  summary.set_suspect(save.suspect);
  // A suspect checkpoint is not the one that other programs are to find.
  if (save.suspect.empty()) summary.mutable_pointers()->insert(save.pointers.begin(), save.pointers.end());
  return summary;
}

MemberFiles::MemberFiles(Clock* clock, const SaveTable* saves, const ExpectedSizes* sizes,
                         RootScanner* scanner, int32_t chunk_bytes, Hooks hooks)
    : clock_(clock),
      saves_(saves),
      sizes_(sizes),
      scanner_(scanner),
      chunk_bytes_(chunk_bytes),
      hooks_(std::move(hooks)) {}

void MemberFiles::Open(Save* save) {
  save->node.files = PartFiles::kOpening;
  const int64_t manifest_bytes = ManifestBytes(*save, sizes_->TotalBytes(*save), chunk_bytes_);
  save->run->authority->OpenPart(save->id, save->key.tag, save->sequence, save->node.inflight, manifest_bytes,
                                 [this, id = save->id](const absl::Status& opened) { OnOpened(id, opened); });
}

void MemberFiles::OnOpened(int64_t save_id, const absl::Status& opened) {
  Save* save = saves_->Find(save_id);
  if (save == nullptr) return;
  save->node.files = opened.ok() ? PartFiles::kOpen : PartFiles::kNone;
  if (save->phase() == SavePhase::kFailing) return hooks_.continue_failing(save);
  // Nothing was changed, so it is opened again after the scan.
  if (ReasonOf(opened) == reason::kRootReadOnly) return scanner_->AwaitScan(save->run);
  if (!opened.ok())
    return hooks_.fail(save, Annotate(opened, absl::StrCat("opening the directory of the save of ",
                                                           save->key.tag, " in the root ", save->run->path)));
  WriteSealedParts(save);
}

// While a rank copies, its training stands still. Writing the parts of the others would take memory bandwidth
// and processor time from that copy, and a checkpoint needs all parts anyway.
bool MemberFiles::HoldsWrites(Save* save) const {
  const bool none_is_sealed = save->slowest_rank < 0;
  if (none_is_sealed || save->UnsealedRanks().empty()) return false;
  const Instant now = clock_->Now();
  if (!save->writes_held_until) save->writes_held_until = now + kLongestWriteHold;
  return now < *save->writes_held_until;
}

void MemberFiles::WriteSealedParts(Save* save) {
  if (HoldsWrites(save) || save->node.files != PartFiles::kOpen || save->phase() != SavePhase::kAdmitted)
    return;
  for (auto& [rank, part] : save->parts) {
    const bool is_due = part.sealed && !part.writing && !part.durable;
    if (is_due && (!part.share_unchanged || FindsBase(save))) WritePart(save, part);
  }
}

// Whether it is known with which checkpoint the save shares unchanged files: the newest one. WriteSealedParts
// follows once it is.
bool MemberFiles::FindsBase(Save* save) {
  if (save->base_known || std::exchange(save->base_asked, true)) return save->base_known;
  const CommittedCheckpoint* newest = save->run->catalog.NewestWithSuspects();
  if (newest == nullptr) return save->base_known = true;
  save->run->io->OpenCheckpoint(
      newest->summary.tag(), newest->summary.sequence(),
      [this, id = save->id](absl::StatusOr<std::shared_ptr<CheckpointReader>> opened) {
        Save* found = saves_->Find(id);
        if (found == nullptr) return;
        found->base_known = true;
        // What cannot be opened is not shared with: the files are written.
        if (opened.ok() && found->phase() == SavePhase::kAdmitted) found->base = *std::move(opened);
        WriteSealedParts(found);
      });
  return false;
}

void MemberFiles::WritePart(Save* save, Part& part) {
  storage::v1::PartRecord record;
  record.set_format_version(1);
  record.set_rank(part.rank);
  record.set_sequence(save->sequence);
  record.set_chunk_bytes(chunk_bytes_);
  *record.mutable_checkpoint() = SummaryOf(*save, chunk_bytes_);
  part.writing = true;
  save->run->io->WritePart(
      save->id, std::move(record), ImagesOf(part.files, part.segments),
      part.share_unchanged ? save->base : nullptr, save->written,
      [this, id = save->id, rank = part.rank](absl::StatusOr<storage::v1::PartRecord> written) {
        OnPartWritten(id, rank, std::move(written));
      });
}

void MemberFiles::OnPartWritten(int64_t save_id, int rank, absl::StatusOr<storage::v1::PartRecord> record) {
  Save* save = saves_->Find(save_id);
  if (save == nullptr) return;
  Part& part = save->parts.at(rank);
  part.writing = false;
  if (record.ok()) {
    part.durable = true;
    part.record = *std::move(record);
    save->written_at = clock_->Now();
  }
  if (save->phase() == SavePhase::kFailing) return hooks_.continue_failing(save);
  if (!record.ok()) return hooks_.fail(save, WritingFailed(*save, rank, record.status()));
  FinishIfWritten(save);
}

void MemberFiles::FinishIfWritten(Save* save) {
  if (save->phase() != SavePhase::kAdmitted || save->node.files != PartFiles::kOpen) return;
  std::vector<storage::v1::PartRecord> records;
  for (int rank : save->RanksHere()) {
    const Part* part = save->FindPart(rank);
    if (part == nullptr || !part->durable) return;
    records.push_back(part->record);
  }
  save->base.reset();
  save->node.files = PartFiles::kFinishing;
  save->run->authority->FinishPart(
      save->id, std::move(records),
      [this, id = save->id](const absl::StatusOr<std::string>& digest) { OnFinished(id, digest); });
}

void MemberFiles::OnFinished(int64_t save_id, const absl::StatusOr<std::string>& digest) {
  Save* save = saves_->Find(save_id);
  if (save == nullptr) return;
  save->node.files = PartFiles::kOpen;
  if (save->phase() == SavePhase::kFailing) return hooks_.continue_failing(save);
  if (!digest.ok())
    return hooks_.fail(
        save, Annotate(digest.status(), absl::StrCat("writing this node's record of its part of ",
                                                     save->key.tag, " in the root ", save->run->path)));
  if (save->phase() != SavePhase::kAdmitted) return;  // It is given up.
  save->life.Written();
  save->run->authority->Durable(save->key, *digest);
}

// ---- events

void MemberFiles::OnScanned(Run* run) {
  std::vector<int64_t> ids;
  for (const auto& [sequence, save] : run->saves) ids.push_back(save->id);
  for (int64_t id : ids) {
    Save* save = saves_->Find(id);
    if (save == nullptr) continue;
    const PartFiles files = save->node.files;
    if (save->phase() == SavePhase::kFailing && files == PartFiles::kOpen) hooks_.continue_failing(save);
    if (save->phase() == SavePhase::kAdmitted && files == PartFiles::kNone) Open(save);
  }
}

void MemberFiles::OnTick(Run* run, Instant now) {
  for (const auto& [sequence, save] : run->saves) {
    if (save->writes_held_until && now >= *save->writes_held_until) WriteSealedParts(save.get());
  }
}

}  // namespace ckptd
