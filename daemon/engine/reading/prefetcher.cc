#include "daemon/engine/reading/prefetcher.h"

#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/reading/damage_marks.h"
#include "daemon/engine/run/part_layout.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

// Gives every file of the manifest a place, as a trainer's Begin would. Returns each part's size.
std::map<int, int64_t> PlaceFiles(const Manifest& manifest, std::map<int, ResidentPart>* parts) {
  std::map<int, int64_t> ends;
  std::map<int, std::shared_ptr<FilePlaces>> places;
  for (const storage::v1::FileRecord& file : manifest.body.files()) {
    ResidentPart& part = (*parts)[file.rank()];
    std::shared_ptr<FilePlaces>& placed = places[file.rank()];
    if (placed == nullptr) part.placed = placed = std::make_shared<FilePlaces>();
    int64_t& end = ends[file.rank()];
    part.files.push_back({&placed->Add(file.path(), file.size_bytes(), end), file.size_bytes()});
    end += RoundUp(file.size_bytes());
    part.records.push_back(file);
    part.checked = true;  // Reading it checks it.
  }
  return ends;
}

std::vector<FileTarget> TargetsOf(const Resident& resident) {
  std::vector<FileTarget> targets;
  for (const auto& [rank, part] : resident.parts) {
    for (const SealedFile& file : part.files)
      targets.push_back({file.placed->path, MemoryRuns(part.segments, file.placed->offset, file.size)});
  }
  return targets;
}

}  // namespace

void Prefetcher::Prefetch(Run* run, const std::string& tag, Reply<v1::Checkpoint> reply) {
  const CommittedCheckpoint* wanted = run->catalog.FindTag(tag);
  if (wanted == nullptr && tag == "latest") wanted = run->catalog.Newest();
  if (wanted == nullptr) {
    return reply(MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                           absl::StrCat("no checkpoint ", tag, " is committed in ", run->path),
                           {{"tag", tag}}));
  }
  const int64_t sequence = wanted->summary.sequence();
  if (run->catalog.IsDamaged(sequence))
    return reply(DamagedError(*run, {hooks_.describe(*run, *wanted)}, "it is not read into memory"));
  residents_->Prune(run);
  if (residents_->IsResident(*run, sequence)) return reply(hooks_.describe(*run, *wanted));
  const auto& active = active_.Of(run);
  if (active == nullptr) return Start(run, *wanted, std::move(reply));
  if (active->sequence != sequence) {
    return reply(MakeError(absl::StatusCode::kAborted, reason::kPrefetchBusy,
                           absl::StrCat("another checkpoint of ", run->path,
                                        " is being read into memory; ask again when it is there"),
                           {{"tag", tag}}));
  }
  active->waiting.push_back(std::move(reply));
}

void Prefetcher::Start(Run* run, const CommittedCheckpoint& wanted, Reply<v1::Checkpoint> reply) {
  active_.Of(run) = std::make_unique<Active>();
  Active& active = ActiveOf(run);
  active.waiting.push_back(std::move(reply));
  active.sequence = wanted.summary.sequence();
  active.begun_at = clock_->Now();
  run->io->OpenCheckpoint(wanted.summary.tag(), active.sequence,
                          [this, run](absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) {
                            Opened(run, std::move(reader));
                          });
}

bool Prefetcher::IsReading(const Run& run, int64_t sequence) const {
  const auto& active = active_.Of(&run);
  return active != nullptr && active->sequence == sequence;
}

void Prefetcher::AfterPrefetch(Run* run, absl::AnyInvocable<void()> then) {
  ActiveOf(run).after.push_back(std::move(then));
}

void Prefetcher::Opened(Run* run, absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) {
  if (!reader.ok()) return End(run, reader.status());
  Active& active = ActiveOf(run);
  active.reader = *std::move(reader);
  const std::map<int, int64_t> ends = PlaceFiles(active.reader->manifest(), &active.resident.parts);
  std::map<int, int> segments;
  int all = 0;
  for (const auto& [rank, end] : ends) all += segments[rank] = pool_->SegmentsFor(end);
  absl::StatusOr<ReservationId> reserved = residents_->ReserveForPrefetch(*run, all);
  if (!reserved.ok()) return End(run, reserved.status());
  active.resident.copy = *reserved;
  Draw(run, segments);
}

void Prefetcher::Draw(Run* run, const std::map<int, int>& segments) {
  Active& active = ActiveOf(run);
  active.drawing = 1;  // Until the memory of all parts is requested.
  for (const auto& [rank, count] : segments) {
    if (count == 0) continue;
    ++active.drawing;
    pool_->Draw(active.resident.copy, 0, 0, count,
                [this, run, rank = rank](absl::StatusOr<std::vector<SegmentRef>> drawn) {
                  Drawn(run, rank, std::move(drawn));
                });
  }
  if (--active.drawing == 0) Read(run);
}

void Prefetcher::Drawn(Run* run, int rank, absl::StatusOr<std::vector<SegmentRef>> segments) {
  Active& active = ActiveOf(run);
  if (segments.ok()) {
    active.resident.parts.at(rank).segments = *std::move(segments);
  } else if (active.error.ok()) {
    active.error = segments.status();
  }
  if (--active.drawing == 0) Read(run);
}

void Prefetcher::Read(Run* run) {
  Active& active = ActiveOf(run);
  if (!active.error.ok()) return End(run, active.error);
  run->io->ReadFiles(active.reader, TargetsOf(active.resident),
                     [this, run](const absl::Status& read) { End(run, read); });
}

void Prefetcher::Finish(Run* run, const CommittedCheckpoint* checkpoint, const absl::Status& end,
                        Active& active) {
  if (!end.ok()) {
    if (active.resident.copy != 0) residents_->CancelPrefetch(active.resident.copy);
    return;
  }
  residents_->AddPrefetched(run, active.sequence, std::move(active.resident));
  const double seconds = std::chrono::duration<double>(clock_->Now() - active.begun_at).count();
  observer_->OnInfo(absl::StrCat("checkpoint ", run->path, "/", checkpoint->summary.tag(),
                                 " is in memory: read in ", seconds, " s"));
}

void Prefetcher::End(Run* run, absl::Status end) {
  Active active = std::move(*std::exchange(active_.Of(run), nullptr));
  const CommittedCheckpoint* checkpoint = run->catalog.Find(active.sequence);
  if (end.ok() && (checkpoint == nullptr || checkpoint->damage)) {
    end = MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                    absl::StrCat("it is not in ", run->path, " any more, or is damaged"));
  }
  Finish(run, checkpoint, end, active);
  for (auto& then : active.after) then();
  const auto answer = [this, run, sequence = active.sequence, end,
                       waiting = std::make_shared<std::vector<Reply<v1::Checkpoint>>>(
                           std::move(active.waiting))](const absl::Status& marked) {
    const CommittedCheckpoint* known = run->catalog.Find(sequence);
    for (auto& reply : *waiting) {
      if (end.ok() && known != nullptr) {
        reply(hooks_.describe(*run, *known));
      } else {
        reply(Annotate(marked.ok() ? end : marked, "reading it into memory"));
      }
    }
  };
  if (end.ok() || checkpoint == nullptr || !IndicatesDamage(*run, end)) return answer(absl::OkStatus());
  hooks_.mark_damaged(run, active.sequence, DamageFromError(end), answer);
}

}  // namespace ckptd
