#include "client/ckptctl/text/render.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ckptctl/text/retention_text.h"

namespace ckptd::ctl {
namespace {

constexpr size_t kMostRunsInSummary = 15;
constexpr int kMostTagsInSummary = 3;
// Of a root that the daemon has not opened yet: it has not heard from etcd, or the file system does not answer.
constexpr char kNotRead[] = "its checkpoints are not read yet";

std::string Age(const google::protobuf::Timestamp& time, int64_t now_us) {
  return HumanSeconds(static_cast<double>(now_us - UnixMicros(time)) / 1e6);
}

std::string Step(const v1::Checkpoint& checkpoint) {
  return checkpoint.has_step() ? absl::StrCat(checkpoint.step()) : "-";
}

std::string Attempt(const v1::Checkpoint& checkpoint) {
  return checkpoint.adopted_from().empty() ? absl::StrCat(checkpoint.attempt()) : "-";
}

std::string Ranks(const v1::Checkpoint& checkpoint) {
  if (checkpoint.missing_ranks().empty()) return absl::StrCat("all ", checkpoint.world_size());
  return absl::StrCat("missing ", absl::StrJoin(checkpoint.missing_ranks(), ","));
}

std::string Percent(const v1::Checkpoint& checkpoint) {
  if (checkpoint.size_bytes() == 0) return "-";
  return absl::StrFormat("%d %%", checkpoint.written_bytes() * 100 / checkpoint.size_bytes());
}

// What ranks that resume wait for.
std::string FetchText(const v1::BucketFetch& fetch) {
  if (fetch.tag().empty()) return "resume waits for the bucket to say which checkpoints it has";
  return absl::StrCat("resume waits for ", fetch.tag(),
                      " from the bucket: ", HumanBytes(fetch.fetched_bytes()), " of ",
                      HumanBytes(fetch.size_bytes()));
}

std::string Time(const google::protobuf::Timestamp& time) { return LocalTime(UnixMicros(time)); }

std::string Metrics(const v1::Checkpoint& checkpoint) {
  std::map<std::string, double> sorted(checkpoint.metrics().begin(), checkpoint.metrics().end());
  return absl::StrJoin(sorted, " ", [](std::string* out, const auto& metric) {
    absl::StrAppend(out, metric.first, "=", absl::StrFormat("%g", metric.second));
  });
}

void AddLine(std::string* text, std::string_view key, const std::string& value) {
  if (!value.empty()) absl::StrAppendFormat(text, "  %-12s %s\n", std::string(key), Printable(value));
}

std::string Latest(const v1::Run& run, int64_t now_us) {
  if (!run.has_latest()) return "none";
  const v1::Checkpoint& latest = run.latest();
  return absl::StrCat(latest.tag(), " (", latest.has_step() ? absl::StrCat("step ", latest.step(), ", ") : "",
                      HumanBytes(latest.size_bytes()), ", committed ", Age(latest.commit_time(), now_us),
                      " ago)");
}

std::string Checkpoints(const v1::Run& run) {
  return absl::StrCat(
      run.checkpoint_count(), " committed, ",
      run.has_num_kept_ckpts() ? absl::StrCat("the last ", run.num_kept_ckpts(), " are kept")
                               : absl::StrCat("kept: ", RetentionText(run.retention())),
      run.has_retention_override()
          ? absl::StrCat(", from the next commit on: ", RetentionText(run.retention_override()))
          : "",
      run.predicted_victims().empty() ? "" : ", next to go: ", absl::StrJoin(run.predicted_victims(), " "),
      run.trash_bytes() > 0 ? absl::StrCat(", ", HumanBytes(run.trash_bytes()), " in trash") : "");
}

// A bucket has as much room as is paid for.
constexpr int64_t kNoLimit = int64_t{1} << 59;

std::string Root(const v1::RootProbe& probe) {
  std::string text =
      absl::StrCat(probe.file_system(), ", ", probe.io_backend(), " (", probe.io_backend_cause(), ")");
  if (probe.free_bytes() < kNoLimit) absl::StrAppend(&text, ", ", HumanBytes(probe.free_bytes()), " free");
  if (!probe.direct_io()) absl::StrAppend(&text, ", no direct I/O");
  if (!probe.fallocate()) absl::StrAppend(&text, ", no fallocate");
  if (!probe.rename_exchange()) absl::StrAppend(&text, ", no exchange of names");
  return text;
}

std::string Words(const v1::Damage& damage) {
  const bool named = damage.path().empty() || damage.message().find(damage.path()) != std::string::npos;
  return named ? damage.message() : absl::StrCat("file ", damage.path(), ": ", damage.message());
}

// What an operator should look at, and the saves in flight. Empty: nothing.
std::string Attention(const v1::Run& run, int64_t now_us) {
  std::vector<std::string> parts;
  if (run.degraded()) parts.push_back("DEGRADED: its file system does not answer");
  if (run.read_only()) parts.push_back("READ-ONLY: a directory sync failed; the root must be scanned again");
  if (!run.damaged().empty()) {
    std::string tags;
    for (int i = 0; i < std::min(run.damaged_size(), kMostTagsInSummary); ++i)
      absl::StrAppend(&tags, " ", run.damaged(i).tag());
    if (const int more = run.damaged_size() - kMostTagsInSummary; more > 0)
      absl::StrAppend(&tags, " and ", more, " more");
    parts.push_back(absl::StrCat("DAMAGED:", tags));
  }
  for (const v1::Checkpoint& save : run.in_flight()) {
    parts.push_back(absl::StrCat("saving ", save.tag(), " (", v1::Level_Name(save.level()), ", ",
                                 Percent(save), ", ", save.missing_ranks().empty() ? "" : Ranks(save) + ", ",
                                 "for ", Age(save.create_time(), now_us), ")"));
  }
  for (const v1::Checkpoint& waiting : run.uploads().waiting()) {
    if (waiting.upload().state() == v1::CheckpointUpload::UPLOADING)
      parts.push_back(absl::StrCat(waiting.tag(), " ", UploadText(waiting, now_us)));
  }
  for (const v1::Checkpoint& waiting : run.uploads().waiting()) {
    if (!waiting.upload().has_error()) continue;
    parts.push_back(absl::StrCat("UPLOADS LAG (", run.uploads().waiting_size(), " waiting): ", waiting.tag(),
                                 " ", UploadText(waiting, now_us)));
    break;
  }
  if (!run.uploads().unread().empty())
    parts.push_back(absl::StrCat("UPLOADS STAND STILL: ", run.uploads().unread()));
  const v1::Checkpoint& failure = run.last_failure();
  const bool is_past =
      run.has_latest() && UnixMicros(run.latest().commit_time()) > UnixMicros(failure.create_time());
  if (run.has_last_failure() && !is_past) {
    parts.push_back(absl::StrCat("last failure ", failure.tag(), " ", v1::Level_Name(failure.level()),
                                 failure.error().reason().empty() ? "" : ": ", failure.error().reason(), " (",
                                 Age(failure.create_time(), now_us), " ago)"));
  }
  if (const int warnings = run.probe().warnings_size(); warnings > 0)
    parts.push_back(Plural(warnings, "warning"));
  return Printable(absl::StrJoin(parts, "; "));
}

std::string RenderRunSummary(const v1::Run& run, const std::string& attention, int64_t now_us) {
  return absl::StrCat(
      Printable(run.path()), " (uid ", run.uid(),
      "): ", run.has_latest() ? Printable(absl::StrCat("latest ", Latest(run, now_us), ", ")) : std::string(),
      run.has_probe() ? Plural(run.checkpoint_count(), "checkpoint") : kNotRead, "\n",
      attention.empty() ? "" : absl::StrCat("  ", attention, "\n"));
}

std::string RenderRun(const v1::Run& run, int64_t now_us) {
  std::string text = absl::StrCat(run.name(), "  ", Printable(run.path()), "\n");
  if (run.degraded()) AddLine(&text, "DEGRADED", "its file system does not answer");
  if (run.read_only()) AddLine(&text, "READ-ONLY", "a directory sync failed; the root must be scanned again");
  AddLine(&text, "run id", run.run_id());
  AddLine(&text, "owner",
          absl::StrCat("uid ", run.uid(), ", ",
                       run.attempt() == 0 ? "no attempt yet"
                                          : absl::StrCat("attempt ", run.attempt(), ", ",
                                                         Plural(run.world_size(), "rank"))));
  if (run.has_probe()) AddLine(&text, "latest", Latest(run, now_us));
  AddLine(&text, "checkpoints", run.has_probe() ? Checkpoints(run) : kNotRead);
  if (run.pool_bytes() > 0)
    AddLine(&text, "memory", absl::StrCat(HumanBytes(run.pool_bytes()), " of the pool, by saves in flight"));
  if (run.has_uploads()) {
    const v1::RunUploads& uploads = run.uploads();
    AddLine(&text, "uploads",
            uploads.unread().empty() ? absl::StrCat(uploads.policy().url(), ": ", uploads.kept(), " there, ",
                                                    uploads.waiting_size(), " waiting")
                                     : absl::StrCat("NOT KNOWN: ", uploads.unread()));
    if (run.uploads().has_fetching()) AddLine(&text, "", FetchText(run.uploads().fetching()));
    for (const v1::Checkpoint& waiting : run.uploads().waiting())
      AddLine(&text, "", absl::StrCat(waiting.tag(), ": ", UploadText(waiting, now_us)));
  }
  if (run.has_probe()) AddLine(&text, "root", Root(run.probe()));
  for (const std::string& warning : run.probe().warnings()) AddLine(&text, "warning", warning);
  for (const v1::Checkpoint& damaged : run.damaged()) {
    AddLine(&text, "damaged", absl::StrCat(damaged.tag(), ": ", Words(damaged.damage())));
  }
  if (run.has_last_failure()) {
    AddLine(&text, "last failure",
            absl::StrCat(run.last_failure().tag(), " ", RenderEnd(run.last_failure()), " (",
                         Age(run.last_failure().create_time(), now_us), " ago)"));
  }
  if (run.in_flight().empty()) return text;
  Table table({"IN FLIGHT", "STEP", "LEVEL", "WRITTEN", "OF", "%", "RANKS", "AGE"});
  for (const v1::Checkpoint& checkpoint : run.in_flight()) {
    table.Add({checkpoint.tag(), Step(checkpoint), v1::Level_Name(checkpoint.level()),
               HumanBytes(checkpoint.written_bytes()), HumanBytes(checkpoint.size_bytes()),
               Percent(checkpoint), Ranks(checkpoint), Age(checkpoint.create_time(), now_us)});
  }
  return text + table.ToString(2);
}

std::string Members(const v1::ClusterStatus& cluster) {
  return absl::StrJoin(
      cluster.etcd_members(), ", ", [](std::string* out, const v1::EtcdMemberStatus& member) {
        const char* const state = !member.has_answers() ? " (not asked)" : member.answers() ? " answers" : "";
        absl::StrAppend(out, Printable(member.endpoint()), state);
        if (!member.error().empty()) absl::StrAppend(out, " (", Printable(member.error()), ")");
      });
}

std::string ErrorText(const v1::ClusterError& error) {
  return Printable(absl::StrCat(error.reason(), ": ", error.message()));
}

std::string RenderNodes(const v1::ClusterStatus& cluster, int64_t now_us) {
  if (cluster.nodes().empty()) return "";
  Table table({"NODE", "HOST", "VERSION", "REGISTERED FOR"});
  for (const v1::ClusterNode& node : cluster.nodes()) {
    table.Add({Printable(node.name()), Printable(node.host()), Printable(node.daemon_version()),
               node.has_register_time() ? Age(node.register_time(), now_us) : "-"});
  }
  return table.ToString(2);
}

std::string RenderSharedRuns(const v1::ClusterStatus& cluster) {
  if (cluster.shared_runs().empty()) return "";
  Table table({"SHARED ROOT", "COORDINATOR"});
  for (const v1::SharedRunStatus& run : cluster.shared_runs())
    table.Add({Printable(run.root()), run.coordinator().empty() ? "NONE" : Printable(run.coordinator())});
  std::string text = table.ToString(2);
  Table waiting({"SAVE", "WAITS FOR"});
  bool any = false;
  for (const v1::SharedRunStatus& run : cluster.shared_runs()) {
    for (const v1::SharedSaveStatus& save : run.saves()) {
      any = true;
      waiting.Add({Printable(absl::StrCat(run.root(), "/", save.tag())),
                   save.waits_for().empty() ? "-" : Printable(save.waits_for())});
    }
  }
  return any ? text + waiting.ToString(2) : text;
}

std::string RenderCluster(const v1::ClusterStatus& cluster, int64_t now_us, bool with_nodes) {
  std::string text = absl::StrCat("node ", Printable(cluster.node()));
  if (cluster.registered()) {
    absl::StrAppend(&text, ", registered for ", Age(cluster.register_time(), now_us));
  } else {
    absl::StrAppend(&text, ", NOT REGISTERED",
                    cluster.has_error() ? absl::StrCat(": ", ErrorText(cluster.error())) : " yet");
  }
  if (cluster.lost_leases() > 0)
    absl::StrAppend(&text, ", registration lost ", Plural(cluster.lost_leases(), "time"));
  absl::StrAppend(&text, "\n");
  AddLine(&text, "etcd", Members(cluster));
  if (cluster.has_nodes_error())
    AddLine(&text, "nodes", absl::StrCat("unknown: ", ErrorText(cluster.nodes_error())));
  if (with_nodes) {
    absl::StrAppend(&text, RenderNodes(cluster, now_us));
  } else if (!cluster.nodes().empty()) {
    AddLine(&text, "nodes", absl::StrCat(cluster.nodes_size(), " registered"));
  }
  for (const v1::SharedFolderProblem& problem : cluster.shared_folder_problems())
    AddLine(&text, "NO FOLDER", problem.message());
  return absl::StrCat(text, RenderSharedRuns(cluster));
}

std::string RenderDaemon(const v1::Status& status, int64_t now_us) {
  std::string text =
      absl::StrCat("ckptd ", status.daemon_version(), ", ", status.state(), " for ",
                   Age(status.start_time(), now_us), ", ", Plural(status.sessions(), "session"), "\n");
  if (!status.has_drain()) return text;
  const v1::DrainStatus& drain = status.drain();
  absl::StrAppend(&text, "drained by uid ", drain.uid(), " ", Age(drain.time(), now_us), " ago",
                  drain.message().empty() ? "" : absl::StrCat(" (", OneLine(drain.message()), ")"),
                  ": takes no new saves until its restart or ckptctl drain --undo; ",
                  drain.drained() ? "nothing is under way" : "work is under way", "\n");
  return text;
}

}  // namespace

int64_t UnixMicros(const google::protobuf::Timestamp& time) {
  return time.seconds() * 1'000'000 + time.nanos() / 1000;
}

std::string LevelOf(const v1::Checkpoint& checkpoint) {
  const bool is_uploaded = checkpoint.upload().state() == v1::CheckpointUpload::DONE;
  return v1::Level_Name(is_uploaded && checkpoint.level() == v1::COMMITTED ? v1::UPLOADED
                                                                           : checkpoint.level());
}

std::string UploadText(const v1::Checkpoint& checkpoint, int64_t now_us) {
  const v1::CheckpointUpload& upload = checkpoint.upload();
  if (upload.state() == v1::CheckpointUpload::UPLOADING) {
    return absl::StrCat("uploading, ", HumanBytes(upload.sent_bytes()), " of ",
                        HumanBytes(checkpoint.size_bytes()));
  }
  if (upload.state() != v1::CheckpointUpload::WAITING) return "";
  if (!upload.has_error()) return "waits for its upload";
  const double seconds = static_cast<double>(UnixMicros(upload.next_try_time()) - now_us) / 1e6;
  return absl::StrCat("not uploaded: ", upload.error().reason(), ": ", upload.error().message(),
                      "; next try ", seconds > 0 ? absl::StrCat("in ", HumanSeconds(seconds)) : "now");
}

std::string RenderEnd(const v1::Checkpoint& checkpoint) {
  std::string text = v1::Level_Name(checkpoint.level());
  if (!checkpoint.error().reason().empty()) absl::StrAppend(&text, ": ", checkpoint.error().reason());
  if (!checkpoint.error().message().empty()) absl::StrAppend(&text, ": ", checkpoint.error().message());
  return Printable(text);
}

std::string RenderStatusSummary(const v1::Status& status, int64_t now_us) {
  const v1::PoolStatus& pool = status.pool();
  const std::string lent =
      pool.lent_bytes() > 0 ? absl::StrCat(HumanBytes(pool.lent_bytes()), " lent and idle, ") : "";
  std::string text = RenderDaemon(status, now_us);
  absl::StrAppend(&text, "pool ", HumanBytes(pool.total_bytes()), ": ", HumanBytes(pool.used_bytes()),
                  " used, ", lent, HumanBytes(pool.resident_bytes()), " copies of checkpoints, ",
                  HumanBytes(pool.ready_bytes()), " ready\n");
  if (status.has_cluster())
    absl::StrAppend(&text, RenderCluster(status.cluster(), now_us, /*with_nodes=*/false));
  if (status.runs().empty()) return absl::StrCat(text, "no runs\n");
  std::vector<std::string> urgent, calm;
  for (const v1::Run& run : status.runs()) {
    const std::string attention = Attention(run, now_us);
    (attention.empty() ? calm : urgent).push_back(RenderRunSummary(run, attention, now_us));
  }
  urgent.insert(urgent.end(), calm.begin(), calm.end());
  const size_t shown = std::min(urgent.size(), kMostRunsInSummary);
  for (size_t i = 0; i < shown; ++i) text += urgent[i];
  if (shown < urgent.size()) {
    absl::StrAppend(&text, "and ", Plural(static_cast<int64_t>(urgent.size() - shown), "more run"),
                    ": see ckptctl status --verbose\n");
  }
  return text;
}

std::string RenderStatus(const v1::Status& status, int64_t now_us) {
  const v1::PoolStatus& pool = status.pool();
  std::string text = RenderDaemon(status, now_us);
  absl::StrAppend(&text, "pool ", HumanBytes(pool.total_bytes()), ": ", HumanBytes(pool.used_bytes()),
                  " used, ", HumanBytes(pool.lent_bytes()), " lent and idle, ",
                  HumanBytes(pool.resident_bytes()), " copies of checkpoints, ",
                  HumanBytes(pool.ready_bytes()), " ready; ", pool.pages(), " pages, segments of ",
                  HumanBytes(pool.segment_bytes()), "\n");
  if (status.has_cluster())
    absl::StrAppend(&text, RenderCluster(status.cluster(), now_us, /*with_nodes=*/true));
  for (const v1::Run& run : status.runs()) absl::StrAppend(&text, "\n", RenderRun(run, now_us));
  if (status.runs().empty()) absl::StrAppend(&text, "\nno runs\n");
  return text;
}

bool AllNodesReport(const v1::ClusterStatus& cluster) {
  const auto reports = [](const v1::ClusterNode& node) { return node.has_summary(); };
  return cluster.lost_nodes().empty() && !cluster.has_nodes_error() && !cluster.has_summaries_error() &&
         std::all_of(cluster.nodes().begin(), cluster.nodes().end(), reports);
}

std::string RenderAllNodes(const v1::ClusterStatus& cluster, int64_t now_us) {
  Table table({"NODE", "HOST", "VERSION", "STATE", "POOL", "USED", "SESSIONS", "RUNS", "SAVES", "OLDEST",
               "REPORTED", ""});
  const auto add = [&](const v1::ClusterNode& node) {
    const v1::NodeSummary& summary = node.summary();
    if (!node.has_summary()) {
      table.Add({Printable(node.name()), Printable(node.host()), Printable(node.daemon_version()),
                 "NO REPORT", "-", "-", "-", "-", "-", "-", "-", ""});
      return;
    }
    std::vector<std::string> remarks;
    if (!summary.drain().empty()) remarks.push_back(absl::StrCat("drained ", summary.drain()));
    if (summary.roots_in_trouble() > 0)
      remarks.push_back(Plural(summary.roots_in_trouble(), "root") + " in trouble");
    if (summary.damaged_checkpoints() > 0)
      remarks.push_back(absl::StrCat(summary.damaged_checkpoints(), " DAMAGED"));
    table.Add({Printable(node.name()), Printable(node.host()), Printable(node.daemon_version()),
               Printable(summary.state()), HumanBytes(summary.pool_total_bytes()),
               HumanBytes(summary.pool_used_bytes()), absl::StrCat(summary.sessions()),
               absl::StrCat(summary.runs()), absl::StrCat(summary.saves_in_flight()),
               summary.has_oldest_save_time() ? Age(summary.oldest_save_time(), now_us) : "-",
               absl::StrCat(Age(summary.time(), now_us), " ago"), OneLine(absl::StrJoin(remarks, "; "))});
  };
  for (const std::string& name : cluster.lost_nodes())
    table.Add({Printable(name), "-", "-", "NOT REGISTERED", "-", "-", "-", "-", "-", "-", "-", ""});
  const auto is_well = [](const v1::ClusterNode& node) { return node.summary().state() == "SERVING"; };
  for (const bool well : {false, true}) {
    for (const v1::ClusterNode& node : cluster.nodes()) {
      if (is_well(node) == well) add(node);
    }
  }
  std::string text;
  if (cluster.has_nodes_error())
    absl::StrAppend(&text, "the nodes are unknown: ", ErrorText(cluster.nodes_error()), "\n");
  if (cluster.has_summaries_error())
    absl::StrAppend(&text, "their reports are unknown: ", ErrorText(cluster.summaries_error()), "\n");
  return absl::StrCat(text, table.empty() ? "no nodes are registered\n" : table.ToString());
}

std::string RenderTrash(const v1::ListTrashResponse& trash, int64_t now_us) {
  if (trash.checkpoints().empty()) return "nothing in the trash can be brought back\n";
  Table table({"TAG", "SEQUENCE", "STEP", "SIZE", "DELETED", "GOES"});
  for (const v1::TrashedCheckpoint& trashed : trash.checkpoints()) {
    const v1::Checkpoint& checkpoint = trashed.checkpoint();
    const int64_t left_us = UnixMicros(trashed.purge_time()) - now_us;
    table.Add({Printable(checkpoint.tag()), absl::StrCat(checkpoint.sequence()), Step(checkpoint),
               HumanBytes(checkpoint.size_bytes()), absl::StrCat(Age(trashed.delete_time(), now_us), " ago"),
               left_us <= 0 ? "now" : absl::StrCat("in ", HumanSeconds(static_cast<double>(left_us) / 1e6))});
  }
  return table.ToString();
}

std::string RenderSessions(const v1::ListSessionsResponse& list) {
  std::vector<v1::Session> sessions(list.sessions().begin(), list.sessions().end());
  std::stable_sort(sessions.begin(), sessions.end(), [](const v1::Session& a, const v1::Session& b) {
    return a.pool_bytes() > b.pool_bytes();
  });
  Table table({"PID", "UID", "CLIENT", "MEMORY", "READS", "RANK", "ATTEMPT", "ROOT"});
  for (const v1::Session& session : sessions) {
    std::vector<std::string> row = {session.pid() == 0 ? "-" : absl::StrCat(session.pid()),
                                    absl::StrCat(session.uid()), session.client_name(),
                                    HumanBytes(session.pool_bytes()), absl::StrCat(session.leases())};
    const size_t process = row.size();
    for (const v1::Membership& membership : session.memberships()) {
      row.push_back(absl::StrCat(membership.rank(), " of ", membership.world_size()));
      row.push_back(absl::StrCat(membership.attempt()));
      row.push_back(membership.path());
      table.Add(row);
      row.resize(process);
    }
    row.insert(row.end(), {"-", "-", "-"});
    if (session.memberships().empty()) table.Add(row);
  }
  return table.empty() ? "no sessions\n" : table.ToString();
}

// The remarks of a list's last column.
std::vector<std::string> Remarks(const v1::Checkpoint& checkpoint, int64_t now_us) {
  std::vector<std::string> remarks;
  if (checkpoint.has_damage()) remarks.push_back("DAMAGED");
  if (!checkpoint.suspect().empty()) remarks.push_back("suspect");
  if (checkpoint.pinned()) remarks.push_back("pinned");
  if (checkpoint.resident()) remarks.push_back("in memory");
  if (!checkpoint.adopted_from().empty()) remarks.push_back("of " + checkpoint.adopted_from());
  if (std::string upload = UploadText(checkpoint, now_us); !upload.empty())
    remarks.push_back(std::move(upload));
  if (!checkpoint.error().reason().empty()) remarks.push_back(checkpoint.error().reason());
  return remarks;
}

std::string RenderCheckpoints(const v1::ListCheckpointsResponse& list, int64_t now_us) {
  Table table({"TAG", "STEP", "SEQUENCE", "ATTEMPT", "SIZE", "FILES", "AGE", "LEVEL", ""});
  for (const v1::Checkpoint& checkpoint : list.checkpoints()) {
    if (checkpoint.sequence() == 0) {  // Its manifest cannot be read.
      table.Add({checkpoint.tag(), "-", "-", "-", "-", "-", "-", "DAMAGED", checkpoint.damage().message()});
      continue;
    }
    const bool committed = checkpoint.level() == v1::COMMITTED;
    table.Add({checkpoint.tag(), Step(checkpoint), absl::StrCat(checkpoint.sequence()), Attempt(checkpoint),
               HumanBytes(checkpoint.size_bytes()), absl::StrCat(checkpoint.file_count()),
               Age(committed ? checkpoint.commit_time() : checkpoint.create_time(), now_us),
               LevelOf(checkpoint), absl::StrJoin(Remarks(checkpoint, now_us), ", ")});
  }
  for (const v1::ForeignCheckpoint& foreign : list.foreign()) {
    table.Add({foreign.tag(), "-", "-", "-",
               foreign.has_size_bytes() ? HumanBytes(foreign.size_bytes()) : "-",
               foreign.has_file_count() ? absl::StrCat(foreign.file_count()) : "-",
               Age(foreign.done_time(), now_us), "FOREIGN",
               absl::StrCat(foreign.format(), &foreign == &list.foreign(0) ? ", its latest" : "")});
  }
  return table.empty() ? "no checkpoints\n" : table.ToString();
}

std::string RenderForeign(const v1::ForeignCheckpoint& foreign, int64_t now_us) {
  std::string text = absl::StrCat(Printable(foreign.tag()), ": a checkpoint that ckptd did not write\n");
  AddLine(&text, "directory", foreign.directory());
  AddLine(&text, "written by", foreign.format() == "nxd" ? "nxd (NeuronX Distributed)" : foreign.format());
  AddLine(&text, "finished",
          absl::StrCat(Time(foreign.done_time()), ", ", Age(foreign.done_time(), now_us), " ago"));
  if (foreign.has_size_bytes()) {
    AddLine(&text, "size",
            absl::StrFormat("%s (%d bytes) in %s", HumanBytes(foreign.size_bytes()), foreign.size_bytes(),
                            Plural(foreign.file_count(), "file")));
  }
  const size_t slash = foreign.directory().rfind('/');
  AddLine(&text, "ckptd",
          absl::StrCat("does not count it and never changes it, until: ckptctl adopt ",
                       foreign.directory().substr(0, slash), " ", foreign.tag()));
  return text;
}

std::string RenderAdoption(const v1::AdoptCheckpointsResponse& event) {
  const std::string tag = Printable(event.tag());
  const v1::Checkpoint& checkpoint = event.checkpoint();
  switch (event.outcome()) {
    case v1::ADOPTED:
      return absl::StrCat(tag, "  ADOPTED as sequence ", checkpoint.sequence(), ", ",
                          HumanBytes(checkpoint.size_bytes()), " in ",
                          Plural(checkpoint.file_count(), "file"));
    case v1::ALREADY_OURS:
      return absl::StrCat(tag, "  is already ckptd's, as sequence ", checkpoint.sequence());
    case v1::REFUSED:
      return absl::StrCat(tag, "  REFUSED: ", Printable(event.error().message()), " [",
                          event.error().reason(), "]");
    default:
      return absl::StrCat("adopting ", tag, ", ", event.index(), " of ", event.count(), ": ",
                          HumanBytes(event.read_bytes()), " of ", HumanBytes(event.size_bytes()), " read");
  }
}

std::string RenderCheckpoint(const v1::Checkpoint& checkpoint, int64_t now_us) {
  std::string text = absl::StrCat(checkpoint.name(), "\n");
  AddLine(&text, "directory", checkpoint.directory());
  AddLine(&text, "level", RenderEnd(checkpoint));
  AddLine(&text, "step", checkpoint.has_step() ? Step(checkpoint) : "");
  const bool adopted = !checkpoint.adopted_from().empty();
  AddLine(&text, "sequence",
          adopted ? absl::StrCat(checkpoint.sequence())
                  : absl::StrCat(checkpoint.sequence(), " of attempt ", checkpoint.attempt()));
  if (adopted)
    AddLine(&text, "adopted", absl::StrCat("its files were written by ", checkpoint.adopted_from()));
  AddLine(&text, "size",
          absl::StrFormat("%s (%d bytes) in %s of %s", HumanBytes(checkpoint.size_bytes()),
                          checkpoint.size_bytes(), Plural(checkpoint.file_count(), "file"),
                          Plural(checkpoint.world_size(), "rank")));
  if (checkpoint.level() < v1::COMMITTED) {
    AddLine(&text, "written",
            absl::StrCat(HumanBytes(checkpoint.written_bytes()), ", ", Percent(checkpoint)));
    AddLine(&text, "sealed by", Ranks(checkpoint));
  }
  if (adopted) {
    AddLine(
        &text, "finished",
        absl::StrCat(Time(checkpoint.commit_time()), ", ", Age(checkpoint.commit_time(), now_us), " ago"));
  }
  if (checkpoint.has_create_time() && !adopted) {
    AddLine(
        &text, "begun",
        absl::StrCat(Time(checkpoint.create_time()), ", ", Age(checkpoint.create_time(), now_us), " ago"));
  }
  if (checkpoint.has_commit_time() && !adopted) {
    AddLine(&text, "committed",
            absl::StrCat(Time(checkpoint.commit_time()), ", ",
                         HumanSeconds(static_cast<double>(UnixMicros(checkpoint.commit_time()) -
                                                          UnixMicros(checkpoint.create_time())) /
                                      1e6),
                         " after its begin"));
  }
  if (checkpoint.has_upload()) {
    const std::string how = UploadText(checkpoint, now_us);
    AddLine(&text, "upload",
            how.empty() ? absl::StrCat("in ", checkpoint.upload().url())
                        : absl::StrCat(how, " (", checkpoint.upload().url(), ")"));
  }
  AddLine(&text, "metrics", Metrics(checkpoint));
  if (checkpoint.pinned()) AddLine(&text, "pinned", "retention and re-saves do not remove it");
  if (checkpoint.has_scrub_time())
    AddLine(&text, "read back",
            absl::StrCat("and found whole ", Age(checkpoint.scrub_time(), now_us), " ago"));
  if (checkpoint.resident()) AddLine(&text, "in memory", "restoring it reads no disk");
  if (checkpoint.has_damage()) {
    AddLine(&text, "damaged",
            absl::StrCat(Words(checkpoint.damage()),
                         "; the daemon does not offer it. Once `ckptctl verify` finds it whole: ",
                         "ckptctl repaired ", checkpoint.tag()));
  }
  if (!checkpoint.suspect().empty())
    AddLine(&text, "suspect",
            absl::StrCat(checkpoint.suspect(), "; no job resumes from it unless it asks for that"));
  if (checkpoint.leases() > 0) AddLine(&text, "readers", absl::StrCat(checkpoint.leases()));
  Table files({"FILE", "SIZE", "RANK"});
  for (const v1::FileInfo& file : checkpoint.files()) {
    files.Add({file.path(), HumanBytes(file.size_bytes()), absl::StrCat(file.rank())});
  }
  return files.empty() ? text : text + files.ToString(2);
}

// ", 1.2 GiB/s, 3 s left": the average since the first progress.
std::string ProgressLines::Rate(const std::pair<std::string, int64_t>& key, int64_t done, int64_t all,
                                int64_t now_us) {
  auto start = starts_.find(key);
  if (start == starts_.end() && done > 0) start = starts_.emplace(key, Start{done, now_us}).first;
  if (start == starts_.end() || now_us <= start->second.time_us || done <= start->second.bytes) return "";
  const double rate = static_cast<double>(done - start->second.bytes) * 1e6 /
                      static_cast<double>(now_us - start->second.time_us);
  const auto left = static_cast<double>(std::max<int64_t>(0, all - done));
  return absl::StrCat("  ", HumanBytes(static_cast<int64_t>(rate)), "/s  ", HumanSeconds(left / rate),
                      " left");
}

std::string ProgressLines::RestoreLine(const v1::WatchResponse& event) {
  const v1::Restore& restore = event.restore();
  const std::pair<std::string, int64_t> key(restore.lease(), restore.sequence());
  std::string line =
      absl::StrCat(Time(event.time()).substr(11), "  ", RootOf(restore.checkpoint()), "  ", restore.tag(),
                   "  ", restore.ended() ? "restored" : "restoring",
                   restore.has_rank() ? absl::StrCat("  rank ", restore.rank()) : "", "  ",
                   HumanBytes(restore.read_bytes()), " of ", HumanBytes(restore.total_bytes()));
  if (restore.ended()) {
    starts_.erase(key);
    return line;
  }
  return line + Rate(key, restore.read_bytes(), restore.total_bytes(), UnixMicros(event.time()));
}

// `<root>/<tag>` tells the run's root.
void ProgressLines::Learn(const v1::Checkpoint& checkpoint) {
  const size_t slash = checkpoint.directory().rfind('/');
  if (slash != std::string::npos) roots_[checkpoint.run()] = checkpoint.directory().substr(0, slash);
}

std::string ProgressLines::RootOf(const std::string& checkpoint) const {
  const std::string run = checkpoint.substr(0, checkpoint.find("/checkpoints/"));
  const auto root = roots_.find(run);
  return Printable(root == roots_.end() ? run : root->second);
}

std::string ProgressLines::Line(const v1::WatchResponse& event) {
  if (event.has_restore()) return RestoreLine(event);
  const v1::Checkpoint& checkpoint = event.checkpoint();
  const std::pair<std::string, int64_t> key(checkpoint.run(), checkpoint.sequence());
  const int64_t now_us = UnixMicros(event.time());
  Learn(checkpoint);
  const std::string head = absl::StrCat(Time(event.time()).substr(11), "  ", RootOf(checkpoint.name()), "  ",
                                        checkpoint.tag(), "  ");
  const std::string upload = UploadText(checkpoint, now_us);
  if (checkpoint.upload().state() == v1::CheckpointUpload::UPLOADING) {
    return absl::StrCat(head, upload,
                        Rate(key, checkpoint.upload().sent_bytes(), checkpoint.size_bytes(), now_us));
  }
  if (checkpoint.level() >= v1::COMMITTED) starts_.erase(key);  // Of the save, or of the upload.
  if (checkpoint.upload().has_error()) return absl::StrCat(head, upload);
  if (checkpoint.upload().state() == v1::CheckpointUpload::DONE)
    return absl::StrCat(head, LevelOf(checkpoint), "  ", checkpoint.upload().url());
  if (checkpoint.level() >= v1::COMMITTED) {
    const double took = static_cast<double>(now_us - UnixMicros(checkpoint.create_time())) / 1e6;
    return absl::StrCat(head, RenderEnd(checkpoint), "  ", HumanBytes(checkpoint.size_bytes()), "  ",
                        HumanSeconds(took), " after its begin");
  }
  std::string line =
      absl::StrCat(head, v1::Level_Name(checkpoint.level()), "  ", HumanBytes(checkpoint.written_bytes()),
                   " of ", HumanBytes(checkpoint.size_bytes()), "  ", Percent(checkpoint),
                   Rate(key, checkpoint.written_bytes(), checkpoint.size_bytes(), now_us));
  if (!checkpoint.missing_ranks().empty()) absl::StrAppend(&line, "  ", Ranks(checkpoint));
  return line;
}

}  // namespace ckptd::ctl
