// What the store sends to the service manager and takes back, as in sd_notify(3) and sd_listen_fds(3).
// tests/e2e/test_succession.py uses a working manager.
#include "daemon/systemd/manager_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

// A manager that answers barriers at once, or never.
class Manager : public Notifier {
 public:
  absl::Status Send(const std::string& state) override { return SendWith(state, -1); }
  absl::Status SendWith(const std::string& state, int fd) override {
    heard.push_back(state);
    if (!answer.ok()) return answer;
    if (state == "BARRIER=1" && hangs) barrier.reset(::dup(fd));
    return absl::OkStatus();
  }
  std::vector<std::string> heard;
  absl::Status answer;
  bool hangs = false;
  UniqueFd barrier;
};

constexpr Duration kShort = std::chrono::milliseconds(20);

TEST(ManagerStoreTest, PutsADescriptorAndWaitsUntilTheManagerHasIt) {
  Manager manager;
  ManagerStore store(&manager, 10, {}, std::chrono::seconds(30));
  EXPECT_TRUE(store.Put("ckptd-segment-1", 0).ok());
  EXPECT_THAT(manager.heard, ElementsAre("FDSTORE=1\nFDNAME=ckptd-segment-1\nFDPOLL=0", "BARRIER=1"));
}

TEST(ManagerStoreTest, PutFailsWhenTheManagerDoesNotAnswer) {
  Manager manager;
  manager.hangs = true;
  ManagerStore store(&manager, 10, {}, kShort);
  EXPECT_EQ(ReasonOf(store.Put("ckptd-segment-1", 0)), "MANAGER_SLOW");
}

TEST(ManagerStoreTest, PutFailsWhenNothingCanBeSent) {
  Manager manager;
  manager.answer = absl::UnavailableError("gone");
  ManagerStore store(&manager, 10, {}, kShort);
  EXPECT_EQ(store.Put("ckptd-segment-1", 0).code(), absl::StatusCode::kUnavailable);
}

TEST(ManagerStoreTest, PutFailsWithoutAskingWhenTheStoreIsFull) {
  Manager manager;
  ManagerStore store(&manager, 2, {"of the last life"}, kShort);
  EXPECT_TRUE(store.Put("ckptd-segment-1", 0).ok());
  EXPECT_EQ(ReasonOf(store.Put("ckptd-segment-2", 0)), "STORE_FULL");
  EXPECT_EQ(manager.heard.size(), 2u);
  EXPECT_TRUE(store.Remove("of the last life").ok());
  EXPECT_TRUE(store.Put("ckptd-segment-2", 0).ok());
  EXPECT_EQ(manager.heard[2], "FDSTOREREMOVE=1\nFDNAME=of the last life");
}

TEST(ManagerStoreTest, RemovesOnlyWhatTheManagerHolds) {
  Manager manager;
  ManagerStore store(&manager, 2, {}, kShort);
  EXPECT_TRUE(store.Remove("ckptd-segment-1").ok());
  EXPECT_TRUE(manager.heard.empty());
}

TEST(ManagerStoreTest, ReadsTheSizeOfTheStoreFromTheEnvironment) {
  EXPECT_EQ(ManagerStoreSize(), 0);
  for (const auto& [text, size] :
       {std::pair<const char*, int>{"512", 512}, {"0", 0}, {"-3", 0}, {"many", 0}, {"", 0}}) {
    ::setenv("FDSTORE", text, 1);
    EXPECT_EQ(ManagerStoreSize(), size) << text;
    EXPECT_EQ(std::getenv("FDSTORE"), nullptr);
  }
}

// Returns what a process that starts with these variables and `count` descriptors from 3 on finds. Runs in a
// child process.
std::string Found(const std::string& pid, const std::string& fds, const std::string& names, int count) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int out = ::fcntl(ends[1], F_DUPFD, 900);
    for (int fd = 3; fd < 800; ++fd) ::close(fd);
    for (int i = 0; i < count; ++i) (void)::memfd_create("kept", 0);  // Gets the lowest free number.
    ::setenv("LISTEN_PID", pid == "own" ? std::to_string(::getpid()).c_str() : pid.c_str(), 1);
    ::setenv("LISTEN_FDS", fds.c_str(), 1);
    ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
    std::string text;
    for (const NamedDescriptor& kept : TakeManagerDescriptors()) {
      text += std::to_string(kept.fd.get()) + "=" + kept.name;
      text += (::fcntl(kept.fd.get(), F_GETFD) & FD_CLOEXEC) != 0 ? ";" : " (inherited by children);";
    }
    if (std::getenv("LISTEN_PID") || std::getenv("LISTEN_FDS") || std::getenv("LISTEN_FDNAMES"))
      text += "left";
    (void)!::write(out, text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  char text[4096];
  std::string found;
  for (ssize_t got = 0; (got = ::read(ends[0], text, sizeof(text))) > 0;)
    found.append(text, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return found;
}

TEST(ManagerStoreTest, TakesDescriptorsMeantForThisProcess) {
  EXPECT_EQ(Found("own", "2", "ckptd-journal:ckptd-segment-7", 2), "3=ckptd-journal;4=ckptd-segment-7;");
}

TEST(ManagerStoreTest, LeavesDescriptorsMeantForAnotherProcess) { EXPECT_EQ(Found("1", "2", "a:b", 2), ""); }

TEST(ManagerStoreTest, IgnoresInvalidNumbers) {
  for (const char* count : {"", "0", "-1", "2x", "99999999999999999999"}) {
    EXPECT_EQ(Found("own", count, "a:b", 2), "") << count;
  }
}

TEST(ManagerStoreTest, SkipsMissingDescriptors) { EXPECT_EQ(Found("own", "4", "a:b:c:d", 2), "3=a;4=b;"); }

TEST(ManagerStoreTest, DropsNamesUnlessEachDescriptorHasOne) {
  EXPECT_EQ(Found("own", "2", "a", 2), "3=;4=;");
}

}  // namespace
}  // namespace ckptd
