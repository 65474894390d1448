#include "daemon/runtime/cluster/shared_folder_looks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/errors.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SharedFolderLooksTest : public ::testing::Test {
 protected:
  struct Submitted {
    SharedFolderLooks::Look look;
    SharedFolderLooks::Done done;
  };

  // Runs all looks that have begun.
  void RunAll() {
    while (!submitted_.empty()) {
      Submitted next = std::move(submitted_.front());
      submitted_.pop_front();
      const absl::Status status = next.look();
      next.look = nullptr;
      next.done(status);
    }
  }
  void Pass(Duration time) {
    clock_.Advance(time);
    looks_.OnTick();
  }
  std::vector<std::string> Problems() {
    v1::ClusterStatus status;
    looks_.Describe(&status);
    std::vector<std::string> problems;
    for (const v1::SharedFolderProblem& problem : status.shared_folder_problems())
      problems.push_back(problem.folder() + ": " + problem.message());
    return problems;
  }

  FakeClock clock_;
  std::map<std::string, std::string> wrong_;  // By folder.
  std::deque<Submitted> submitted_;
  SharedFolderLooks looks_{&clock_,
                           [this](const std::string& folder) {
                             const auto found = wrong_.find(folder);
                             return found == wrong_.end() ? absl::OkStatus() : InvalidArgument(found->second);
                           },
                           [this](SharedFolderLooks::Look look, SharedFolderLooks::Done done) {
                             submitted_.push_back({std::move(look), std::move(done)});
                           }};
};

TEST_F(SharedFolderLooksTest, FolderThatIsNotMountedIsDescribedUntilItIs) {
  wrong_["/b"] = "is not there";
  looks_.SetFolders({"/a", "/b"});
  EXPECT_THAT(Problems(), IsEmpty()) << "nobody has looked yet";
  RunAll();
  EXPECT_THAT(Problems(), ElementsAre("/b: is not there"));
  wrong_.clear();
  Pass(seconds(10));
  RunAll();
  EXPECT_THAT(Problems(), IsEmpty());
}

TEST_F(SharedFolderLooksTest, FolderThatIsUnmountedLaterIsDescribed) {
  looks_.SetFolders({"/a"});
  RunAll();
  wrong_["/a"] = "is not there";
  Pass(seconds(10));
  RunAll();
  EXPECT_THAT(Problems(), ElementsAre("/a: is not there"));
}

TEST_F(SharedFolderLooksTest, NoSecondLookBeginsWhileOneHangsWithItsFileSystem) {
  looks_.SetFolders({"/a"});
  ASSERT_EQ(submitted_.size(), 1u);
  submitted_.front().done(absl::DeadlineExceededError("it hangs"));  // The look goes on.
  EXPECT_THAT(Problems(), ElementsAre("/a: it hangs"));
  Pass(seconds(60));
  EXPECT_EQ(submitted_.size(), 1u);
  submitted_.clear();  // The look has returned.
  Pass(seconds(10));
  EXPECT_EQ(submitted_.size(), 1u);
}

TEST_F(SharedFolderLooksTest, FolderThatIsNotConfiguredAnyMoreIsForgotten) {
  wrong_["/a"] = "is not there";
  looks_.SetFolders({"/a"});
  RunAll();
  Pass(seconds(10));
  looks_.SetFolders({"/b"});
  RunAll();
  EXPECT_THAT(Problems(), IsEmpty());
}

}  // namespace
}  // namespace ckptd
