// The daemon's metrics in Prometheus' text format. What happens is counted as it happens; what is, is read
// from the daemon's status at each scrape. docs/operations.md has the table of names.
#ifndef CKPTD_DAEMON_METRICS_METRICS_H_
#define CKPTD_DAEMON_METRICS_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/engine.h"

namespace ckptd {

// Thread-safe.
class DaemonMetrics {
 public:
  DaemonMetrics();
  ~DaemonMetrics();

  // Counts how a save ended, its bytes and its times.
  void OnSaveEnded(const SaveSummary& summary);

  // All metrics as text. `status` is the daemon's, as a privileged caller sees it; `now_unix_us` is for ages.
  // `root_paths`: whether metrics of a run name its root beside its id, to everybody who may read them.
  std::string Render(const v1::Status& status, int64_t now_unix_us, bool root_paths = false) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// "committed", "failed", ...: a level in metrics and logs.
std::string LevelWord(v1::Level level);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_METRICS_METRICS_H_
