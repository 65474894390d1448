// MemoryShares divides the pool's memory between users: what each may hold while others wait, and what a save
// has to wait for. It only computes; SegmentPool does the reservations.
#ifndef CKPTD_DAEMON_ENGINE_ADMISSION_MEMORY_SHARES_H_
#define CKPTD_DAEMON_ENGINE_ADMISSION_MEMORY_SHARES_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/engine/admission/expected_sizes.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/memory/segment_pool.h"

namespace ckptd {

// The state of the pool at one moment, in segments.
struct MemoryUse {
  std::map<uid_t, int64_t> held;  // What saves, readers and prefetches of a user keep from others.
  int64_t share = 0;              // What each user may hold while others wait for memory.
  int users = 0;                  // Users that hold memory or wait for it.
  int64_t Held(uid_t uid) const {
    auto found = held.find(uid);
    return found == held.end() ? 0 : found->second;
  }
};

// Max-min fairness. Where all demands fit, the answer is `available`. Else users who want no more than the
// answer get what they want, and the others all get the answer.
int64_t MaxMinShare(std::vector<int64_t> demands, int64_t available);

class MemoryShares {
 public:
  using HeldByUser = std::function<std::map<uid_t, int64_t>()>;
  // `most_percent_per_user`: of the pool. `held_by_readers`: segments that readers of each user hold.
  MemoryShares(const SegmentPool* pool, const SaveTable* saves, const ExpectedSizes* sizes,
               int most_percent_per_user, HeldByUser held_by_readers);

  void SetMostPercentPerUser(int percent) { most_percent_per_user_ = percent; }

  MemoryUse Use() const;
  // Segments that a save takes.
  int64_t NeededSegments(const Save& save) const;
  // Which memory has to come back before the save can be admitted.
  enum class Source { kOwnRun, kOwnUser, kAnyUser };
  Source AwaitedSource(const Save& save, const MemoryUse& use) const;
  // Whether the limit of the save's user leaves room for it. POOL_TOO_SMALL: it never will. POOL_EXHAUSTED:
  // not now.
  absl::Status CheckUserLimit(const Save& save, const MemoryUse& use) const;
  // Whether a part of an admitted save may take more segments than were reserved for it. It takes nothing
  // beyond its user's share that a save of another user waits for.
  absl::Status CheckGrowth(const Save& save, int64_t segments) const;

 private:
  int64_t MostPerUser() const;
  int64_t MiB(int64_t segments) const { return segments * (pool_->segment_bytes() >> 20); }

  const SegmentPool* const pool_;
  const SaveTable* const saves_;
  const ExpectedSizes* const sizes_;
  int most_percent_per_user_;
  const HeldByUser held_by_readers_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ADMISSION_MEMORY_SHARES_H_
