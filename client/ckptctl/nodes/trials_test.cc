// Two or three nodes, each a thread, on one local folder; some of them on files that break one property.
#include "client/ckptctl/nodes/trials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ckptctl/nodes/meeting.h"
#include "storage/base/errors.h"

namespace ckptd::ctl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Mount kMount{"nfs4", "server:/export", "rw,actimeo=3"};

// Whether a trial, and not the nodes' conversation, uses the path.
bool IsOfTrial(const std::string& path, const char* suffix) { return absl::EndsWith(path, suffix); }

// Shows the size and the bytes of overwritten files as they were, for some time.
class StaleFiles : public NodeFiles {
 public:
  explicit StaleFiles(milliseconds delay) : delay_(delay) {}
  absl::StatusOr<std::string> Read(const std::string& path) override {
    absl::StatusOr<std::string> now = NodeFiles::Read(path);
    if (!now.ok() || !IsOfTrial(path, ".old")) return now;
    const auto [first, is_new] = first_.try_emplace(path, *now);
    if (first->second == *now) return now;
    const auto since = changed_.try_emplace(path, steady_clock::now()).first->second;
    return steady_clock::now() - since < delay_ ? first->second : now;
  }

 private:
  const milliseconds delay_;
  std::map<std::string, std::string> first_;
  std::map<std::string, steady_clock::time_point> changed_;
};

// Loses the directory that a handle is open for when it is renamed.
class LosesHandles : public NodeFiles {
 public:
  absl::StatusOr<std::string> ReadIn(const UniqueFd& directory, const std::string& name) override {
    const std::string path = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", directory.get()));
    if (IsOfTrial(path, ".tag")) return ErrnoError(ESTALE, "reading");
    return NodeFiles::ReadIn(directory, name);
  }
};

// Says that a rename has succeeded when another node's has.
class LiesAboutRenames : public NodeFiles {
 public:
  absl::Status Rename(const std::string& from, const std::string& to) override {
    const absl::Status renamed = NodeFiles::Rename(from, to);
    return absl::StrContains(from, ".race.") ? absl::OkStatus() : renamed;
  }
};

// Replaces a file by removing it first.
class ReplacesInTwoSteps : public NodeFiles {
 public:
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (IsOfTrial(to, ".page")) {
      std::filesystem::remove(to);
      std::this_thread::sleep_for(milliseconds(2));
    }
    return NodeFiles::Rename(from, to);
  }
};

// Shows a part of one version and a part of the next one, but for the last one.
class MixesVersions : public NodeFiles {
 public:
  absl::StatusOr<std::string> Read(const std::string& path) override {
    absl::StatusOr<std::string> page = NodeFiles::Read(path);
    if (page.ok() && IsOfTrial(path, ".page") && !page->empty() && page->front() != 'Z') page->back() = '?';
    return page;
  }
};

class OtherInode : public NodeFiles {
 public:
  absl::StatusOr<uint64_t> Inode(const std::string&) override { return 4711; }
};

class TrialsTest : public ::testing::Test {
 protected:
  TrialsTest() {
    root_ = std::filesystem::path(testing::TempDir()) /
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    std::filesystem::create_directory(root_);
    settings_.rounds = 2;
    settings_.allowed = milliseconds(500);
    settings_.look = milliseconds(5000);
  }
  ~TrialsTest() override { std::filesystem::remove_all(root_); }

  absl::StatusOr<Records> TakePart(NodeFiles* files, const std::string& name, int nodes) {
    absl::StatusOr<std::unique_ptr<Meeting>> meeting =
        Meeting::Enter(files, {root_, name, nodes, std::chrono::seconds(20)});
    if (!meeting.ok()) return meeting.status();
    absl::StatusOr<Records> records = RunTrials(files, meeting->get(), settings_, root_, kMount);
    if (records.ok()) (*meeting)->Leave();
    return records;
  }

  // What both nodes find; the files of the second one are `files`.
  std::vector<Finding> Examine(NodeFiles* files) {
    absl::StatusOr<Records> first, second;
    NodeFiles honest;
    std::thread other([&] { second = TakePart(files, "gpu2", 2); });
    first = TakePart(&honest, "gpu1", 2);
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
  TrialSettings settings_;
};

TEST_F(TrialsTest, FindsNothingWrongWithALocalFolder) {
  NodeFiles files;
  const std::vector<Finding> findings = Examine(&files);
  EXPECT_THAT(With(Verdict::kFailure, findings), IsEmpty());
  EXPECT_THAT(With(Verdict::kWarning, findings), IsEmpty());
  EXPECT_GE(findings.size(), 12u);
  EXPECT_THAT(Lines(findings), Contains(HasSubstr("mounted: nfs4 from server:/export, actimeo=3")));
}

TEST_F(TrialsTest, NamesBytesThatAreSeenTooLateAndMeasuresHowLate) {
  StaleFiles files(milliseconds(900));
  const std::vector<Finding> findings = Examine(&files);
  EXPECT_THAT(With(Verdict::kFailure, findings), ElementsAre("bytes"));
  for (const Finding& each : findings) {
    if (each.subject != "bytes") continue;
    EXPECT_THAT(each.what, HasSubstr("from gpu1 to gpu2"));
    EXPECT_THAT(each.what, HasSubstr("the daemons wait 500.0 ms"));
    EXPECT_THAT(each.advice, HasSubstr("actimeo"));
  }
}

TEST_F(TrialsTest, AcceptsADelayThatTheDaemonsWaitFor) {
  StaleFiles files(milliseconds(100));
  settings_.allowed = std::chrono::seconds(5);
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), IsEmpty());
}

TEST_F(TrialsTest, NamesBytesThatAreNeverSeen) {
  StaleFiles files(std::chrono::hours(1));
  settings_.look = milliseconds(300);
  const std::vector<Finding> findings = Examine(&files);
  EXPECT_THAT(With(Verdict::kFailure, findings), ElementsAre("bytes"));
  EXPECT_THAT(Lines(findings), Contains(HasSubstr("bytes: not seen after")));
}

TEST_F(TrialsTest, NamesAnOpenDirectoryThatIsLostWhenItIsRenamed) {
  LosesHandles files;
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), ElementsAre("open directory"));
}

TEST_F(TrialsTest, NamesRenamesOfWhichTwoSucceed) {
  LiesAboutRenames files;
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), ElementsAre("renames of one name"));
}

TEST_F(TrialsTest, WarnsOfAFileThatIsMissingWhileItIsReplaced) {
  ReplacesInTwoSteps files;
  const std::vector<Finding> findings = Examine(&files);
  EXPECT_THAT(With(Verdict::kWarning, findings), ElementsAre("replaced file"));
  EXPECT_THAT(With(Verdict::kFailure, findings), IsEmpty());
}

TEST_F(TrialsTest, NamesAReplacementThatShowsTwoVersionsAtOnce) {
  MixesVersions files;
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), ElementsAre("replaced file"));
}

TEST_F(TrialsTest, NamesInodesThatDiffer) {
  OtherInode files;
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), ElementsAre("inode of the root"));
}

TEST_F(TrialsTest, ThreeNodesMeasureAllWays) {
  settings_.rounds = 1;
  NodeFiles files;
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
  NodeFiles files;
  const absl::Status missing = Meeting::Enter(&files, {root_, "gpu1", 2, milliseconds(300)}).status();
  EXPECT_EQ(ReasonOf(missing), "NODES_MISSING");
  EXPECT_THAT(std::string(missing.message()), HasSubstr("1 of 2 nodes"));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("gpu1"));
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(TrialsTest, MeetingIgnoresWhatAKilledNodeHasLeft) {
  std::filesystem::create_directory(root_ / kMeetingDirectory);
  std::ofstream(root_ / kMeetingDirectory / "gpu7.here") << "0123 5";
  NodeFiles files;
  EXPECT_THAT(With(Verdict::kFailure, Examine(&files)), IsEmpty());
}

TEST_F(TrialsTest, WaitNamesTheNodeThatHasEnded) {
  NodeFiles files;
  std::thread leaves([&] { (void)Meeting::Enter(&files, {root_, "gpu2", 2, std::chrono::seconds(20)}); });
  const absl::StatusOr<std::unique_ptr<Meeting>> meeting =
      Meeting::Enter(&files, {root_, "gpu1", 2, milliseconds(2000)});
  leaves.join();
  ASSERT_TRUE(meeting.ok()) << meeting.status();
  const absl::Status silent = (*meeting)->Hear("gpu2", "primed").status();
  EXPECT_EQ(ReasonOf(silent), "NODES_MISSING");
  EXPECT_THAT(std::string(silent.message()), HasSubstr("node gpu2 has not said \"primed\""));
}

}  // namespace
}  // namespace ckptd::ctl
