// Admission with the whole engine: several runs and users compete for memory and disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

// A run with a world size of 1, and its only rank.
struct Job {
  SessionId session = 0;
  uid_t uid = 0;
  uint64_t root = 0;
  std::string run;
};

class AdmissionTest : public EngineTest {
 protected:
  // Roots with numbers below 100 are on one disk.
  Job StartJob(uint64_t root, uid_t uid = 1000) {
    Job job{Trainer("job" + std::to_string(root), uid), uid, root, ""};
    v1::JoinRunRequest request;
    request.set_root(job.run = Attach(job.session, root, uid));
    request.set_rank(0);
    request.set_world_size(1);
    request.set_launch_id("launch");
    Answer<v1::JoinRunResponse> joined;
    engine_->JoinRun(As(job.session, uid), request, joined.reply());
    RunQueued();
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
    RunQueued();
    return answer;
  }
  // Begins a save that is admitted at once.
  v1::BeginRequest BeginNow(const Job& job, const std::string& tag, int64_t bytes) {
    const v1::BeginRequest request = SaveOf(job, tag, bytes);
    auto begun = BeginLater(job, request);
    RunQueued([&] { return begun.has(); });
    EXPECT_TRUE(begun.status().ok()) << begun.status();
    return request;
  }
  Answer<v1::SealResponse> SealNow(const Job& job, const v1::BeginRequest& begun) {
    v1::SealRequest request;
    *request.mutable_key() = begun.key();
    *request.mutable_files() = begun.files();
    Answer<v1::SealResponse> answer;
    engine_->Seal(As(job.session, job.uid), request, answer.reply());
    RunQueued();
    return answer;
  }
  void AbortNow(const Job& job, const v1::BeginRequest& begun) {
    v1::AbortRequest request;
    *request.mutable_key() = begun.key();
    Answer<v1::AbortResponse> answer;
    engine_->Abort(As(job.session, job.uid), request, answer.reply());
    RunQueued();
    EXPECT_TRUE(answer.status().ok()) << answer.status();
  }
  // How many saves of a root have been admitted. Their answers would also wait for the pool's thread.
  int Admitted(const Job& job) { return ios_[job.root]->calls["CreateInflight"]; }
  // The reason with which the save ended; "none" while it is in flight.
  std::string EndOf(const Job& job, const v1::BeginRequest& begun) {
    v1::WaitRequest request;
    *request.mutable_key() = begun.key();
    request.set_level(v1::COMMITTED);
    request.mutable_timeout()->set_seconds(1000);
    Answer<v1::WaitResponse> answer;
    engine_->Wait(As(job.session, job.uid), request, answer.reply());
    RunQueued();
    if (!answer.has()) return "none";
    const v1::Checkpoint& checkpoint = answer.get().checkpoint();
    return checkpoint.has_error() ? checkpoint.error().reason() : v1::Level_Name(checkpoint.level());
  }
  void CommitNow(const Job& job, const v1::BeginRequest& begun) {
    ASSERT_TRUE(SealNow(job, begun).status().ok());
    RunQueued();
    EXPECT_EQ(EndOf(job, begun), "COMMITTED");
  }
  // Saves a checkpoint of `job`, which another process then resumes from. Returns how many of its parts that
  // process gets from memory.
  int PartsInMemory(const Job& job) {
    run_ = job.run;
    const SessionId reader = Trainer("reader" + std::to_string(next_session_), job.uid);
    v1::OpenCheckpointRequest open;
    open.set_name(job.run + "/checkpoints/latest");
    Answer<v1::OpenCheckpointResponse> opened;
    engine_->OpenCheckpoint(As(reader, job.uid), open, opened.reply());
    RunQueued();
    EXPECT_TRUE(opened.status().ok()) << opened.status();
    v1::LocateFilesRequest request;
    request.set_lease(opened.get().lease());
    Answer<v1::LocateFilesResponse> located;
    engine_->LocateFiles(As(reader, job.uid), request, located.reply());
    RunQueued();
    return located.get().parts_size();
  }
  void SetFreeBytes(std::vector<uint64_t> roots, int64_t bytes) {
    for (uint64_t root : roots) {
      if (disks_[root] == nullptr) disks_[root] = std::make_shared<FakeDisk>();
      disks_[root]->free_bytes = bytes;
    }
  }
};

// ---- the disk

TEST_F(AdmissionTest, WaitsForRoomHeldBySaveOfOtherRunOnSameDisk) {
  SetFreeBytes({1, 2}, 10 * kMiB);
  const Job one = StartJob(1), two = StartJob(2);
  const auto first = BeginNow(one, "first", 6 * kMiB);
  auto second = BeginLater(two, SaveOf(two, "second", 6 * kMiB));
  EXPECT_FALSE(second.has()) << second.status();
  AbortNow(one, first);
  RunQueued([&] { return second.has(); });
  EXPECT_TRUE(second.status().ok()) << second.status();
}

TEST_F(AdmissionTest, AsksDiskAgainBeforeRefusingRoomFreedByOtherRun) {
  SetFreeBytes({1, 2}, 10 * kMiB);
  const Job one = StartJob(1), two = StartJob(2);
  disks_[1]->trash_bytes = 10 * kMiB;
  ios_[1]->held.insert("EmptyTrash");
  const auto first = BeginNow(one, "first", kMiB);
  AbortNow(one, first);  // Its directory goes to trash, which is being emptied from now on.
  auto second = BeginLater(two, SaveOf(two, "second", 15 * kMiB));
  EXPECT_FALSE(second.has()) << second.status();
  SetFreeBytes({2}, 20 * kMiB);  // It is one disk.
  ios_[1]->ReleaseHeld();
  RunQueued([&] { return second.has(); });
  EXPECT_TRUE(second.status().ok()) << second.status();
}

TEST_F(AdmissionTest, RefusesWithNoSpaceWhenSaveOfOtherRunEndsAndFreesNothing) {
  SetFreeBytes({1, 2}, 10 * kMiB);
  const Job one = StartJob(1), two = StartJob(2);
  const auto first = BeginNow(one, "first", 6 * kMiB);
  auto second = BeginLater(two, SaveOf(two, "second", 6 * kMiB));
  EXPECT_FALSE(second.has()) << second.status();
  SetFreeBytes({1, 2}, 4 * kMiB);
  ASSERT_TRUE(SealNow(one, first).status().ok());
  RunQueued([&] { return second.has(); });
  EXPECT_EQ(second.reason(), "NO_SPACE");
}

TEST_F(AdmissionTest, TwoSavesWaitingForDiskDoNotWaitForEachOther) {
  SetFreeBytes({1, 2, 3}, 10 * kMiB);
  const Job one = StartJob(1), two = StartJob(2), three = StartJob(3);
  const auto held = BeginNow(three, "held", 6 * kMiB);
  auto first = BeginLater(one, SaveOf(one, "first", 12 * kMiB));
  auto second = BeginLater(two, SaveOf(two, "second", 12 * kMiB));
  EXPECT_FALSE(first.has() || second.has());
  AbortNow(three, held);
  RunQueued([&] { return first.has() && second.has(); });
  EXPECT_EQ(first.reason(), "NO_SPACE");
  EXPECT_EQ(second.reason(), "NO_SPACE");
}

// ---- retention at the start

TEST_F(AdmissionTest, RetentionContinuesAfterRestartBetweenCommitAndEviction) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  ios_[1]->held.insert("Evict");
  SaveAll(sessions, "two", 2, /*keep=*/1);
  RunQueued([&] { return observer_.ended.size() == 2; });
  EXPECT_THAT(disks_[1]->committed, ::testing::SizeIs(2)) << "no list shows the older one any more";
  SetFreeBytes({1}, kMiB);
  queue_.clear();
  Start(16);
  sessions = {Trainer("b/0")};
  Attach(sessions[0]);
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

// The daemon was killed before it had written the outcome and the retention policy of the last save.
TEST_F(AdmissionTest, RetentionAtStartKeepsNumberOfLastSave) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  ios_[1]->hold_publish = true;
  SaveAll(sessions, "two", 2);  // Keeps all.
  RunQueued([&] { return ios_[1]->calls["Publish"] == 2; });
  const auto disk = *disks_[1];
  ios_[1]->ReleaseHeld();
  RunQueued([&] { return observer_.ended.size() == 2; });
  disks_[1]->run_record = disk.run_record;  // What it was when the checkpoint was published.
  queue_.clear();
  Start(16);
  Attach(Trainer("b/0"));
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
}

TEST_F(AdmissionTest, WaitsForRoomThatRetentionFreesAfterHistoryIsWritten) {
  SetFreeBytes({1}, 10 * kMiB);
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  ios_[1]->errors["SaveRunRecord"] = ErrnoError(EIO, "writing the run record");
  SaveAll(sessions, "two", 2, /*keep=*/1);
  RunQueued([&] { return observer_.ended.size() == 2; });
  ASSERT_THAT(disks_[1]->evicted, ElementsAre());
  SetFreeBytes({1}, kMiB);
  auto third = Begin(sessions[0], BeginOf(0, "three", 3, 6 * kMiB));
  EXPECT_FALSE(third.has()) << third.status();
  ios_[1]->errors.clear();
  SetFreeBytes({1}, 10 * kMiB);  // What the eviction of "one" gives back.
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
  RunQueued([&] { return third.has(); });
  EXPECT_TRUE(third.status().ok()) << third.status();
}

TEST_F(AdmissionTest, FailsSaveWhenItsLargerNumKeptCannotBeRecorded) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  ios_[1]->errors["SaveRunRecord"] = ErrnoError(ENOSPC, "writing the run record");
  SaveAll(sessions, "two", 2, /*keep=*/2);
  RunQueued([&] { return observer_.ended.size() == 2; });
  EXPECT_EQ(observer_.ended.back().checkpoint.error().reason(), "NO_SPACE");
  EXPECT_THAT(Tags(), ElementsAre("one"));
}

TEST_F(AdmissionTest, RetentionAtStartWaitsForOutcomeOfLastSaveInHistory) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  ios_[1]->held.insert("SaveRunRecord");
  SaveAll(sessions, "two", 2, /*keep=*/1);
  RunQueued([&] { return observer_.ended.size() == 2; });
  EXPECT_EQ(disks_[1]->run_record.outcomes_size(), 1);
  queue_.clear();
  Start(16);
  RootAttachment attachment{1, 1, "/root1", 1000, [this] {
                              auto io = std::make_unique<FakeRootIo>(disks_[1], &queue_);
                              io->held.insert("SaveRunRecord");
                              ios_[1] = io.get();
                              return RootAccess(std::move(io));
                            }};
  engine_->AttachRoot(Trainer("b/0"), std::move(attachment), [](const absl::StatusOr<std::string>&) {});
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
  EXPECT_EQ(disks_[1]->run_record.outcomes_size(), 2);
}

TEST_F(AdmissionTest, RetentionAtStartKeepsCheckpointThatAttemptResumesFrom) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  ios_[1]->hold_publish = true;
  SaveAll(sessions, "two", 2, /*keep=*/1);
  auto again = Launch("b", 1);
  ios_[1]->held.insert("Evict");
  auto resumed = Resume(again[0], 0);
  EXPECT_FALSE(resumed.has()) << "two is sealed, and decides";
  ios_[1]->ReleaseHeld();
  RunQueued();
  ASSERT_TRUE(resumed.status().ok()) << resumed.status();
  EXPECT_EQ(resumed.get().checkpoint().tag(), "two");
  // A daemon that was killed earlier and whose recovery published "two" still finds the decision for "one".
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

// ---- memory

TEST_F(AdmissionTest, SaveWaitingForMemoryOfOwnUserBlocksNoOtherUser) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 2000), victim = StartJob(3, 1000);
  BeginNow(one, "never_sealed", 1);
  auto never = BeginLater(two, SaveOf(two, "never_fits", 8 * kSegment));
  EXPECT_FALSE(never.has()) << never.status();
  BeginNow(victim, "first", 2 * kSegment);
  BeginNow(victim, "second", 2 * kSegment);
  EXPECT_EQ(Admitted(two), 0);
}

TEST_F(AdmissionTest, SaveWaitingForMemoryOfOwnRunBlocksNoOtherRunOfUser) {
  Start(8);
  const Job one = StartJob(1), two = StartJob(2);
  const auto held = BeginNow(one, "never_sealed", 1);
  auto never = BeginLater(one, SaveOf(one, "never_fits", 8 * kSegment));
  const auto other = BeginNow(two, "other", 2 * kSegment);
  // Now it waits for memory of others, too, and younger saves no longer overtake it.
  AbortNow(one, held);
  auto later = BeginLater(two, SaveOf(two, "later", kSegment));
  EXPECT_EQ(Admitted(two), 1);
  AbortNow(two, other);
  RunQueued([&] { return never.has(); });
  EXPECT_TRUE(never.status().ok()) << never.status();
  EXPECT_EQ(Admitted(two), 1);
}

TEST_F(AdmissionTest, SaveWaitingForMemoryReservesNoDiskSpace) {
  Start(8);
  SetFreeBytes({1, 2}, 10 * kMiB);
  const Job hoarder = StartJob(100, 2000), one = StartJob(1, 3000), two = StartJob(2, 1000);
  BeginNow(hoarder, "hoard", 6 * kSegment);  // On another disk.
  auto waits = BeginLater(one, SaveOf(one, "waits", 3 * kSegment));
  EXPECT_FALSE(waits.has());
  BeginNow(two, "small", kSegment);  // 3 MiB with its directories; 7 MiB would be for the one that waits.
}

TEST_F(AdmissionTest, LargeSaveBlockedByOwnRunDoesNotSkipSavesOfOthers) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 1000);
  BeginNow(one, "never_sealed", 1);
  BeginLater(one, SaveOf(one, "never_fits", 8 * kSegment));
  auto skip = BeginLater(two, SaveOf(two, "skip", kSegment, v1::SKIP));
  RunQueued([&] { return skip.has(); });
  EXPECT_EQ(skip.get().level(), v1::OPEN);
}

TEST_F(AdmissionTest, OneUserMayHoldWholePoolWhenNobodyElseWaits) {
  Start(8);
  const Job one = StartJob(1, 2000);
  const auto all = BeginNow(one, "all", 8 * kSegment);
  AdvanceClock(std::chrono::seconds(60));
  EXPECT_EQ(EndOf(one, all), "none");
}

TEST_F(AdmissionTest, MemoryBeyondShareIsRevokedForSaveWithinShare) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 1000);
  const auto hoard = BeginNow(one, "hoard", 6 * kSegment);
  auto within = BeginLater(two, SaveOf(two, "within", 4 * kSegment));
  auto more = BeginLater(one, SaveOf(one, "more", kSegment));
  AdvanceClock(std::chrono::seconds(9));
  EXPECT_EQ(EndOf(one, hoard), "none");
  EXPECT_EQ(Admitted(one), 1) << "there is memory for one segment more, but the other user comes first";
  AdvanceClock(std::chrono::seconds(1));
  EXPECT_EQ(EndOf(one, hoard), "OVER_SHARE");
  RunQueued([&] { return within.has() && more.has(); });
  EXPECT_TRUE(within.status().ok()) << within.status();
  EXPECT_TRUE(more.status().ok()) << more.status();
}

TEST_F(AdmissionTest, SkippingSaveWithinShareGetsOverdueMemoryAtOnce) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 1000);
  const auto hoard = BeginNow(one, "hoard", 8 * kSegment);
  AdvanceClock(std::chrono::seconds(10));
  auto skip = BeginLater(two, SaveOf(two, "skip", 4 * kSegment, v1::SKIP));
  RunQueued([&] { return skip.has(); });
  EXPECT_EQ(skip.get().level(), v1::OPEN);
  EXPECT_EQ(EndOf(one, hoard), "OVER_SHARE");
}

TEST_F(AdmissionTest, RevokesNoMoreThanTheExcessOverTheShare) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 1000);
  const auto first = BeginNow(one, "first", 3 * kSegment);
  const auto second = BeginNow(one, "second", kSegment);
  const auto third = BeginNow(one, "third", 4 * kSegment);
  AdvanceClock(std::chrono::seconds(10));
  BeginNow(two, "within", 4 * kSegment);
  EXPECT_EQ(EndOf(one, first), "none");
  EXPECT_EQ(EndOf(one, second), "none");
  EXPECT_EQ(EndOf(one, third), "OVER_SHARE") << "the youngest";
}

TEST_F(AdmissionTest, RevokesNothingWhenThatWouldNotMakeRoom) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 1000);
  ios_[1]->hold_writes = true;
  const auto sealed = BeginNow(one, "sealed", 6 * kSegment);
  ASSERT_TRUE(SealNow(one, sealed).status().ok());
  const auto open = BeginNow(one, "open", kSegment);
  AdvanceClock(std::chrono::seconds(10));
  auto within = BeginLater(two, SaveOf(two, "within", 4 * kSegment));
  AdvanceClock(std::chrono::seconds(10));
  EXPECT_FALSE(within.has());
  EXPECT_EQ(EndOf(one, sealed), "none");
  EXPECT_EQ(EndOf(one, open), "none");
  ios_[1]->ReleaseHeld();
  RunQueued([&] { return within.has(); });
  EXPECT_TRUE(within.status().ok()) << within.status();
  EXPECT_EQ(EndOf(one, sealed), "COMMITTED");
}

TEST_F(AdmissionTest, UserWithinShareLosesNothing) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 1000);
  const auto half = BeginNow(one, "half", 4 * kSegment);
  auto large = BeginLater(two, SaveOf(two, "large", 5 * kSegment));
  AdvanceClock(std::chrono::seconds(60));
  EXPECT_EQ(EndOf(one, half), "none");
  EXPECT_FALSE(large.has());
  AbortNow(one, half);
  RunQueued([&] { return large.has(); });
  EXPECT_TRUE(large.status().ok()) << large.status();
}

TEST_F(AdmissionTest, UsersThatWantLittleLeaveRestOfTheirShareToOthers) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 3000), three = StartJob(3, 1000);
  BeginNow(one, "little", kSegment);
  BeginNow(two, "little", kSegment);
  const auto large = BeginNow(three, "large", 6 * kSegment);
  auto more = BeginLater(one, SaveOf(one, "more", kSegment));  // The share is 5: 2 + 1 + 5.
  AdvanceClock(std::chrono::seconds(10));
  RunQueued([&] { return more.has(); });
  EXPECT_EQ(EndOf(three, large), "OVER_SHARE");
  const auto five = BeginNow(three, "five", 5 * kSegment);
  auto one_too_many = BeginLater(two, SaveOf(two, "more", 2 * kSegment));
  AdvanceClock(std::chrono::seconds(10));
  EXPECT_EQ(EndOf(three, five), "OVER_SHARE") << "the share is 3 now: 2 + 3 + 3";
  RunQueued([&] { return one_too_many.has(); });
  EXPECT_TRUE(one_too_many.status().ok()) << one_too_many.status();
}

TEST_F(AdmissionTest, SaveBeyondShareGetsTurnsAndOthersGetTimeBetween) {
  Start(8);
  const Job large = StartJob(1, 2000), small = StartJob(2, 1000), other = StartJob(3, 1000);
  std::vector<v1::BeginRequest> held = {BeginNow(small, "s0", 2 * kSegment)};
  auto all = BeginLater(large, SaveOf(large, "all", 8 * kSegment));
  auto skip = BeginLater(other, SaveOf(other, "skip", kSegment, v1::SKIP));
  RunQueued([&] { return skip.has(); });
  EXPECT_EQ(skip.get().level(), v1::OPEN) << "it cannot wait for the end of a turn";
  auto next = BeginLater(small, SaveOf(small, "s1", kSegment));
  AdvanceClock(std::chrono::seconds(9));
  EXPECT_EQ(Admitted(small), 1) << "the large one has its turn";
  AdvanceClock(std::chrono::seconds(1));
  EXPECT_EQ(Admitted(small), 2) << "the turn is over";
  held.push_back(SaveOf(small, "s1", kSegment));
  AdvanceClock(std::chrono::seconds(9));
  auto between = BeginNow(small, "s2", 1);
  held.push_back(between);
  AdvanceClock(std::chrono::seconds(1));
  auto last = BeginLater(small, SaveOf(small, "s3", kSegment));
  EXPECT_EQ(Admitted(small), 3) << "the next turn";
  for (const auto& save : held) AbortNow(small, save);
  AbortNow(other, SaveOf(other, "skip", kSegment));
  RunQueued([&] { return all.has(); });
  EXPECT_TRUE(all.status().ok()) << all.status();
  EXPECT_EQ(Admitted(small), 3);
}

TEST_F(AdmissionTest, TurnsRotateAmongUsers) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 3000), small = StartJob(3, 1000);
  BeginNow(small, "s0", 2 * kSegment);
  auto first = BeginLater(one, SaveOf(one, "first", 8 * kSegment));
  auto second = BeginLater(two, SaveOf(two, "second", 7 * kSegment));
  AdvanceClock(std::chrono::seconds(10));  // The first one's turn is over, and
  AdvanceClock(std::chrono::seconds(10));  // the second one's begins.
  AbortNow(small, SaveOf(small, "s0", 2 * kSegment));
  RunQueued([&] { return second.has(); });
  EXPECT_TRUE(second.status().ok()) << second.status();
  EXPECT_FALSE(first.has());
}

TEST_F(AdmissionTest, UserAtItsLimitWaitsForOwnMemoryOnly) {
  engine_options_.max_pool_percent_per_user = 50;
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 2000), other = StartJob(3, 1000);
  auto large = BeginLater(one, SaveOf(one, "large", 5 * kSegment));
  EXPECT_EQ(large.reason(), "POOL_TOO_SMALL");
  EXPECT_THAT(std::string(large.status().message()), HasSubstr("limits.max_pool_percent_per_user"));
  const auto held = BeginNow(one, "held", 3 * kSegment);
  auto waits = BeginLater(two, SaveOf(two, "waits", 2 * kSegment));
  EXPECT_FALSE(waits.has());
  BeginNow(other, "other", 4 * kSegment);
  EXPECT_FALSE(waits.has());
  AbortNow(one, held);
  RunQueued([&] { return waits.has(); });
  EXPECT_TRUE(waits.status().ok()) << waits.status();
}

TEST_F(AdmissionTest, GrowingPartTakesNoMemoryThatOtherUserWaitsFor) {
  Start(8);
  const Job one = StartJob(1, 2000), two = StartJob(2, 1000);
  v1::BeginRequest growing = SaveOf(one, "growing", 6 * kSegment);
  growing.set_growing(true);
  auto begun = BeginLater(one, growing);
  RunQueued([&] { return begun.has(); });
  auto waits = BeginLater(two, SaveOf(two, "waits", 4 * kSegment));
  EXPECT_FALSE(waits.has());
  v1::ExtendRequest more;
  *more.mutable_key() = growing.key();
  v1::FileSpec& file = *more.add_files();
  file.set_path("more.pt");
  file.set_size_bytes(kSegment);
  Answer<v1::ExtendResponse> extended;
  engine_->Extend(As(one.session, one.uid), more, extended.reply());
  RunQueued([&] { return extended.has() && waits.has(); });
  EXPECT_EQ(extended.reason(), "POOL_EXHAUSTED");
  EXPECT_TRUE(waits.status().ok()) << waits.status();
}

TEST_F(AdmissionTest, GrowingPartStopsAtUserLimit) {
  engine_options_.max_pool_percent_per_user = 50;
  Start(8);
  const Job one = StartJob(1);
  v1::BeginRequest growing = SaveOf(one, "growing", 4 * kSegment);
  growing.set_growing(true);
  auto begun = BeginLater(one, growing);
  RunQueued([&] { return begun.has(); });
  v1::ExtendRequest more;
  *more.mutable_key() = growing.key();
  v1::FileSpec& file = *more.add_files();
  file.set_path("more.pt");
  file.set_size_bytes(kSegment);
  Answer<v1::ExtendResponse> extended;
  engine_->Extend(As(one.session, one.uid), more, extended.reply());
  RunQueued([&] { return extended.has(); });
  EXPECT_EQ(extended.reason(), "POOL_EXHAUSTED");
}

TEST_F(AdmissionTest, ReadersBeyondTheirPoolLimitReadFromDisk) {
  engine_options_.max_reader_pool_percent_per_user = 25;
  Start(16);
  const Job one = StartJob(1), two = StartJob(2), other = StartJob(3, 2000);
  for (const Job& job : {one, two, other}) CommitNow(job, BeginNow(job, "t", 3 * kSegment));
  EXPECT_EQ(PartsInMemory(one), 1);
  EXPECT_EQ(PartsInMemory(one), 1) << "the same memory";
  EXPECT_EQ(PartsInMemory(two), 0);
  EXPECT_EQ(PartsInMemory(other), 1) << "another user's";
}

TEST_F(AdmissionTest, PrefetchTakesNoMoreThanReadersMayHold) {
  engine_options_.max_reader_pool_percent_per_user = 25;
  resident_segments_ = 16;
  Start(16);
  Job one = StartJob(1);
  CommitNow(one, BeginNow(one, "t", 5 * kSegment));
  Start(16);
  one = StartJob(1);
  Answer<v1::Checkpoint> prefetched;
  engine_->Prefetch(As(one.session, one.uid), one.run + "/checkpoints/t", prefetched.reply());
  RunQueued([&] { return prefetched.has(); });
  EXPECT_EQ(prefetched.reason(), "POOL_EXHAUSTED");
  EXPECT_THAT(std::string(prefetched.status().message()),
              HasSubstr("limits.max_reader_pool_percent_per_user"));
}

TEST_F(AdmissionTest, RefusesTimeoutsAboveConfiguredBounds) {
  engine_options_.max_admission_timeout = std::chrono::seconds(20);
  engine_options_.max_commit_timeout = std::chrono::seconds(60);
  Start(8);
  const Job job = StartJob(1);
  v1::BeginRequest request = BeginOf(0, "t", 1, 100);
  request.mutable_timeout()->set_seconds(21);
  auto refused = BeginLater(job, request);
  EXPECT_EQ(refused.reason(), "INVALID_ARGUMENT");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("limits.max_admission_timeout_seconds"));
  request.clear_timeout();
  request.mutable_commit_timeout()->set_seconds(61);
  refused = BeginLater(job, request);
  EXPECT_EQ(refused.reason(), "INVALID_ARGUMENT");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("limits.max_commit_timeout_seconds"));
  request.clear_commit_timeout();  // The defaults are longer, and are not the caller's.
  auto begun = BeginLater(job, request);
  RunQueued([&] { return begun.has(); });
  EXPECT_TRUE(begun.status().ok()) << begun.status();
  AdvanceClock(std::chrono::seconds(60));
  EXPECT_EQ(EndOf(job, request), "RANKS_MISSING");
}

// ---- ranks that do not agree on retention

TEST_F(AdmissionTest, RanksWithDifferentRetentionPoliciesConflict) {
  auto sessions = Launch("a", 2);
  auto first = BeginOf(0, "t", 1, 100), second = BeginOf(1, "t", 1, 100);
  first.set_num_kept_ckpts(3);
  second.set_num_kept_ckpts(5);
  auto begun = Begin(sessions[0], first);
  auto refused = Begin(sessions[1], second);
  EXPECT_EQ(refused.reason(), "SAVE_CONFLICT");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("keeps last 5"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("keeps last 3"));
  second.set_num_kept_ckpts(3);
  auto agreed = Begin(sessions[1], second);
  RunQueued([&] { return begun.has() && agreed.has(); });
  EXPECT_TRUE(agreed.status().ok()) << agreed.status();
}

TEST_F(AdmissionTest, RankWithoutRetentionPolicyFollowsOtherRanks) {
  auto sessions = Launch("a", 2);
  for (int64_t step : {1, 2}) {
    const std::string tag = "step" + std::to_string(step);
    std::vector<Answer<v1::BeginResponse>> begun;
    for (int rank : {0, 1}) {
      auto request = BeginOf(rank, tag, step, 100);
      if (rank == 0) request.set_num_kept_ckpts(1);
      begun.push_back(Begin(sessions[rank], request));
    }
    RunQueued([&] { return begun[0].has() && begun[1].has(); });
    for (int rank : {0, 1}) ASSERT_TRUE(Seal(sessions[rank], BeginOf(rank, tag, step, 100)).status().ok());
  }
  EXPECT_THAT(Tags(), ElementsAre("step2"));
}

}  // namespace
}  // namespace ckptd
