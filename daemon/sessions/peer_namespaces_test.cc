#include "daemon/sessions/peer_namespaces.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/unique_fd.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

constexpr char kWholeMap[] = "         0          0 4294967295\n";
constexpr char kOfHost[] =
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n";
constexpr char kOfDaemon[] = "91 90 254:0 / / rw,relatime - ext4 /dev/vda rw\n";
constexpr char kOfContainer[] =
    "43 42 0:50 / / rw,relatime - overlay overlay rw\n44 43 0:51 / /proc rw - proc proc rw\n";

// A process that lives as long as the test, and a fake /proc that the test fills.
class PeerNamespacesTest : public ::testing::Test {
 protected:
  PeerNamespacesTest() {
    pid_ = ::fork();
    if (pid_ == 0) {
      while (true) ::pause();
    }
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
    std::filesystem::create_symlink(std::to_string(::getpid()), proc_.path() + "/self");
    Fill(::getpid(), kOfDaemon, kWholeMap);
    Fill(1, kOfHost, kWholeMap);
  }
  ~PeerNamespacesTest() override {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  void Fill(pid_t pid, const std::string& mounts, const std::string& map) {
    const std::string folder = absl::StrCat(proc_.path(), "/", pid);
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/mountinfo") << mounts;
    std::ofstream(folder + "/uid_map") << map;
  }
  PeerNamespaces Look() { return NamespacesOfPeer(ends_[0], pid_, proc_.path()); }

  TempDir proc_;
  pid_t pid_ = -1;
  int ends_[2] = {-1, -1};
};

TEST_F(PeerNamespacesTest, ProcessWithDaemonsRootIsOfHost) {
  Fill(pid_, kOfDaemon, kWholeMap);
  EXPECT_EQ(Look().origin, PeerOrigin::kHost);
}

TEST_F(PeerNamespacesTest, ProcessWithRootOfProcessOneIsOfHost) {
  Fill(pid_, kOfHost, kWholeMap);
  const PeerNamespaces found = Look();
  EXPECT_EQ(found.origin, PeerOrigin::kHost) << found.why;
  EXPECT_EQ(found.tenant, 0);
}

TEST_F(PeerNamespacesTest, ProcessWithAnotherMountAsRootIsForeign) {
  Fill(pid_, kOfContainer, kWholeMap);
  const PeerNamespaces found = Look();
  EXPECT_EQ(found.origin, PeerOrigin::kForeign);
  EXPECT_EQ(found.tenant, 43);
  EXPECT_EQ(found.why, "it is in another mount namespace");
}

TEST_F(PeerNamespacesTest, ProcessInAnotherUserNamespaceIsForeign) {
  Fill(pid_, kOfHost, "         0          0          1\n");
  const PeerNamespaces found = Look();
  EXPECT_EQ(found.origin, PeerOrigin::kForeign);
  EXPECT_EQ(found.why, "it is in another user namespace");
}

TEST_F(PeerNamespacesTest, ProcessInAnotherDirectoryOfTheSameMountIsForeign) {
  Fill(pid_, "27 1 254:0 /jail / rw,relatime - ext4 /dev/vda rw\n", kWholeMap);
  EXPECT_EQ(Look().origin, PeerOrigin::kForeign);
  Fill(pid_, "22 27 0:21 / /proc rw,relatime - proc proc rw\n",
       kWholeMap);  // After chroot no mount is at "/".
  const PeerNamespaces found = Look();
  EXPECT_EQ(found.origin, PeerOrigin::kForeign);
  EXPECT_EQ(found.tenant, -1);
}

TEST_F(PeerNamespacesTest, ProcessWithoutPidHereIsForeign) {
  EXPECT_EQ(NamespacesOfPeer(ends_[0], 0, proc_.path()).origin, PeerOrigin::kForeign);
}

TEST_F(PeerNamespacesTest, HiddenProcessIsUnknown) {
  const PeerNamespaces found = Look();  // The fake /proc has nothing for it.
  EXPECT_EQ(found.origin, PeerOrigin::kUnknown);
  EXPECT_NE(found.why.find("hidepid"), std::string::npos) << found.why;
}

TEST_F(PeerNamespacesTest, ProcOfAnotherPidNamespaceIsUnknown) {
  Fill(pid_, kOfDaemon, kWholeMap);
  std::filesystem::remove(proc_.path() + "/self");
  std::filesystem::create_symlink("1", proc_.path() + "/self");
  EXPECT_EQ(Look().origin, PeerOrigin::kUnknown);
}

TEST_F(PeerNamespacesTest, ReadsAtMostOneMebibyteOfMounts) {
  std::string many;
  for (int i = 0; i < 60000; ++i) absl::StrAppend(&many, i + 100, " 43 0:51 / /m", i, " rw - tmpfs t rw\n");
  Fill(pid_, many + kOfDaemon, kWholeMap);  // The line is beyond the 1 MiB that is read.
  EXPECT_EQ(Look().origin, PeerOrigin::kForeign);
}

TEST_F(PeerNamespacesTest, ReadsTheUmaskOfAProcess) {
  Fill(pid_, kOfHost, kWholeMap);
  const auto status = [&](const std::string& text) {
    std::ofstream(absl::StrCat(proc_.path(), "/", pid_, "/status")) << text;
    return UmaskOfPeer(pid_, proc_.path());
  };
  EXPECT_EQ(UmaskOfPeer(pid_, proc_.path()), std::nullopt);
  EXPECT_EQ(status("Name:\ttrainer\nUmask:\t0077\nState:\tS\n"), mode_t{077});
  EXPECT_EQ(status("Name:\tUmask:\nUmask:\t0002\nState:\tS\n"), mode_t{002});
  EXPECT_EQ(status("Name:\ttrainer\nState:\tS\n"), std::nullopt);
  EXPECT_EQ(status("Name:\ttrainer\nUmask:\t7777\n"), std::nullopt);
  EXPECT_EQ(UmaskOfPeer(0, proc_.path()), std::nullopt);
  const mode_t own = ::umask(027);
  EXPECT_EQ(UmaskOfPeer(::getpid()), mode_t{027});
  ::umask(own);
}

// ---- real processes

// Returns what NamespacesOfPeer finds for a child that runs `prepare`, connects, and lives on or ends.
PeerNamespaces OfChild(const std::function<bool()>& prepare, bool lives) {
  TempDir folder("/tmp");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder.path() + "/s";
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(listener.get(), name, sizeof(address)), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (!prepare()) ::_exit(1);
    if (::connect(socket, name, sizeof(address)) != 0) ::_exit(2);
    while (lives) ::pause();
    ::_exit(0);
  }
  int status = 0;
  if (!lives) {
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  }
  const timeval timeout{.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  const UniqueFd connection(::accept(listener.get(), nullptr, nullptr));
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  PeerNamespaces found{PeerOrigin::kUnknown, 0, "it did not connect"};
  if (connection && ::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0) {
    found = NamespacesOfPeer(connection.get(), credentials.pid);
  }
  ::kill(pid, SIGKILL);
  if (lives) ::waitpid(pid, &status, 0);
  return found;
}

bool MayUnshare(int flags) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(::unshare(flags) == 0 ? 0 : 1);
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status == 0;
}

TEST(PeerNamespaces, ChildOfTheDaemonIsOfHost) {
  const PeerNamespaces found = OfChild([] { return true; }, true);
  EXPECT_EQ(found.origin, PeerOrigin::kHost) << found.why;
}

TEST(PeerNamespaces, ChildInNewUserNamespaceIsForeign) {
  if (!MayUnshare(CLONE_NEWUSER)) GTEST_SKIP() << "no new user namespace here";
  EXPECT_EQ(OfChild([] { return ::unshare(CLONE_NEWUSER) == 0; }, true).origin, PeerOrigin::kForeign);
}

TEST(PeerNamespaces, ChildInNewMountNamespaceIsForeign) {
  if (!MayUnshare(CLONE_NEWUSER | CLONE_NEWNS)) GTEST_SKIP() << "no new mount namespace here";
  const PeerNamespaces found = OfChild([] { return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0; }, true);
  EXPECT_EQ(found.origin, PeerOrigin::kForeign);
  EXPECT_GT(found.tenant, 0);
}

TEST(PeerNamespaces, ProcessThatHasEndedIsForeign) {
  const PeerNamespaces found = OfChild([] { return true; }, false);
  EXPECT_EQ(found.origin, PeerOrigin::kForeign);
  EXPECT_EQ(found.tenant, -1);
}

}  // namespace
}  // namespace ckptd
