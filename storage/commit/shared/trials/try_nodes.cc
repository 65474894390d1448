#include "storage/commit/shared/trials/try_nodes.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/shared/trials/meeting.h"
#include "storage/commit/shared/trials/node_files.h"
#include "storage/commit/shared/trials/trials.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;

constexpr char kShared[] = ".ckptd/shared";
constexpr char kRecord[] = "tried";
constexpr char kMeetings[] = "trial.";
// Beyond these bytes the record begins anew.
constexpr int64_t kMostRecordBytes = 1 << 20;

// A line for each node, with the time, after one with the inode of the directory: a copy of the root may be on another
// file system.
struct TriedRecord {
  uint64_t inode = 0;
  std::map<std::string, std::string> times;  // By node.

  bool HasAll(const std::vector<std::string>& nodes) const {
    return std::all_of(nodes.begin(), nodes.end(), [&](const auto& node) { return times.contains(node); });
  }
};

// An empty one if there is none, or if it cannot be read: then the nodes try once more.
TriedRecord ReadRecord(FileSystem& fs, Handle shared, uint64_t inode) {
  TriedRecord record;
  record.inode = inode;
  const absl::StatusOr<std::string> text = ReadSmallFile(fs, shared, kRecord, kMostRecordBytes);
  if (!text.ok()) return record;
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  uint64_t of_directory = 0;
  if (lines.empty() || !absl::SimpleAtoi(lines.front(), &of_directory) || of_directory != inode)
    return record;
  for (const std::string& line : lines) {
    const std::pair<std::string, std::string> fields = absl::StrSplit(line, absl::MaxSplits('\t', 1));
    if (!fields.second.empty()) record.times[fields.first] = fields.second;
  }
  return record;
}

absl::Status WriteRecord(FileSystem& fs, Handle shared, const TriedRecord& record) {
  std::string text = absl::StrCat(record.inode, "\n");
  for (const auto& [node, time] : record.times) absl::StrAppend(&text, node, "\t", time, "\n");
  return ReplaceFileDurably(fs, shared, kRecord, text);
}

// Few of everything: a few seconds also where each change is seen late.
TrialSettings SettingsFor(Duration visibility) {
  constexpr milliseconds kLongestLook = std::chrono::seconds(30);
  TrialSettings settings;
  settings.rounds = 1;
  settings.races = 3;
  settings.replacements = 10;
  settings.writers = 2;
  // Longer than the daemons wait, so that it can be said for how long they should.
  settings.look = std::min(std::chrono::duration_cast<milliseconds>(3 * visibility), kLongestLook);
  return settings;
}

absl::StatusOr<std::vector<Finding>> TryOnce(NodeFiles& files, Clock& clock, const NodesToTry& trying,
                                             const std::string& directory,
                                             const std::function<absl::Status()>& suitable) {
  const TrialSettings settings = SettingsFor(trying.visibility);
  NodeFacts facts;
  facts.daemon = {true, trying.visibility};
  Meeting::Options options{.directory = directory,
                           .name = trying.self,
                           .nodes = static_cast<int>(trying.nodes.size()),
                           .patience = std::chrono::duration_cast<milliseconds>(trying.patience),
                           .names = trying.nodes,
                           .stopped = trying.stopped};
  CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<Meeting> meeting, Meeting::Enter(&files, std::move(options)));
  const absl::StatusOr<Records> records = RunTrials(&files, meeting.get(), &clock, settings, facts);
  if (!records.ok()) {
    meeting->Abandon();
    return records.status();
  }
  std::vector<Finding> wrong = JudgeTrials(*records, settings);
  std::erase_if(wrong, [](const Finding& each) { return each.verdict != Verdict::kFailure; });
  const bool is_suitable = std::all_of(wrong.begin(), wrong.end(), IsOfConfiguration);
  // Without the record the next launch tries again.
  if (is_suitable && meeting->IsFirst()) suitable().IgnoreError();
  meeting->Leave();
  return wrong;
}

// What nodes that were killed during the trials of earlier attempts have left.
void RemoveEarlierMeetings(NodeFiles& files, int64_t attempt) {
  for (const std::string& name : files.List(".")) {
    if (!absl::StartsWith(name, kMeetings)) continue;
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    int64_t of = 0;
    if (absl::SimpleAtoi(parts[1], &of) && of < attempt) files.RemoveAll(name);
  }
}

}  // namespace

absl::StatusOr<NodesTried> TryNodes(FileSystem& fs, Handle root, Clock& clock, const NodesToTry& trying) {
  constexpr int kTries = 2;
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle shared, OpenScoped(fs, root, kShared, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const FileStat found, fs.Stat(shared.get(), ""));  // It also asks for names.
  NodesTried tried;
  tried.before = ReadRecord(fs, shared.get(), found.inode).HasAll(trying.nodes);
  if (tried.before) return tried;

  NodesToTry bounded = trying;
  bounded.stopped = [&clock, until = clock.Now() + trying.longest, stopped = trying.stopped] {
    return (stopped && stopped()) || clock.Now() >= until;
  };
  const auto record = [&] {
    TriedRecord known = ReadRecord(fs, shared.get(), found.inode);
    const std::string now =
        absl::FormatTime(absl::RFC3339_sec, absl::FromUnixMicros(clock.UnixMicros()), absl::UTCTimeZone());
    for (const std::string& node : trying.nodes) known.times[node] = now;
    return WriteRecord(fs, shared.get(), known);
  };
  NodeFiles files(&fs, shared.get());
  RemoveEarlierMeetings(files, trying.attempt);
  for (int i = 1; i <= kTries; ++i) {
    const std::string directory = absl::StrCat(kMeetings, trying.attempt, ".", i);
    const absl::StatusOr<std::vector<Finding>> wrong = TryOnce(files, clock, bounded, directory, record);
    if (absl::IsCancelled(wrong.status()) && !(trying.stopped && trying.stopped()))
      return absl::DeadlineExceededError(
          absl::StrCat("the trials were not over after ", trying.longest / std::chrono::seconds(1), " s"));
    CKPTD_RETURN_IF_ERROR(wrong.status());
    tried = {};
    for (const Finding& each : *wrong)
      (IsOfConfiguration(each) ? tried.doubtful : tried.unsuitable).push_back(each);
    // A node that was busy sees changes late, too. All nodes judge alike, and try again or do not.
    if (tried.unsuitable.empty() || !std::all_of(tried.unsuitable.begin(), tried.unsuitable.end(), IsOfDelay))
      break;
  }
  return tried;
}

}  // namespace ckptd
