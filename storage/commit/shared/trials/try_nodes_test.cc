// Two nodes, each a thread, on one local root, with a file system that breaks one property.
#include "storage/commit/shared/trials/try_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/errors.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Says that a rename has succeeded which another node is to make.
class TwoNodesWinRaces : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  absl::Status Rename(Handle old_dir, std::string_view old_path, Handle new_dir, std::string_view new_path,
                      RenameMode mode) override {
    if (old_path.find(".race.") != old_path.npos && !old_path.ends_with(".new")) return absl::OkStatus();
    return FaultyFileSystem::Rename(old_dir, old_path, new_dir, new_path, mode);
  }
};

// Replaces a directory that is full by the one that is renamed onto it.
class ReplacesFullDirectories : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  absl::Status Rename(Handle old_dir, std::string_view old_path, Handle new_dir, std::string_view new_path,
                      RenameMode mode) override {
    if (new_path.ends_with(".full")) return absl::OkStatus();
    return FaultyFileSystem::Rename(old_dir, old_path, new_dir, new_path, mode);
  }
};

// Never shows a name that another node has made, in the first meeting or in all of them. Each look takes half a second.
class HidesNames : public FaultyFileSystem {
 public:
  HidesNames(FileSystem* base, FakeClock* clock, bool always)
      : FaultyFileSystem(base), clock_(*clock), always_(always) {}
  absl::StatusOr<FileStat> Stat(Handle dir, std::string_view path) override {
    const bool hides = path.ends_with(".name") && (always_ || path.starts_with("trial.1.1/"));
    if (!hides) return FaultyFileSystem::Stat(dir, path);
    clock_.Advance(milliseconds(500));
    return ErrnoError(ENOENT, "looking");
  }

 private:
  FakeClock& clock_;
  const bool always_;
};

class TryNodesTest : public ::testing::Test {
 protected:
  TryNodesTest() { std::filesystem::create_directories(shared()); }

  std::filesystem::path shared() const { return std::filesystem::path(root_.path()) / ".ckptd" / "shared"; }

  NodesToTry Of(const std::string& self) const {
    return {.self = self,
            .nodes = nodes_,
            .attempt = attempt_,
            .visibility = visibility_,
            .patience = patience_,
            .longest = std::chrono::minutes(10)};
  }
  absl::StatusOr<NodesTried> Alone(const std::string& self) {
    return TryNodes(*posix_, root_.fd(), clock_, Of(self));
  }
  // Both nodes; the second one on `of_second`.
  NodesTried Both(FileSystem& of_second) {
    absl::StatusOr<NodesTried> second;
    std::thread other([&] { second = TryNodes(of_second, root_.fd(), clock_, Of("gpu2")); });
    absl::StatusOr<NodesTried> first = Alone("gpu1");
    other.join();
    EXPECT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    if (!first.ok() || !second.ok()) return {};
    EXPECT_EQ(Subjects(first->unsuitable), Subjects(second->unsuitable));
    EXPECT_EQ(first->before, second->before);
    return *first;
  }
  NodesTried Both() { return Both(*posix_); }
  static std::vector<std::string> Subjects(const std::vector<Finding>& findings) {
    std::vector<std::string> subjects;
    for (const Finding& each : findings) subjects.push_back(each.subject);
    return subjects;
  }
  std::string Recorded() const {
    std::ifstream file(shared() / "tried");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(shared()))
      names.push_back(entry.path().filename());
    return names;
  }

  TempDir root_;
  std::unique_ptr<FileSystem> posix_ = *MakePosixFileSystem();
  std::vector<std::string> nodes_ = {"gpu1", "gpu2"};
  int64_t attempt_ = 1;
  Duration visibility_ = std::chrono::seconds(5);
  FakeClock clock_;  // Only a broken file system moves it.
  Duration patience_ = std::chrono::seconds(30);
};

TEST_F(TryNodesTest, RecordsThatASuitableFolderWasTriedAndByWhom) {
  const NodesTried tried = Both();
  EXPECT_THAT(Subjects(tried.unsuitable), IsEmpty());
  EXPECT_THAT(Subjects(tried.doubtful), IsEmpty());
  EXPECT_FALSE(tried.before);
  EXPECT_THAT(Recorded(), HasSubstr("gpu1\t20"));
  EXPECT_THAT(Recorded(), HasSubstr("gpu2\t20"));
  EXPECT_THAT(Names(), ElementsAre("tried")) << "the meeting is removed";
}

TEST_F(TryNodesTest, TriesNothingWhereAllNodesHaveTriedBefore) {
  Both();
  attempt_ = 2;
  patience_ = milliseconds(0);
  const absl::StatusOr<NodesTried> again = Alone("gpu2");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->before);
}

TEST_F(TryNodesTest, TriesAgainWithANodeThatNoTrialHasSeen) {
  Both();
  attempt_ = 2;
  nodes_ = {"gpu1", "gpu3"};
  patience_ = milliseconds(100);
  EXPECT_EQ(ReasonOf(Alone("gpu1").status()), "NODES_MISSING") << "it has waited for gpu3";
}

TEST_F(TryNodesTest, TriesAgainInACopyOfTheRoot) {
  Both();
  std::filesystem::rename(shared(), shared().string() + ".before");
  std::filesystem::create_directory(shared());
  std::filesystem::copy(shared().string() + ".before/tried", shared() / "tried");
  patience_ = milliseconds(100);
  EXPECT_EQ(ReasonOf(Alone("gpu1").status()), "NODES_MISSING") << "it has waited for gpu2";
}

TEST_F(TryNodesTest, NamesRenamesOfWhichTwoSucceedAndRecordsNothing) {
  TwoNodesWinRaces broken(posix_.get());
  const NodesTried tried = Both(broken);
  EXPECT_THAT(Subjects(tried.unsuitable), ElementsAre("renames of one name"));
  EXPECT_EQ(Recorded(), "");
}

TEST_F(TryNodesTest, NamesAFullDirectoryThatARenameReplaces) {
  ReplacesFullDirectories broken(posix_.get());
  const NodesTried tried = Both(broken);
  ASSERT_THAT(Subjects(tried.unsuitable), ElementsAre("rename onto a full directory"));
  EXPECT_THAT(tried.unsuitable[0].what, HasSubstr("gpu2"));
}

TEST_F(TryNodesTest, NamesChangesThatAreSeenTooLateTwice) {
  HidesNames broken(posix_.get(), &clock_, true);
  EXPECT_THAT(Subjects(Both(broken).unsuitable), ElementsAre("names"));
}

TEST_F(TryNodesTest, ForgivesAChangeThatWasSeenTooLateOnce) {
  HidesNames broken(posix_.get(), &clock_, false);
  EXPECT_THAT(Subjects(Both(broken).unsuitable), IsEmpty());
  EXPECT_THAT(Recorded(), HasSubstr("gpu2"));
}

TEST_F(TryNodesTest, EndsWhenItIsStopped) {
  std::atomic<bool> stop = false;
  NodesToTry trying = Of("gpu1");
  trying.stopped = [&] { return stop.exchange(true); };  // From the second time on that it is asked.
  EXPECT_TRUE(absl::IsCancelled(TryNodes(*posix_, root_.fd(), clock_, trying).status()));
}

TEST_F(TryNodesTest, SaysThatItWasNotOverInTime) {
  NodesToTry trying = Of("gpu1");
  trying.longest = milliseconds(0);
  const absl::Status late = TryNodes(*posix_, root_.fd(), clock_, trying).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
}

TEST_F(TryNodesTest, RemovesWhatNodesOfAnEarlierAttemptHaveLeft) {
  std::filesystem::create_directory(shared() / "trial.1.1");
  std::ofstream(shared() / "trial.1.1" / "gpu2.here") << "0123 5";
  attempt_ = 2;
  Both();
  EXPECT_THAT(Names(), ElementsAre("tried"));
}

}  // namespace
}  // namespace ckptd
