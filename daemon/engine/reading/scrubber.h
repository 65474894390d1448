// The scrubber: reads committed checkpoints back from disk while their run is idle, so that damage is known
// before a job needs them.
#ifndef CKPTD_DAEMON_ENGINE_READING_SCRUBBER_H_
#define CKPTD_DAEMON_ENGINE_READING_SCRUBBER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/base/clock.h"

namespace ckptd {

// Owns the times at which each committed checkpoint is due to be read back, and the reads that are under way.
// A checkpoint is due one period after this daemon saw it first, and then once a period. The schedule of a
// run outlives its closing.
class Scrubber {
 public:
  struct Options {
    Duration period = Duration::zero();  // Zero: nothing is ever scrubbed.
    int64_t bytes_per_second = 0;
  };
  struct Hooks {
    // Whether something else may want the run's disk now.
    std::function<bool(const Run&)> is_busy;
    std::function<void(Run*, int64_t sequence, storage::v1::Damage)> mark_damaged;
  };

  Scrubber(Options options, Clock* clock, EngineObserver* observer, Hooks hooks)
      : options_(options), clock_(clock), observer_(observer), hooks_(std::move(hooks)) {}

  // Reads at most one chunk of this run; none while the run is busy.
  void OnTick(Run* run, Instant now);

  // Whether the run is being read now: then it may not be closed.
  bool IsReading(const Run& run) const;
  // Whether a checkpoint of the run, which may be closed, is due.
  bool IsDue(const std::string& run_name, Instant now) const;
  // Forgets when the run's checkpoints are due, because the run could not be opened.
  void ForgetSchedule(const std::string& run_name);
  // When the checkpoint was last found whole; nullopt: this daemon has not read it.
  std::optional<int64_t> LastScrubbed(const Run& run, int64_t sequence) const;

 private:
  struct Reading {
    int64_t sequence = 0;
    std::shared_ptr<CheckpointReader> reader;
    int file = 0;  // Index in the manifest.
    int64_t offset = 0;
    bool waiting = false;  // For the disk.
  };
  struct State {
    std::optional<Reading> reading;
    Instant next;                                 // Nothing is done before then.
    std::map<int64_t, Instant> due;               // By sequence.
    std::map<int64_t, int64_t> scrubbed_unix_us;  // By sequence.
  };

  void Start(Run* run, State& state, Instant now);
  std::optional<int64_t> MostOverdue(const Run& run, State& state, Instant now) const;
  void ReadChunk(Run* run, State& state);
  void ChunkRead(Run* run, int64_t size, const absl::Status& read);
  void End(Run* run, const absl::Status& result);
  void Found(Run* run, int64_t sequence, const absl::Status& error);

  const Options options_;
  Clock* const clock_;
  EngineObserver* const observer_;
  const Hooks hooks_;
  std::map<std::string, State> states_;  // By the run's name.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_READING_SCRUBBER_H_
