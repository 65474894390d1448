#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "storage/commit/shared/trials/trials.h"

namespace ckptd {
namespace {

constexpr int64_t kMuchUs =
    1'000'000;  // How far clocks may be apart before the logs of nodes are hard to compare.
constexpr char kNotForNodes[] = "several nodes cannot use this folder: choose another file system";
constexpr char kCacheForLess[] =
    "have the clients cache names and attributes for a shorter time (NFS: actimeo=3; FUSE: "
    "attribute-timeout, "
    "entry-timeout and negative-timeout of 1 s)";

constexpr char kSharedFolder[] = "shared folder";
constexpr std::array kDelays = {"names", "sizes", "bytes", "renamed directories"};

using Fields = std::vector<std::string>;

int64_t Number(const Fields& fields, size_t place) {
  int64_t number = 0;
  return place < fields.size() && absl::SimpleAtoi(fields[place], &number) ? number : 0;
}

std::string Text(const Fields& fields, size_t place) { return place < fields.size() ? fields[place] : ""; }

std::string Milliseconds(int64_t us) { return absl::StrFormat("%.1f ms", static_cast<double>(us) / 1000); }

Finding Mounts(const std::vector<Fields>& records) {
  std::map<std::string, std::vector<std::string>> nodes;  // By what they have mounted.
  bool local = false;
  for (const Fields& mount : records) {
    const std::string cached = Text(mount, 4).empty() ? "its default caching" : Text(mount, 4);
    nodes[absl::StrCat(Text(mount, 2), " from ", Text(mount, 3), ", ", cached)].push_back(Text(mount, 1));
    local = local || Number(mount, 5) != 0;
  }
  std::vector<std::string> words;
  for (const auto& [mount, names] : nodes)
    words.push_back(
        absl::StrCat(nodes.size() == 1 ? "" : absl::StrCat(absl::StrJoin(names, ", "), ": "), mount));
  const std::string what = absl::StrJoin(words, "; ");
  if (local)
    return {Verdict::kWarning, "mounted", what,
            "a file system of one machine: other machines do not share it"};
  if (nodes.size() > 1) return {Verdict::kWarning, "mounted", what, "mount it alike on all nodes"};
  return {Verdict::kOk, "mounted", what, ""};
}

Finding Inodes(const std::vector<Fields>& records) {
  std::set<std::string> numbers;
  std::vector<std::string> words;
  for (const Fields& inode : records) {
    numbers.insert(Text(inode, 2));
    words.push_back(absl::StrCat(Text(inode, 1), ": ", Text(inode, 2)));
  }
  if (numbers.size() == 1) return {Verdict::kOk, "inode of the root", "equal on all nodes", ""};
  return {Verdict::kFailure, "inode of the root", absl::StrJoin(words, ", "),
          "the nodes do not see one directory with one inode number, by which a run knows its root"};
}

// What the daemons of all nodes are configured for.
struct Configured {
  std::vector<std::string> shares, shares_not, unknown;  // Nodes. With `unknown` why.
  std::map<int64_t, std::vector<std::string>> nodes;     // By milliseconds of visibility.
  int64_t least_ms() const {
    return nodes.empty() ? kStaleness / std::chrono::milliseconds(1) : nodes.begin()->first;
  }
};

Configured ConfiguredOf(const std::vector<Fields>& daemons, const std::vector<Fields>& no_daemons) {
  Configured configured;
  for (const Fields& daemon : daemons) {
    const std::string node = Text(daemon, 1);
    (Number(daemon, 2) != 0 ? configured.shares : configured.shares_not).push_back(node);
    configured.nodes[Number(daemon, 3)].push_back(node);
  }
  for (const Fields& none : no_daemons)
    configured.unknown.push_back(absl::StrCat(Text(none, 1), " (", Text(none, 2), ")"));
  return configured;
}

Finding Shared(const Configured& configured) {
  if (!configured.shares_not.empty())
    return {Verdict::kFailure, kSharedFolder,
            absl::StrCat("not in cluster.shared_folders of ", absl::StrJoin(configured.shares_not, ", ")),
            "name the folder, or one above it, on all nodes, and restart the daemons"};
  if (configured.nodes.size() > 1) {
    std::vector<std::string> words;
    for (const auto& [ms, names] : configured.nodes)
      words.push_back(absl::StrCat(ms / 1000, " s on ", absl::StrJoin(names, ", ")));
    return {Verdict::kFailure, kSharedFolder,
            absl::StrCat("cluster.visibility_seconds is ", absl::StrJoin(words, ", and ")),
            "set the same on all nodes, and restart the daemons"};
  }
  if (!configured.unknown.empty())
    return {Verdict::kWarning, kSharedFolder,
            absl::StrCat("not known whether it is one on ", absl::StrJoin(configured.unknown, ", ")),
            "run this again as root where the daemons run"};
  return {Verdict::kOk, kSharedFolder, "in cluster.shared_folders of all nodes", ""};
}

// The daemons can be told to wait longer, within bounds.
std::string AdviceForDelay(int64_t us) {
  constexpr int64_t kMostSeconds = 30;
  const int64_t seconds = us * 3 / 2 / 1'000'000 + 1;
  if (seconds > kMostSeconds) return kCacheForLess;
  return absl::StrCat(kCacheForLess, ", or set cluster.visibility_seconds: ", seconds, " on all nodes");
}

Finding Delay(const std::string& kind, const std::vector<Fields>& records, const TrialSettings& settings,
              int64_t allowed_ms) {
  std::vector<int64_t> delays;
  std::string worst, unseen;
  int64_t most = -1;
  for (const Fields& delay : records) {
    const std::string way = absl::StrCat("from ", Text(delay, 2), " to ", Text(delay, 3));
    const int64_t us = Number(delay, 4);
    if (us < 0) unseen = way;
    if (us > most) {
      most = us;
      worst = way;
    }
    delays.push_back(us);
  }
  std::sort(delays.begin(), delays.end());
  if (!unseen.empty())
    return {Verdict::kFailure, kind,
            absl::StrCat("not seen after ", settings.look / std::chrono::seconds(1), " s ", unseen),
            kCacheForLess};
  const std::string what =
      absl::StrCat("seen after at most ", Milliseconds(most), " (", worst, "), half of ", delays.size(),
                   " times within ", Milliseconds(delays[delays.size() / 2]));
  const int64_t allowed = allowed_ms * 1000;
  if (most <= allowed) return {Verdict::kOk, kind, what, ""};
  return {Verdict::kFailure, kind, absl::StrCat(what, "; the daemons wait ", Milliseconds(allowed)),
          AdviceForDelay(most)};
}

Finding AllOk(const std::string& subject, const std::vector<Fields>& records, const std::string& good) {
  for (const Fields& record : records) {
    if (record.back() == "ok") continue;
    return {Verdict::kFailure, subject,
            absl::StrCat("on ", Text(record, record.size() - 2), ": ", record.back()), kNotForNodes};
  }
  return {Verdict::kOk, subject, good, ""};
}

Finding Races(const std::vector<Fields>& records) {
  std::map<std::string, std::vector<std::string>> winners;
  for (const Fields& race : records) {
    std::vector<std::string>& of_race = winners[Text(race, 1)];
    if (Text(race, 3) == "ok") of_race.push_back(Text(race, 2));
  }
  for (const auto& [race, nodes] : winners) {
    if (nodes.size() == 1) continue;
    return {Verdict::kFailure, "renames of one name",
            nodes.empty() ? "none has succeeded"
                          : absl::StrCat("that of each of ", absl::StrJoin(nodes, ", "), " has succeeded"),
            kNotForNodes};
  }
  return {Verdict::kOk, "renames of one name",
          absl::StrCat("exactly one succeeds (", winners.size(), " races)"), ""};
}

Finding Replaced(const std::vector<Fields>& records) {
  int64_t reads = 0, missing = 0, stale = 0, torn = 0;
  for (const Fields& replaced : records) {
    reads += Number(replaced, 3);
    missing += Number(replaced, 4);
    stale += Number(replaced, 5);
    torn += Number(replaced, 6);
  }
  const std::string what = absl::StrCat(reads, " reads: ", missing, " without the file, ", torn,
                                        " of two versions, ", stale, " with ESTALE");
  if (torn != 0) return {Verdict::kFailure, "replaced file", what, kNotForNodes};
  if (missing != 0)
    return {Verdict::kWarning, "replaced file", what,
            "the daemons look again; programs on other nodes that read pointer files must do so, too"};
  return {Verdict::kOk, "replaced file", stale == 0 ? what : absl::StrCat(what, " (the daemons read again)"),
          ""};
}

Finding Clocks(const std::vector<Fields>& records) {
  int64_t most = 0, unsure = 0;
  std::string between;
  for (const Fields& clock : records) {
    if (between.empty() || std::abs(Number(clock, 3)) > std::abs(most)) {
      most = Number(clock, 3);
      unsure = Number(clock, 4);
      between = absl::StrCat(Text(clock, 1), " and ", Text(clock, 2));
    }
  }
  const std::string what = absl::StrCat(Milliseconds(std::abs(most)), " apart at most (", between, "; +- ",
                                        Milliseconds(unsure), ")");
  if (std::abs(most) - unsure <= kMuchUs) return {Verdict::kOk, "clocks", what, ""};
  return {Verdict::kWarning, "clocks", what,
          "set them by NTP: the times in logs and listings differ by as much"};
}

}  // namespace

bool IsOfDelay(const Finding& finding) {
  return std::find(kDelays.begin(), kDelays.end(), finding.subject) != kDelays.end();
}

bool IsOfConfiguration(const Finding& finding) { return finding.subject == kSharedFolder; }

std::vector<Finding> JudgeTrials(const Records& records, const TrialSettings& settings) {
  std::map<std::string, std::vector<Fields>> of;
  std::map<std::string, std::vector<Fields>> delays;
  for (const std::string& record : records) {
    Fields fields = absl::StrSplit(record, '\t');
    auto& list = fields[0] == "delay" ? delays[Text(fields, 1)] : of[fields[0]];
    list.push_back(std::move(fields));
  }
  for (auto& [kind, list] : of) std::sort(list.begin(), list.end());
  const Configured configured = ConfiguredOf(of["daemon"], of["no daemon"]);
  std::vector<Finding> findings;
  if (!of["mount"].empty()) findings.push_back(Mounts(of["mount"]));
  findings.push_back(Shared(configured));
  findings.push_back(Inodes(of["inode"]));
  for (auto& [kind, list] : delays) {
    std::sort(list.begin(), list.end());
    findings.push_back(Delay(kind, list, settings, configured.least_ms()));
  }
  findings.push_back(
      AllOk("open directory", of["handle"], "stays readable on other nodes when it is renamed"));
  findings.push_back(AllOk("rename onto an empty directory", of["rename onto empty"], "works"));
  findings.push_back(AllOk("rename onto a full directory", of["rename onto full"], "is refused"));
  findings.push_back(Races(of["race"]));
  findings.push_back(Replaced(of["replaced"]));
  findings.push_back(Clocks(of["clock"]));
  return findings;
}

}  // namespace ckptd
