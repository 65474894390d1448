#include "daemon/runtime/state_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

storage::v1::KnownRoot Root(const std::string& path, uint64_t inode) {
  storage::v1::KnownRoot root;
  root.set_path(path);
  root.set_device(5);
  root.set_inode(inode);
  root.set_uid(1000);
  root.add_groups(7);
  return root;
}

class StateDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return std::string(folder_) + "/state"; }
  std::vector<std::string> Paths() {
    std::vector<std::string> paths;
    for (const auto& root : StateDirectory::Open(path()).value()->roots()) paths.push_back(root.path());
    return paths;
  }

  char folder_[32] = "/tmp/ckptd.XXXXXX";
};

TEST_F(StateDirectoryTest, RootsAreThereInTheNextLife) {
  EXPECT_THAT(Paths(), IsEmpty());
  {
    auto state = StateDirectory::Open(path()).value();
    ASSERT_TRUE(state->Remember(Root("/a", 1)).ok());
    ASSERT_TRUE(state->Remember(Root("/b", 2)).ok());
    ASSERT_TRUE(state->Remember(Root("/a", 1)).ok());
  }
  EXPECT_THAT(Paths(), ElementsAre("/a", "/b"));
  EXPECT_THAT(StateDirectory::Open(path()).value()->roots()[0].groups(), ElementsAre(7u));
}

TEST_F(StateDirectoryTest, ADirectoryAndAPathAreRememberedOnce) {
  {
    auto state = StateDirectory::Open(path()).value();
    ASSERT_TRUE(state->Remember(Root("/a", 1)).ok());
    ASSERT_TRUE(state->Remember(Root("/moved", 1)).ok());
    ASSERT_TRUE(state->Remember(Root("/b", 2)).ok());
    ASSERT_TRUE(state->Remember(Root("/b", 3)).ok());  // Made anew at the same place.
  }
  EXPECT_THAT(Paths(), ElementsAre("/moved", "/b"));
}

TEST_F(StateDirectoryTest, ASecondDaemonIsRefused) {
  const auto first = StateDirectory::Open(path());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = StateDirectory::Open(path());
  EXPECT_EQ(ReasonOf(second.status()), "STATE_LOCKED");
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(path()));
}

TEST_F(StateDirectoryTest, TheLockOfADaemonThatIsStillGoingDownIsWaitedFor) {
  auto first = StateDirectory::Open(path());
  ASSERT_TRUE(first.ok()) << first.status();
  std::future<absl::Status> second = std::async(
      std::launch::async, [this] { return StateDirectory::Open(path(), std::chrono::seconds(30)).status(); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  first->reset();
  EXPECT_EQ(second.get(), absl::OkStatus());
}

TEST_F(StateDirectoryTest, AnUnreadableFileIsRefusedAndNotForgotten) {
  { ASSERT_TRUE(StateDirectory::Open(path()).ok()); }
  std::ofstream(path() + "/known_roots.txtpb") << "roots { path: \"/a\" ";
  const auto state = StateDirectory::Open(path());
  EXPECT_EQ(ReasonOf(state.status()), "STATE_UNREADABLE");
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("known_roots.txtpb"));
}

TEST_F(StateDirectoryTest, AFieldOfANewerDaemonIsNoProblem) {
  { ASSERT_TRUE(StateDirectory::Open(path()).ok()); }
  std::ofstream(path() + "/known_roots.txtpb") << "roots { path: \"/a\" colour: \"red\" }";
  EXPECT_THAT(Paths(), ElementsAre("/a"));
}

TEST_F(StateDirectoryTest, AMissingParentIsSaid) {
  EXPECT_EQ(ErrnoOf(StateDirectory::Open("/nonexistent/state").status()), ENOENT);
}

}  // namespace
}  // namespace ckptd
