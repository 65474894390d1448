// The contract of IoQueue, run against each back end, each behind a FaultyIoQueue without faults, and a
// CrashDisk.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "storage/io/io_queue.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/crash_io_queue.h"
#include "tests/testing/faulty_io_queue.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::Each;
using ::testing::Ge;

constexpr int kDepth = 8;
constexpr size_t kBlock = 4096;

std::set<std::string>& BackEndsThatRan() {
  static auto& names = *new std::set<std::string>;
  return names;
}

class PrintBackEnds : public ::testing::Environment {
 public:
  void TearDown() override {
    std::cout << "I/O back ends that ran:";
    for (const std::string& name : BackEndsThatRan()) std::cout << " " << name;
    std::cout << std::endl;
  }
};
[[maybe_unused]] const auto* const print_back_ends = ::testing::AddGlobalTestEnvironment(new PrintBackEnds);

struct BackEnd {
  const char* name;
  const char* queue_name;
  absl::StatusOr<std::unique_ptr<IoQueue>> (*make)(int depth);  // Null: the queue of a CrashDisk.
  bool behind_faulty;
};

class IoQueueContract : public ::testing::TestWithParam<BackEnd> {
 protected:
  void SetUp() override {
    IoQueueFactory factory = [] { return GetParam().make(kDepth); };
    if (OnCrashDisk()) factory = CrashQueueFactory(&crash_disk_);
    if (GetParam().behind_faulty) factory = FaultyQueueFactory(factory, &no_faults_);
    absl::StatusOr<std::unique_ptr<IoQueue>> made = factory();
    if (ReasonOf(made.status()) == "IO_URING_UNAVAILABLE") GTEST_SKIP() << made.status().message();
    ASSERT_TRUE(made.ok()) << made.status();
    queue_ = *std::move(made);
    BackEndsThatRan().insert(std::string(queue_->name()));
  }

  static bool OnCrashDisk() { return GetParam().make == nullptr; }

  int Open(int flags) {
    if (OnCrashDisk()) {
      const OpenMode mode = flags & O_DIRECT  ? OpenMode::kCreateDirect
                            : flags & O_CREAT ? OpenMode::kCreate
                                              : OpenMode::kRead;
      return crash_disk_.Open(crash_disk_.root(), "file", mode).value_or(-1);
    }
    const std::string path = dir_.path() + "/file";
    files_.emplace_back(::open(path.c_str(), flags | O_CLOEXEC, 0600));
    EXPECT_TRUE(files_.back()) << std::strerror(errno);
    return files_.back().get();
  }

  // Polls until every operation is complete.
  void PollAll() {
    const Instant deadline = SystemClock().Now() + std::chrono::seconds(60);
    while (queue_->in_flight() > 0) {
      ASSERT_LT(SystemClock().Now(), deadline) << queue_->in_flight() << " operations never completed";
      queue_->Poll(std::chrono::seconds(1));
    }
  }

  // Returns the operation's result.
  int64_t Run(const std::function<void(IoDone)>& submit) {
    int64_t result = INT64_MIN;
    submit([&](int64_t value) { result = value; });
    PollAll();
    return result;
  }
  int64_t Write(int file, const std::string& bytes, int64_t offset) {
    return Run(
        [&](IoDone done) { queue_->Write(file, std::as_bytes(std::span(bytes)), offset, std::move(done)); });
  }

  std::string FileContent() {
    if (OnCrashDisk()) return crash_disk_.Content("file").value_or("");
    const int file = Open(O_RDONLY);
    struct stat stat;
    EXPECT_EQ(::fstat(file, &stat), 0);
    std::string content(static_cast<size_t>(stat.st_size), '\0');
    EXPECT_EQ(::pread(file, content.data(), content.size(), 0), stat.st_size);
    return content;
  }

  IoFaults no_faults_;
  CrashDisk crash_disk_;
  TempDir dir_;
  std::vector<UniqueFd> files_;
  std::unique_ptr<IoQueue> queue_;
};

TEST_P(IoQueueContract, ReportsItsName) { EXPECT_EQ(queue_->name(), GetParam().queue_name); }

TEST_P(IoQueueContract, WritesBytesAtTheirOffset) {
  const int file = Open(O_RDWR | O_CREAT);
  EXPECT_EQ(Write(file, "world", 6), 5);
  EXPECT_EQ(Write(file, "hello ", 0), 6);
  EXPECT_EQ(FileContent(), "hello world");
}

TEST_P(IoQueueContract, ReadsBytesThatWereWritten) {
  const int file = Open(O_RDWR | O_CREAT);
  ASSERT_EQ(Write(file, "hello world", 0), 11);
  std::string read(5, '\0');
  EXPECT_EQ(Run([&](IoDone done) {
              queue_->Read(file, std::as_writable_bytes(std::span(read)), 6, std::move(done));
            }),
            5);
  EXPECT_EQ(read, "world");
}

TEST_P(IoQueueContract, ReadBeyondEndIsShort) {
  const int file = Open(O_RDWR | O_CREAT);
  ASSERT_EQ(Write(file, "hello", 0), 5);
  std::string read(100, '\0');
  const auto at = [&](int64_t offset) {
    return Run([&](IoDone done) {
      queue_->Read(file, std::as_writable_bytes(std::span(read)), offset, std::move(done));
    });
  };
  EXPECT_EQ(at(3), 2);
  EXPECT_EQ(at(5), 0);
}

TEST_P(IoQueueContract, WritesWithDirectIo) {
  const int file = Open(O_RDWR | O_CREAT | O_DIRECT);
  const std::unique_ptr<std::byte, decltype(&std::free)> block(
      static_cast<std::byte*>(std::aligned_alloc(kBlock, 2 * kBlock)), &std::free);
  std::memset(block.get(), 'a', 2 * kBlock);
  EXPECT_EQ(Run([&](IoDone done) {
              queue_->Write(file, {block.get(), 2 * kBlock}, kBlock, std::move(done));
            }),
            2 * static_cast<int64_t>(kBlock));
  EXPECT_EQ(FileContent(), std::string(kBlock, '\0') + std::string(2 * kBlock, 'a'));
}

TEST_P(IoQueueContract, SyncsData) {
  const int file = Open(O_RDWR | O_CREAT);
  ASSERT_EQ(Write(file, "hello", 0), 5);
  EXPECT_EQ(Run([&](IoDone done) { queue_->SyncData(file, std::move(done)); }), 0);
}

TEST_P(IoQueueContract, ReportsErrorsOfTheKernel) {
  Open(O_RDWR | O_CREAT);
  const int read_only = Open(O_RDONLY);
  EXPECT_EQ(Write(read_only, "x", 0), -EBADF);
  const int closed = 1'000'000;
  std::string read(1, '\0');
  EXPECT_EQ(Run([&](IoDone done) {
              queue_->Read(closed, std::as_writable_bytes(std::span(read)), 0, std::move(done));
            }),
            -EBADF);
  EXPECT_EQ(Run([&](IoDone done) { queue_->SyncData(closed, std::move(done)); }), -EBADF);
}

TEST_P(IoQueueContract, CompletesEachRequestOnceWhenManyAreSubmitted) {
  constexpr int kWrites = 50 * kDepth;
  const int file = Open(O_RDWR | O_CREAT);
  std::vector<int> completions(kWrites);
  std::vector<std::string> bytes;
  for (int i = 0; i < kWrites; ++i) bytes.push_back(std::string(kBlock, static_cast<char>('a' + i % 26)));
  for (int i = 0; i < kWrites; ++i) {
    queue_->Write(file, std::as_bytes(std::span(bytes[static_cast<size_t>(i)])),
                  i * static_cast<int64_t>(kBlock), [&, i](int64_t result) {
                    EXPECT_EQ(result, static_cast<int64_t>(kBlock));
                    ++completions[static_cast<size_t>(i)];
                  });
  }
  EXPECT_EQ(queue_->in_flight(), kWrites);
  PollAll();
  EXPECT_THAT(completions, Each(1));
  std::string expected;
  for (const std::string& block : bytes) expected += block;
  EXPECT_TRUE(FileContent() == expected) << "the file differs from what was written";
}

TEST_P(IoQueueContract, CompletionCanSubmitMore) {
  const int file = Open(O_RDWR | O_CREAT);
  const std::string byte = "x";
  int written = 0;
  std::function<void()> next = [&] {
    queue_->Write(file, std::as_bytes(std::span(byte)), written, [&](int64_t result) {
      ASSERT_EQ(result, 1);
      if (++written < 100) next();
    });
  };
  next();
  PollAll();
  EXPECT_EQ(FileContent(), std::string(100, 'x'));
}

TEST_P(IoQueueContract, CompletionsRunInPollOnItsThread) {
  const int file = Open(O_RDWR | O_CREAT);
  const std::string byte = "x";
  bool polling = false;
  std::vector<bool> ran;
  for (int i = 0; i < kDepth; ++i) {
    queue_->Write(file, std::as_bytes(std::span(byte)), i, [&, self = std::this_thread::get_id()](int64_t) {
      ran.push_back(polling && std::this_thread::get_id() == self);
    });
  }
  polling = true;
  PollAll();
  EXPECT_EQ(ran, std::vector<bool>(kDepth, true));
}

TEST_P(IoQueueContract, PollReturnsAfterTimeoutWhenIdle) {
  const Instant begin = SystemClock().Now();
  queue_->Poll(std::chrono::milliseconds(20));
  EXPECT_THAT(SystemClock().Now() - begin, Ge(Duration(std::chrono::milliseconds(19))));
  queue_->Poll(Duration::zero());
}

TEST_P(IoQueueContract, PollReturnsWhenRequestCompletes) {
  const int file = Open(O_RDWR | O_CREAT);
  const std::string byte = "x";
  bool done = false;
  queue_->Write(file, std::as_bytes(std::span(byte)), 0, [&](int64_t) { done = true; });
  const Instant begin = SystemClock().Now();
  while (!done) queue_->Poll(std::chrono::hours(24 * 365));
  EXPECT_LT(SystemClock().Now() - begin, std::chrono::seconds(60));
}

TEST_P(IoQueueContract, WakeEndsWaitingPoll) {
  std::thread waker([&] { queue_->Wake(); });
  const Instant begin = SystemClock().Now();
  queue_->Poll(std::chrono::seconds(60));
  EXPECT_LT(SystemClock().Now() - begin, std::chrono::seconds(30));
  waker.join();
}

TEST_P(IoQueueContract, WakeBeforePollEndsOnlyTheNextPoll) {
  queue_->Wake();
  queue_->Wake();
  const Instant begin = SystemClock().Now();
  queue_->Poll(std::chrono::seconds(60));
  EXPECT_LT(SystemClock().Now() - begin, std::chrono::seconds(30));
  const Instant second = SystemClock().Now();
  queue_->Poll(std::chrono::milliseconds(20));
  EXPECT_THAT(SystemClock().Now() - second, Ge(Duration(std::chrono::milliseconds(19))));
}

// Every Wake is followed by the end of a Poll, so the flag that it announces is always seen.
TEST_P(IoQueueContract, NoWakeIsLostBetweenThreads) {
  constexpr int kWakers = 3;
  constexpr int kRounds = 300;
  const int file = Open(O_RDWR | O_CREAT);
  const std::string byte = "x";
  std::atomic<int> announced = 0;
  std::vector<std::thread> wakers;
  for (int i = 0; i < kWakers; ++i) {
    wakers.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        ++announced;
        queue_->Wake();
      }
    });
  }
  const Instant begin = SystemClock().Now();
  while (announced < kWakers * kRounds) {
    queue_->Write(file, std::as_bytes(std::span(byte)), 0, [](int64_t result) { EXPECT_EQ(result, 1); });
    queue_->Poll(std::chrono::seconds(60));
  }
  for (std::thread& waker : wakers) waker.join();
  PollAll();
  EXPECT_LT(SystemClock().Now() - begin, std::chrono::seconds(50)) << "some Poll slept through a Wake";
}

TEST_P(IoQueueContract, DestructorWaitsForRequestsInFlightAndRunsNoCompletion) {
  const int file = Open(O_RDWR | O_CREAT);
  int completions = 0;
  const std::string bytes(1 << 20, 'x');
  for (int i = 0; i < 2 * kDepth; ++i) {
    queue_->Write(file, std::as_bytes(std::span(bytes)), i << 20, [&](int64_t) { ++completions; });
  }
  queue_.reset();
  EXPECT_EQ(completions, 0);
  EXPECT_TRUE(FileContent() == std::string(2 * kDepth << 20, 'x'));
}

std::string NameOf(const ::testing::TestParamInfo<BackEnd>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(BackEnds, IoQueueContract,
                         ::testing::Values(BackEnd{"io_uring", "io_uring", &MakeUringQueue, false},
                                           BackEnd{"threads", "threads", &MakeThreadQueue, false},
                                           BackEnd{"faulty_io_uring", "io_uring", &MakeUringQueue, true},
                                           BackEnd{"faulty_threads", "threads", &MakeThreadQueue, true},
                                           BackEnd{"crash_disk", "crash", nullptr, false}),
                         NameOf);

TEST(IoQueueTest, RefusesInvalidDepthOrThreadCount) {
  EXPECT_EQ(MakeThreadQueue(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeUringQueue(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeUringQueue(1 << 20).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckptd
