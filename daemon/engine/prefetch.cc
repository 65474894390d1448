// Prefetch: a committed checkpoint is read into memory before anybody asks for its bytes, as a resident copy.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/part_layout.h"
#include "storage/base/errors.h"

namespace ckptd {

void Engine::Impl::Prefetch(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply) {
  std::string tag;
  absl::StatusOr<Run*> found = RunOfCheckpointName(caller, name, &tag);
  if (!found.ok()) return reply(found.status());
  Run* run = *found;
  const CommittedCheckpoint* wanted = tag == "latest" ? Newest(*run) : nullptr;
  for (const auto& entry : run->committed) {
    if (entry.second.summary.tag() == tag) wanted = &entry.second;
  }
  if (wanted == nullptr) {
    return reply(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                           absl::StrCat("no checkpoint ", tag, " is committed in ", run->path),
                           {{"tag", tag}}));
  }
  const int64_t sequence = wanted->summary.sequence();
  if (IsDamaged(*run, sequence))
    return reply(DamagedError(*run, {Describe(*run, *wanted)}, "it is not read into memory"));
  PruneResidents(run);
  if (IsResident(*run, sequence)) return reply(Describe(*run, *wanted));
  if (run->prefetch && run->prefetch->sequence != sequence) {
    return reply(MakeError(absl::StatusCode::kAborted, "PREFETCH_BUSY",
                           absl::StrCat("another checkpoint of ", run->path,
                                        " is being read into memory; ask again when it is there"),
                           {{"tag", tag}}));
  }
  const bool begins = !run->prefetch;
  if (begins) run->prefetch.emplace();
  run->prefetch->waiting.push_back(std::move(reply));
  if (!begins) return;
  run->prefetch->sequence = sequence;
  run->prefetch->begun_at = clock_->Now();
  run->io->OpenCheckpoint(wanted->summary.tag(), sequence,
                          [this, run](absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) {
                            PrefetchOpened(run, std::move(reader));
                          });
}

// Its files as a trainer would have placed them.
void Engine::Impl::PrefetchOpened(Run* run, absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) {
  if (!reader.ok()) return EndPrefetch(run, reader.status());
  Prefetching& prefetch = *run->prefetch;
  prefetch.reader = *std::move(reader);
  std::map<int, int64_t> ends;
  for (const storage::v1::FileRecord& file : prefetch.reader->manifest().body.files()) {
    ResidentPart& part = prefetch.resident.parts[file.rank()];
    v1::FileSpec spec;
    spec.set_path(file.path());
    spec.set_size_bytes(file.size_bytes());
    v1::FilePlacement placement;
    placement.set_path(file.path());
    placement.set_size_bytes(file.size_bytes());
    placement.set_offset(ends[file.rank()]);
    ends[file.rank()] += RoundUp(file.size_bytes());
    part.files.push_back(std::move(spec));
    part.placed.emplace(file.path(), std::move(placement));
    part.records.push_back(file);
    part.checked = true;  // While it is read.
  }
  std::map<int, int> counts;
  int all = 0;
  for (const auto& [rank, end] : ends) all += counts[rank] = pool_->SegmentsFor(end);
  if (const absl::Status room = RoomToPrefetch(*run, int64_t{all} * pool_->segment_bytes()); !room.ok())
    return EndPrefetch(run, room);
  absl::StatusOr<ReservationId> reserved = pool_->Reserve({{0, all}}, /*spares_lent=*/true);
  if (!reserved.ok()) return EndPrefetch(run, reserved.status());
  prefetch.resident.copy = *reserved;
  prefetch.drawing = 1;  // Until all have been asked for.
  for (const auto& [rank, count] : counts) {
    if (count == 0) continue;
    ++prefetch.drawing;
    pool_->Draw(*reserved, 0, 0, count,
                [this, run, rank = rank](absl::StatusOr<std::vector<SegmentRef>> segments) {
                  if (segments.ok()) {
                    run->prefetch->resident.parts.at(rank).segments = *std::move(segments);
                  } else if (run->prefetch->error.ok()) {
                    run->prefetch->error = segments.status();
                  }
                  if (--run->prefetch->drawing == 0) ReadPrefetched(run);
                });
  }
  if (--prefetch.drawing == 0) ReadPrefetched(run);
}

// Trainers that live keep what is lent to them, and a save of the same size finds its memory beside it.
absl::Status Engine::Impl::RoomToPrefetch(const Run& run, int64_t bytes) const {
  if (const absl::Status may = MayRead(run.uid, 0, bytes / pool_->segment_bytes()); !may.ok()) return may;
  const PoolUsage usage = pool_->usage();
  const int64_t free = usage.total_bytes - usage.used_bytes;
  const int64_t room = std::min({pool_->resident_limit_bytes(), free - usage.lent_bytes, free - bytes});
  if (bytes <= room) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
      absl::StrCat("the checkpoint needs ", bytes >> 20, " MiB of memory as a copy, and there are ",
                   std::max<int64_t>(room, 0) >> 20,
                   " MiB that no save needs; make pool.bytes or pool.resident_bytes larger, or let its "
                   "readers read the disk"));
}

void Engine::Impl::ReadPrefetched(Run* run) {
  Prefetching& prefetch = *run->prefetch;
  if (!prefetch.error.ok()) return EndPrefetch(run, prefetch.error);
  std::vector<FileTarget> targets;
  for (const auto& entry : prefetch.resident.parts) {
    const ResidentPart& part = entry.second;
    for (const v1::FileSpec& file : part.files) {
      FileTarget target;
      target.path = file.path();
      int64_t offset = part.placed.at(file.path()).offset(), left = file.size_bytes();
      for (const SegmentRef& segment : part.segments) {
        const int64_t skip = std::min(offset, segment.size);
        offset -= skip;
        const int64_t run_bytes = std::min(left, segment.size - skip);
        if (run_bytes > 0) target.runs.emplace_back(segment.data + skip, static_cast<size_t>(run_bytes));
        left -= run_bytes;
      }
      targets.push_back(std::move(target));
    }
  }
  run->io->ReadFiles(prefetch.reader, std::move(targets),
                     [this, run](const absl::Status& read) { EndPrefetch(run, read); });
}

void Engine::Impl::EndPrefetch(Run* run, absl::Status end) {
  Prefetching prefetch = *std::exchange(run->prefetch, std::nullopt);
  const auto checkpoint = run->committed.find(prefetch.sequence);
  if (end.ok() && (checkpoint == run->committed.end() || IsDamaged(*run, prefetch.sequence))) {
    end = MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                    absl::StrCat("it is not in ", run->path, " any more, or is damaged"));
  }
  if (end.ok()) {
    pool_->Settle(prefetch.resident.copy);
    run->residents.insert_or_assign(prefetch.sequence, std::move(prefetch.resident));
    const double seconds = std::chrono::duration<double>(clock_->Now() - prefetch.begun_at).count();
    observer_->OnInfo(absl::StrCat("checkpoint ", run->path, "/", checkpoint->second.summary.tag(),
                                   " is in memory: read in ", seconds, " s"));
  } else if (prefetch.resident.copy != 0) {
    pool_->Release(prefetch.resident.copy);
  }
  for (auto& locate : prefetch.locating) locate();
  const auto answer =
      [this, run, sequence = prefetch.sequence, end,
       waiting = std::make_shared<std::vector<Reply<v1::Checkpoint>>>(std::move(prefetch.waiting))] {
        const auto known = run->committed.find(sequence);
        for (auto& reply : *waiting) {
          if (end.ok() && known != run->committed.end()) {
            reply(Describe(*run, known->second));
          } else {
            reply(Annotate(end, "reading it into memory"));
          }
        }
      };
  if (end.ok() || checkpoint == run->committed.end() || !TellsOfDamage(*run, end)) return answer();
  MarkDamaged(run, prefetch.sequence, DamageOf(end), answer);
}

}  // namespace ckptd
