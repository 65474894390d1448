// RootScanner scans a root anew when the state of its disk is unknown: after a save with the outcome
// INDETERMINATE, after an eviction that failed half-way, and when the store has refused a change.
// Until a scan succeeds the root is read-only; scans are repeated until then.
#ifndef CKPTD_DAEMON_ENGINE_ROOTS_ROOT_SCANNER_H_
#define CKPTD_DAEMON_ENGINE_ROOTS_ROOT_SCANNER_H_

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/base/clock.h"

namespace ckptd {

class RootScanner {
 public:
  struct Hooks {
    // How many bytes had been written to the disk when the scan began: its free space is of that time.
    std::function<int64_t(const Run&)> written_bytes;
    // The scan has succeeded and is to be loaded into the run.
    std::function<void(Run*, RootSnapshot, int64_t written_bytes)> load;
    // The root takes changes again; saves and resumes that waited for it go on.
    std::function<void(Run*)> usable;
  };
  RootScanner(Clock* clock, EngineObserver* observer, Hooks hooks);

  // Starts a scan, or lets another one follow the scan that is under way.
  void Scan(Run* run);
  // As Scan, for a root that the user knows to be read-only: logs when the root takes saves again.
  void ScanAndLog(Run* run);
  // The store has refused a change with ROOT_READ_ONLY: no changes before the next scan.
  void AwaitScan(Run* run);
  bool IsRetryScheduled(const Run& run) const { return states_.Of(&run).again_at.has_value(); }

  void OnTick(Run* run, Instant now);
  void Forget(const Run* run) { states_.Forget(run); }

 private:
  struct State {
    bool again = false;     // Asked for while a scan was under way.
    bool failed = false;    // The last scan failed, and the warning was given.
    bool logs_end = false;  // The user knows that the root is read-only.
    std::optional<Instant> again_at;
  };
  void OnScanned(Run* run, int64_t written_bytes, absl::StatusOr<RootSnapshot> snapshot);
  void OnScanFailed(Run* run, const absl::Status& why);

  Clock* const clock_;
  EngineObserver* const observer_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ROOTS_ROOT_SCANNER_H_
