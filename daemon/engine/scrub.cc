// The scrubber: reads committed checkpoints back from the disk while nothing else is going on, so that damage
// is known before somebody needs them.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr Duration kLookAgain = std::chrono::seconds(1);  // For what is due.

}  // namespace

// Whether something else may want the root's disk.
bool Engine::Impl::IsBusy(const Run& run) const {
  return run.read_only || run.degraded || run.scanning || !run.saves.empty() || !run.evicting.empty() ||
         !run.resumes.empty() || run.prefetch || !LeasedSequences(&run).empty();
}

// A chunk at most each time it is called; none while the run is busy.
void Engine::Impl::Scrub(Run* run, Instant now) {
  if (options_.scrub_period == Duration::zero() || run->ledger == nullptr || now < run->scrub_again_at)
    return;
  if (run->scrub && run->scrub->waiting) return;
  if (IsBusy(*run)) {
    run->scrub_again_at = now + kLookAgain;
    return;
  }
  if (!run->scrub) return StartScrub(run, now);
  if (!run->committed.contains(run->scrub->sequence) || IsDamaged(*run, run->scrub->sequence)) {
    run->scrub.reset();
    return;
  }
  ScrubChunk(run);
}

// The one that is due longest. A checkpoint is due a period after this daemon saw it first.
void Engine::Impl::StartScrub(Run* run, Instant now) {
  run->scrub_again_at = now + kLookAgain;
  std::erase_if(run->scrub_due, [run](const auto& due) { return !run->committed.contains(due.first); });
  std::optional<std::pair<Instant, int64_t>> first;
  for (const auto& entry : run->committed) {
    const Instant due = run->scrub_due.try_emplace(entry.first, now + options_.scrub_period).first->second;
    if (due <= now && !entry.second.damage && (!first || due < first->first)) first = {due, entry.first};
  }
  if (!first) return;
  const int64_t sequence = first->second;
  run->scrub.emplace();
  run->scrub->sequence = sequence;
  run->scrub->waiting = true;
  run->io->OpenCheckpoint(run->committed.at(sequence).summary.tag(), sequence,
                          [this, run](absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) {
                            if (!reader.ok()) return EndScrub(run, reader.status());
                            run->scrub->reader = *std::move(reader);
                            run->scrub->waiting = false;
                          });
}

void Engine::Impl::ScrubChunk(Run* run) {
  Scrubbing& scrub = *run->scrub;
  const auto& files = scrub.reader->manifest().body.files();
  while (scrub.file < files.size() && scrub.offset == files[scrub.file].size_bytes()) {
    ++scrub.file;
    scrub.offset = 0;
  }
  if (scrub.file == files.size()) return EndScrub(run, absl::OkStatus());
  const storage::v1::FileRecord& file = files[scrub.file];
  const int64_t size =
      std::min<int64_t>(scrub.reader->manifest().summary.chunk_bytes(), file.size_bytes() - scrub.offset);
  scrub.waiting = true;
  run->io->ReadBack(
      scrub.reader, file.path(), scrub.offset, size, [this, run, size](const absl::Status& read) {
        if (!read.ok()) return EndScrub(run, read);
        run->scrub->waiting = false;
        run->scrub->offset += size;
        const double seconds =
            static_cast<double>(size) / static_cast<double>(options_.scrub_bytes_per_second);
        run->scrub_again_at =
            clock_->Now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
      });
}

void Engine::Impl::EndScrub(Run* run, const absl::Status& found) {
  const int64_t sequence = run->scrub->sequence;
  run->scrub.reset();
  run->scrub_due[sequence] = clock_->Now() + options_.scrub_period;
  const auto checkpoint = run->committed.find(sequence);
  if (checkpoint == run->committed.end()) return;  // Retention has taken it.
  if (found.ok()) {
    run->scrubbed_unix_us[sequence] = clock_->UnixMicros();
    return;
  }
  const std::string& tag = checkpoint->second.summary.tag();
  if (!TellsOfDamage(*run, found)) {
    observer_->OnWarning(absl::StrCat("checkpoint ", run->path, "/", tag,
                                      " could not be read back to check it: ", std::string(found.message())));
    return;
  }
  storage::v1::Damage damage = DamageOf(found);
  const ErrorDetails details = DetailsOf(found);
  int64_t chunk = 0;
  if (auto named = details.find("chunk"); named != details.end() && absl::SimpleAtoi(named->second, &chunk))
    damage.set_chunk(chunk);
  damage.set_message(absl::StrCat(damage.message(), " (found when it was read back)"));
  MarkDamaged(run, sequence, std::move(damage), [] {});
}

}  // namespace ckptd
