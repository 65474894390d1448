// Tests what is special to the kernel's file systems. The rest is in
// tests/contract/file_system_contract_test.cc.
#include "storage/fs/posix_file_system.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/file_system.h"
#include "tests/testing/seccomp.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

constexpr uid_t kUser = 54321;
constexpr gid_t kGroup = 54322;
constexpr gid_t kProject = 54323;

std::unique_ptr<FileSystem> Make(std::optional<FileUser> user = std::nullopt) {
  auto made = MakePosixFileSystem(std::move(user));
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

// Runs `body` in a process of another user. True if it returned true.
template <typename Body>
bool InAProcessAs(uid_t uid, Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool became = ::setgroups(0, nullptr) == 0 && ::setgid(uid) == 0 && ::setuid(uid) == 0;
    ::_exit(became && body() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Needs root: only root may act as others.
class ActingAsAUserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    fs_ = Make(FileUser{kUser, kGroup, {kProject}});
    ASSERT_NE(fs_, nullptr);
  }
  // Sets the directory's owner, group and mode.
  void Directory(uid_t uid, gid_t gid, mode_t mode) {
    ASSERT_EQ(::chown(dir_.path().c_str(), uid, gid), 0);
    ASSERT_EQ(::chmod(dir_.path().c_str(), mode), 0);
  }
  void ExpectThreadIsItselfAgain() {
    EXPECT_EQ(::setfsuid(static_cast<uid_t>(-1)), 0);
    EXPECT_EQ(::setfsgid(static_cast<gid_t>(-1)), static_cast<int>(::getegid()));
    EXPECT_EQ(Groups(), groups_);
  }
  static std::vector<gid_t> Groups() {
    std::vector<gid_t> groups(static_cast<size_t>(::getgroups(0, nullptr)));
    EXPECT_GE(::getgroups(static_cast<int>(groups.size()), groups.data()), 0);
    return groups;
  }

  TempDir dir_;
  const std::vector<gid_t> groups_ = Groups();
  std::unique_ptr<FileSystem> fs_;
};

TEST_F(ActingAsAUserTest, MakesFilesAndDirectoriesAsTheUser) {
  Directory(kUser, kGroup, 0700);
  const auto file = OpenScoped(*fs_, dir_.fd(), "file", OpenMode::kCreate);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(fs_->MakeDir(dir_.fd(), "dir").ok());
  for (const char* name : {"file", "dir"}) {
    struct stat stat;
    ASSERT_EQ(::stat((dir_.path() + "/" + name).c_str(), &stat), 0);
    EXPECT_EQ(stat.st_uid, kUser) << name;
    EXPECT_EQ(stat.st_gid, kGroup) << name;
  }
  ExpectThreadIsItselfAgain();
}

TEST_F(ActingAsAUserTest, DropsRootsRights) {
  Directory(0, 0, 0755);
  EXPECT_EQ(ErrnoOf(fs_->Open(dir_.fd(), "file", OpenMode::kCreate).status()), EACCES);
  EXPECT_EQ(ErrnoOf(fs_->MakeDir(dir_.fd(), "dir")), EACCES);
  ASSERT_TRUE(Make()->MakeDir(dir_.fd(), "roots").ok());
  EXPECT_EQ(ErrnoOf(fs_->Remove(dir_.fd(), "roots", FileType::kDirectory)), EACCES);
  EXPECT_EQ(ErrnoOf(fs_->Rename(dir_.fd(), "roots", dir_.fd(), "x", RenameMode::kReplace)), EACCES);
  Directory(0, 0, 0700);
  EXPECT_EQ(ErrnoOf(fs_->List(dir_.fd()).status()), EACCES);
  EXPECT_EQ(ErrnoOf(fs_->Stat(dir_.fd(), "roots").status()), EACCES);
  ExpectThreadIsItselfAgain();
  EXPECT_TRUE(Make()->Remove(dir_.fd(), "roots", FileType::kDirectory).ok());
}

TEST_F(ActingAsAUserTest, UsesSupplementaryGroups) {
  Directory(0, kProject, 0770);
  EXPECT_TRUE(OpenScoped(*fs_, dir_.fd(), "file", OpenMode::kCreate).ok());
  EXPECT_EQ(ErrnoOf(Make(FileUser{kUser, kGroup, {}})->MakeDir(dir_.fd(), "dir")), EACCES);
  ExpectThreadIsItselfAgain();
}

TEST_F(ActingAsAUserTest, OpensARootDirectoryWithTheUsersRights) {
  const TempDir reachable("/tmp");
  ASSERT_EQ(::chown(reachable.path().c_str(), kUser, kGroup), 0);
  const FileUser user{kUser, kGroup, {}};
  auto opened = OpenRootDirectory(reachable.path(), user);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(fs_->Close(*opened).ok());
  ASSERT_EQ(::chown(reachable.path().c_str(), 0, 0), 0);
  EXPECT_EQ(ErrnoOf(OpenRootDirectory(reachable.path(), user).status()), EACCES);
  ExpectThreadIsItselfAgain();
}

TEST_F(ActingAsAUserTest, OnlyRootCanActAsAnotherUser) {
  EXPECT_TRUE(InAProcessAs(kUser, [] {
    return ReasonOf(MakePosixFileSystem(FileUser{kUser + 1, kGroup, {}}).status()) == "USER_MISMATCH";
  }));
  EXPECT_TRUE(InAProcessAs(kUser, [] { return MakePosixFileSystem(FileUser{kUser, kGroup, {}}).ok(); }));
}

// By shared blocks or as a hard link, as the file system of the test can.
TEST(PosixFileSystemTest, SharesAnOpenFileUnderAnotherName) {
  const TempDir dir;
  const auto fs = Make();
  ASSERT_TRUE(WriteNewFile(*fs, dir.fd(), "first", "bytes").ok());
  ASSERT_TRUE(fs->MakeDir(dir.fd(), "below").ok());
  const ScopedHandle file = *OpenScoped(*fs, dir.fd(), "first", OpenMode::kRead);
  ASSERT_TRUE(fs->Rename(dir.fd(), "first", dir.fd(), "moved", RenameMode::kReplace).ok());
  const absl::Status shared = fs->Share(file.get(), dir.fd(), "below/second");
  ASSERT_TRUE(shared.ok()) << shared;
  EXPECT_EQ(*ReadSmallFile(*fs, dir.fd(), "below/second", 100), "bytes");
  EXPECT_EQ(ErrnoOf(fs->Share(file.get(), dir.fd(), "below/second")), EEXIST);
  ASSERT_TRUE(fs->Remove(dir.fd(), "moved", FileType::kRegular).ok());
  EXPECT_EQ(*ReadSmallFile(*fs, dir.fd(), "below/second", 100), "bytes");
}

TEST(PosixFileSystemTest, LeavesNothingWhereAFileCannotBeShared) {
  const TempDir dir, other("/dev/shm");
  const auto fs = Make();
  ASSERT_TRUE(WriteNewFile(*fs, other.fd(), "first", "bytes").ok());
  const ScopedHandle file = *OpenScoped(*fs, other.fd(), "first", OpenMode::kRead);
  EXPECT_EQ(ErrnoOf(fs->Share(file.get(), dir.fd(), "second")), EXDEV);
  EXPECT_EQ(ErrnoOf(fs->Stat(dir.fd(), "second").status()), ENOENT);
  EXPECT_EQ(ErrnoOf(fs->Share(file.get(), dir.fd(), "../second")), EXDEV);
}

TEST(PosixFileSystemTest, OpensOnlyAbsoluteExistingRootDirectories) {
  EXPECT_EQ(ReasonOf(OpenRootDirectory("", std::nullopt).status()), "INVALID_PATH");
  EXPECT_EQ(ReasonOf(OpenRootDirectory("relative", std::nullopt).status()), "INVALID_PATH");
  EXPECT_EQ(ReasonOf(OpenRootDirectory(std::string("/tmp\0x", 6), std::nullopt).status()), "INVALID_PATH");
  const TempDir dir;
  EXPECT_EQ(ErrnoOf(OpenRootDirectory(dir.path() + "/missing", std::nullopt).status()), ENOENT);
}

// Links above the root are the user's own choice: /data may well be one.
TEST(PosixFileSystemTest, FollowsLinksOnTheWayToARoot) {
  const TempDir dir;
  ASSERT_EQ(::symlink(dir.path().c_str(), (dir.path() + "/link").c_str()), 0);
  auto opened = OpenRootDirectory(dir.path() + "/link", std::nullopt);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(Make()->Close(*opened).ok());
}

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

class UmaskTest : public ::testing::Test {
 protected:
  UmaskTest() : own_(::umask(0)) {}
  ~UmaskTest() override { ::umask(own_); }
  FileUser Self(std::shared_ptr<std::atomic<mode_t>> umask) const {
    return {.uid = ::geteuid(), .gid = ::getegid(), .groups = {}, .umask = std::move(umask)};
  }

  const TempDir dir_;
  const mode_t own_;
};

TEST_F(UmaskTest, AppliesTheUsersUmask) {
  const auto umask = std::make_shared<std::atomic<mode_t>>(027);
  const auto fs = Make(Self(umask));
  ASSERT_TRUE(OpenScoped(*fs, dir_.fd(), "a", OpenMode::kCreate).ok());
  ASSERT_TRUE(OpenScoped(*fs, dir_.fd(), "b", OpenMode::kUpdate).ok());
  ASSERT_TRUE(fs->MakeDir(dir_.fd(), "c").ok());
  EXPECT_EQ(ModeOf(dir_.path() + "/a"), mode_t{0640});
  EXPECT_EQ(ModeOf(dir_.path() + "/b"), mode_t{0640});
  EXPECT_EQ(ModeOf(dir_.path() + "/c"), mode_t{0750});
  umask->store(0002);  // The umask of a later trainer.
  ASSERT_TRUE(OpenScoped(*fs, dir_.fd(), "d", OpenMode::kCreate).ok());
  EXPECT_EQ(ModeOf(dir_.path() + "/d"), mode_t{0664});
  umask->store(0777);  // The owner's bits stay: the daemon has only the user's rights to its own files.
  ASSERT_TRUE(fs->MakeDir(dir_.fd(), "e").ok());
  EXPECT_EQ(ModeOf(dir_.path() + "/e"), mode_t{0700});
}

TEST_F(UmaskTest, UserWithoutUmaskHas022) {
  const auto fs = Make(Self(nullptr));
  ASSERT_TRUE(OpenScoped(*fs, dir_.fd(), "a", OpenMode::kCreate).ok());
  ASSERT_TRUE(fs->MakeDir(dir_.fd(), "b").ok());
  EXPECT_EQ(ModeOf(dir_.path() + "/a"), mode_t{0644});
  EXPECT_EQ(ModeOf(dir_.path() + "/b"), mode_t{0755});
}

// Whoever may open a lock's file for reading can lock it.
TEST_F(UmaskTest, LockIsForItsOwnerAlone) {
  const auto fs = Make();
  ASSERT_TRUE(OpenScoped(*fs, dir_.fd(), "lock", OpenMode::kLock).ok());
  EXPECT_EQ(ModeOf(dir_.path() + "/lock"), mode_t{0600});
  // From its creation on, not by a later chmod.
  ASSERT_TRUE(WithoutSystemCall(
      SYS_fchmod, EPERM, [&] { OpenScoped(*fs, dir_.fd(), "new", OpenMode::kLock).status().IgnoreError(); }));
  EXPECT_EQ(ModeOf(dir_.path() + "/new"), mode_t{0600});
  ASSERT_TRUE(OpenScoped(*fs, dir_.fd(), "old", OpenMode::kCreate).ok());
  ASSERT_EQ(::chmod((dir_.path() + "/old").c_str(), 0644), 0);  // As ckptd 0.1.0 made it.
  ASSERT_TRUE(OpenScoped(*fs, dir_.fd(), "old", OpenMode::kLock).ok());
  EXPECT_EQ(ModeOf(dir_.path() + "/old"), mode_t{0600});
}

TEST(PosixFileSystemTest, LockExcludesFlockAndOpenFileDescriptionLocks) {
  const TempDir dir;
  const auto fs = Make();
  const auto ours = OpenScoped(*fs, dir.fd(), "lock", OpenMode::kLock);
  ASSERT_TRUE(ours.ok()) << ours.status();
  const UniqueFd other(::open((dir.path() + "/lock").c_str(), O_RDWR | O_CLOEXEC));
  struct flock whole {};
  whole.l_whence = SEEK_SET;
  // ckptd 0.1.0 takes only the flock.
  ASSERT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(ReasonOf(fs->Lock(ours->get())), "LOCKED");
  ASSERT_EQ(::flock(other.get(), LOCK_UN), 0);
  whole.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(other.get(), F_OFD_SETLK, &whole), 0);
  EXPECT_EQ(ReasonOf(fs->Lock(ours->get())), "LOCKED");
  whole.l_type = F_UNLCK;
  ASSERT_EQ(::fcntl(other.get(), F_OFD_SETLK, &whole), 0);
  ASSERT_TRUE(fs->Lock(ours->get()).ok());
  EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  whole.l_type = F_WRLCK;
  EXPECT_NE(::fcntl(other.get(), F_OFD_SETLK, &whole), 0);
}

TEST(PosixFileSystemTest, OpensFilesWithoutNonblock) {
  const TempDir dir;
  const auto fs = Make();
  ASSERT_TRUE(OpenScoped(*fs, dir.fd(), "file", OpenMode::kCreate).ok());
  const auto direct = OpenScoped(*fs, dir.fd(), "file", OpenMode::kReadDirect);
  ASSERT_TRUE(direct.ok()) << direct.status();
  const int flags = ::fcntl(direct->get(), F_GETFL);
  EXPECT_TRUE(flags & O_DIRECT);
  EXPECT_FALSE(flags & O_NONBLOCK) << "io_uring would answer EAGAIN";
}

TEST(PosixFileSystemTest, FullFileSystemIsNoSpace) {
  const auto fs = Make();
  const int device = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(device, 0);
  EXPECT_EQ(ReasonOf(WriteFully(*fs, device, 0, std::as_bytes(std::span("x", 1)))), "NO_SPACE");
  EXPECT_TRUE(fs->Close(device).ok());
}

TEST(PosixFileSystemTest, GivesAdviceWhenOpenat2IsForbidden) {
  const TempDir dir;
  absl::Status refused;
  ASSERT_TRUE(WithoutSystemCall(SYS_openat2, ENOSYS,
                                [&] { refused = OpenRootDirectory(dir.path(), std::nullopt).status(); }));
  EXPECT_EQ(ErrnoOf(refused), ENOSYS);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("RestrictSUIDSGID"));
}

// A pipe cannot be synced, and the kernel says so. OK would mean that nobody asked it, or that its answer was
// ignored.
TEST(PosixFileSystemTest, ReturnsTheKernelsAnswerToASync) {
  const auto fs = Make();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EQ(ErrnoOf(fs->Sync(ends[1], SyncMode::kData)), EINVAL);
  EXPECT_EQ(ErrnoOf(fs->Sync(ends[1], SyncMode::kAll)), EINVAL);
  for (const int end : ends) EXPECT_TRUE(fs->Close(end).ok());
}

TEST(PosixFileSystemTest, ReturnsTheKernelsRefusals) {
  const TempDir dir;
  const auto fs = Make();
  ASSERT_TRUE(OpenScoped(*fs, dir.fd(), "file", OpenMode::kCreate).ok());
  const auto read_only = OpenScoped(*fs, dir.fd(), "file", OpenMode::kRead);
  ASSERT_TRUE(read_only.ok()) << read_only.status();
  EXPECT_EQ(ErrnoOf(fs->Allocate(read_only->get(), 4096)), EBADF);
  EXPECT_EQ(ErrnoOf(fs->Truncate(read_only->get(), 4096)), EINVAL);
  const std::string bytes = "bytes";
  EXPECT_EQ(ErrnoOf(fs->WriteAt(read_only->get(), 0, std::as_bytes(std::span(bytes))).status()), EBADF);
  EXPECT_EQ(fs->Stat(dir.fd(), "file").value().size, 0);
}

}  // namespace
}  // namespace ckptd
