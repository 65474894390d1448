#include "client/convert/files/staging.h"

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StagingTest : public ::testing::Test {
 protected:
  absl::StatusOr<Staging> Make(const std::string& name = "out") {
    removed_.clear();
    return Staging::Make(fs_, dir_.fd(), name, &removed_);
  }
  std::vector<std::string> Names(const std::string& path = "") {
    std::optional<ScopedHandle> dir;
    if (!path.empty()) dir = *OpenScoped(fs_, dir_.fd(), path, OpenMode::kDirectory);
    std::vector<std::string> names;
    const std::vector<DirEntry> entries = *fs_.List(dir ? dir->get() : dir_.fd());
    for (const DirEntry& entry : entries) names.push_back(entry.name);
    return names;
  }
  void MakeDir(const std::string& path) { ASSERT_TRUE(fs_.MakeDir(dir_.fd(), path).ok()); }
  void MakeFile(Handle dir, const std::string& path) { ASSERT_TRUE(WriteNewFile(fs_, dir, path, "x").ok()); }

  TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = *MakePosixFileSystem();
  FaultyFileSystem fs_{posix_.get()};
  std::vector<std::string> removed_;
};

TEST_F(StagingTest, PublishesToItsPlaceAndLeavesNothingBeside) {
  for (const bool empty_before : {false, true}) {
    const std::string name = empty_before ? "there" : "out";
    if (empty_before) MakeDir(name);
    {
      absl::StatusOr<Staging> staging = Make(name);
      ASSERT_TRUE(staging.ok()) << staging.status();
      MakeFile(staging->dir(), "f");
      EXPECT_THAT(empty_before ? Names(name) : std::vector<std::string>(), IsEmpty());
      const absl::Status published = staging->Publish();
      ASSERT_TRUE(published.ok()) << published;
    }
    EXPECT_THAT(Names(name), ElementsAre("f"));
  }
  EXPECT_THAT(Names(), ElementsAre("out", "there"));
  EXPECT_THAT(removed_, IsEmpty());
}

TEST_F(StagingTest, RemovesAnUnpublishedDirectory) {
  {
    absl::StatusOr<Staging> staging = Make();
    ASSERT_TRUE(staging.ok());
    ASSERT_TRUE(fs_.MakeDir(staging->dir(), "deep").ok());
    MakeFile(staging->dir(), "deep/f");
  }
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StagingTest, RefusesATakenPlace) {
  MakeDir("out");
  MakeFile(dir_.fd(), "out/f");
  MakeFile(dir_.fd(), "file");
  EXPECT_EQ(ReasonOf(Make("out").status()), "OUTPUT_NOT_EMPTY");
  EXPECT_EQ(ReasonOf(Make("file").status()), "OUTPUT_NOT_EMPTY");
  EXPECT_THAT(Names(), ElementsAre("file", "out"));
}

// Another process may take the place between the check and the rename.
TEST_F(StagingTest, DoesNotReplaceWhatAppearedAfterTheCheck) {
  absl::StatusOr<Staging> staging = Make();
  ASSERT_TRUE(staging.ok());
  MakeDir("out");
  MakeFile(dir_.fd(), "out/f");
  EXPECT_EQ(ReasonOf(staging->Publish()), "OUTPUT_NOT_EMPTY");
  EXPECT_THAT(Names("out"), ElementsAre("f"));
}

TEST_F(StagingTest, PublishesOnAFileSystemWithoutRenameFlags) {
  fs_.Fail({.op = FsOp::kRename, .error = EINVAL});
  absl::StatusOr<Staging> staging = Make();
  ASSERT_TRUE(staging.ok());
  EXPECT_TRUE(staging->Publish().ok());
  EXPECT_THAT(Names("out"), IsEmpty());
}

TEST_F(StagingTest, RemovesLeftoversOfDeadProcessesOnly) {
  absl::StatusOr<Staging> living = Make("living");
  ASSERT_TRUE(living.ok());
  MakeFile(living->dir(), "f");
  EXPECT_EQ(ReasonOf(Make("living").status()), "LOCKED");
  // Leftovers of processes that died: of another name, and of this one.
  for (const char* name : {".ckptd-convert.dead", ".ckptd-convert.out"}) {
    MakeDir(name);
    MakeFile(dir_.fd(), std::string(name) + "/f");
  }
  MakeFile(dir_.fd(), ".ckptd-convert-lock.dead");
  {
    absl::StatusOr<Staging> staging = Make();
    ASSERT_TRUE(staging.ok()) << staging.status();
    EXPECT_THAT(removed_, ElementsAre(".ckptd-convert.out", ".ckptd-convert.dead"));
    ASSERT_TRUE(staging->Publish().ok());
  }
  EXPECT_THAT(Names("out"), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre(".ckptd-convert-lock.living", ".ckptd-convert.living", "out"));
  ASSERT_TRUE(living->Publish().ok());
  EXPECT_THAT(Names("living"), ElementsAre("f"));
}

// The holder removes the lock's file after this process opened it and before it locks it.
TEST_F(StagingTest, LocksAgainWhenTheLocksFileIsGone) {
  bool once = true;
  fs_.SetHook([&](const FsCall& call) {
    if (call.op == FsOp::kLock && std::exchange(once, false))
      posix_->Remove(dir_.fd(), ".ckptd-convert-lock.out", FileType::kRegular).IgnoreError();
  });
  absl::StatusOr<Staging> staging = Make();
  ASSERT_TRUE(staging.ok()) << staging.status();
  fs_.SetHook(nullptr);  // The hook refers to a variable of this test.
  EXPECT_EQ(fs_.Count(FsOp::kLock), 2);
  EXPECT_EQ(ReasonOf(Make().status()), "LOCKED");
}

TEST_F(StagingTest, FailedSyncAfterTheRenameIsIndeterminate) {
  {
    absl::StatusOr<Staging> staging = Make();
    ASSERT_TRUE(staging.ok());
    MakeFile(staging->dir(), "f");
    fs_.Fail({.op = FsOp::kSync, .error = EIO});
    EXPECT_EQ(ReasonOf(staging->Publish()), "INDETERMINATE");
  }
  EXPECT_THAT(Names("out"), ElementsAre("f"));
}

TEST_F(StagingTest, PublishesAFileToItsPlaceAndLeavesNothingBeside) {
  for (const int error : {0, EINVAL}) {  // EINVAL: a file system without rename flags.
    const std::string name = error == 0 ? "a.pt" : "b.pt";
    absl::StatusOr<Staging> staging = Make(name);
    ASSERT_TRUE(staging.ok()) << staging.status();
    MakeFile(staging->dir(), name);
    if (error != 0) fs_.Fail({.op = FsOp::kRename, .error = error});
    const absl::Status published = staging->PublishFile();
    ASSERT_TRUE(published.ok()) << published;
    EXPECT_EQ(fs_.Stat(dir_.fd(), name)->type, FileType::kRegular);
  }
  EXPECT_THAT(Names(), ElementsAre("a.pt", "b.pt"));
}

TEST_F(StagingTest, FileDoesNotReplaceWhatAppearedAfterTheCheck) {
  for (const bool directory : {false, true}) {
    const std::string name = directory ? "dir" : "file";
    ASSERT_TRUE(CheckFreeFile(fs_, dir_.fd(), name).ok());
    absl::StatusOr<Staging> staging = Make(name);
    ASSERT_TRUE(staging.ok()) << staging.status();
    MakeFile(staging->dir(), name);
    if (directory) {
      MakeDir(name);
    } else {
      ASSERT_TRUE(WriteNewFile(fs_, dir_.fd(), name, "mine").ok());
    }
    EXPECT_EQ(ReasonOf(staging->PublishFile()), "OUTPUT_NOT_EMPTY");
    EXPECT_EQ(ReasonOf(CheckFreeFile(fs_, dir_.fd(), name)), "OUTPUT_NOT_EMPTY");
  }
  EXPECT_EQ(*ReadSmallFile(fs_, dir_.fd(), "file", 10), "mine");
  EXPECT_THAT(Names(), ElementsAre("dir", "file"));
}

TEST_F(StagingTest, FailedSyncAfterTheRenameOfAFileIsIndeterminate) {
  {
    absl::StatusOr<Staging> staging = Make();
    ASSERT_TRUE(staging.ok());
    MakeFile(staging->dir(), "out");
    fs_.Fail({.op = FsOp::kSync, .error = EIO});
    EXPECT_EQ(ReasonOf(staging->PublishFile()), "INDETERMINATE");
  }
  EXPECT_THAT(Names(), ElementsAre("out"));
}

}  // namespace
}  // namespace ckptd
