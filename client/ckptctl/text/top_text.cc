#include "client/ckptctl/text/top_text.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ckptctl/text/render.h"
#include "client/ckptctl/text/text.h"

namespace ckptd::ctl {
namespace {

std::string Rate(double bytes_per_second) {
  return bytes_per_second <= 0 ? "-" : absl::StrCat(HumanBytes(static_cast<int64_t>(bytes_per_second)), "/s");
}

std::string Share(int64_t part, int64_t all) {
  return all <= 0 ? "-" : absl::StrFormat("%d %%", part * 100 / all);
}

std::string More(size_t all, int rows) {
  const int64_t more = static_cast<int64_t>(all) - rows;
  return more > 0 ? absl::StrCat("  and ", more, " more\n") : "";
}

// The bytes on disk of each save in flight, by run and sequence.
std::map<std::pair<std::string, int64_t>, int64_t> WrittenOf(const v1::Status& status) {
  std::map<std::pair<std::string, int64_t>, int64_t> written;
  for (const v1::Run& run : status.runs()) {
    for (const v1::Checkpoint& save : run.in_flight())
      written[{run.name(), save.sequence()}] = save.written_bytes();
  }
  return written;
}

// Those with the most memory first.
std::string Runs(const v1::Status& status, int rows) {
  std::vector<const v1::Run*> runs;
  for (const v1::Run& run : status.runs()) {
    if (run.pool_bytes() > 0 || run.leases() > 0 || !run.in_flight().empty()) runs.push_back(&run);
  }
  if (runs.empty()) return "no run saves or reads\n";
  std::stable_sort(runs.begin(), runs.end(),
                   [](const v1::Run* a, const v1::Run* b) { return a->pool_bytes() > b->pool_bytes(); });
  Table table({"ROOT", "UID", "POOL", "%", "SAVES", "WAIT", "READERS"});
  for (size_t i = 0; i < std::min(runs.size(), static_cast<size_t>(rows)); ++i) {
    const v1::Run& run = *runs[i];
    const auto waiting = std::count_if(run.in_flight().begin(), run.in_flight().end(),
                                       [](const v1::Checkpoint& save) { return !save.waits_for().empty(); });
    table.Add({Printable(run.path()), absl::StrCat(run.uid()), HumanBytes(run.pool_bytes()),
               Share(run.pool_bytes(), status.pool().total_bytes()), absl::StrCat(run.in_flight_size()),
               absl::StrCat(waiting), absl::StrCat(run.leases())});
  }
  return table.ToString() + More(runs.size(), rows);
}

std::string WaitsFor(const v1::Checkpoint& save) {
  if (!save.waits_for().empty()) return OneLine(save.waits_for());
  if (save.missing_ranks().empty()) return "-";
  return absl::StrCat("ranks ", absl::StrJoin(save.missing_ranks(), ","), " to seal");
}

// The oldest first.
std::string Saves(const TopSample& before, const TopSample& now, double seconds, int rows) {
  struct InFlight {
    const v1::Run* run;
    const v1::Checkpoint* save;
  };
  std::vector<InFlight> saves;
  for (const v1::Run& run : now.status.runs()) {
    for (const v1::Checkpoint& save : run.in_flight()) saves.push_back({&run, &save});
  }
  if (saves.empty()) return "no save in flight\n";
  std::stable_sort(saves.begin(), saves.end(), [](const InFlight& a, const InFlight& b) {
    return UnixMicros(a.save->create_time()) < UnixMicros(b.save->create_time());
  });
  const auto earlier = WrittenOf(before.status);
  Table table({"SAVE", "LEVEL", "WRITTEN", "OF", "%", "RATE", "LEFT", "AGE", "WAITS FOR"});
  for (size_t i = 0; i < std::min(saves.size(), static_cast<size_t>(rows)); ++i) {
    const v1::Checkpoint& save = *saves[i].save;
    const auto found = earlier.find({saves[i].run->name(), save.sequence()});
    const int64_t then = found == earlier.end() ? 0 : found->second;
    const double rate = static_cast<double>(save.written_bytes() - then) / seconds;
    const double left = rate > 0 ? static_cast<double>(save.size_bytes() - save.written_bytes()) / rate : 0;
    table.Add({Printable(absl::StrCat(saves[i].run->path(), "/", save.tag())), v1::Level_Name(save.level()),
               HumanBytes(save.written_bytes()), HumanBytes(save.size_bytes()),
               Share(save.written_bytes(), save.size_bytes()), Rate(rate),
               rate > 0 ? HumanSeconds(left) : "-",
               HumanSeconds(static_cast<double>(now.unix_us - UnixMicros(save.create_time())) / 1e6),
               WaitsFor(save)});
  }
  return table.ToString() + More(saves.size(), rows);
}

// The largest holders of memory first.
std::string Sessions(const v1::ListSessionsResponse& list, int rows) {
  if (list.sessions().empty()) return "no sessions\n";
  std::vector<v1::Session> sessions(list.sessions().begin(), list.sessions().end());
  std::stable_sort(sessions.begin(), sessions.end(), [](const v1::Session& a, const v1::Session& b) {
    return a.pool_bytes() > b.pool_bytes();
  });
  Table table({"PID", "UID", "CLIENT", "MEMORY", "READS", "RANKS", "ROOT"});
  for (size_t i = 0; i < std::min(sessions.size(), static_cast<size_t>(rows)); ++i) {
    const v1::Session& session = sessions[i];
    const auto rank = [](std::string* out, const v1::Membership& joined) {
      absl::StrAppend(out, joined.rank());
    };
    table.Add({session.pid() == 0 ? "-" : absl::StrCat(session.pid()), absl::StrCat(session.uid()),
               Printable(session.client_name()), HumanBytes(session.pool_bytes()),
               absl::StrCat(session.leases()),
               session.memberships().empty() ? "-" : absl::StrJoin(session.memberships(), ",", rank),
               session.memberships().empty() ? "-" : Printable(session.memberships(0).path())});
  }
  return table.ToString() + More(sessions.size(), rows);
}

}  // namespace

std::string RenderTop(const TopSample& before, const TopSample& now, int rows) {
  const v1::Status& status = now.status;
  const v1::PoolStatus& pool = status.pool();
  const double seconds = std::max(1e-3, static_cast<double>(now.unix_us - before.unix_us) / 1e6);
  // Of another daemon: it has begun to count anew.
  const bool is_same = before.status.daemon_instance() == status.daemon_instance();
  const double written =
      is_same ? static_cast<double>(status.written_bytes() - before.status.written_bytes()) : 0;
  return absl::StrCat("ckptd ", status.daemon_version(), ", ", status.state(), ", ",
                      Plural(status.sessions(), "session"), "; saves write ", Rate(written / seconds), "\n",
                      "pool ", HumanBytes(pool.total_bytes()), ": ", HumanBytes(pool.used_bytes()), " used (",
                      Share(pool.used_bytes(), pool.total_bytes()), "), ", HumanBytes(pool.lent_bytes()),
                      " lent and idle, ", HumanBytes(pool.resident_bytes()), " copies of checkpoints, ",
                      HumanBytes(pool.ready_bytes()), " ready\n\n", Runs(status, rows), "\n",
                      Saves(before, now, seconds, rows), "\n", Sessions(now.sessions, rows));
}

}  // namespace ckptd::ctl
