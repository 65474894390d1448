#include "client/cpp/reading/read_progress_reporter.h"

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

// Records the reports. With `answers` false, a report waits for Answer().
class Daemon {
 public:
  explicit Daemon(bool answers = true) : answers_(answers) {}

  ReadProgressReporter::Report report() {
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

TEST(ReadProgressReporter, ReportsTheBytesReadOfAllReadingsBegun) {
  Daemon daemon;
  ReadProgressReporter reporter(daemon.report(), milliseconds(1));
  Add(reporter.Begin(100), 40);
  daemon.AwaitReports(1);
  reporter.End(/*whole=*/true);
  Add(reporter.Begin(60), 10);
  daemon.AwaitReports(2);
  reporter.End(/*whole=*/false);
  reporter.Finish();
  const auto heard = daemon.heard();
  EXPECT_THAT(heard.front(), Pair(40, 100));
  EXPECT_THAT(heard.back(), Pair(110, 160));
  EXPECT_LE(heard.size(), 3u);  // There may be one more report, from when the second reading began.
}

TEST(ReadProgressReporter, LastReportSaysAllBytes) {
  Daemon daemon;
  {
    ReadProgressReporter reporter(daemon.report(), milliseconds(1));
    Add(reporter.Begin(100), 40);
    daemon.AwaitReports(1);
    reporter.End(/*whole=*/true);
    reporter.Finish();
  }
  EXPECT_THAT(daemon.heard(), ElementsAre(Pair(40, 100), Pair(100, 100)));
}

TEST(ReadProgressReporter, SendsOneReportAtATime) {
  Daemon daemon(/*answers=*/false);
  ReadProgressReporter reporter(daemon.report(), milliseconds(1));
  uint64_t* const done = reporter.Begin(100);
  Add(done, 10);
  daemon.AwaitReports(1);
  Add(done, 10);
  Add(done, 10);
  reporter.End(/*whole=*/false);
  daemon.Answer(absl::DeadlineExceededError("too slow"));
  reporter.Finish();
  EXPECT_THAT(daemon.heard(), ElementsAre(Pair(10, 100), Pair(30, 100)));
}

TEST(ReadProgressReporter, ReportsNothingForAShortReading) {
  Daemon daemon;
  ReadProgressReporter reporter(daemon.report(), hours(1));
  Add(reporter.Begin(100), 100);
  reporter.End(/*whole=*/true);
  reporter.Finish();
  EXPECT_THAT(daemon.heard(), IsEmpty());
}

TEST(ReadProgressReporter, ReportsNoMoreBytesThanTheReadingHas) {
  Daemon daemon;
  ReadProgressReporter reporter(daemon.report(), milliseconds(1));
  Add(reporter.Begin(100), 4096);  // Readers count whole chunks.
  daemon.AwaitReports(1);
  reporter.End(/*whole=*/true);
  reporter.Finish();
  EXPECT_THAT(daemon.heard(), ElementsAre(Pair(100, 100)));
}

TEST(ReadProgressReporter, StopsReportingWhenTheDaemonHasGone) {
  Daemon daemon(/*answers=*/false);
  ReadProgressReporter reporter(daemon.report(), milliseconds(1));
  uint64_t* const done = reporter.Begin(100);
  Add(done, 10);
  daemon.AwaitReports(1);
  daemon.Answer(absl::UnavailableError("gone"));
  Add(done, 10);
  reporter.End(/*whole=*/true);
  Add(reporter.Begin(60), 20);
  reporter.End(/*whole=*/true);
  reporter.Finish();
  EXPECT_THAT(daemon.heard(), ElementsAre(Pair(10, 100)));
}

TEST(ReadProgressReporter, FinishInAForkedChildDoesNotWait) {
  Daemon daemon(/*answers=*/false);
  ReadProgressReporter reporter(daemon.report(), milliseconds(1));
  Add(reporter.Begin(100), 10);
  daemon.AwaitReports(1);
  const pid_t child = fork();
  if (child == 0) {
    reporter.Finish();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  daemon.Answer();
  reporter.End(/*whole=*/false);
}

}  // namespace
}  // namespace ckptd::client
