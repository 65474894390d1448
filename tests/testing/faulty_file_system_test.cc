#include "tests/testing/faulty_file_system.h"

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/fs/file_system.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

class FaultyFileSystemTest : public ::testing::Test {
 protected:
  int MakeDir(const std::string& path) { return ErrnoOf(faulty_.MakeDir(dir_.fd(), path)); }

  TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = MakePosixFileSystem().value();
  FaultyFileSystem faulty_{posix_.get()};
};

TEST_F(FaultyFileSystemTest, OnlyNthCallFails) {
  ASSERT_EQ(MakeDir("before"), 0);
  faulty_.Fail({.op = FsOp::kMakeDir, .nth = 2, .error = EIO});
  EXPECT_EQ(MakeDir("a"), 0);
  EXPECT_EQ(MakeDir("b"), EIO);
  EXPECT_EQ(MakeDir("b"), 0) << "the first call did not create it";
  EXPECT_TRUE(faulty_.Sync(dir_.fd(), SyncMode::kAll).ok()) << "another operation";
}

TEST_F(FaultyFileSystemTest, EveryCallBelowPathFails) {
  ASSERT_EQ(MakeDir("a"), 0);
  const auto a = OpenScoped(faulty_, dir_.fd(), "a", OpenMode::kDirectory);
  ASSERT_TRUE(a.ok()) << a.status();
  faulty_.Fail({.op = FsOp::kMakeDir, .path = "a/", .nth = FsFault::kEvery, .error = ENOSPC});
  EXPECT_EQ(MakeDir("b"), 0);
  EXPECT_EQ(MakeDir("a/x"), ENOSPC);
  EXPECT_EQ(ErrnoOf(faulty_.MakeDir(a->get(), "y")), ENOSPC) << "through the directory's handle";
  faulty_.ClearFaults();
  EXPECT_EQ(MakeDir("a/x"), 0);
}

TEST_F(FaultyFileSystemTest, ErrorAfterCallHidesThatItTookEffect) {
  faulty_.Fail({.op = FsOp::kMakeDir, .error = EIO, .after = true});
  EXPECT_EQ(MakeDir("a"), EIO);
  EXPECT_EQ(MakeDir("a"), EEXIST);
}

TEST_F(FaultyFileSystemTest, HookSeesEachOperationBeforeItRuns) {
  std::vector<std::string> seen;
  faulty_.SetHook([&](const FsCall& call) {
    const bool there = posix_->Stat(dir_.fd(), "a").ok();
    seen.push_back(call.ToString() + (there ? " (there)" : ""));
  });
  MakeDir("a");
  EXPECT_TRUE(faulty_.Rename(dir_.fd(), "a", dir_.fd(), "b", RenameMode::kReplace).ok());
  EXPECT_THAT(seen, ElementsAre("MakeDir a", "Rename a b (there)"));
  EXPECT_EQ(faulty_.Count(FsOp::kRename), 1);
}

}  // namespace
}  // namespace ckptd
