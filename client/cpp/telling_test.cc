#include "client/cpp/telling.h"

#include <sys/wait.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::client {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

// A list of reports; each is answered when it is told to.
class Daemon {
 public:
  explicit Daemon(bool answers = true) : answers_(answers) {}

  Telling::Tell tell() {
    return [this](int64_t read, int64_t total) {
      MutexLock lock(mutex_);
      EXPECT_FALSE(asked_) << "one at a time";
      asked_ = true;
      heard_.emplace_back(read, total);
      changed_.SignalAll();
      while (!answers_) changed_.Wait(mutex_);
      asked_ = false;
      return answer_;
    };
  }
  void AwaitReports(size_t count) {
    MutexLock lock(mutex_);
    while (heard_.size() < count) changed_.Wait(mutex_);
  }
  void Answer(absl::Status with = absl::OkStatus()) {
    MutexLock lock(mutex_);
    answers_ = true;
    answer_ = std::move(with);
    changed_.SignalAll();
  }
  std::vector<std::pair<int64_t, int64_t>> heard() {
    MutexLock lock(mutex_);
    return heard_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool answers_ ABSL_GUARDED_BY(mutex_);
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status answer_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<int64_t, int64_t>> heard_ ABSL_GUARDED_BY(mutex_);
};

void Add(uint64_t* done, uint64_t bytes) { __atomic_add_fetch(done, bytes, __ATOMIC_RELAXED); }

TEST(Telling, WhileAReadingGoesOnAndOfAllThatWereBegun) {
  Daemon daemon;
  Telling telling(daemon.tell(), milliseconds(1));
  Add(telling.Begin(100), 40);
  daemon.AwaitReports(1);
  telling.End(/*whole=*/true);
  Add(telling.Begin(60), 10);
  daemon.AwaitReports(2);
  telling.End(/*whole=*/false);
  telling.Finish();
  const auto heard = daemon.heard();
  EXPECT_THAT(heard.front(), Pair(40, 100));
  EXPECT_THAT(heard.back(), Pair(110, 160));
  EXPECT_LE(heard.size(), 3u);  // Perhaps also of the moment at which the second one began.
}

TEST(Telling, TheLastWordIsAllOfIt) {
  Daemon daemon;
  {
    Telling telling(daemon.tell(), milliseconds(1));
    Add(telling.Begin(100), 40);
    daemon.AwaitReports(1);
    telling.End(/*whole=*/true);
    telling.Finish();
  }
  EXPECT_THAT(daemon.heard(), ElementsAre(Pair(40, 100), Pair(100, 100)));
}

TEST(Telling, OneReportAtATimeSoThatNoneOvertakesAnother) {
  Daemon daemon(/*answers=*/false);
  Telling telling(daemon.tell(), milliseconds(1));
  uint64_t* const done = telling.Begin(100);
  Add(done, 10);
  daemon.AwaitReports(1);
  Add(done, 10);
  Add(done, 10);
  telling.End(/*whole=*/false);
  daemon.Answer(absl::DeadlineExceededError("too slow"));
  telling.Finish();
  EXPECT_THAT(daemon.heard(), ElementsAre(Pair(10, 100), Pair(30, 100)));
}

TEST(Telling, AShortReadingTellsNothing) {
  Daemon daemon;
  Telling telling(daemon.tell(), hours(1));
  Add(telling.Begin(100), 100);
  telling.End(/*whole=*/true);
  telling.Finish();
  EXPECT_THAT(daemon.heard(), IsEmpty());
}

TEST(Telling, MoreThanThereIsIsNotTold) {
  Daemon daemon;
  Telling telling(daemon.tell(), milliseconds(1));
  Add(telling.Begin(100), 4096);  // Whole chunks are read.
  daemon.AwaitReports(1);
  telling.End(/*whole=*/true);
  telling.Finish();
  EXPECT_THAT(daemon.heard(), ElementsAre(Pair(100, 100)));
}

TEST(Telling, ADaemonThatHasGoneIsToldNothingMore) {
  Daemon daemon(/*answers=*/false);
  Telling telling(daemon.tell(), milliseconds(1));
  uint64_t* const done = telling.Begin(100);
  Add(done, 10);
  daemon.AwaitReports(1);
  daemon.Answer(absl::UnavailableError("gone"));
  Add(done, 10);
  telling.End(/*whole=*/true);
  Add(telling.Begin(60), 20);
  telling.End(/*whole=*/true);
  telling.Finish();
  EXPECT_THAT(daemon.heard(), ElementsAre(Pair(10, 100)));
}

TEST(Telling, AForkedChildThatEndsItDoesNotWait) {
  Daemon daemon(/*answers=*/false);
  Telling telling(daemon.tell(), milliseconds(1));
  Add(telling.Begin(100), 10);
  daemon.AwaitReports(1);
  const pid_t child = fork();
  if (child == 0) {
    telling.Finish();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  daemon.Answer();
  telling.End(/*whole=*/false);
}

}  // namespace
}  // namespace ckptd::client
