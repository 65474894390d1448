#include "storage/io/probe.h"

#include <sys/syscall.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/fs/file_system.h"
#include "storage/fs/posix_file_system.h"
#include "storage/io/io_queue.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/seccomp.h"
#include "tests/testing/small_tmpfs.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ProbeTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_THAT(*posix_->List(dir_.fd()), IsEmpty()) << "the scratch directory is left empty";
    EXPECT_EQ(faulty_.open_handles(), 0);
  }

  absl::StatusOr<ProbeResult> Probe(IoBackend wanted = IoBackend::kAuto) {
    return ProbeDirectory(faulty_, dir_.fd(), wanted);
  }
  ProbeResult ProbeOk(IoBackend wanted = IoBackend::kAuto) {
    absl::StatusOr<ProbeResult> result = Probe(wanted);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProbeResult();
  }
  // Makes direct files fail to open, as on file systems without O_DIRECT. Each try creates `data` again.
  void WithoutDirect(int tries) {
    for (int i = 1; i <= tries; ++i) {
      faulty_.Fail({.op = FsOp::kOpen, .path = "data", .nth = i, .error = EINVAL});
    }
  }
  static absl::Status UringStatus() { return MakeUringQueue(1).status(); }

  TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = MakePosixFileSystem().value();
  FaultyFileSystem faulty_{posix_.get()};
};

TEST_F(ProbeTest, FindsAllAbilitiesOfAGoodFileSystem) {
  const ProbeResult result = ProbeOk();
  EXPECT_TRUE(result.direct_io);
  EXPECT_TRUE(result.fallocate);
  EXPECT_TRUE(result.rename_exchange);
  EXPECT_TRUE(result.rename_noreplace);
  EXPECT_TRUE(result.directory_sync);
  EXPECT_TRUE(result.locks);
  EXPECT_GT(result.free_bytes, 0);
  EXPECT_GE(result.total_bytes, result.free_bytes);
  EXPECT_FALSE(result.file_system.empty());
  EXPECT_THAT(result.warnings, IsEmpty());
}

TEST_F(ProbeTest, ChoosesIoUringWhenADirectWriteThroughItWorks) {
  if (!UringStatus().ok()) GTEST_SKIP() << UringStatus().message();
  const ProbeResult result = ProbeOk();
  EXPECT_EQ(result.io_backend, "io_uring");
  EXPECT_EQ(result.io_backend_cause, "an aligned direct write through io_uring was read back equal");
}

TEST_F(ProbeTest, ChoosesThreadsWhenIoUringIsForbidden) {
  ProbeResult result;
  ASSERT_TRUE(WithoutSystemCall(SYS_io_uring_setup, EPERM, [&] { result = ProbeOk(); }));
  EXPECT_EQ(result.io_backend, "threads");
  EXPECT_THAT(result.io_backend_cause, HasSubstr("forbidden"));
  EXPECT_TRUE(result.direct_io);
}

TEST_F(ProbeTest, FailsWhenDemandedIoUringIsForbidden) {
  absl::Status status;
  ASSERT_TRUE(
      WithoutSystemCall(SYS_io_uring_setup, EPERM, [&] { status = Probe(IoBackend::kUring).status(); }));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), "IO_URING_UNAVAILABLE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("the configuration asks for io_uring"));
}

TEST_F(ProbeTest, ChoosesThreadsWhenConfigured) {
  const ProbeResult result = ProbeOk(IoBackend::kThreads);
  EXPECT_EQ(result.io_backend, "threads");
  EXPECT_EQ(result.io_backend_cause, "the configuration asks for threads");
  EXPECT_TRUE(result.direct_io);
}

TEST_F(ProbeTest, ChoosesBufferedThreadsWithoutDirectIo) {
  WithoutDirect(UringStatus().ok() ? 2 : 1);  // Through io_uring, then through threads.
  const ProbeResult result = ProbeOk();
  EXPECT_EQ(result.io_backend, "threads");
  EXPECT_FALSE(result.direct_io);
  EXPECT_THAT(result.warnings, Contains(HasSubstr("no direct I/O")));
}

TEST_F(ProbeTest, DemandedIoUringWritesBufferedWithoutDirectIo) {
  if (!UringStatus().ok()) GTEST_SKIP() << UringStatus().message();
  WithoutDirect(1);
  const ProbeResult result = ProbeOk(IoBackend::kUring);
  EXPECT_EQ(result.io_backend, "io_uring");
  EXPECT_FALSE(result.direct_io);
}

TEST_F(ProbeTest, WarnsOfMissingAbilitiesThatHaveAFallback) {
  faulty_.Fail({.op = FsOp::kAllocate, .nth = FsFault::kEvery, .error = EOPNOTSUPP});
  faulty_.Fail({.op = FsOp::kRename, .nth = FsFault::kEvery, .error = EINVAL});
  const ProbeResult result = ProbeOk();
  EXPECT_FALSE(result.fallocate);
  EXPECT_FALSE(result.rename_exchange);
  EXPECT_FALSE(result.rename_noreplace);
  EXPECT_THAT(result.warnings, Contains(HasSubstr("fallocate")));
  EXPECT_THAT(result.warnings, Contains(HasSubstr("exchange")));
}

TEST_F(ProbeTest, RefusesARootWithoutDirectorySync) {
  faulty_.Fail({.op = FsOp::kSync, .error = EINVAL});
  const absl::Status status = Probe().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "ROOT_UNSUITABLE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("a directory cannot be synced"));
}

TEST_F(ProbeTest, RefusesARootWithoutLocks) {
  faulty_.Fail({.op = FsOp::kLock, .error = ENOLCK});
  const absl::Status status = Probe().status();
  EXPECT_EQ(ReasonOf(status), "ROOT_UNSUITABLE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be locked"));
}

TEST_F(ProbeTest, ReturnsTheErrorOfAReadOnlyDirectory) {
  faulty_.Fail({.op = FsOp::kOpen, .error = EACCES});
  EXPECT_EQ(Probe().status().code(), absl::StatusCode::kPermissionDenied);
  faulty_.Fail({.op = FsOp::kOpen, .error = EROFS});
  EXPECT_EQ(ReasonOf(Probe().status()), "EROFS");
}

TEST_F(ProbeTest, WorksOverLeftoversOfAnEarlierProbe) {
  for (const char* name : {"data", "a", "b", "lock"}) {
    ASSERT_TRUE(OpenScoped(*posix_, dir_.fd(), name, OpenMode::kCreate).ok());
  }
  EXPECT_TRUE(ProbeOk().locks);
}

TEST_F(ProbeTest, WarnsThatTmpfsIsNotDurable) {
  const TempDir memory("/dev/shm");
  const absl::StatusOr<ProbeResult> result = ProbeDirectory(*posix_, memory.fd(), IoBackend::kAuto);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->file_system, "tmpfs");
  EXPECT_THAT(result->warnings, Contains(HasSubstr("nothing here survives a reboot")));
}

// The disk may be full of trash that the daemon is about to delete.
TEST_F(ProbeTest, ProbesAFullDisk) {
  const SmallTmpfs disk(64 << 10);
  if (!disk.ok()) GTEST_SKIP() << "needs the right to mount";
  {
    const auto filler = OpenScoped(*posix_, disk.fd(), "filler", OpenMode::kCreate);
    ASSERT_TRUE(filler.ok()) << filler.status();
    ASSERT_TRUE(posix_->Allocate(filler->get(), 64 << 10).ok());
  }
  ASSERT_EQ(posix_->Space(disk.fd())->free_bytes, 0);
  const absl::StatusOr<ProbeResult> result = ProbeDirectory(*posix_, disk.fd(), IoBackend::kAuto);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->fallocate);
}

}  // namespace
}  // namespace ckptd
