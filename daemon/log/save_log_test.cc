#include "daemon/log/save_log.h"

#include <gtest/gtest.h>

#include <string>

namespace ckptd {
namespace {

SaveSummary Summary(v1::Level level) {
  SaveSummary summary;
  summary.run = "runs/0000000000000001";
  summary.run_id = "llama";
  summary.path = "/data/ckpts";
  summary.checkpoint.set_tag("step_100");
  summary.checkpoint.set_step(100);
  summary.checkpoint.set_sequence(7);
  summary.checkpoint.set_attempt(2);
  summary.checkpoint.set_size_bytes(1024);
  summary.checkpoint.set_level(level);
  summary.stall_seconds = 0.0015;
  summary.staged_seconds = 0.25;
  summary.written_seconds = 1.5;
  summary.committed_seconds = 1.6;
  summary.slowest_rank = 3;
  return summary;
}

TEST(SaveLog, LogsACommittedCheckpointAsOneInfoLine) {
  const SaveLine line = LineOf(Summary(v1::COMMITTED));
  EXPECT_EQ(line.level, LogLevel::kInfo);
  EXPECT_EQ(
      FormatText(line.message, line.fields),
      "checkpoint committed run=runs/0000000000000001 run_id=llama root=/data/ckpts tag=step_100 step=100 "
      "sequence=7 attempt=2 bytes=1024 stall_ms=2 staged_ms=250 written_ms=1500 committed_ms=1600 "
      "slowest_rank=3 "
      "outcome=committed reason=\"\"");
}

TEST(SaveLog, LogsAFailedSaveAsAWarningWithItsReason) {
  SaveSummary summary = Summary(v1::FAILED);
  summary.checkpoint.mutable_error()->set_reason("RANKS_MISSING");
  summary.checkpoint.mutable_error()->set_message("rank 1 has not sealed");
  const SaveLine line = LineOf(summary);
  EXPECT_EQ(line.level, LogLevel::kWarning);
  const std::string text = FormatText(line.message, line.fields);
  EXPECT_NE(text.find("outcome=failed reason=RANKS_MISSING error=\"rank 1 has not sealed\""),
            std::string::npos)
      << text;
}

TEST(SaveLog, LogsASkippedSaveAsInfo) { EXPECT_EQ(LineOf(Summary(v1::SKIPPED)).level, LogLevel::kInfo); }

TEST(SaveLog, LogsNoStepForASaveWithoutOne) {
  SaveSummary summary = Summary(v1::COMMITTED);
  summary.checkpoint.clear_step();
  const SaveLine line = LineOf(summary);
  EXPECT_EQ(FormatText(line.message, line.fields).find(" step="), std::string::npos);
}

}  // namespace
}  // namespace ckptd
