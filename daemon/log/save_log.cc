#include "daemon/log/save_log.h"

#include <cmath>

#include "daemon/history/history_entries.h"
#include "storage/base/clock.h"

namespace ckptd {
namespace {

int64_t Millis(double seconds) { return std::llround(seconds * 1000); }

bool IsFailure(v1::Level level) { return level == v1::FAILED || level == v1::INDETERMINATE; }

}  // namespace

SaveLine LineOf(const SaveSummary& summary) {
  const v1::Checkpoint& checkpoint = summary.checkpoint;
  const std::string outcome = LevelWord(checkpoint.level());
  SaveLine line;
  line.level = IsFailure(checkpoint.level()) ? LogLevel::kWarning : LogLevel::kInfo;
  line.message = "checkpoint " + outcome;
  line.fields = {
      {"run", summary.run}, {"run_id", summary.run_id}, {"root", summary.path}, {"tag", checkpoint.tag()}};
  if (checkpoint.has_step()) line.fields.emplace_back("step", checkpoint.step());
  line.fields.insert(line.fields.end(), {{"sequence", checkpoint.sequence()},
                                         {"attempt", checkpoint.attempt()},
                                         {"bytes", checkpoint.size_bytes()},
                                         {"stall_ms", Millis(summary.stall_seconds)},
                                         {"staged_ms", Millis(summary.staged_seconds)},
                                         {"written_ms", Millis(summary.written_seconds)},
                                         {"committed_ms", Millis(summary.committed_seconds)},
                                         {"slowest_rank", summary.slowest_rank},
                                         {"outcome", outcome},
                                         {"reason", checkpoint.error().reason()}});
  if (!checkpoint.error().message().empty()) line.fields.emplace_back("error", checkpoint.error().message());
  return line;
}

void SaveLog::OnSaveEnded(const SaveSummary& summary) {
  metrics_->OnSaveEnded(summary);
  const SaveLine line = LineOf(summary);
  Log(line.level, line.message, line.fields);
  Keep(summary);
}

template <typename Summary>
void SaveLog::Keep(const Summary& summary) {
  if (history_ != nullptr) history_->Add(summary.root, EntryOf(summary, SystemClock().UnixMicros()));
}

void SaveLog::OnEarlierSaveEnded(const SaveSummary& summary) { Keep(summary); }

void SaveLog::OnRestoreEnded(const RestoreSummary& summary) {
  metrics_->OnRestoreEnded(summary);
  Keep(summary);
}

void SaveLog::OnRemoved(const RemovalSummary& summary) { Keep(summary); }

void SaveLog::OnWarning(const std::string& message) { Log(LogLevel::kWarning, message); }
void SaveLog::OnInfo(const std::string& message) { Log(LogLevel::kInfo, message); }

void SaveLog::OnRootOpened(const std::string& run, const std::string& path, const ProbeResult& probe) {
  metrics_->OnRunOpened(run);
  Log(LogLevel::kInfo, "root opened",
      {{"run", run},
       {"root", path},
       {"file_system", probe.file_system},
       {"io_backend", probe.io_backend},
       {"cause", probe.io_backend_cause},
       {"direct_io", probe.direct_io},
       {"fallocate", probe.fallocate},
       {"rename_exchange", probe.rename_exchange},
       {"free_bytes", probe.free_bytes}});
  for (const std::string& warning : probe.warnings)
    Log(LogLevel::kWarning, warning, {{"run", run}, {"root", path}});
}

}  // namespace ckptd
