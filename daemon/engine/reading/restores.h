// Restores tells the observer what was read of a checkpoint, once the last of the processes that had it open
// together has closed it.
#ifndef CKPTD_DAEMON_ENGINE_READING_RESTORES_H_
#define CKPTD_DAEMON_ENGINE_READING_RESTORES_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "ckptd/v1/types.pb.h"
#include "daemon/engine/reading/lease_table.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/seams/engine_types.h"
#include "storage/base/clock.h"

namespace ckptd {

class Restores {
 public:
  Restores(Clock* clock, EngineObserver* observer, const LeaseTable* leases)
      : clock_(clock), observer_(observer), leases_(leases) {}

  void OnOpened(const Lease& lease);
  // Call it when the table does not have the lease any more. A process that only looked is not told: it
  // neither resumes nor has reported a byte.
  void OnReleased(const Lease& lease);
  // A reader cannot go on: because of damage, or for the reason `failure`. `rank` -1: it is none of the run.
  // No-op unless the checkpoint is open.
  void OnFailed(const Run& run, int64_t sequence, int rank, const std::string& failure,
                const v1::Damage& damage);

 private:
  struct Reading {
    RestoreSummary summary;
    Instant begun_at;
    bool is_restore = false;
    std::map<std::string, int> ranks;  // By lease; -1: of none.
  };
  Clock* const clock_;
  EngineObserver* const observer_;
  const LeaseTable* const leases_;
  std::map<std::pair<const Run*, int64_t>, Reading> open_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_READING_RESTORES_H_
