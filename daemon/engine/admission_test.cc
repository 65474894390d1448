// Who gets memory and disk first, and who waits for whom: several runs and several users.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/engine_testing.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

// One rank of a run of its own.
struct Job {
  SessionId session = 0;
  uid_t uid = 0;
  uint64_t root = 0;
  std::string run;
};

class AdmissionTest : public EngineTest {
 protected:
  // Roots below 100 are on one disk.
  Job StartJob(uint64_t root, uid_t uid = 1000) {
    Job job{Trainer("job" + std::to_string(root), uid), uid, root, ""};
    v1::JoinRunRequest request;
    request.set_root(job.run = Attach(job.session, root, uid));
    request.set_rank(0);
    request.set_world_size(1);
    request.set_launch_id("launch");
    Answer<v1::JoinRunResponse> joined;
    engine_->JoinRun(As(job.session, uid), request, joined.reply());
    Turn();
    EXPECT_TRUE(joined.status().ok()) << joined.status();
    return job;
  }
  v1::BeginRequest SaveOf(const Job& job, const std::string& tag, int64_t bytes,
                          v1::BusyPolicy busy = v1::WAIT) {
    run_ = job.run;
    v1::BeginRequest request = BeginOf(0, tag, 1, bytes);
    request.set_busy(busy);
    request.mutable_timeout()->set_seconds(3600);
    request.mutable_commit_timeout()->set_seconds(3600);
    return request;
  }
  Answer<v1::BeginResponse> BeginLater(const Job& job, const v1::BeginRequest& request) {
    Answer<v1::BeginResponse> answer;
    engine_->Begin(As(job.session, job.uid), request, answer.reply());
    Turn();
    return answer;
  }
  // Begins a save that is admitted at once.
  v1::BeginRequest BeginNow(const Job& job, const std::string& tag, int64_t bytes) {
    const v1::BeginRequest request = SaveOf(job, tag, bytes);
    auto begun = BeginLater(job, request);
    Turn([&] { return begun.has(); });
    EXPECT_TRUE(begun.status().ok()) << begun.status();
    return request;
  }
  Answer<v1::SealResponse> SealNow(const Job& job, const v1::BeginRequest& begun) {
    v1::SealRequest request;
    *request.mutable_key() = begun.key();
    *request.mutable_files() = begun.files();
    Answer<v1::SealResponse> answer;
    engine_->Seal(As(job.session, job.uid), request, answer.reply());
    Turn();
    return answer;
  }
  void AbortNow(const Job& job, const v1::BeginRequest& begun) {
    v1::AbortRequest request;
    *request.mutable_key() = begun.key();
    Answer<v1::AbortResponse> answer;
    engine_->Abort(As(job.session, job.uid), request, answer.reply());
    Turn();
    EXPECT_TRUE(answer.status().ok()) << answer.status();
  }
  void SetFreeBytes(std::vector<uint64_t> roots, int64_t bytes) {
    for (uint64_t root : roots) {
      if (disks_[root] == nullptr) disks_[root] = std::make_shared<FakeDisk>();
      disks_[root]->free_bytes = bytes;
    }
  }
};

// ---- the disk

TEST_F(AdmissionTest, WaitsForRoomThatASaveOfAnotherRunOnTheDiskHolds) {
  SetFreeBytes({1, 2}, 10 * kMiB);
  const Job one = StartJob(1), two = StartJob(2);
  const auto first = BeginNow(one, "first", 6 * kMiB);
  auto second = BeginLater(two, SaveOf(two, "second", 6 * kMiB));
  EXPECT_FALSE(second.has()) << second.status();
  AbortNow(one, first);
  Turn([&] { return second.has(); });
  EXPECT_TRUE(second.status().ok()) << second.status();
}

TEST_F(AdmissionTest, AsksTheDiskAgainBeforeItRefusesWhatAnotherRunMadeRoomFor) {
  SetFreeBytes({1, 2}, 10 * kMiB);
  const Job one = StartJob(1), two = StartJob(2);
  disks_[1]->trash_bytes = 10 * kMiB;
  ios_[1]->held.insert("EmptyTrash");
  const auto first = BeginNow(one, "first", kMiB);
  AbortNow(one, first);  // Its directory goes to trash, which is being emptied from now on.
  auto second = BeginLater(two, SaveOf(two, "second", 15 * kMiB));
  EXPECT_FALSE(second.has()) << second.status();
  SetFreeBytes({2}, 20 * kMiB);  // It is one disk.
  ios_[1]->Free();
  Turn([&] { return second.has(); });
  EXPECT_TRUE(second.status().ok()) << second.status();
}

TEST_F(AdmissionTest, RefusesWithNoSpaceWhenTheOtherRunsSaveHasEndedAndFreedNothing) {
  SetFreeBytes({1, 2}, 10 * kMiB);
  const Job one = StartJob(1), two = StartJob(2);
  const auto first = BeginNow(one, "first", 6 * kMiB);
  auto second = BeginLater(two, SaveOf(two, "second", 6 * kMiB));
  EXPECT_FALSE(second.has()) << second.status();
  SetFreeBytes({1, 2}, 4 * kMiB);
  ASSERT_TRUE(SealNow(one, first).status().ok());
  Turn([&] { return second.has(); });
  EXPECT_EQ(second.reason(), "NO_SPACE");
}

TEST_F(AdmissionTest, TwoSavesThatWaitForTheDiskDoNotWaitForEachOther) {
  SetFreeBytes({1, 2, 3}, 10 * kMiB);
  const Job one = StartJob(1), two = StartJob(2), three = StartJob(3);
  const auto held = BeginNow(three, "held", 6 * kMiB);
  auto first = BeginLater(one, SaveOf(one, "first", 12 * kMiB));
  auto second = BeginLater(two, SaveOf(two, "second", 12 * kMiB));
  EXPECT_FALSE(first.has() || second.has());
  AbortNow(three, held);
  Turn([&] { return first.has() && second.has(); });
  EXPECT_EQ(first.reason(), "NO_SPACE");
  EXPECT_EQ(second.reason(), "NO_SPACE");
}

// ---- retention at the start

TEST_F(AdmissionTest, RetentionGoesOnAfterARestartBetweenCommitAndEviction) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  Turn([&] { return observer_.ended.size() == 1; });
  ios_[1]->held.insert("Evict");
  SaveAll(sessions, "two", 2, /*keep=*/1);
  Turn([&] { return observer_.ended.size() == 2; });
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
  SetFreeBytes({1}, kMiB);
  queue_.clear();
  Start(16);
  sessions = {Trainer("b/0")};
  Attach(sessions[0]);
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

// The daemon was killed before the run record said how the last save ended, and what it asked to keep.
TEST_F(AdmissionTest, RetentionAtTheStartKeepsWhatTheLastSaveWantedKept) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  Turn([&] { return observer_.ended.size() == 1; });
  ios_[1]->hold_publish = true;
  SaveAll(sessions, "two", 2);  // Keeps all.
  Turn([&] { return ios_[1]->calls["Publish"] == 2; });
  const auto disk = *disks_[1];
  ios_[1]->Free();
  Turn([&] { return observer_.ended.size() == 2; });
  disks_[1]->run_record = disk.run_record;  // What it was when the checkpoint was published.
  queue_.clear();
  Start(16);
  Attach(Trainer("b/0"));
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
}

TEST_F(AdmissionTest, ASaveWhoseWishToKeepMoreCannotBeRecordedFails) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  Turn([&] { return observer_.ended.size() == 1; });
  ios_[1]->errors["SaveRunRecord"] = ErrnoError(ENOSPC, "writing the run record");
  SaveAll(sessions, "two", 2, /*keep=*/2);
  Turn([&] { return observer_.ended.size() == 2; });
  EXPECT_EQ(observer_.ended.back().checkpoint.error().reason(), "NO_SPACE");
  EXPECT_THAT(Tags(), ElementsAre("one"));
}

TEST_F(AdmissionTest, RetentionAtTheStartWaitsUntilTheHistorySaysHowTheLastSaveEnded) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  Turn([&] { return observer_.ended.size() == 1; });
  ios_[1]->held.insert("SaveRunRecord");
  SaveAll(sessions, "two", 2, /*keep=*/1);
  Turn([&] { return observer_.ended.size() == 2; });
  EXPECT_EQ(disks_[1]->run_record.outcomes_size(), 1);
  queue_.clear();
  Start(16);
  RootAttachment attachment{1, 1, "/root1", 1000, [this] {
                              auto io = std::make_unique<FakeRootIo>(disks_[1], &queue_);
                              io->held.insert("SaveRunRecord");
                              ios_[1] = io.get();
                              return io;
                            }};
  engine_->AttachRoot(Trainer("b/0"), std::move(attachment), [](const absl::StatusOr<std::string>&) {});
  Turn();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  ios_[1]->Free();
  Turn();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
  EXPECT_EQ(disks_[1]->run_record.outcomes_size(), 2);
}

TEST_F(AdmissionTest, RetentionAtTheStartLeavesWhatAnAttemptResumesFrom) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  Turn([&] { return observer_.ended.size() == 1; });
  ios_[1]->hold_publish = true;
  SaveAll(sessions, "two", 2, /*keep=*/1);
  auto again = Launch("b", 1);
  ios_[1]->held.insert("Evict");
  auto resumed = Resume(again[0], 0);
  EXPECT_FALSE(resumed.has()) << "two is sealed, and decides";
  ios_[1]->Free();
  Turn();
  ASSERT_TRUE(resumed.status().ok()) << resumed.status();
  EXPECT_EQ(resumed.get().checkpoint().tag(), "two");
  // A daemon that was killed before that, whose recovery published "two", finds the decision for "one".
  storage::v1::RunRecord& record = disks_[1]->run_record;
  for (auto& launch : *record.mutable_launches()) {
    if (launch.attempt() != 2) continue;
    launch.set_resume_decided(true);
    launch.set_resume_tag("one");
    launch.set_resume_sequence(1);
    launch.set_resume_agreed(false);
  }
  CommittedCheckpoint& one = disks_[1]->committed[1];
  one.summary = disks_[1]->committed.at(2).summary;
  one.summary.set_tag("one");
  one.summary.set_sequence(1);
  disks_[1]->evicted.clear();
  queue_.clear();
  Start(16);
  Attach(Trainer("c/0"));
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
}

// ---- ranks that do not agree on retention

TEST_F(AdmissionTest, RanksThatNameDifferentNumKeptCkptsConflict) {
  auto sessions = Launch("a", 2);
  auto first = BeginOf(0, "t", 1, 100), second = BeginOf(1, "t", 1, 100);
  first.set_num_kept_ckpts(3);
  second.set_num_kept_ckpts(5);
  auto begun = Begin(sessions[0], first);
  auto refused = Begin(sessions[1], second);
  EXPECT_EQ(refused.reason(), "SAVE_CONFLICT");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("num_kept_ckpts 5"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("num_kept_ckpts 3"));
  second.set_num_kept_ckpts(3);
  auto agreed = Begin(sessions[1], second);
  Turn([&] { return begun.has() && agreed.has(); });
  EXPECT_TRUE(agreed.status().ok()) << agreed.status();
}

TEST_F(AdmissionTest, ARankThatNamesNoNumKeptCkptsFollowsTheOthers) {
  auto sessions = Launch("a", 2);
  for (int64_t step : {1, 2}) {
    const std::string tag = "step" + std::to_string(step);
    std::vector<Answer<v1::BeginResponse>> begun;
    for (int rank : {0, 1}) {
      auto request = BeginOf(rank, tag, step, 100);
      if (rank == 0) request.set_num_kept_ckpts(1);
      begun.push_back(Begin(sessions[rank], request));
    }
    Turn([&] { return begun[0].has() && begun[1].has(); });
    for (int rank : {0, 1}) ASSERT_TRUE(Seal(sessions[rank], BeginOf(rank, tag, step, 100)).status().ok());
  }
  EXPECT_THAT(Tags(), ElementsAre("step2"));
}

}  // namespace
}  // namespace ckptd
