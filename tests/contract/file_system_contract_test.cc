// The contract of FileSystem, run against the real one, the real one behind a FaultyFileSystem without
// faults, and a CrashDisk.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/fs/file_system.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FileSystemContract : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<FileSystem>> posix = MakePosixFileSystem();
    ASSERT_TRUE(posix.ok()) << posix.status();
    posix_ = *std::move(posix);
    faulty_ = std::make_unique<FaultyFileSystem>(posix_.get());
    fs_ = OnCrashDisk() ? &crash_disk_ : IsNamed("faulty") ? faulty_.get() : posix_.get();
  }

  bool IsNamed(const char* name) const { return std::string(GetParam()) == name; }
  bool OnCrashDisk() const { return IsNamed("crash_disk"); }
  Handle dir() const { return OnCrashDisk() ? crash_disk_.root() : dir_.fd(); }
  std::string At(const std::string& path) const { return dir_.path() + "/" + path; }

  ScopedHandle Open(const std::string& path, OpenMode mode) {
    absl::StatusOr<ScopedHandle> opened = OpenScoped(*fs_, dir(), path, mode);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : ScopedHandle();
  }
  // What other programs do in the directory, bypassing the file system under test.
  void Put(const std::string& path, const std::string& content) {
    if (OnCrashDisk()) return crash_disk_.Plant(path, content);
    std::ofstream(At(path)) << content;
  }
  void PutLink(const std::string& to, const std::string& path) {
    if (OnCrashDisk()) return crash_disk_.Plant(path, FileType::kSymlink);
    ASSERT_EQ(::symlink(to.c_str(), At(path).c_str()), 0);
  }
  void PutFifo(const std::string& path) {
    if (OnCrashDisk()) return crash_disk_.Plant(path, FileType::kOther);
    ASSERT_EQ(::mkfifo(At(path).c_str(), 0600), 0);
  }
  std::string Get(const std::string& path) {
    if (OnCrashDisk()) return crash_disk_.Content(path).value_or("");
    std::ifstream file(At(path));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int OpenErrno(const std::string& path, OpenMode mode) {
    return ErrnoOf(OpenScoped(*fs_, dir(), path, mode).status());
  }
  std::vector<std::string> Names(Handle directory) {
    std::vector<std::string> names;
    const auto entries = fs_->List(directory);
    EXPECT_TRUE(entries.ok()) << entries.status();
    if (entries.ok()) {
      for (const DirEntry& entry : *entries) names.push_back(entry.name);
    }
    return names;
  }

  TempDir dir_;
  std::unique_ptr<FileSystem> posix_;
  std::unique_ptr<FaultyFileSystem> faulty_;
  CrashDisk crash_disk_;
  FileSystem* fs_ = nullptr;
};

TEST_P(FileSystemContract, ReadReturnsBytesThatWereWritten) {
  const ScopedHandle file = Open("file", OpenMode::kCreate);
  EXPECT_TRUE(WriteFully(*fs_, file.get(), 3, std::as_bytes(std::span("abc", 3))).ok());
  EXPECT_TRUE(fs_->Sync(file.get(), SyncMode::kData).ok());
  EXPECT_EQ(Get("file"), std::string("\0\0\0abc", 6));
  std::string read(3, '\0');
  EXPECT_TRUE(ReadFully(*fs_, file.get(), 3, std::as_writable_bytes(std::span(read))).ok());
  EXPECT_EQ(read, "abc");
}

TEST_P(FileSystemContract, ReadAtEndReturnsZeroBytes) {
  Put("file", "abc");
  const ScopedHandle file = Open("file", OpenMode::kRead);
  std::string read(10, '\0');
  EXPECT_EQ(fs_->ReadAt(file.get(), 1, std::as_writable_bytes(std::span(read))).value_or(99), 2u);
  EXPECT_EQ(fs_->ReadAt(file.get(), 3, std::as_writable_bytes(std::span(read))).value_or(99), 0u);
}

TEST_P(FileSystemContract, CreateFailsWhenNameIsTaken) {
  Put("file", "abc");
  EXPECT_EQ(OpenErrno("file", OpenMode::kCreate), EEXIST);
  EXPECT_EQ(OpenErrno("file", OpenMode::kCreateDirect), EEXIST);
  EXPECT_EQ(Get("file"), "abc");
}

TEST_P(FileSystemContract, OpenFailsWhenFileOrDirectoryIsMissing) {
  EXPECT_EQ(OpenErrno("file", OpenMode::kRead), ENOENT);
  EXPECT_EQ(OpenErrno("file", OpenMode::kReadDirect), ENOENT);
  EXPECT_EQ(OpenErrno("dir", OpenMode::kDirectory), ENOENT);
  EXPECT_EQ(OpenErrno("dir/file", OpenMode::kCreate), ENOENT);
}

TEST_P(FileSystemContract, OpenFailsWhenFileIsDirectoryOrDirectoryIsFile) {
  Put("file", "");
  ASSERT_TRUE(fs_->MakeDir(dir(), "dir").ok());
  EXPECT_EQ(OpenErrno("file", OpenMode::kDirectory), ENOTDIR);
  EXPECT_EQ(OpenErrno("dir", OpenMode::kRead), EISDIR);
  EXPECT_EQ(OpenErrno("dir", OpenMode::kLock), EISDIR);
}

TEST_P(FileSystemContract, RefusesPathThatLeavesTheDirectory) {
  ASSERT_TRUE(fs_->MakeDir(dir(), "dir").ok());
  const ScopedHandle below = Open("dir", OpenMode::kDirectory);
  Put("file", "abc");
  for (const std::string path : {"../file", "/etc/passwd", "..", "a/../../file", "/"}) {
    EXPECT_EQ(ErrnoOf(fs_->Open(below.get(), path, OpenMode::kRead).status()), EXDEV) << path;
    EXPECT_EQ(ErrnoOf(fs_->MakeDir(below.get(), path)), EXDEV) << path;
    EXPECT_EQ(ErrnoOf(fs_->Remove(below.get(), path, FileType::kRegular)), EXDEV) << path;
    EXPECT_EQ(ErrnoOf(fs_->Stat(below.get(), path).status()), EXDEV) << path;
    EXPECT_EQ(ErrnoOf(fs_->Rename(dir(), "file", below.get(), path, RenameMode::kReplace)), EXDEV) << path;
    EXPECT_EQ(ErrnoOf(fs_->Rename(below.get(), path, dir(), "x", RenameMode::kReplace)), EXDEV) << path;
  }
  EXPECT_EQ(Get("file"), "abc");
}

TEST_P(FileSystemContract, RefusesPathThatNamesNothing) {
  for (const std::string& path :
       {std::string(), std::string("a\0b", 3), std::string("a//b"), std::string("a/")}) {
    EXPECT_EQ(OpenErrno(path, OpenMode::kCreate), EINVAL) << path;
    EXPECT_EQ(ErrnoOf(fs_->MakeDir(dir(), path)), EINVAL) << path;
  }
  EXPECT_THAT(Names(dir()), IsEmpty());
}

TEST_P(FileSystemContract, NeverFollowsSymbolicLink) {
  const TempDir elsewhere;
  std::ofstream(elsewhere.path() + "/file") << "theirs";
  PutLink(elsewhere.path(), "link");
  PutLink(elsewhere.path() + "/file", "file");
  PutLink("missing", "dangling");
  Put("ours", "ours");

  EXPECT_EQ(OpenErrno("file", OpenMode::kRead), ELOOP);
  EXPECT_EQ(OpenErrno("file", OpenMode::kReadDirect), ELOOP);
  EXPECT_EQ(OpenErrno("file", OpenMode::kLock), ELOOP);
  EXPECT_EQ(OpenErrno("file", OpenMode::kCreate), EEXIST);
  EXPECT_EQ(OpenErrno("dangling", OpenMode::kCreate), EEXIST);
  EXPECT_EQ(OpenErrno("dangling", OpenMode::kLock), ELOOP);
  EXPECT_EQ(OpenErrno("link", OpenMode::kDirectory), ELOOP);
  EXPECT_EQ(OpenErrno("link/file", OpenMode::kRead), ELOOP);
  EXPECT_EQ(OpenErrno("link/new", OpenMode::kCreate), ELOOP);
  // When a component above the last one is not a directory, the kernel returns ENOTDIR or ELOOP.
  const auto refused = [](const absl::Status& status) {
    return ErrnoOf(status) == ELOOP || ErrnoOf(status) == ENOTDIR;
  };
  EXPECT_TRUE(refused(fs_->MakeDir(dir(), "link/new")));
  EXPECT_TRUE(refused(fs_->Remove(dir(), "link/file", FileType::kRegular)));
  EXPECT_TRUE(refused(fs_->Stat(dir(), "link/file").status()));
  EXPECT_TRUE(refused(fs_->Rename(dir(), "ours", dir(), "link/new", RenameMode::kReplace)));
  EXPECT_TRUE(refused(fs_->Rename(dir(), "link/file", dir(), "new", RenameMode::kReplace)));
  EXPECT_TRUE(std::ifstream(elsewhere.path() + "/file").good());
  EXPECT_FALSE(std::ifstream(elsewhere.path() + "/new").good());
  const auto stat = fs_->Stat(dir(), "file");
  ASSERT_TRUE(stat.ok()) << stat.status();
  EXPECT_EQ(stat->type, FileType::kSymlink);
}

TEST_P(FileSystemContract, OpenFailsAtOnceWhenFifoIsInPlaceOfFile) {
  PutFifo("fifo");
  EXPECT_EQ(ReasonOf(OpenScoped(*fs_, dir(), "fifo", OpenMode::kRead).status()), "NOT_A_FILE");
  EXPECT_EQ(ReasonOf(OpenScoped(*fs_, dir(), "fifo", OpenMode::kLock).status()), "NOT_A_FILE");
}

TEST_P(FileSystemContract, ListReturnsEntriesSortedByName) {
  Put("b", "");
  ASSERT_TRUE(fs_->MakeDir(dir(), "c").ok());
  PutLink("b", "a");
  PutFifo("d");
  const auto entries = fs_->List(dir());
  ASSERT_TRUE(entries.ok()) << entries.status();
  std::vector<std::pair<std::string, FileType>> found;
  for (const DirEntry& entry : *entries) found.emplace_back(entry.name, entry.type);
  using Entry = std::pair<std::string, FileType>;
  EXPECT_THAT(found, ElementsAre(Entry("a", FileType::kSymlink), Entry("b", FileType::kRegular),
                                 Entry("c", FileType::kDirectory), Entry("d", FileType::kOther)));
  EXPECT_EQ(Names(dir()).size(), 4u) << "a second listing starts from the beginning";
}

TEST_P(FileSystemContract, StatDescribesPathAndOpenFile) {
  Put("file", "abc");
  const ScopedHandle file = Open("file", OpenMode::kRead);
  const auto by_path = fs_->Stat(dir(), "file");
  const auto by_handle = fs_->Stat(file.get(), "");
  ASSERT_TRUE(by_path.ok() && by_handle.ok());
  EXPECT_EQ(by_path->type, FileType::kRegular);
  EXPECT_EQ(by_path->size, 3);
  EXPECT_EQ(by_path->uid, ::geteuid());
  EXPECT_EQ(by_path->inode, by_handle->inode);
  EXPECT_EQ(by_path->device, by_handle->device);
  const auto directory = fs_->Stat(dir(), "");
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(directory->type, FileType::kDirectory);
}

TEST_P(FileSystemContract, MakesAndRemovesDirectories) {
  EXPECT_TRUE(fs_->MakeDir(dir(), "a").ok());
  EXPECT_EQ(ErrnoOf(fs_->MakeDir(dir(), "a")), EEXIST);
  EXPECT_TRUE(fs_->MakeDir(dir(), "a/b").ok());
  EXPECT_EQ(ErrnoOf(fs_->Remove(dir(), "a", FileType::kDirectory)), ENOTEMPTY);
  EXPECT_EQ(ErrnoOf(fs_->Remove(dir(), "a/b", FileType::kRegular)), EISDIR);
  EXPECT_TRUE(fs_->Remove(dir(), "a/b", FileType::kDirectory).ok());
  EXPECT_TRUE(fs_->Remove(dir(), "a", FileType::kDirectory).ok());
  EXPECT_EQ(ErrnoOf(fs_->Remove(dir(), "a", FileType::kDirectory)), ENOENT);
}

TEST_P(FileSystemContract, RenameReplacesKeepsOrExchangesAsAsked) {
  Put("a", "a");
  Put("b", "b");
  EXPECT_EQ(ErrnoOf(fs_->Rename(dir(), "a", dir(), "b", RenameMode::kNoReplace)), EEXIST);
  EXPECT_TRUE(fs_->Rename(dir(), "a", dir(), "b", RenameMode::kExchange).ok());
  EXPECT_EQ(Get("a") + Get("b"), "ba");
  EXPECT_EQ(ErrnoOf(fs_->Rename(dir(), "a", dir(), "c", RenameMode::kExchange)), ENOENT);
  EXPECT_TRUE(fs_->Rename(dir(), "a", dir(), "b", RenameMode::kReplace).ok());
  EXPECT_EQ(Get("b"), "b");
  EXPECT_THAT(Names(dir()), ElementsAre("b"));
  ASSERT_TRUE(fs_->MakeDir(dir(), "dir").ok());
  EXPECT_TRUE(fs_->Rename(dir(), "b", dir(), "dir/c", RenameMode::kNoReplace).ok());
  EXPECT_EQ(Get("dir/c"), "b");
}

TEST_P(FileSystemContract, AllocateAndTruncateSetFileSize) {
  const ScopedHandle file = Open("file", OpenMode::kCreate);
  ASSERT_TRUE(fs_->Allocate(file.get(), 1 << 20).ok());
  EXPECT_EQ(fs_->Stat(file.get(), "")->size, 1 << 20);
  ASSERT_TRUE(fs_->Truncate(file.get(), 4097).ok());
  EXPECT_EQ(fs_->Stat(file.get(), "")->size, 4097);
}

TEST_P(FileSystemContract, DirectIoRequiresWholeBlocks) {
  const absl::StatusOr<ScopedHandle> file = OpenScoped(*fs_, dir(), "file", OpenMode::kCreateDirect);
  if (ErrnoOf(file.status()) == EINVAL) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  ASSERT_TRUE(file.ok()) << file.status();
  constexpr size_t kBlock = 4096;
  const std::unique_ptr<std::byte, decltype(&std::free)> block(
      static_cast<std::byte*>(std::aligned_alloc(kBlock, 2 * kBlock)), &std::free);
  std::fill_n(block.get(), 2 * kBlock, std::byte{'a'});
  EXPECT_EQ(fs_->WriteAt(file->get(), 0, {block.get(), 2 * kBlock}).value_or(0), 2 * kBlock);
  EXPECT_EQ(ErrnoOf(fs_->WriteAt(file->get(), 100, {block.get(), kBlock}).status()), EINVAL);
  EXPECT_EQ(ErrnoOf(fs_->WriteAt(file->get(), 0, {block.get(), 100}).status()), EINVAL);
  EXPECT_EQ(ErrnoOf(fs_->WriteAt(file->get(), 0, {block.get() + 1, kBlock}).status()), EINVAL);
  ASSERT_TRUE(fs_->Truncate(file->get(), 5000).ok());
  EXPECT_EQ(fs_->ReadAt(file->get(), kBlock, {block.get(), kBlock}).value_or(0), 5000 - kBlock);
  EXPECT_EQ(ErrnoOf(fs_->ReadAt(file->get(), 1, {block.get(), kBlock}).status()), EINVAL);
  EXPECT_EQ(Get("file"), std::string(5000, 'a'));
}

TEST_P(FileSystemContract, RenameNoReplaceKeepsExistingTarget) {
  Put("file", "file");
  ASSERT_TRUE(fs_->MakeDir(dir(), "dir").ok());
  ASSERT_TRUE(fs_->MakeDir(dir(), "full").ok());
  ASSERT_TRUE(fs_->MakeDir(dir(), "full/below").ok());
  const auto rename = [&](const char* from, const char* to, RenameMode mode) {
    return ErrnoOf(fs_->Rename(dir(), from, dir(), to, mode));
  };
  EXPECT_EQ(rename("dir", "full", RenameMode::kReplace), ENOTEMPTY);
  EXPECT_EQ(rename("dir", "file", RenameMode::kReplace), ENOTDIR);
  EXPECT_EQ(rename("file", "dir", RenameMode::kReplace), EISDIR);
  EXPECT_EQ(rename("full", "full/below/x", RenameMode::kReplace), EINVAL);
  EXPECT_EQ(rename("missing", "x", RenameMode::kReplace), ENOENT);
  EXPECT_EQ(rename("full", "dir", RenameMode::kReplace), 0) << "an empty directory";
  EXPECT_EQ(rename("dir", "file", RenameMode::kExchange), 0);
  EXPECT_EQ(Get("dir"), "file");
  EXPECT_TRUE(fs_->Stat(dir(), "file/below").ok());
}

TEST_P(FileSystemContract, OpenFileStaysReadableAfterItsNameIsRemoved) {
  const ScopedHandle file = Open("file", OpenMode::kCreate);
  ASSERT_TRUE(fs_->Remove(dir(), "file", FileType::kRegular).ok());
  EXPECT_TRUE(WriteFully(*fs_, file.get(), 0, std::as_bytes(std::span("abc", 3))).ok());
  EXPECT_EQ(fs_->Stat(file.get(), "")->size, 3);
  EXPECT_TRUE(fs_->Sync(file.get(), SyncMode::kData).ok());
  ASSERT_TRUE(fs_->MakeDir(dir(), "dir").ok());
  const ScopedHandle below = Open("dir", OpenMode::kDirectory);
  ASSERT_TRUE(fs_->Remove(dir(), "dir", FileType::kDirectory).ok());
  EXPECT_EQ(ErrnoOf(fs_->Open(below.get(), "new", OpenMode::kCreate).status()), ENOENT);
}

TEST_P(FileSystemContract, SyncsFilesAndDirectories) {
  const ScopedHandle file = Open("file", OpenMode::kCreate);
  EXPECT_TRUE(fs_->Sync(file.get(), SyncMode::kBegin).ok());
  EXPECT_TRUE(fs_->Sync(file.get(), SyncMode::kData).ok());
  EXPECT_TRUE(fs_->Sync(file.get(), SyncMode::kAll).ok());
  EXPECT_TRUE(fs_->Sync(dir(), SyncMode::kAll).ok());
}

TEST_P(FileSystemContract, LockIsExclusiveUntilItsHandleIsClosed) {
  ScopedHandle first = Open("lock", OpenMode::kLock);
  const ScopedHandle second = Open("lock", OpenMode::kLock);
  EXPECT_TRUE(fs_->Lock(first.get()).ok());
  const absl::Status refused = fs_->Lock(second.get());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), "LOCKED");
  first.reset();
  EXPECT_TRUE(fs_->Lock(second.get()).ok());
}

TEST_P(FileSystemContract, ReportsFreeAndTotalSpace) {
  const auto space = fs_->Space(dir());
  ASSERT_TRUE(space.ok()) << space.status();
  EXPECT_GT(space->free_bytes, 0);
  EXPECT_GE(space->total_bytes, space->free_bytes);
  EXPECT_FALSE(space->type.empty());
}

TEST_P(FileSystemContract, CallsOnClosedHandleFail) {
  EXPECT_EQ(ErrnoOf(fs_->Close(1'000'000)), EBADF);
  EXPECT_EQ(ErrnoOf(fs_->Sync(1'000'000, SyncMode::kAll)), EBADF);
  EXPECT_EQ(ErrnoOf(fs_->Sync(1'000'000, SyncMode::kBegin)), EBADF);
  EXPECT_EQ(ErrnoOf(fs_->List(1'000'000).status()), EBADF);
}

std::string NameOf(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Implementations, FileSystemContract,
                         ::testing::Values("posix", "faulty", "crash_disk"), NameOf);

}  // namespace
}  // namespace ckptd
