#include "daemon/attach/state_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

storage::v1::KnownRoot Root(const std::string& path, uint64_t inode, int uid = 1000) {
  storage::v1::KnownRoot root;
  root.set_path(path);
  root.set_device(5);
  root.set_inode(inode);
  root.set_uid(uid);
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

TEST_F(StateDirectoryTest, NextDaemonFindsTheRoots) {
  EXPECT_THAT(Paths(), IsEmpty());
  {
    auto state = StateDirectory::Open(path()).value();
    ASSERT_TRUE(state->Remember(Root("/a", 1)).ok());
    ASSERT_TRUE(state->Remember(Root("/b", 2)).ok());
    ASSERT_TRUE(state->Remember(Root("/a", 1)).ok());
  }
  EXPECT_THAT(Paths(), ElementsAre("/a", "/b"));
}

// Device numbers change with a boot, and a client chooses its path: neither makes two entries one.
TEST_F(StateDirectoryTest, NeverReplacesAnEntryOfAnotherDirectoryOrUser) {
  {
    auto state = StateDirectory::Open(path()).value();
    ASSERT_TRUE(state->Remember(Root("/victim", 1, 1000)).ok());
    ASSERT_TRUE(
        state->Remember(Root("/victim", 1, 2000)).ok());  // Another user's attach of the same directory.
    ASSERT_TRUE(state->Remember(Root("/victim", 2, 1000)).ok());  // Another directory that claims the path.
    ASSERT_TRUE(state->Remember(Root("/moved", 1, 1000)).ok());
  }
  const auto state = StateDirectory::Open(path()).value();
  ASSERT_EQ(state->roots().size(), 4u);
  EXPECT_EQ(state->roots()[0].path(), "/victim");
  EXPECT_EQ(state->roots()[0].inode(), 1u);
  EXPECT_EQ(state->roots()[0].uid(), 1000);
}

// Escaped, as the text has it, such a path takes 16 KB.
TEST_F(StateDirectoryTest, LimitsTheBytesOfEachUser) {
  {
    auto state = StateDirectory::Open(path()).value();
    ASSERT_TRUE(state->Remember(Root("/victim", 1, 2000)).ok());
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(state->Remember(Root("/" + std::string(4000, '\x81') + std::to_string(i), 100 + i)).ok());
    }
  }
  EXPECT_LT(std::filesystem::file_size(path() + "/known_roots.txtpb"), size_t{2} << 20);
  const auto state = StateDirectory::Open(path()).value();
  EXPECT_EQ(state->roots().front().path(), "/victim");
  EXPECT_EQ(state->roots().back().inode(), 399u) << "the newest stays";
}

TEST_F(StateDirectoryTest, EvictsTheOldestRootThatIsNotInUse) {
  auto state = StateDirectory::Open(path(), Duration::zero(), {.roots_per_uid = 2}).value();
  auto a = state->Remember(Root("/a", 1));
  ASSERT_TRUE(a.ok());
  ASSERT_TRUE(state->Remember(Root("/b", 2)).ok());
  auto c = state->Remember(Root("/c", 3));
  ASSERT_TRUE(c.ok());
  ASSERT_EQ(state->roots().size(), 2u);
  EXPECT_EQ(state->roots()[0].path(), "/a");
  EXPECT_EQ(state->roots()[1].path(), "/c");
  const auto refused = state->Remember(Root("/d", 4));
  EXPECT_EQ(ReasonOf(refused.status()), "LIMIT_EXCEEDED");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("limits.known_roots_per_uid"));
  state->SetLimits({.roots_per_uid = 3});
  EXPECT_TRUE(state->Remember(Root("/e", 5)).ok());
  EXPECT_TRUE(state->Remember(Root("/a", 1)).ok()) << "it is known";
  EXPECT_TRUE(state->Remember(Root("/d", 4, 2000)).ok()) << "another user's";
}

TEST_F(StateDirectoryTest, EvictsMissingRootsFirst) {
  auto state = StateDirectory::Open(path(), Duration::zero(), {.roots_per_uid = 2}).value();
  ASSERT_TRUE(state->Remember(Root("/a", 1)).ok());
  ASSERT_TRUE(state->Remember(Root("/b", 2)).ok());
  state->SetMissing(Root("/a", 1), true);
  state->SetMissing(Root("/a", 1), false);
  state->SetMissing(Root("/b", 2), true);
  ASSERT_TRUE(state->Remember(Root("/c", 3)).ok());
  state.reset();
  EXPECT_THAT(Paths(), ElementsAre("/a", "/c"));
}

TEST_F(StateDirectoryTest, RefusesASecondDaemon) {
  const auto first = StateDirectory::Open(path());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = StateDirectory::Open(path());
  EXPECT_EQ(ReasonOf(second.status()), "STATE_LOCKED");
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(path()));
}

TEST_F(StateDirectoryTest, WaitsForTheLockOfADaemonThatIsEnding) {
  auto first = StateDirectory::Open(path());
  ASSERT_TRUE(first.ok()) << first.status();
  std::future<absl::Status> second = std::async(
      std::launch::async, [this] { return StateDirectory::Open(path(), std::chrono::seconds(30)).status(); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  first->reset();
  EXPECT_EQ(second.get(), absl::OkStatus());
}

TEST_F(StateDirectoryTest, RefusesToStartWithAnUnreadableFile) {
  { ASSERT_TRUE(StateDirectory::Open(path()).ok()); }
  std::ofstream(path() + "/known_roots.txtpb") << "roots { path: \"/a\" ";
  const auto state = StateDirectory::Open(path());
  EXPECT_EQ(ReasonOf(state.status()), "STATE_UNREADABLE");
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("known_roots.txtpb"));
}

TEST_F(StateDirectoryTest, ReadsTheOtherEntriesAroundABadOne) {
  { ASSERT_TRUE(StateDirectory::Open(path()).ok()); }
  const std::string text =
      "roots {\n  path: \"/a\"\n}\n"
      "roots {\n  path: 5\n}\n"
      "roots {\n  path: \"/b\"\n"
      "roots {\n  path: \"/c\"\n}\n";
  std::ofstream(path() + "/known_roots.txtpb") << text;
  const auto state = StateDirectory::Open(path());
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_EQ((*state)->roots().size(), 2u);
  EXPECT_EQ((*state)->roots()[0].path(), "/a");
  EXPECT_EQ((*state)->roots()[1].path(), "/c");
  ASSERT_EQ((*state)->problems().size(), 2u);
  EXPECT_THAT((*state)->problems()[0], HasSubstr("line 4"));
  EXPECT_THAT((*state)->problems()[1], HasSubstr("line 7"));
  std::ifstream copy(path() + "/known_roots.damaged");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(copy), {}), text);
}

// As 0.1.0 wrote it.
TEST_F(StateDirectoryTest, ReadsTheListOfAnEarlierDaemon) {
  { ASSERT_TRUE(StateDirectory::Open(path()).ok()); }
  std::ofstream(path() + "/known_roots.txtpb")
      << "roots {\n  path: \"/a\"\n  uid: 1000\n  gid: 100\n"
         "  device: 2049\n  inode: 12\n  groups: 7\n  groups: 8\n}\n";
  const auto state = StateDirectory::Open(path()).value();
  ASSERT_EQ(state->roots().size(), 1u);
  EXPECT_EQ(state->roots()[0].inode(), 12u);
  EXPECT_EQ(state->roots()[0].gid(), 100);
}

TEST_F(StateDirectoryTest, AcceptsFieldsOfANewerDaemon) {
  { ASSERT_TRUE(StateDirectory::Open(path()).ok()); }
  std::ofstream(path() + "/known_roots.txtpb") << "roots { path: \"/a\" colour: \"red\" }";
  EXPECT_THAT(Paths(), ElementsAre("/a"));
}

// ---- the node's incarnations

TEST_F(StateDirectoryTest, NextDaemonFindsTheIncarnations) {
  {
    auto state = StateDirectory::Open(path()).value();
    EXPECT_THAT(state->ReadIncarnations().value(), IsEmpty());
    ASSERT_TRUE(state->RememberIncarnations({"a", "b"}).ok());
    ASSERT_TRUE(state->RememberIncarnations({"b", "c"}).ok());
  }
  const auto state = StateDirectory::Open(path()).value();
  EXPECT_THAT(state->ReadIncarnations().value(), ElementsAre("b", "c"));
  EXPECT_THAT(state->roots(), IsEmpty());
}

TEST_F(StateDirectoryTest, SaysWhenTheIncarnationsCannotBeRead) {
  const auto state = StateDirectory::Open(path()).value();
  std::ofstream(path() + "/node.txtpb") << "incarnations: ";
  const auto read = state->ReadIncarnations();
  EXPECT_EQ(ReasonOf(read.status()), "STATE_UNREADABLE");
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("node.txtpb"));
}

TEST_F(StateDirectoryTest, ReportsIncarnationsThatCannotBeWritten) {
  const auto state = StateDirectory::Open(path()).value();
  std::filesystem::create_directory(path() + "/node.txtpb");
  EXPECT_FALSE(state->RememberIncarnations({"a"}).ok());
}

TEST_F(StateDirectoryTest, ReportsAMissingParentDirectory) {
  EXPECT_EQ(ErrnoOf(StateDirectory::Open("/nonexistent/state").status()), ENOENT);
}

}  // namespace
}  // namespace ckptd
