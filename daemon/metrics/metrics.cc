#include "daemon/metrics/metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "daemon/metrics/open_metrics_text.h"
#include "google/protobuf/timestamp.pb.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

// A stall is one memory copy, which takes milliseconds to seconds. A whole save takes up to minutes.
const prometheus::Histogram::BucketBoundaries kStallSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                               0.25,  0.5,    1,     2.5,  5,     10,   30};
const prometheus::Histogram::BucketBoundaries kEtcdSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                              0.25,  0.5,    1,     2.5,  5,     10};
const prometheus::Histogram::BucketBoundaries kSaveSeconds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                                                              5,    10,    30,   60,  120,  300, 600, 1800};

// Outcomes of restores.
constexpr char kRead[] = "read", kFailed[] = "failed";

double Seconds(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + static_cast<double>(time.nanos()) * 1e-9;
}

// The gauges of one name, with a value for each set of labels.
class Gauges {
 public:
  Gauges(std::string name, std::string help) {
    family_.name = std::move(name);
    family_.help = std::move(help);
    family_.type = prometheus::MetricType::Gauge;
  }

  // For a number that only grows while the daemon lives.
  void BeCounters() { family_.type = prometheus::MetricType::Counter; }

  void Set(double value, const Labels& labels = {}) {
    prometheus::ClientMetric metric;
    for (const auto& [name, text] : labels) metric.label.push_back({name, text});
    metric.gauge.value = value;
    metric.counter.value = value;
    family_.metric.push_back(std::move(metric));
  }

  void MoveTo(std::vector<prometheus::MetricFamily>& families) {
    if (!family_.metric.empty()) families.push_back(std::move(family_));
  }

 private:
  prometheus::MetricFamily family_;
};

void AddGauge(std::vector<prometheus::MetricFamily>& families, const char* name, const char* help,
              double value, const Labels& labels = {}) {
  Gauges gauges(name, help);
  gauges.Set(value, labels);
  gauges.MoveTo(families);
}

void AddDaemon(const v1::Status& status, std::vector<prometheus::MetricFamily>& families) {
  AddGauge(families, "ckptd_build_info", "The daemon's version.", 1, {{"version", status.daemon_version()}});
  AddGauge(families, "ckptd_start_time_seconds", "When the daemon started, Unix time.",
           Seconds(status.start_time()));
  AddGauge(families, "ckptd_sessions", "Connected trainer processes.", status.sessions());
  AddGauge(families, "ckptd_draining", "1 while the daemon takes no new saves.",
           status.draining() || status.has_drain() ? 1 : 0);
  const v1::PoolStatus& pool = status.pool();
  AddGauge(families, "ckptd_pool_total_bytes", "Memory budget for segments.",
           static_cast<double>(pool.total_bytes()), {{"pages", pool.pages()}});
  AddGauge(families, "ckptd_pool_used_bytes", "Segments that hold bytes of saves in flight.",
           static_cast<double>(pool.used_bytes()));
  AddGauge(families, "ckptd_pool_lent_bytes", "Segments that are lent to sessions and idle.",
           static_cast<double>(pool.lent_bytes()));
  AddGauge(families, "ckptd_pool_resident_bytes",
           "Segments that hold copies of committed checkpoints whose trainers have ended.",
           static_cast<double>(pool.resident_bytes()));
  AddGauge(families, "ckptd_pool_ready_bytes", "Populated segments that are lent to no session.",
           static_cast<double>(pool.ready_bytes()));
}

double OldestAge(const v1::Run& run, double now) {
  double age = 0;
  for (const v1::Checkpoint& save : run.in_flight()) age = std::max(age, now - Seconds(save.create_time()));
  return age;
}

void AddRuns(const v1::Status& status, double now, bool root_paths,
             std::vector<prometheus::MetricFamily>& families) {
  Gauges sequence("ckptd_last_committed_sequence", "Sequence of the run's newest committed checkpoint.");
  Gauges step("ckptd_last_committed_step",
              "Step of the run's newest committed checkpoint, where it has one.");
  Gauges time("ckptd_last_committed_timestamp_seconds",
              "When the run's newest checkpoint was committed, Unix time.");
  Gauges size("ckptd_last_committed_bytes", "Size of the run's newest committed checkpoint.");
  Gauges kept("ckptd_committed_checkpoints", "Committed checkpoints of the run.");
  Gauges in_flight("ckptd_saves_in_flight", "Saves of the run that have not ended.");
  Gauges oldest("ckptd_oldest_save_in_flight_age_seconds",
                "Age of the run's oldest save in flight; 0 without one.");
  Gauges damaged("ckptd_damaged_checkpoints", "Committed checkpoints whose bytes are not what was saved.");
  Gauges pool("ckptd_run_pool_bytes", "Memory that the run's saves in flight hold.");
  Gauges readers("ckptd_run_open_checkpoints", "Checkpoints of the run that are open for reading.");
  Gauges trash("ckptd_trash_bytes", "Bytes of evicted checkpoints that are not deleted yet.");
  Gauges free("ckptd_root_free_bytes", "Free bytes on the root's file system, as last measured for a save.");
  Gauges degraded("ckptd_root_degraded", "1 while the root's file system does not answer.");
  Gauges read_only("ckptd_root_read_only",
                   "1 after a failed directory sync, until the root is scanned again.");
  Gauges backend("ckptd_root_io_backend_info", "How the root is written: io_uring or threads.");
  Gauges waiting("ckptd_uploads_waiting",
                 "Checkpoints of the run that are to be uploaded and are not in the bucket.");
  Gauges lag("ckptd_oldest_upload_waiting_age_seconds",
             "Since the commit of the oldest checkpoint that is to be uploaded; 0 without one.");
  Gauges sent("ckptd_uploaded_bytes_total", "Bytes that uploads of the run have sent.");
  Gauges uploaded("ckptd_uploads_total", "Uploads of the run that have ended well.");
  Gauges failed("ckptd_upload_failures_total",
                "Tries to upload, or to remove from the bucket, that have failed.");
  for (Gauges* counters : {&sent, &uploaded, &failed}) counters->BeCounters();
  int degraded_count = 0;
  for (const v1::Run& run : status.runs()) {
    Labels labels = {{"run", run.name()}};
    if (root_paths) labels.emplace_back("root", run.path());
    if (run.has_latest()) {
      sequence.Set(static_cast<double>(run.latest().sequence()), labels);
      if (run.latest().has_step()) step.Set(static_cast<double>(run.latest().step()), labels);
      time.Set(Seconds(run.latest().commit_time()), labels);
      size.Set(static_cast<double>(run.latest().size_bytes()), labels);
    }
    kept.Set(run.checkpoint_count(), labels);
    damaged.Set(run.damaged_size(), labels);
    in_flight.Set(run.in_flight_size(), labels);
    oldest.Set(OldestAge(run, now), labels);
    pool.Set(static_cast<double>(run.pool_bytes()), labels);
    readers.Set(run.leases(), labels);
    trash.Set(static_cast<double>(run.trash_bytes()), labels);
    if (run.has_probe()) free.Set(static_cast<double>(run.probe().free_bytes()), labels);
    const v1::RunUploads& uploads = run.uploads();
    waiting.Set(uploads.waiting_size(), labels);
    lag.Set(uploads.waiting().empty() ? 0 : std::max(0.0, now - Seconds(uploads.waiting(0).commit_time())),
            labels);
    sent.Set(static_cast<double>(uploads.sent_bytes()), labels);
    uploaded.Set(static_cast<double>(uploads.done()), labels);
    failed.Set(static_cast<double>(uploads.failed()), labels);
    degraded.Set(run.degraded() ? 1 : 0, labels);
    read_only.Set(run.read_only() ? 1 : 0, labels);
    if (!run.probe().io_backend().empty()) {
      Labels with_backend = labels;
      with_backend.emplace_back("backend", run.probe().io_backend());
      backend.Set(1, with_backend);
    }
    if (run.degraded()) ++degraded_count;
  }
  for (Gauges* gauges : {&sequence, &step,    &time,    &size,  &kept,     &in_flight, &oldest,
                         &damaged,  &pool,    &readers, &trash, &free,     &degraded,  &read_only,
                         &backend,  &waiting, &lag,     &sent,  &uploaded, &failed}) {
    gauges->MoveTo(families);
  }
  AddGauge(families, "ckptd_roots_degraded", "Roots whose file system does not answer.", degraded_count);
}

// Without paths, which only metrics.root_paths shows.
void AddSharedRuns(const v1::ClusterStatus& cluster, std::vector<prometheus::MetricFamily>& families) {
  int coordinated = 0, without = 0;
  for (const v1::SharedRunStatus& run : cluster.shared_runs()) {
    if (run.coordinator() == cluster.node()) ++coordinated;
    if (run.coordinator().empty()) ++without;
  }
  AddGauge(families, "ckptd_shared_runs", "Open runs in roots that several nodes share.",
           cluster.shared_runs_size());
  AddGauge(families, "ckptd_shared_runs_coordinated", "Those for which this node decides.", coordinated);
  AddGauge(families, "ckptd_shared_runs_without_coordinator",
           "Those for which this node knows of no coordinator: nothing is admitted or published in them.",
           without);
}

void AddCluster(const v1::ClusterStatus& cluster, std::vector<prometheus::MetricFamily>& families) {
  const Labels labels = {{"node", cluster.node()}};
  AddGauge(families, "ckptd_node_registered", "1 while etcd knows this daemon by its node's name.",
           cluster.registered() ? 1 : 0, labels);
  AddGauge(families, "ckptd_nodes", "Registered nodes, as this daemon last knew them.", cluster.nodes_size());
  Gauges lost("ckptd_node_lost_leases_total", "How often this daemon was registered and then no longer.");
  lost.BeCounters();
  lost.Set(static_cast<double>(cluster.lost_leases()), labels);
  lost.MoveTo(families);
  Gauges members("ckptd_etcd_member_answers",
                 "Whether a member of etcd has answered the last request to it.");
  for (const v1::EtcdMemberStatus& member : cluster.etcd_members()) {
    if (member.has_answers()) members.Set(member.answers() ? 1 : 0, {{"endpoint", member.endpoint()}});
  }
  members.MoveTo(families);
  AddSharedRuns(cluster, families);
}

}  // namespace

class DaemonMetrics::Impl {
 public:
  prometheus::Histogram& Times(const char* name, const char* help,
                               const prometheus::Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& saves = prometheus::BuildCounter()
                                                       .Name("ckptd_saves_total")
                                                       .Help("Saves that ended, by outcome and reason.")
                                                       .Register(registry);
  prometheus::Family<prometheus::Counter>& run_saves =
      prometheus::BuildCounter()
          .Name("ckptd_run_saves_total")
          .Help("Saves of a run that ended, by outcome; runs beyond the first 100 count as \"other\".")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& run_restores =
      prometheus::BuildCounter()
          .Name("ckptd_run_restores_total")
          .Help(
              "Restores of a run that ended, by outcome: read or failed. All that read a checkpoint together "
              "are one.")
          .Register(registry);
  prometheus::Counter& history_dropped =
      prometheus::BuildCounter()
          .Name("ckptd_history_dropped_entries_total")
          .Help("Entries of ckptctl history that could not be written to the state directory.")
          .Register(registry)
          .Add({});
  // The runs that have a label of their own.
  std::set<std::string> labelled;

  std::string LabelOf(const std::string& run) {
    constexpr size_t kMaxRuns = 100;
    if (labelled.size() < kMaxRuns) labelled.insert(run);
    return labelled.contains(run) ? run : "other";
  }
  prometheus::Counter& written = prometheus::BuildCounter()
                                     .Name("ckptd_written_bytes_total")
                                     .Help("Bytes written to disk by saves that ended.")
                                     .Register(registry)
                                     .Add({});
  prometheus::Histogram& stall =
      Times("ckptd_save_stall_seconds", "How long the slowest rank's trainer waited.", kStallSeconds);
  prometheus::Histogram& staged =
      Times("ckptd_save_staged_seconds", "From a save's first Begin to its last Seal.", kSaveSeconds);
  prometheus::Histogram& committed =
      Times("ckptd_save_committed_seconds", "From a save's first Begin to its publication.", kSaveSeconds);
  prometheus::Histogram& publish = Times("ckptd_save_publish_seconds",
                                         "From a save's last durable byte to its publication.", kSaveSeconds);
  // Without a metric until there is an etcd.
  prometheus::Family<prometheus::Histogram>& etcd_seconds =
      prometheus::BuildHistogram()
          .Name("ckptd_etcd_request_seconds")
          .Help("From a request to etcd to its answer, with all tries.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& etcd_failures =
      prometheus::BuildCounter()
          .Name("ckptd_etcd_failed_requests_total")
          .Help("Requests to etcd that were given up or refused, by reason.")
          .Register(registry);
};

// The lack of memory, which alerts look for, is counted from 0.
DaemonMetrics::DaemonMetrics() : impl_(std::make_unique<Impl>()) {
  for (const char* reason :
       {reason::kAdmissionTimeout, reason::kOverShare, reason::kPoolExhausted, reason::kPoolTooSmall})
    impl_->saves.Add({{"outcome", LevelWord(v1::FAILED)}, {"reason", reason}});
}
DaemonMetrics::~DaemonMetrics() = default;

void DaemonMetrics::OnRunOpened(const std::string& run) {
  const std::string label = impl_->LabelOf(run);
  for (const v1::Level level : {v1::COMMITTED, v1::FAILED, v1::SKIPPED, v1::SUPERSEDED, v1::INDETERMINATE})
    impl_->run_saves.Add({{"run", label}, {"outcome", LevelWord(level)}});
  for (const char* outcome : {kRead, kFailed})
    impl_->run_restores.Add({{"run", label}, {"outcome", outcome}});
}

void DaemonMetrics::OnSaveEnded(const SaveSummary& summary) {
  const v1::Checkpoint& checkpoint = summary.checkpoint;
  impl_->saves.Add({{"outcome", LevelWord(checkpoint.level())}, {"reason", checkpoint.error().reason()}})
      .Increment();
  impl_->run_saves.Add({{"run", impl_->LabelOf(summary.run)}, {"outcome", LevelWord(checkpoint.level())}})
      .Increment();
  impl_->written.Increment(static_cast<double>(std::max<int64_t>(checkpoint.written_bytes(), 0)));
  if (checkpoint.level() != v1::COMMITTED) return;
  impl_->stall.Observe(summary.stall_seconds);
  impl_->staged.Observe(summary.staged_seconds);
  impl_->committed.Observe(summary.committed_seconds);
  impl_->publish.Observe(summary.publish_seconds);
}

void DaemonMetrics::OnRestoreEnded(const RestoreSummary& summary) {
  const bool is_read = summary.reason.empty() && summary.read_bytes == summary.total_bytes;
  const char* const outcome = is_read ? kRead : kFailed;
  impl_->run_restores.Add({{"run", impl_->LabelOf(summary.run)}, {"outcome", outcome}}).Increment();
}

void DaemonMetrics::OnHistoryDropped() { impl_->history_dropped.Increment(); }

void DaemonMetrics::OnEtcdRequest(double seconds, const absl::Status& outcome) {
  if (outcome.ok()) return impl_->etcd_seconds.Add({}, kEtcdSeconds).Observe(seconds);
  impl_->etcd_failures.Add({{"reason", ReasonOf(outcome)}}).Increment();
}

std::string DaemonMetrics::Render(const v1::Status& status, int64_t now_unix_us, bool root_paths,
                                  MetricsFormat format) const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  AddDaemon(status, families);
  AddRuns(status, static_cast<double>(now_unix_us) * 1e-6, root_paths, families);
  if (status.has_cluster()) AddCluster(status.cluster(), families);
  // All counters start with the daemon, but for those of a run.
  if (format == MetricsFormat::kOpenMetrics) return OpenMetricsText(families, Seconds(status.start_time()));
  return prometheus::TextSerializer().Serialize(families);
}

std::string LevelWord(v1::Level level) {
  std::string word = v1::Level_Name(level);
  if (word.empty()) return "unknown";
  absl::AsciiStrToLower(&word);
  return word;
}

}  // namespace ckptd
