// The daemon's metrics in the text formats of Prometheus and OpenMetrics. Counters count events as they happen;
// gauges are read from the daemon's status at each scrape. docs/operations.md has the table of names.
#ifndef CKPTD_DAEMON_METRICS_METRICS_H_
#define CKPTD_DAEMON_METRICS_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/engine.h"
#include "daemon/metrics/metrics_format.h"

namespace ckptd {

// Thread-safe.
class DaemonMetrics {
 public:
  DaemonMetrics();
  ~DaemonMetrics();

  // Makes the counters of a run, with 0. Otherwise a query for the increase would miss the first event.
  void OnRunOpened(const std::string& run);

  // Counts the outcome, the bytes and the times of a save that ended.
  void OnSaveEnded(const SaveSummary& summary);

  // Counts a restore.
  void OnRestoreEnded(const RestoreSummary& summary);
  // Counts an entry of the history that could not be written.
  void OnHistoryDropped();

  // Counts a request to etcd that has ended, with all its tries.
  void OnEtcdRequest(double seconds, const absl::Status& outcome);

  // Returns all metrics as text. `status` is the status that a privileged caller sees; `now_unix_us` is the
  // current Unix time in microseconds, for ages. `root_paths`: label the metrics of a run with the path of
  // its root, which everybody who may read the metrics sees then.
  std::string Render(const v1::Status& status, int64_t now_unix_us, bool root_paths = false,
                     MetricsFormat format = MetricsFormat::kPrometheusText) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the name of a level in metrics and logs: "committed", "failed", ...
std::string LevelWord(v1::Level level);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_METRICS_METRICS_H_
