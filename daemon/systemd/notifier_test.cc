#include "daemon/systemd/notifier.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

// Stands for a service manager: a bound datagram socket.
class Manager {
 public:
  explicit Manager(const std::string& name) : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path);
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  }

  std::string Receive() {
    char buffer[512];
    const ssize_t size = ::recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    return size < 0 ? "nothing" : std::string(buffer, static_cast<size_t>(size));
  }

 private:
  UniqueFd socket_;
};

class NotifierTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
  }
};

TEST_F(NotifierTest, SendsOneDatagramToAPath) {
  char folder[] = "/tmp/ckptd.XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/notify";
  Manager manager(path);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);

  auto notifier = MakeNotifier();
  ASSERT_TRUE(notifier.ok()) << notifier.status();
  EXPECT_TRUE((*notifier)->Send("READY=1\nSTATUS=serving").ok());

  EXPECT_EQ(manager.Receive(), "READY=1\nSTATUS=serving");
  EXPECT_EQ(std::getenv("NOTIFY_SOCKET"), nullptr) << "a child process would inherit it";
  ::unlink(path.c_str());
  ::rmdir(folder);
}

TEST_F(NotifierTest, SendsToAnAbstractSocket) {
  const std::string name = "@ckptd-notifier-test-" + std::to_string(::getpid());
  Manager manager(name);
  ::setenv("NOTIFY_SOCKET", name.c_str(), 1);

  ASSERT_TRUE(MakeNotifier().value()->Send("STOPPING=1").ok());

  EXPECT_EQ(manager.Receive(), "STOPPING=1");
}

TEST_F(NotifierTest, SendsADescriptorAlong) {
  const std::string name = "@ckptd-notifier-test-" + std::to_string(::getpid());
  Manager manager(name);
  ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
  auto notifier = MakeNotifier().value();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd read(ends[0]);
  UniqueFd write(ends[1]);

  ASSERT_TRUE(notifier->SendWith("BARRIER=1", write.get()).ok());
  write.reset();
  pollfd waiting = {read.get(), 0, 0};
  EXPECT_EQ(::poll(&waiting, 1, 0), 0) << "the one on its way is open";
  EXPECT_EQ(manager.Receive(), "BARRIER=1");  // Receive closes the descriptor that came along.
  EXPECT_EQ(::poll(&waiting, 1, 0), 1);

  ASSERT_TRUE(notifier->SendWith("FDSTOREREMOVE=1\nFDNAME=x", -1).ok());
  EXPECT_EQ(manager.Receive(), "FDSTOREREMOVE=1\nFDNAME=x");
}

TEST_F(NotifierTest, DoesNothingWithoutAManager) {
  ::unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(MakeNotifier().value()->Send("READY=1").ok());
  EXPECT_FALSE(MakeNotifier().value()->SendWith("FDSTORE=1", 0).ok());
}

TEST_F(NotifierTest, ReportsThatTheManagerIsGone) {
  ::setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
  EXPECT_EQ(ErrnoOf(MakeNotifier().value()->Send("READY=1")), ENOENT);
}

TEST_F(NotifierTest, RefusesAnInvalidAddress) {
  for (const std::string& bad : {std::string("notify"), std::string("@"), "/" + std::string(200, 'x')}) {
    ::setenv("NOTIFY_SOCKET", bad.c_str(), 1);
    EXPECT_EQ(MakeNotifier().status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST_F(NotifierTest, UsesTheWatchdogOnlyWhenItNamesThisProcess) {
  EXPECT_EQ(WatchdogInterval(), std::nullopt);
  ::setenv("WATCHDOG_USEC", "3000000", 1);
  EXPECT_EQ(WatchdogInterval(), std::chrono::seconds(3));
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  EXPECT_EQ(WatchdogInterval(), std::chrono::seconds(3));
  ::setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(WatchdogInterval(), std::nullopt);
  ::setenv("WATCHDOG_PID", "", 1);
  EXPECT_EQ(WatchdogInterval(), std::nullopt);
}

}  // namespace
}  // namespace ckptd
