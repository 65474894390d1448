#include "daemon/base/unix_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <future>
#include <string>

#include "absl/status/statusor.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

class UnixListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_), nullptr);
    path_ = std::string(folder_) + "/s";
  }
  void TearDown() override {
    ::unlink(path_.c_str());
    ::rmdir(folder_);
  }
  absl::StatusOr<UniqueFd> Listen(int type = SOCK_STREAM, mode_t mode = 0600) {
    return ListenUnix({.path = path_, .type = type, .mode = mode, .group = ::getegid(), .timeout = {}});
  }
  bool Connects(int type) {
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(path_.begin(), path_.end(), address.sun_path);
    return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }

  char folder_[32] = "/tmp/ckptd.XXXXXX";
  std::string path_;
};

TEST_F(UnixListenerTest, AcceptsConnectionsWithTheConfiguredMode) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const auto listener = Listen(type, 0660);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(Connects(type));
    struct stat info {};
    ASSERT_EQ(::stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0660u);
  }
}

TEST_F(UnixListenerTest, RefusesTheSocketOfALivingDaemon) {
  const auto first = Listen();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ReasonOf(Listen().status()), "SOCKET_IN_USE");
  EXPECT_TRUE(Connects(SOCK_STREAM));
}

TEST_F(UnixListenerTest, WaitsForTheSocketOfADaemonThatIsEnding) {
  auto first = Listen();
  ASSERT_TRUE(first.ok()) << first.status();
  std::future<absl::Status> second = std::async(std::launch::async, [this] {
    const UnixListenerOptions options{
        .path = path_, .type = SOCK_STREAM, .mode = 0600, .group = {}, .timeout = std::chrono::seconds(30)};
    return ListenUnix(options).status();
  });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  first->reset();
  EXPECT_EQ(second.get(), absl::OkStatus());
}

TEST_F(UnixListenerTest, ReplacesTheSocketOfADeadDaemon) {
  { ASSERT_TRUE(Listen().ok()); }
  ASSERT_EQ(::access(path_.c_str(), F_OK), 0) << "the file outlives its daemon";
  const auto second = Listen();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(Connects(SOCK_STREAM));
}

TEST_F(UnixListenerTest, LeavesOtherFilesAtThePathUntouched) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(ReasonOf(Listen().status()), "NOT_A_SOCKET");
  std::string content;
  std::ifstream(path_) >> content;
  EXPECT_EQ(content, "precious");
}

TEST_F(UnixListenerTest, RefusesAPathThatIsTooLong) {
  path_ = "/tmp/" + std::string(103, 's');
  EXPECT_EQ(ReasonOf(Listen().status()), "INVALID_PATH");
}

TEST_F(UnixListenerTest, ReportsAMissingDirectory) {
  EXPECT_EQ(
      ErrnoOf(ListenUnix(
                  {.path = "/nonexistent/s", .type = SOCK_STREAM, .mode = 0600, .group = {}, .timeout = {}})
                  .status()),
      ENOENT);
}

}  // namespace
}  // namespace ckptd
