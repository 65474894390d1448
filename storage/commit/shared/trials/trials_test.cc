// Two or three nodes, each a thread, on one local folder; some of them on files that break one property. Delays
// are measured on a clock that only such files move: how busy the machine is changes nothing.
#include "storage/commit/shared/trials/trials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/commit/shared/trials/meeting.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;

constexpr char kDirectory[] = "meeting";
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Whether a trial, and not the nodes' conversation, uses the path.
bool IsOfTrial(const std::string& path, const char* suffix) { return absl::EndsWith(path, suffix); }

// Shows the bytes of overwritten files as they were, for some time. Each look at them but the first takes 10 ms.
class StaleFiles : public NodeFiles {
 public:
  StaleFiles(const NodeFiles& files, FakeClock* clock, milliseconds delay)
      : NodeFiles(files), clock_(*clock), delay_(delay) {}
  absl::StatusOr<std::string> Read(const std::string& path) override {
    absl::StatusOr<std::string> now = NodeFiles::Read(path);
    if (!now.ok() || !IsOfTrial(path, ".old")) return now;
    const auto [first, is_new] = first_.try_emplace(path, *now);
    if (first->second == *now) return now;
    const auto [since, has_just_changed] = changed_.try_emplace(path, clock_.Now());
    if (clock_.Now() - since->second >= delay_) return now;
    if (!has_just_changed) clock_.Advance(milliseconds(10));
    return first->second;
  }

 private:
  FakeClock& clock_;
  const milliseconds delay_;
  std::map<std::string, std::string> first_;
  std::map<std::string, Instant> changed_;
};

// Loses the directory that a handle is open for when it is renamed.
class LosesHandles : public NodeFiles {
 public:
  explicit LosesHandles(const NodeFiles& files) : NodeFiles(files) {}
  absl::StatusOr<std::string> ReadIn(const ScopedHandle& directory, const std::string& name) override {
    const std::string path = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", directory.get()));
    if (IsOfTrial(path, ".tag")) return ErrnoError(ESTALE, "reading");
    return NodeFiles::ReadIn(directory, name);
  }
};

// Says that a rename has succeeded which another node is to make.
class LiesAboutRenames : public NodeFiles {
 public:
  explicit LiesAboutRenames(const NodeFiles& files) : NodeFiles(files) {}
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return absl::StrContains(from, ".race.") ? absl::OkStatus() : NodeFiles::Rename(from, to);
  }
};

// Tells when a page has been missing.
class NoticesMissingPages : public NodeFiles {
 public:
  explicit NoticesMissingPages(const NodeFiles& files) : NodeFiles(files) {}
  absl::StatusOr<std::string> Read(const std::string& path) override {
    absl::StatusOr<std::string> page = NodeFiles::Read(path);
    if (!page.ok() && IsOfTrial(path, ".page") && !missing_.HasBeenNotified()) missing_.Notify();
    return page;
  }
  void AwaitMissing() { EXPECT_TRUE(missing_.WaitForNotificationWithTimeout(absl::Seconds(60))); }

 private:
  absl::Notification missing_;
};

// Replaces a file by removing it first, and is so slow that the other node misses it.
class ReplacesInTwoSteps : public NodeFiles {
 public:
  ReplacesInTwoSteps(const NodeFiles& files, NoticesMissingPages* other) : NodeFiles(files), other_(*other) {}
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (IsOfTrial(to, ".page")) {
      EXPECT_TRUE(fs_.Remove(folder_, to, FileType::kRegular).ok());
      other_.AwaitMissing();
    }
    return NodeFiles::Rename(from, to);
  }

 private:
  NoticesMissingPages& other_;
};

// Shows a part of one version and a part of the next one when a file is read for the second time: the first time
// is before it is replaced.
class MixesVersions : public NodeFiles {
 public:
  explicit MixesVersions(const NodeFiles& files) : NodeFiles(files) {}
  absl::StatusOr<std::string> Read(const std::string& path) override {
    absl::StatusOr<std::string> page = NodeFiles::Read(path);
    if (page.ok() && IsOfTrial(path, ".page") && ++reads_ == 2) page->back() = '?';
    return page;
  }

 private:
  int reads_ = 0;
};

// Does not look again for what was missing, unless it is told to ask: so does NFS, for half a minute.
class KeepsMissingNames : public NodeFiles {
 public:
  explicit KeepsMissingNames(const NodeFiles& files) : NodeFiles(files) {}
  absl::StatusOr<std::string> Read(const std::string& path) override {
    if (missing_.contains(path)) return ErrnoError(ENOENT, "reading");
    absl::StatusOr<std::string> read = NodeFiles::Read(path);
    if (!read.ok()) missing_.insert(path);
    return read;
  }
  absl::StatusOr<int64_t> Size(const std::string& path) override {
    if (missing_.contains(path)) return ErrnoError(ENOENT, "looking");
    absl::StatusOr<int64_t> size = NodeFiles::Size(path);
    if (!size.ok()) missing_.insert(path);
    return size;
  }
  void AskForNames(const std::string&) override { missing_.clear(); }

 private:
  std::set<std::string> missing_;
};

// Tells each node at first that another one has made a directory, as GlusterFS may when two make it at once.
class WithdrawsADirectory : public NodeFiles {
 public:
  explicit WithdrawsADirectory(const NodeFiles& files) : NodeFiles(files) {}
  absl::Status MakeDir(const std::string& path) override {
    return std::exchange(first_, false) ? ErrnoError(EEXIST, "making") : NodeFiles::MakeDir(path);
  }

 private:
  bool first_ = true;
};

class OtherInode : public NodeFiles {
 public:
  explicit OtherInode(const NodeFiles& files) : NodeFiles(files) {}
  absl::StatusOr<uint64_t> Inode(const std::string&) override { return 4711; }
};

class TrialsTest : public ::testing::Test {
 protected:
  TrialsTest() {
    root_ = std::filesystem::path(testing::TempDir()) /
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    std::filesystem::create_directory(root_);
    fs_ = *MakePosixFileSystem();
    folder_ = ScopedHandle(fs_.get(), *OpenRootDirectory(root_, std::nullopt));
    settings_.rounds = 2;
    facts_.mounted = {"nfs4", "server:/export", "actimeo=3"};
    facts_.daemon = {true, milliseconds(500)};
    settings_.look = milliseconds(5000);
  }
  ~TrialsTest() override { std::filesystem::remove_all(root_); }

  NodeFiles Files() { return NodeFiles(fs_.get(), folder_.get()); }

  absl::StatusOr<Records> TakePart(NodeFiles* files, const std::string& name, int nodes) {
    absl::StatusOr<std::unique_ptr<Meeting>> meeting =
        Meeting::Enter(files, {kDirectory, name, nodes, std::chrono::seconds(60)});
    if (!meeting.ok()) return meeting.status();
    const NodeFacts& facts = name == "gpu2" && facts_of_second_ ? *facts_of_second_ : facts_;
    absl::StatusOr<Records> records = RunTrials(files, meeting->get(), &clock_, settings_, facts);
    if (records.ok()) (*meeting)->Leave();
    return records;
  }

  // What both nodes find.
  std::vector<Finding> Examine(NodeFiles* files_of_second) {
    NodeFiles honest = Files();
    return Examine(&honest, files_of_second);
  }
  std::vector<Finding> Examine(NodeFiles* files_of_first, NodeFiles* files_of_second) {
    absl::StatusOr<Records> first, second;
    std::thread other([&] { second = TakePart(files_of_second, "gpu2", 2); });
    first = TakePart(files_of_first, "gpu1", 2);
    other.join();
    EXPECT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    if (!first.ok() || !second.ok()) return {};
    const std::vector<Finding> found = JudgeTrials(*first, settings_);
    const std::vector<Finding> also_found = JudgeTrials(*second, settings_);
    EXPECT_EQ(Lines(found), Lines(also_found));
    EXPECT_TRUE(std::filesystem::is_empty(root_));
    return found;
  }

  static std::vector<std::string> Lines(const std::vector<Finding>& findings) {
    std::vector<std::string> lines;
    for (const Finding& each : findings)
      lines.push_back(absl::StrCat(static_cast<int>(each.verdict), " ", each.subject, ": ", each.what));
    return lines;
  }

  // The subjects of a verdict.
  static std::vector<std::string> With(Verdict verdict, const std::vector<Finding>& findings) {
    std::vector<std::string> subjects;
    for (const Finding& each : findings) {
      if (each.verdict == verdict) subjects.push_back(each.subject);
    }
    return subjects;
  }

  std::filesystem::path root_;
  std::unique_ptr<FileSystem> fs_;
  ScopedHandle folder_;
  TrialSettings settings_;
  NodeFacts facts_;
  std::optional<NodeFacts> facts_of_second_;  // Unset: the same.
  FakeClock clock_;
};

TEST_F(TrialsTest, FindsNothingWrongWithALocalFolder) {
  NodeFiles files = Files();
  const std::vector<Finding> findings = Examine(&files);
  EXPECT_THAT(With(Verdict::kFailure, findings), IsEmpty());
  EXPECT_THAT(With(Verdict::kWarning, findings), IsEmpty());
  EXPECT_GE(findings.size(), 12u);
  EXPECT_THAT(Lines(findings), Contains(HasSubstr("mounted: nfs4 from server:/export, actimeo=3")));
}

TEST_F(TrialsTest, NamesBytesThatAreSeenTooLateAndMeasuresHowLate) {
  StaleFiles files(Files(), &clock_, milliseconds(900));
  const std::vector<Finding> findings = Examine(&files);
  EXPECT_THAT(With(Verdict::kFailure, findings), ElementsAre("bytes"));
  for (const Finding& each : findings) {
    if (each.subject != "bytes") continue;
    // Both nodes move the clock on while they look, so the looks do not meet the 900 ms exactly.
    EXPECT_THAT(each.what, ContainsRegex("at most (8[5-9]|9[0-4])[0-9][.]0 ms"));
    EXPECT_THAT(each.what, HasSubstr("from gpu1 to gpu2"));
    EXPECT_THAT(each.what, HasSubstr("the daemons wait 500.0 ms"));
    EXPECT_THAT(each.advice, HasSubstr("actimeo"));
    EXPECT_THAT(each.advice, HasSubstr("set cluster.visibility_seconds: 2 on all nodes"));
  }
}

TEST_F(TrialsTest, AcceptsADelayThatTheDaemonsWaitFor) {
  StaleFiles files(Files(), &clock_, milliseconds(100));
  facts_.daemon->visibility = std::chrono::seconds(5);
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), IsEmpty());
}

TEST_F(TrialsTest, NamesTheNodeWhoseDaemonDoesNotShareTheFolder) {
  NodeFiles files = Files();
  facts_of_second_ = facts_;
  facts_of_second_->daemon->shares = false;
  const std::vector<Finding> findings = Examine(&files);
  EXPECT_THAT(With(Verdict::kFailure, findings), ElementsAre("shared folder"));
  EXPECT_THAT(Lines(findings), Contains(HasSubstr("shared folder: not in cluster.shared_folders of gpu2")));
}

TEST_F(TrialsTest, NamesDaemonsThatWaitForDifferentTimesAndJudgesByTheShortest) {
  StaleFiles files(Files(), &clock_, milliseconds(900));
  facts_of_second_ = facts_;
  facts_of_second_->daemon->visibility = std::chrono::seconds(5);
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), ElementsAre("shared folder", "bytes"));
}

TEST_F(TrialsTest, WarnsWhereNoDaemonTellsWhetherTheFolderIsShared) {
  NodeFiles files = Files();
  facts_of_second_ = NodeFacts{facts_.mounted, std::nullopt, "no daemon answers"};
  const std::vector<Finding> findings = Examine(&files);
  EXPECT_THAT(With(Verdict::kWarning, findings), ElementsAre("shared folder"));
  EXPECT_THAT(Lines(findings), Contains(HasSubstr("gpu2 (no daemon answers)")));
}

TEST_F(TrialsTest, NamesBytesThatAreNeverSeen) {
  StaleFiles files(Files(), &clock_, std::chrono::hours(1));
  settings_.look = milliseconds(300);
  const std::vector<Finding> findings = Examine(&files);
  EXPECT_THAT(With(Verdict::kFailure, findings), ElementsAre("bytes"));
  EXPECT_THAT(Lines(findings), Contains(HasSubstr("bytes: not seen after")));
}

TEST_F(TrialsTest, NamesAnOpenDirectoryThatIsLostWhenItIsRenamed) {
  LosesHandles files(Files());
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), ElementsAre("open directory"));
}

TEST_F(TrialsTest, NamesRenamesOfWhichTwoSucceed) {
  LiesAboutRenames files(Files());
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), ElementsAre("renames of one name"));
}

TEST_F(TrialsTest, WarnsOfAFileThatIsMissingWhileItIsReplaced) {
  NoticesMissingPages notices(Files());
  ReplacesInTwoSteps files(Files(), &notices);
  const std::vector<Finding> findings = Examine(&notices, &files);
  EXPECT_THAT(With(Verdict::kWarning, findings), ElementsAre("replaced file"));
  EXPECT_THAT(With(Verdict::kFailure, findings), IsEmpty());
}

TEST_F(TrialsTest, NamesAReplacementThatShowsTwoVersionsAtOnce) {
  MixesVersions files(Files());
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), ElementsAre("replaced file"));
}

TEST_F(TrialsTest, NamesInodesThatDiffer) {
  OtherInode files(Files());
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), ElementsAre("inode of the root"));
}

TEST_F(TrialsTest, ThreeNodesMeasureAllWays) {
  settings_.rounds = 1;
  NodeFiles files = Files();
  absl::StatusOr<Records> one, two, three;
  std::thread first([&] { one = TakePart(&files, "gpu1", 3); });
  std::thread second([&] { two = TakePart(&files, "gpu2", 3); });
  three = TakePart(&files, "gpu3", 3);
  first.join();
  second.join();
  ASSERT_TRUE(one.ok() && two.ok() && three.ok()) << one.status() << two.status() << three.status();
  EXPECT_THAT(With(Verdict::kFailure, JudgeTrials(*three, settings_)), IsEmpty());
  EXPECT_EQ(std::count_if(one->begin(), one->end(),
                          [](const auto& each) { return absl::StartsWith(each, "delay\tnames"); }),
            6);
}

TEST_F(TrialsTest, MeetingNamesTheNodesThatHaveComeWhenOneIsMissing) {
  NodeFiles files = Files();
  const absl::Status missing = Meeting::Enter(&files, {kDirectory, "gpu1", 2, milliseconds(300)}).status();
  EXPECT_EQ(ReasonOf(missing), "NODES_MISSING");
  EXPECT_THAT(std::string(missing.message()), HasSubstr("1 of 2 nodes"));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("gpu1"));
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(TrialsTest, MeetingIgnoresWhatAKilledNodeHasLeft) {
  std::filesystem::create_directory(root_ / kDirectory);
  std::ofstream(root_ / kDirectory / "gpu7.here") << "0123 5";
  NodeFiles files = Files();
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), IsEmpty());
}

TEST_F(TrialsTest, NodesHearEachOtherHoweverLongAClientKeepsMissingNames) {
  KeepsMissingNames first(Files()), second(Files());
  EXPECT_THAT(With(Verdict::kFailure, Examine(&first, &second)), IsEmpty());
}

TEST_F(TrialsTest, NodesMeetAlthoughAllAreToldThatTheDirectoryExists) {
  WithdrawsADirectory first(Files()), second(Files());
  EXPECT_THAT(With(Verdict::kFailure, Examine(&first, &second)), IsEmpty());
}

TEST_F(TrialsTest, WaitNamesTheNodeThatHasEnded) {
  NodeFiles files = Files();
  std::thread leaves([&] {
    (void)Meeting::Enter(&files, {kDirectory, "gpu2", 2, std::chrono::seconds(20)});
  });
  const absl::StatusOr<std::unique_ptr<Meeting>> meeting =
      Meeting::Enter(&files, {kDirectory, "gpu1", 2, milliseconds(2000)});
  leaves.join();
  ASSERT_TRUE(meeting.ok()) << meeting.status();
  const absl::Status silent = (*meeting)->Hear("gpu2", "primed").status();
  EXPECT_EQ(ReasonOf(silent), "NODES_MISSING");
  EXPECT_THAT(std::string(silent.message()), HasSubstr("node gpu2 has not said \"primed\""));
}

}  // namespace
}  // namespace ckptd
