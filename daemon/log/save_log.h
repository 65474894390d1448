// Turns the engine's events into log lines, metrics and entries of the history.
#ifndef CKPTD_DAEMON_LOG_SAVE_LOG_H_
#define CKPTD_DAEMON_LOG_SAVE_LOG_H_

#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/history/history_store.h"
#include "daemon/log/log.h"
#include "daemon/metrics/metrics.h"

namespace ckptd {

// The log line of a save that ended: INFO, or WARNING if it failed.
struct SaveLine {
  LogLevel level = LogLevel::kInfo;
  std::string message;
  std::vector<LogField> fields;
};
SaveLine LineOf(const SaveSummary& summary);

class SaveLog final : public EngineObserver {
 public:
  explicit SaveLog(DaemonMetrics* metrics) : metrics_(metrics) {}
  // Null: nothing is kept. Call it while no event can come.
  void SetHistory(HistoryStore* history) { history_ = history; }

  void OnSaveEnded(const SaveSummary& summary) override;
  void OnEarlierSaveEnded(const SaveSummary& summary) override;
  void OnRestoreEnded(const RestoreSummary& summary) override;
  void OnRemoved(const RemovalSummary& summary) override;
  void OnWarning(const std::string& message) override;
  void OnInfo(const std::string& message) override;
  void OnRootOpened(const std::string& run, const std::string& path, const ProbeResult& probe) override;

 private:
  template <typename Summary>
  void Keep(const Summary& summary);

  DaemonMetrics* const metrics_;
  HistoryStore* history_ = nullptr;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LOG_SAVE_LOG_H_
