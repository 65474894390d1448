// Prefetch: reads a committed checkpoint into memory before a reader asks for its bytes, as a resident copy.
#ifndef CKPTD_DAEMON_ENGINE_READING_PREFETCHER_H_
#define CKPTD_DAEMON_ENGINE_READING_PREFETCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/reading/resident_cache.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/run/wire.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/clock.h"

namespace ckptd {

// Owns the prefetch that each run has under way, one at a time. Finished ones belong to the ResidentCache.
class Prefetcher {
 public:
  struct Hooks {
    DescribeCheckpoint describe;
    // `done` runs when the mark is on disk.
    MarkAsDamaged mark_damaged;
  };

  Prefetcher(Clock* clock, SegmentPool* pool, EngineObserver* observer, ResidentCache* residents, Hooks hooks)
      : clock_(clock), pool_(pool), observer_(observer), residents_(residents), hooks_(std::move(hooks)) {}

  // Answers when the checkpoint is in memory. `tag` may be "latest". NO_CHECKPOINT, CHECKPOINT_DAMAGED,
  // PREFETCH_BUSY while another one of the run is read, POOL_EXHAUSTED.
  void Prefetch(Run* run, const std::string& tag, Reply<v1::Checkpoint> reply);

  bool IsActive(const Run& run) const { return active_.Of(&run) != nullptr; }
  bool IsReading(const Run& run, int64_t sequence) const;
  // Runs `then` when the prefetch that is under way has ended, however it ends. REQUIRES: IsActive(*run).
  void AfterPrefetch(Run* run, absl::AnyInvocable<void()> then);
  void OnRunClosed(Run* run) { active_.Forget(run); }

 private:
  struct Active {
    int64_t sequence = 0;
    std::shared_ptr<CheckpointReader> reader;
    Resident resident;  // Its copy is still a reservation; 0: nothing is reserved.
    int drawing = 0;    // Parts whose memory has not come yet.
    absl::Status error;
    Instant begun_at;
    std::vector<Reply<v1::Checkpoint>> waiting;
    std::vector<absl::AnyInvocable<void()>> after;
  };

  void Start(Run* run, const CommittedCheckpoint& wanted, Reply<v1::Checkpoint> reply);
  void Opened(Run* run, absl::StatusOr<std::shared_ptr<CheckpointReader>> reader);
  void Draw(Run* run, const std::map<int, int>& segments);
  void Drawn(Run* run, int rank, absl::StatusOr<std::vector<SegmentRef>> segments);
  void Read(Run* run);
  void End(Run* run, absl::Status end);
  // Hands a copy that was read to the ResidentCache, or gives its memory back.
  void Finish(Run* run, const CommittedCheckpoint* checkpoint, const absl::Status& end, Active& active);

  Active& ActiveOf(const Run* run) { return *active_.Of(run); }

  Clock* const clock_;
  SegmentPool* const pool_;
  EngineObserver* const observer_;
  ResidentCache* const residents_;
  const Hooks hooks_;
  RunStates<std::unique_ptr<Active>> active_;  // Null: nothing is read.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_READING_PREFETCHER_H_
