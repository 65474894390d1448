#include "daemon/engine/reading/scrubber.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/reading/damage_marks.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr Duration kLookAgain = std::chrono::seconds(1);  // Between two searches for a due checkpoint.

}  // namespace

void Scrubber::OnTick(Run* run, Instant now) {
  if (options_.period == Duration::zero() || run->ledger == nullptr) return;
  State& state = states_[run->name];
  if (now < state.next) return;
  if (state.reading && state.reading->waiting) return;
  if (hooks_.is_busy(*run)) {
    state.next = now + kLookAgain;
    return;
  }
  if (!state.reading) return Start(run, state, now);
  const int64_t sequence = state.reading->sequence;
  if (run->catalog.Find(sequence) == nullptr || run->catalog.IsDamaged(sequence)) {
    state.reading.reset();
    return;
  }
  ReadChunk(run, state);
}

std::optional<int64_t> Scrubber::MostOverdue(const Run& run, State& state, Instant now) const {
  std::optional<std::pair<Instant, int64_t>> first;
  for (const auto& [sequence, checkpoint] : run.catalog.committed()) {
    const Instant due = state.due.try_emplace(sequence, now + options_.period).first->second;
    if (due <= now && !checkpoint.damage && (!first || due < first->first)) first = {due, sequence};
  }
  if (!first) return std::nullopt;
  return first->second;
}

void Scrubber::Start(Run* run, State& state, Instant now) {
  state.next = now + kLookAgain;
  std::erase_if(state.due, [run](const auto& due) { return run->catalog.Find(due.first) == nullptr; });
  const std::optional<int64_t> sequence = MostOverdue(*run, state, now);
  if (!sequence) return;
  if (!run->authority->coordinates()) {  // The coordinator reads it for all nodes.
    state.due[*sequence] = now + options_.period;
    return;
  }
  state.reading = Reading();
  state.reading->sequence = *sequence;
  state.reading->waiting = true;
  run->io->OpenCheckpoint(run->catalog.Find(*sequence)->summary.tag(), *sequence,
                          [this, run](absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) {
                            if (!reader.ok()) return End(run, reader.status());
                            Reading& reading = *states_[run->name].reading;
                            reading.reader = *std::move(reader);
                            reading.waiting = false;
                          });
}

void Scrubber::ReadChunk(Run* run, State& state) {
  Reading& reading = *state.reading;
  const auto& files = reading.reader->manifest().body.files();
  while (reading.file < files.size() && reading.offset == files[reading.file].size_bytes()) {
    ++reading.file;
    reading.offset = 0;
  }
  if (reading.file == files.size()) return End(run, absl::OkStatus());
  const storage::v1::FileRecord& file = files[reading.file];
  const int64_t size =
      std::min<int64_t>(reading.reader->manifest().summary.chunk_bytes(), file.size_bytes() - reading.offset);
  reading.waiting = true;
  run->io->ReadBack(reading.reader, file.path(), reading.offset, size,
                    [this, run, size](const absl::Status& read) { ChunkRead(run, size, read); });
}

void Scrubber::ChunkRead(Run* run, int64_t size, const absl::Status& read) {
  if (!read.ok()) return End(run, read);
  State& state = states_[run->name];
  state.reading->waiting = false;
  state.reading->offset += size;
  const double seconds = static_cast<double>(size) / static_cast<double>(options_.bytes_per_second);
  state.next = clock_->Now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

void Scrubber::End(Run* run, const absl::Status& result) {
  State& state = states_[run->name];
  const int64_t sequence = state.reading->sequence;
  state.reading.reset();
  state.due[sequence] = clock_->Now() + options_.period;
  if (run->catalog.Find(sequence) == nullptr) return;  // Retention has evicted it.
  if (result.ok()) {
    state.scrubbed_unix_us[sequence] = clock_->UnixMicros();
  } else {
    Found(run, sequence, result);
  }
}

void Scrubber::Found(Run* run, int64_t sequence, const absl::Status& error) {
  if (!IndicatesDamage(*run, error)) {
    observer_->OnWarning(absl::StrCat("checkpoint ", run->path, "/",
                                      run->catalog.Find(sequence)->summary.tag(),
                                      " could not be read back to check it: ", std::string(error.message())));
    return;
  }
  storage::v1::Damage damage = DamageFromError(error);
  const ErrorDetails details = DetailsOf(error);
  int64_t chunk = 0;
  if (auto named = details.find("chunk"); named != details.end() && absl::SimpleAtoi(named->second, &chunk))
    damage.set_chunk(chunk);
  damage.set_message(absl::StrCat(damage.message(), " (found when it was read back)"));
  hooks_.mark_damaged(run, sequence, std::move(damage));
}

bool Scrubber::IsReading(const Run& run) const {
  const auto state = states_.find(run.name);
  return state != states_.end() && state->second.reading.has_value();
}

bool Scrubber::IsDue(const std::string& run_name, Instant now) const {
  const auto state = states_.find(run_name);
  return options_.period > Duration::zero() && state != states_.end() &&
         std::any_of(state->second.due.begin(), state->second.due.end(),
                     [now](const auto& entry) { return entry.second <= now; });
}

void Scrubber::ForgetSchedule(const std::string& run_name) {
  if (const auto state = states_.find(run_name); state != states_.end()) state->second.due.clear();
}

std::optional<int64_t> Scrubber::LastScrubbed(const Run& run, int64_t sequence) const {
  const auto state = states_.find(run.name);
  if (state == states_.end()) return std::nullopt;
  const auto found = state->second.scrubbed_unix_us.find(sequence);
  if (found == state->second.scrubbed_unix_us.end()) return std::nullopt;
  return found->second;
}

}  // namespace ckptd
