// Tests the helpers over a FileSystem, and what they leave if any of their steps fails.
#include "storage/fs/file_system.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

class FileSystemHelpersTest : public ::testing::Test {
 protected:
  Handle dir() const { return dir_.fd(); }
  std::string Get(const std::string& path) {
    std::ifstream file(dir_.path() + "/" + path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const auto entries = posix_->List(dir());
    EXPECT_TRUE(entries.ok()) << entries.status();
    if (entries.ok()) {
      for (const DirEntry& entry : *entries) names.push_back(entry.name);
    }
    return names;
  }
  std::vector<std::string> Calls() {
    std::vector<std::string> calls;
    for (const FsCall& call : faulty_.calls()) calls.push_back(call.ToString());
    return calls;
  }

  TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = MakePosixFileSystem().value();
  FaultyFileSystem faulty_{posix_.get()};
};

TEST_F(FileSystemHelpersTest, ReplacesAFileByTempSyncRenameSync) {
  ASSERT_TRUE(ReplaceFileDurably(faulty_, dir(), "file", "new").ok());
  EXPECT_EQ(Get("file"), "new");
  EXPECT_THAT(Calls(), ElementsAre("Remove .file.tmp", "Open .file.tmp", "WriteAt .file.tmp",
                                   "Sync .file.tmp", "Close .file.tmp", "Rename .file.tmp file", "Sync"));
}

TEST_F(FileSystemHelpersTest, KeepsTheOldFileWhenAStepBeforeTheRenameFails) {
  ASSERT_TRUE(ReplaceFileDurably(faulty_, dir(), "file", "old").ok());
  for (const FsOp op : {FsOp::kRemove, FsOp::kOpen, FsOp::kWriteAt, FsOp::kSync, FsOp::kRename}) {
    faulty_.Fail({.op = op, .error = EIO});
    EXPECT_EQ(ReasonOf(ReplaceFileDurably(faulty_, dir(), "file", "new")), "IO_ERROR") << FsOpName(op);
    EXPECT_EQ(Get("file"), "old") << FsOpName(op);
    EXPECT_THAT(Names(), ElementsAre("file")) << FsOpName(op);
    faulty_.ClearFaults();
  }
}

TEST_F(FileSystemHelpersTest, ReportsAFailedSyncOfTheDirectory) {
  faulty_.Fail({.op = FsOp::kSync, .nth = 2, .error = EIO});
  EXPECT_EQ(ReasonOf(ReplaceFileDurably(faulty_, dir(), "file", "new")), "IO_ERROR");
  EXPECT_EQ(faulty_.Count(FsOp::kSync), 2) << "no sync is repeated";
}

TEST_F(FileSystemHelpersTest, ReplacesOverATempFileOfAKilledProcess) {
  std::ofstream(dir_.path() + "/.file.tmp") << "half";
  ASSERT_TRUE(ReplaceFileDurably(faulty_, dir(), "file", "new").ok());
  EXPECT_EQ(Get("file"), "new");
  EXPECT_THAT(Names(), ElementsAre("file"));
}

TEST_F(FileSystemHelpersTest, SyncsTheParentOfEachNewDirectory) {
  ASSERT_TRUE(MakeDirsDurably(faulty_, dir(), "a/b").ok());
  EXPECT_THAT(Calls(), ElementsAre("MakeDir a", "Sync", "Open a", "MakeDir a/b", "Sync a", "Open a/b",
                                   "Close a", "Close a/b"));
  EXPECT_EQ(faulty_.open_handles(), 0);
  ASSERT_TRUE(MakeDirsDurably(faulty_, dir(), "a/b/c").ok());
  EXPECT_EQ(faulty_.Count(FsOp::kSync), 3) << "one more, for c alone";
}

// As two clients of a GlusterFS volume see it that make one directory at once.
TEST_F(FileSystemHelpersTest, MakesADirectoryAgainThatExistsAndCannotBeFound) {
  faulty_.Fail({.op = FsOp::kMakeDir, .path = "a", .error = EEXIST});
  const auto made = MakeDirOrStat(faulty_, dir(), "a");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_FALSE(made->has_value()) << "the second call has made it";
  EXPECT_THAT(Names(), ElementsAre("a"));

  faulty_.ClearFaults();
  const auto again = MakeDirOrStat(faulty_, dir(), "a");
  ASSERT_TRUE(again.ok() && again->has_value()) << again.status();
  EXPECT_EQ((*again)->type, FileType::kDirectory);

  faulty_.Fail({.op = FsOp::kMakeDir, .path = "b", .nth = FsFault::kEvery, .error = EEXIST});
  EXPECT_EQ(ErrnoOf(MakeDirOrStat(faulty_, dir(), "b").status()), EEXIST) << "not for ever";
}

TEST_F(FileSystemHelpersTest, FailsWhenAFileIsInTheWayOfADirectory) {
  std::ofstream(dir_.path() + "/a") << "";
  EXPECT_EQ(ErrnoOf(MakeDirsDurably(faulty_, dir(), "a/b")), ENOTDIR);
  EXPECT_EQ(faulty_.open_handles(), 0);
}

TEST_F(FileSystemHelpersTest, FailsToMakeADirectoryWhenItsSyncFails) {
  faulty_.Fail({.op = FsOp::kSync, .path = "a", .error = EIO});
  EXPECT_EQ(ReasonOf(MakeDirsDurably(faulty_, dir(), "a/b")), "IO_ERROR");
}

TEST_F(FileSystemHelpersTest, ReturnsTheKernelsErrorForADirectoryThatCannotBeMade) {
  faulty_.Fail({.op = FsOp::kMakeDir, .path = "a/b", .error = ENOSPC});
  EXPECT_EQ(ReasonOf(MakeDirsDurably(faulty_, dir(), "a/b")), "NO_SPACE");
}

// Writes at most `most` bytes in one call.
class ShortWrites : public FaultyFileSystem {
 public:
  ShortWrites(FileSystem* base, size_t most) : FaultyFileSystem(base), most_(most) {}
  absl::StatusOr<size_t> WriteAt(Handle file, int64_t offset, std::span<const std::byte> from) override {
    if (most_ == 0) return size_t{0};
    return FaultyFileSystem::WriteAt(file, offset, from.first(std::min(most_, from.size())));
  }

 private:
  const size_t most_;
};

TEST_F(FileSystemHelpersTest, ContinuesAShortWrite) {
  ShortWrites three(posix_.get(), 3);
  ASSERT_TRUE(ReplaceFileDurably(three, dir(), "file", "12345678").ok());
  EXPECT_EQ(Get("file"), "12345678");
  EXPECT_EQ(three.Count(FsOp::kWriteAt), 3);
}

TEST_F(FileSystemHelpersTest, FailsOnAWriteOfZeroBytes) {
  ShortWrites nothing(posix_.get(), 0);
  EXPECT_EQ(ReasonOf(ReplaceFileDurably(nothing, dir(), "file", "new")), "IO_ERROR");
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_F(FileSystemHelpersTest, ReadsASmallFile) {
  ASSERT_TRUE(ReplaceFileDurably(faulty_, dir(), "file", "12345").ok());
  EXPECT_EQ(ReadSmallFile(faulty_, dir(), "file", 5).value_or("-"), "12345");
  EXPECT_EQ(ReadSmallFile(faulty_, dir(), "file", 4).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoOf(ReadSmallFile(faulty_, dir(), "missing", 5).status()), ENOENT);
}

TEST_F(FileSystemHelpersTest, ShortFileIsDataLoss) {
  ASSERT_TRUE(ReplaceFileDurably(faulty_, dir(), "file", "12345").ok());
  const auto file = OpenScoped(faulty_, dir(), "file", OpenMode::kRead);
  ASSERT_TRUE(file.ok());
  std::string bytes(6, '\0');
  const absl::Status read = ReadFully(faulty_, file->get(), 0, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(read), "SHORT_FILE");
}

TEST_F(FileSystemHelpersTest, RemovesATreeOfAnyDepthWithFewDescriptors) {
  constexpr int kDepth = 20'000;
  const TempDir memory("/dev/shm");
  ASSERT_TRUE(MakeNestedDirectories(memory.fd(), kDepth));
  int most_open = 0;
  faulty_.SetHook([&](const FsCall&) { most_open = std::max(most_open, faulty_.open_handles()); });
  const absl::Status removed = RemoveTree(faulty_, memory.fd(), "0");
  EXPECT_TRUE(removed.ok()) << removed;
  EXPECT_EQ(ErrnoOf(posix_->Stat(memory.fd(), "0").status()), ENOENT);
  EXPECT_LE(most_open, static_cast<int>(kMaxOpenLevels));
  EXPECT_EQ(faulty_.open_handles(), 0);
}

TEST_F(FileSystemHelpersTest, RemovesATreeStepByStepWithinABudget) {
  for (const char* name : {"tree", "tree/a", "tree/b", "tree/b/c"}) {
    ASSERT_EQ(::mkdirat(dir(), name, 0755), 0);
  }
  std::ofstream(dir_.path() + "/tree/b/file") << "12345";
  std::ofstream(dir_.path() + "/tree/b/large") << std::string(100, 'x');
  int64_t removed_bytes = 0;
  int steps = 0;
  for (bool gone = false; !gone; ++steps) {
    ASSERT_LT(steps, 10);
    RemovalBudget budget{.names = 2, .bytes = 50};
    const absl::StatusOr<bool> step = RemoveTreeWithin(faulty_, dir(), "tree", budget);
    ASSERT_TRUE(step.ok()) << step.status();
    removed_bytes += budget.removed_bytes;
    gone = *step;
  }
  EXPECT_EQ(steps, 3) << "a and c; file and large, which exceeds the budget; b and tree";
  EXPECT_EQ(removed_bytes, 105);
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_F(FileSystemHelpersTest, ReportsADirectoryThatCannotBeRemoved) {
  ASSERT_EQ(::mkdirat(dir(), "tree", 0755), 0);
  ASSERT_EQ(::mkdirat(dir(), "tree/a", 0755), 0);
  faulty_.Fail({.op = FsOp::kRemove, .path = "tree/a", .error = EACCES});
  EXPECT_EQ(ErrnoOf(RemoveTree(faulty_, dir(), "tree")), EACCES);
  EXPECT_EQ(faulty_.open_handles(), 0);
}

// Some network file systems refuse every mode but that of rename(2).
TEST_F(FileSystemHelpersTest, RemovesADeepTreeWhereOnlyPlainRenamesWork) {
  std::string path = "tree";
  for (size_t i = 0; i < kMaxOpenLevels + 5; ++i) path += "/d";
  ASSERT_TRUE(MakeDirsDurably(*posix_, dir(), path).ok());
  faulty_.Fail({.op = FsOp::kRename, .error = EINVAL});
  const absl::Status removed = RemoveTree(faulty_, dir(), "tree");
  EXPECT_TRUE(removed.ok()) << removed;
  EXPECT_EQ(faulty_.Count(FsOp::kRename), 2);
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_F(FileSystemHelpersTest, DeepTreeThatCannotBeMovedIsAnError) {
  std::string path = "tree";
  for (size_t i = 0; i < kMaxOpenLevels + 5; ++i) path += "/d";
  ASSERT_TRUE(MakeDirsDurably(*posix_, dir(), path).ok());
  faulty_.Fail({.op = FsOp::kRename, .error = EIO});
  EXPECT_EQ(ErrnoOf(RemoveTree(faulty_, dir(), "tree")), EIO);
  EXPECT_EQ(faulty_.Count(FsOp::kRename), 1);
}

}  // namespace
}  // namespace ckptd
