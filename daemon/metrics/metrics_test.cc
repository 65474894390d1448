#include "daemon/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "daemon/metrics/metrics_format.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

SaveSummary Ended(v1::Level level, const std::string& reason, int64_t written) {
  SaveSummary summary;
  summary.checkpoint.set_level(level);
  summary.checkpoint.set_written_bytes(written);
  summary.checkpoint.mutable_error()->set_reason(reason);
  summary.stall_seconds = 0.002;
  summary.staged_seconds = 0.3;
  summary.committed_seconds = 4;
  summary.publish_seconds = 0.02;
  return summary;
}

TEST(Metrics, CountsSavesByOutcomeAndReason) {
  DaemonMetrics metrics;
  metrics.OnSaveEnded(Ended(v1::COMMITTED, "", 1000));
  metrics.OnSaveEnded(Ended(v1::COMMITTED, "", 24));
  metrics.OnSaveEnded(Ended(v1::FAILED, "RANKS_MISSING", 10));

  const std::string text = metrics.Render({}, 0);

  EXPECT_THAT(text, HasSubstr("ckptd_saves_total{outcome=\"committed\",reason=\"\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_saves_total{outcome=\"failed\",reason=\"RANKS_MISSING\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_written_bytes_total 1034\n"));
}

TEST(Metrics, TimesOnlyCommittedSaves) {
  DaemonMetrics metrics;
  metrics.OnSaveEnded(Ended(v1::COMMITTED, "", 0));
  metrics.OnSaveEnded(Ended(v1::SKIPPED, "SKIPPED", 0));

  const std::string text = metrics.Render({}, 0);

  EXPECT_THAT(text, HasSubstr("# TYPE ckptd_save_stall_seconds histogram\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_save_stall_seconds_bucket{le=\"0.001\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_save_stall_seconds_bucket{le=\"0.0025\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_save_staged_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_save_committed_seconds_sum 4\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_save_publish_seconds_count 1\n"));
}

TEST(Metrics, CountsSavesOfEachRunUnderABoundedNumberOfLabels) {
  DaemonMetrics metrics;
  for (int run = 0; run < 150; ++run) {
    SaveSummary summary = Ended(v1::COMMITTED, "", 0);
    summary.run = "runs/" + std::to_string(run);
    metrics.OnSaveEnded(summary);
  }
  const std::string text = metrics.Render({}, 0);
  EXPECT_THAT(text, HasSubstr("ckptd_run_saves_total{outcome=\"committed\",run=\"runs/99\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("run=\"runs/100\"")));
  EXPECT_THAT(text, HasSubstr("ckptd_run_saves_total{outcome=\"committed\",run=\"other\"} 50\n"));
}

TEST(Metrics, CountsFromZeroSoThatAnAlertSeesTheFirstEvent) {
  DaemonMetrics metrics;
  metrics.OnRunOpened("runs/1");
  std::string text = metrics.Render({}, 0);
  for (const char* outcome : {"committed", "failed", "skipped", "superseded", "indeterminate"}) {
    EXPECT_THAT(text, HasSubstr("ckptd_run_saves_total{outcome=\"" + std::string(outcome) +
                                "\",run=\"runs/1\"} 0\n"));
  }
  EXPECT_THAT(text, HasSubstr("ckptd_run_restores_total{outcome=\"failed\",run=\"runs/1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_saves_total{outcome=\"failed\",reason=\"POOL_TOO_SMALL\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_history_dropped_entries_total 0\n"));
  metrics.OnHistoryDropped();
  EXPECT_THAT(metrics.Render({}, 0), HasSubstr("ckptd_history_dropped_entries_total 1\n"));
}

TEST(Metrics, ShowsThatTheDaemonIsDrainedByAnOperator) {
  v1::Status status;
  EXPECT_THAT(DaemonMetrics().Render(status, 0), HasSubstr("ckptd_draining 0\n"));
  status.mutable_drain()->set_drained(true);
  EXPECT_THAT(DaemonMetrics().Render(status, 0), HasSubstr("ckptd_draining 1\n"));
}

TEST(Metrics, CountsRestoresOfEachRunByWhetherAllWasRead) {
  DaemonMetrics metrics;
  RestoreSummary restore;
  restore.run = "runs/1";
  restore.read_bytes = restore.total_bytes = 100;
  metrics.OnRestoreEnded(restore);
  restore.read_bytes = 0;
  restore.total_bytes = 0;  // Too short for a report.
  metrics.OnRestoreEnded(restore);
  restore.total_bytes = 100;  // Its process ended.
  metrics.OnRestoreEnded(restore);
  restore.read_bytes = 100;
  restore.reason = "CHECKPOINT_DAMAGED";
  metrics.OnRestoreEnded(restore);
  const std::string text = metrics.Render({}, 0);
  EXPECT_THAT(text, HasSubstr("ckptd_run_restores_total{outcome=\"read\",run=\"runs/1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_run_restores_total{outcome=\"failed\",run=\"runs/1\"} 2\n"));
}

v1::Status TwoRuns() {
  v1::Status status;
  status.set_daemon_version("0.1.0");
  status.set_sessions(3);
  status.mutable_pool()->set_total_bytes(int64_t{4} << 30);
  status.mutable_pool()->set_used_bytes(64);
  status.mutable_pool()->set_pages("hugetlb");
  v1::Run& one = *status.add_runs();
  one.set_name("runs/0000000000000001");
  one.set_path("/data/a");
  one.mutable_latest()->set_sequence(12);
  one.mutable_latest()->set_step(600);
  one.mutable_latest()->mutable_commit_time()->set_seconds(1700000000);
  one.mutable_latest()->set_size_bytes(1000);
  one.mutable_probe()->set_io_backend("io_uring");
  one.mutable_probe()->set_free_bytes(5000);
  one.add_in_flight()->mutable_create_time()->set_seconds(1700000090);
  one.add_in_flight()->mutable_create_time()->set_seconds(1700000060);
  one.set_pool_bytes(4096);
  one.set_leases(2);
  v1::Run& two = *status.add_runs();
  two.set_name("runs/0000000000000002");
  two.set_path("/data/b \"x\"");
  two.set_degraded(true);
  return status;
}

TEST(Metrics, ReportsTheNewestCheckpointAndTheOldestSaveOfARun) {
  const std::string text = DaemonMetrics().Render(TwoRuns(), 1700000100LL * 1000000);
  const std::string one = "{run=\"runs/0000000000000001\"} ";
  EXPECT_THAT(text, HasSubstr("ckptd_last_committed_sequence" + one + "12\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_last_committed_bytes" + one + "1000\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_root_free_bytes" + one + "5000\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_last_committed_step" + one + "600\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_last_committed_timestamp_seconds" + one + "1700000000\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_oldest_save_in_flight_age_seconds" + one + "40\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_saves_in_flight" + one + "2\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_run_pool_bytes" + one + "4096\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_run_open_checkpoints" + one + "2\n"));
  EXPECT_THAT(
      text, HasSubstr("ckptd_root_io_backend_info{run=\"runs/0000000000000001\",backend=\"io_uring\"} 1\n"));
}

TEST(Metrics, LabelsRunsWithPathsOnlyWhenConfigured) {
  EXPECT_THAT(DaemonMetrics().Render(TwoRuns(), 0), Not(HasSubstr("/data/")));
  const std::string text = DaemonMetrics().Render(TwoRuns(), 0, true);
  EXPECT_THAT(
      text, HasSubstr("ckptd_last_committed_sequence{run=\"runs/0000000000000001\",root=\"/data/a\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("{run=\"runs/0000000000000002\",root=\"/data/b \\\"x\\\"\"} "));
  EXPECT_THAT(
      text, HasSubstr("ckptd_root_io_backend_info{run=\"runs/0000000000000001\",root=\"/data/a\",backend="));
}

TEST(Metrics, ReportsNoLastCheckpointForAnEmptyRun) {
  const std::string text = DaemonMetrics().Render(TwoRuns(), 0);
  const std::string two = "{run=\"runs/0000000000000002\"} ";
  EXPECT_THAT(text, Not(HasSubstr("ckptd_last_committed_sequence" + two)));
  EXPECT_THAT(text, HasSubstr("ckptd_root_degraded" + two + "1\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_roots_degraded 1\n"));
}

TEST(Metrics, ReportsThePoolInBytes) {
  const std::string text = DaemonMetrics().Render(TwoRuns(), 0);
  EXPECT_THAT(text, HasSubstr("ckptd_pool_total_bytes{pages=\"hugetlb\"} 4294967296\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_pool_used_bytes 64\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_pool_lent_bytes 0\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_pool_ready_bytes 0\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_pool_resident_bytes 0\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_sessions 3\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_build_info{version=\"0.1.0\"} 1\n"));
}

TEST(Metrics, HasNoneOfNodesWithoutACluster) {
  const std::string text = DaemonMetrics().Render(TwoRuns(), 0);
  EXPECT_THAT(text, Not(HasSubstr("ckptd_node")));
  EXPECT_THAT(text, Not(HasSubstr("ckptd_etcd")));
}

TEST(Metrics, ReportsTheNodeAndItsEtcd) {
  v1::Status status;
  v1::ClusterStatus& cluster = *status.mutable_cluster();
  cluster.set_node("gpu17");
  cluster.set_registered(true);
  cluster.set_lost_leases(2);
  cluster.add_nodes();
  cluster.add_nodes();
  cluster.add_etcd_members()->set_endpoint("10.0.0.1:2379");
  cluster.add_etcd_members()->set_endpoint("10.0.0.2:2379");
  cluster.mutable_etcd_members(1)->set_answers(true);
  cluster.add_shared_runs()->set_coordinator("gpu17");
  cluster.add_shared_runs()->set_coordinator("gpu18");
  cluster.add_shared_runs()->set_coordinator("gpu17");
  cluster.add_shared_runs()->set_root("/shared/secret");
  DaemonMetrics metrics;
  metrics.OnEtcdRequest(0.002, absl::OkStatus());
  metrics.OnEtcdRequest(10, MakeError(absl::StatusCode::kUnavailable, "LEDGER_UNAVAILABLE", "no answer"));
  std::string text = metrics.Render(status, 0);
  EXPECT_THAT(text, HasSubstr("ckptd_node_registered{node=\"gpu17\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_nodes 2\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE ckptd_node_lost_leases_total counter\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_node_lost_leases_total{node=\"gpu17\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_etcd_member_answers{endpoint=\"10.0.0.2:2379\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("10.0.0.1"))) << "it was not asked";
  EXPECT_THAT(text, HasSubstr("ckptd_shared_runs 4\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_shared_runs_coordinated 2\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_shared_runs_without_coordinator 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  EXPECT_THAT(text, HasSubstr("ckptd_etcd_request_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_etcd_failed_requests_total{reason=\"LEDGER_UNAVAILABLE\"} 1\n"));
  cluster.set_registered(false);
  text = metrics.Render(status, 0);
  EXPECT_THAT(text, HasSubstr("ckptd_node_registered{node=\"gpu17\"} 0\n"));
}

std::string OpenMetrics(const DaemonMetrics& metrics, const v1::Status& status) {
  return metrics.Render(status, 1700000100LL * 1000000, /*root_paths=*/true, MetricsFormat::kOpenMetrics);
}

TEST(Metrics, HaveTheSameSeriesInOpenMetrics) {
  DaemonMetrics metrics;
  metrics.OnRunOpened("runs/1");
  metrics.OnSaveEnded(Ended(v1::COMMITTED, "", 1000));
  const std::string text = OpenMetrics(metrics, TwoRuns());
  EXPECT_THAT(text, HasSubstr("# TYPE ckptd_saves counter\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_saves_total{outcome=\"committed\",reason=\"\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE ckptd_written_bytes counter\n# UNIT ckptd_written_bytes bytes\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_written_bytes_total 1000\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE ckptd_build info\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_build_info{version=\"0.1.0\"} 1\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "ckptd_oldest_save_in_flight_age_seconds{run=\"runs/0000000000000001\",root=\"/data/a\"} 40\n"));
  EXPECT_THAT(text, HasSubstr("{run=\"runs/0000000000000002\",root=\"/data/b \\\"x\\\"\"} "));
  EXPECT_TRUE(text.ends_with("\n# EOF\n"));
}

TEST(Metrics, TellSinceWhenTheyCountInOpenMetrics) {
  DaemonMetrics metrics;
  metrics.OnRunOpened("runs/1");
  v1::Status status = TwoRuns();
  EXPECT_THAT(OpenMetrics(metrics, status), Not(HasSubstr("_created"))) << "the status has no start";
  status.mutable_start_time()->set_seconds(1700000001);
  status.mutable_start_time()->set_nanos(500000000);
  const std::string text = OpenMetrics(metrics, status);
  EXPECT_THAT(text, HasSubstr("ckptd_written_bytes_created 1700000001.5\n"));
  EXPECT_THAT(text, HasSubstr("ckptd_save_stall_seconds_created 1700000001.5\n"));
  EXPECT_THAT(text, Not(ContainsRegex("_created[{][^}]*run=")));
  EXPECT_THAT(metrics.Render(status, 0), Not(HasSubstr("_created")));
}

}  // namespace
}  // namespace ckptd
