#include "daemon/engine/upload/uploads.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"
#include "tests/testing/fake_upload_io.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class UploadsTest : public ClassTest {
 protected:
  UploadsTest() { Open(AddRun(1000)); }

  void Open(ckptd::Run* run) {
    run_ = run;
    auto io = std::make_unique<FakeUploadIo>();
    io_ = io.get();
    run->uploads = std::move(io);
    uploads_.Load(run);
  }
  // What the next daemon finds in the root.
  void Restart() {
    const storage::v1::UploadRecord record = run_->ledger->record().uploads();
    uploads_.Forget(run_);
    run_->ledger->SetUploads(record);
    Open(run_);
  }
  void SetPolicy(int every, int keep_last = 0) {
    v1::UploadPolicy policy;
    policy.set_url("s3://bucket/run");
    policy.set_every(every);
    policy.set_keep_last(keep_last);
    ASSERT_EQ(uploads_.Check(*run_, policy), absl::OkStatus());
    uploads_.SetPolicy(run_, &policy);
  }
  void CommitNext(int64_t sequence) {
    Commit(run_, sequence);
    uploads_.OnCommitted(run_, run_->catalog.Find(sequence)->summary);
  }
  // A checkpoint takes the tag of an earlier one.
  void CommitAgain(const std::string& tag, int64_t sequence, int64_t commit_time_us = 0) {
    CommittedCheckpoint again;
    again.summary.set_tag(tag);
    again.summary.set_sequence(sequence);
    again.summary.set_commit_time_us(commit_time_us);
    run_->catalog.RemoveTag(tag);
    run_->catalog.Add(again);
    uploads_.OnCommitted(run_, again.summary);
  }
  void Tick() {
    uploads_.OnTick(run_, clock_.Now());
    RunCallbacks();
  }
  std::vector<int64_t> Asked() const {
    std::vector<int64_t> sequences;
    for (const FakeUploadIo::Asked& asked : io_->uploads) sequences.push_back(asked.checkpoint.sequence());
    return sequences;
  }
  std::vector<int64_t> Removed() const {
    std::vector<int64_t> sequences;
    for (const auto& removal : io_->removals) sequences.push_back(removal.checkpoint.sequence());
    return sequences;
  }
  v1::CheckpointUpload Described(int64_t sequence) const {
    v1::Checkpoint checkpoint;
    checkpoint.set_tag("s" + std::to_string(sequence));
    uploads_.Describe(*run_, sequence, &checkpoint);
    return checkpoint.upload();
  }

  ckptd::Run* run_ = nullptr;
  FakeUploadIo* io_ = nullptr;
  int released_ = 0;
  Uploads uploads_{
      &clock_,
      this,
      {.released = [this](ckptd::Run*) { ++released_; }, .changed = [](const ckptd::Run&, int64_t) {}}};
};

absl::Status ServerIsAway() {
  return MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "no answer");
}

TEST_F(UploadsTest, UploadsEachNthCheckpointOneAtATime) {
  SetPolicy(2);
  for (int64_t sequence = 1; sequence <= 5; ++sequence) CommitNext(sequence);
  Tick();
  EXPECT_THAT(Asked(), ElementsAre(2));
  io_->EndUpload(100);
  EXPECT_THAT(Asked(), ElementsAre(4));
  io_->EndUpload(100);
  Tick();
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_EQ(Described(4).state(), v1::CheckpointUpload::DONE);
  EXPECT_EQ(Described(4).url(), "s3://bucket/run/s4");
  EXPECT_EQ(Described(5).state(), v1::CheckpointUpload::STATE_UNSPECIFIED);
}

TEST_F(UploadsTest, CountsTurnsOverARestart) {
  SetPolicy(3);
  CommitNext(1);
  CommitNext(2);
  Restart();
  CommitNext(3);
  Tick();
  EXPECT_THAT(Asked(), ElementsAre(3));
}

TEST_F(UploadsTest, GoesOnAfterARestartWithWhatWaits) {
  SetPolicy(1);
  CommitNext(1);
  CommitNext(2);
  Tick();
  EXPECT_THAT(Asked(), ElementsAre(1));
  Restart();
  Tick();
  EXPECT_THAT(Asked(), ElementsAre(1));
  io_->EndUpload(0);
  EXPECT_THAT(Asked(), ElementsAre(2));
}

UploadIo::InBucket InBucket(int64_t sequence, bool by_daemon = true) {
  UploadIo::InBucket found{{}, by_daemon};
  found.summary.set_tag("s" + std::to_string(sequence));
  found.summary.set_sequence(sequence);
  found.summary.set_commit_time_us(sequence * 100);
  return found;
}

TEST_F(UploadsTest, KnowsWhatDaemonsHaveUploadedAgainAfterTheRootWasLost) {
  v1::UploadPolicy policy;
  policy.set_url("s3://bucket/run");
  policy.set_keep_last(2);
  uploads_.TakeOver(run_, 1, policy, {InBucket(9), InBucket(7), InBucket(8, /*by_daemon=*/false)});
  SetPolicy(1, 2);
  EXPECT_TRUE(uploads_.IsInBucket(*run_, 7));
  EXPECT_FALSE(uploads_.IsInBucket(*run_, 8)) << "somebody has put it there, and it stays";
  CommitNext(10);
  Tick();
  io_->EndUpload(100);
  RunCallbacks();
  ASSERT_THAT(io_->removals, SizeIs(1));
  EXPECT_EQ(io_->removals[0].checkpoint.sequence(), 7) << "the oldest goes first";
}

TEST_F(UploadsTest, WhatWasBroughtBackIsNotUploadedAgainAndWhatIsOlderNoLonger) {
  SetPolicy(1);
  CommitNext(1);
  uploads_.TakeOver(run_, 1,
                    [] {
                      v1::UploadPolicy policy;
                      policy.set_url("s3://bucket/run");
                      return policy;
                    }(),
                    {InBucket(9)});
  uploads_.OnFetched(run_, InBucket(9).summary);
  EXPECT_THAT(uploads_.Held(*run_), IsEmpty());
  EXPECT_THAT(warnings_, ElementsAre(::testing::HasSubstr("goes on from s9")));
  EXPECT_EQ(run_->ledger->record().uploads().fetched_sequence(), 9);
  Tick();
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(UploadsTest, HoldsCheckpointsUntilTheyAreInTheBucket) {
  SetPolicy(1);
  CommitNext(1);
  CommitNext(2);
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1, 2));
  Tick();
  io_->EndUpload(100);
  RunCallbacks();
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(2));
  EXPECT_GT(released_, 0) << "retention is told";
}

TEST_F(UploadsTest, HoldsAnUploadedCheckpointUntilTheRecordSaysSo) {
  SetPolicy(1);
  CommitNext(1);
  Tick();
  io_->EndUpload(100);
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1)) << "the next daemon would take it for lost";
  RunCallbacks();
  EXPECT_THAT(uploads_.Held(*run_), IsEmpty());
}

TEST_F(UploadsTest, AnUploadToAnEarlierUrlDoesNotCount) {
  SetPolicy(1);
  CommitNext(1);
  Tick();
  v1::UploadPolicy other;
  other.set_url("s3://bucket/other");
  uploads_.SetPolicy(run_, &other);
  io_->EndUpload(100);
  ASSERT_THAT(Asked(), ElementsAre(1));
  EXPECT_EQ(io_->uploads.front().url, "s3://bucket/other");
}

TEST_F(UploadsTest, EvictBeforeUploadHoldsOnlyWhatIsBeingUploaded) {
  v1::UploadPolicy policy;
  policy.set_url("s3://bucket/run");
  policy.set_evict_before_upload(true);
  uploads_.SetPolicy(run_, &policy);
  CommitNext(1);
  CommitNext(2);
  EXPECT_THAT(uploads_.Held(*run_), IsEmpty());
  Tick();
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1));
  run_->catalog.Remove(2);
  io_->EndUpload(100);
  Tick();
  EXPECT_THAT(Asked(), IsEmpty()) << "the other one is gone, and is not uploaded";
}

TEST_F(UploadsTest, TriesAgainWithLongerPausesWhileTheServerIsAway) {
  SetPolicy(1);
  CommitNext(1);
  Tick();
  for (const int seconds : {1, 2, 4, 8}) {
    io_->EndUpload(ServerIsAway());
    EXPECT_EQ(Described(1).error().reason(), "STORE_TIMEOUT");
    EXPECT_TRUE(Described(1).has_next_try_time());
    clock_.Advance(std::chrono::seconds(seconds) - std::chrono::milliseconds(1));
    Tick();
    EXPECT_THAT(Asked(), IsEmpty());
    clock_.Advance(std::chrono::milliseconds(1));
    Tick();
    EXPECT_THAT(Asked(), ElementsAre(1));
  }
  for (int i = 0; i < 20; ++i) {
    io_->EndUpload(ServerIsAway());
    clock_.Advance(std::chrono::minutes(5));
    Tick();
    ASSERT_THAT(Asked(), ElementsAre(1)) << "the pause is never longer";
  }
  io_->EndUpload(100);
  EXPECT_EQ(Described(1).state(), v1::CheckpointUpload::DONE);
  EXPECT_FALSE(Described(1).has_error());
}

TEST_F(UploadsTest, UploadsWhatHasWaitedOnceTheServerIsBack) {
  SetPolicy(1);
  CommitNext(1);
  Tick();
  io_->EndUpload(ServerIsAway());
  for (int64_t sequence = 2; sequence <= 4; ++sequence) CommitNext(sequence);
  clock_.Advance(std::chrono::hours(1));
  Tick();
  for (int64_t sequence = 1; sequence <= 4; ++sequence) {
    ASSERT_THAT(Asked(), ElementsAre(sequence));
    io_->EndUpload(100);
  }
  RunCallbacks();
  EXPECT_THAT(uploads_.Held(*run_), IsEmpty());
}

TEST_F(UploadsTest, KeepLastRemovesTheOldestFromTheBucket) {
  SetPolicy(1, /*keep_last=*/2);
  for (int64_t sequence = 1; sequence <= 3; ++sequence) CommitNext(sequence);
  Tick();
  for (int i = 0; i < 3; ++i) io_->EndUpload(100);
  RunCallbacks();
  ASSERT_THAT(io_->removals, SizeIs(1));
  EXPECT_EQ(io_->removals.front().checkpoint.sequence(), 1);
  io_->EndRemoval(absl::OkStatus());
  Tick();
  EXPECT_THAT(io_->removals, IsEmpty());
  EXPECT_EQ(Described(1).state(), v1::CheckpointUpload::STATE_UNSPECIFIED);
  EXPECT_EQ(Described(3).state(), v1::CheckpointUpload::DONE);
}

TEST_F(UploadsTest, KeepLastKeepsTheNewestOfSavesThatWereCommittedInAnotherOrder) {
  SetPolicy(1, /*keep_last=*/2);
  for (const int64_t sequence : {2, 1, 3}) {
    CommitNext(sequence);
    Tick();
    io_->EndUpload(100);
  }
  Tick();
  EXPECT_THAT(Removed(), ElementsAre(1));
}

TEST_F(UploadsTest, AListOfTheBucketDoesNotChangeTheOrderOfWhatIsKnown) {
  SetPolicy(1, /*keep_last=*/2);
  UploadIo::Contents contents;
  for (const int64_t sequence : {2, 1}) {
    clock_.Advance(std::chrono::seconds(1));
    CommitNext(sequence);
    Tick();
    io_->EndUpload(100);
    contents.checkpoints.push_back({run_->catalog.Find(sequence)->summary, /*by_daemon=*/true});
  }
  v1::UploadPolicy policy;
  policy.set_url("s3://bucket/run");
  uploads_.TakeOver(run_, 2, policy, contents.checkpoints);
  CommitNext(3);
  Tick();
  io_->EndUpload(100);
  Tick();
  EXPECT_THAT(Removed(), ElementsAre(1));
}

TEST_F(UploadsTest, RemovalGoesOnAfterARestart) {
  SetPolicy(1, /*keep_last=*/1);
  CommitNext(1);
  CommitNext(2);
  Tick();
  io_->EndUpload(100);
  io_->EndUpload(100);
  RunCallbacks();
  RunCallbacks();
  ASSERT_THAT(io_->removals, SizeIs(1));
  Restart();
  Tick();
  RunCallbacks();
  ASSERT_THAT(io_->removals, SizeIs(1));
  EXPECT_EQ(io_->removals.front().checkpoint.sequence(), 1);
}

TEST_F(UploadsTest, AResaveReplacesWhatWasUploadedUnderItsTag) {
  SetPolicy(1);
  CommitNext(1);
  Tick();
  io_->EndUpload(100);
  CommitAgain("s1", 7);
  Tick();
  EXPECT_THAT(Asked(), IsEmpty()) << "the old one goes first";
  RunCallbacks();
  ASSERT_THAT(io_->removals, SizeIs(1));
  io_->EndRemoval(absl::OkStatus());
  EXPECT_THAT(Asked(), ElementsAre(7));
}

TEST_F(UploadsTest, AnEarlierCheckpointOfATagDoesNotReplaceANewerCopy) {
  SetPolicy(1);
  CommitNext(7);
  Tick();
  io_->EndUpload(100);
  CommitAgain("s7", 3);  // It was undeleted.
  Tick();
  RunCallbacks();
  EXPECT_THAT(Removed(), IsEmpty());
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(UploadsTest, ACopyOfAnEarlierLifeOfTheRunIsReplaced) {
  SetPolicy(1);
  CommitNext(7);
  Tick();
  io_->EndUpload(100);
  CommitAgain("s7", 3, run_->catalog.Find(7)->summary.commit_time_us() + 1);
  Tick();
  RunCallbacks();
  EXPECT_THAT(Removed(), ElementsAre(7));
}

TEST_F(UploadsTest, AResaveOfATagThatWaitsIsUploadedInItsPlace) {
  SetPolicy(2);
  CommitNext(1);
  CommitNext(2);
  CommitAgain("s2", 3);
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(3));
}

TEST_F(UploadsTest, DamagedCheckpointIsGivenUp) {
  SetPolicy(1);
  CommitNext(1);
  CommitNext(2);
  Tick();
  io_->EndUpload(MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", "chunk 3"));
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(2));
  Tick();
  EXPECT_THAT(Asked(), ElementsAre(2));
}

TEST_F(UploadsTest, CheckpointWhoseBytesWereDamagedOnTheirWayStillWaits) {
  SetPolicy(1);
  CommitNext(1);
  Tick();
  io_->EndUpload(MakeError(absl::StatusCode::kDataLoss, "CORRUPT_TRANSFER", "BadDigest"));
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1));
  clock_.Advance(std::chrono::seconds(1));
  Tick();
  EXPECT_THAT(Asked(), ElementsAre(1));
}

TEST_F(UploadsTest, SuspectCheckpointsAreNeitherCountedNorUploaded) {
  SetPolicy(1);
  CommittedCheckpoint suspect;
  suspect.summary.set_tag("s1");
  suspect.summary.set_sequence(1);
  suspect.summary.set_suspect("NaN");
  run_->catalog.Add(suspect);
  uploads_.OnCommitted(run_, suspect.summary);
  Tick();
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(UploadsTest, ALaunchWithoutUploadStillSendsWhatWaits) {
  SetPolicy(1);
  CommitNext(1);
  uploads_.SetPolicy(run_, nullptr);
  CommitNext(2);
  Tick();
  EXPECT_THAT(Asked(), ElementsAre(1));
  io_->EndUpload(100);
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(UploadsTest, GiveUpForRoomDropsTheOldestThatIsNotBeingUploaded) {
  SetPolicy(1);
  for (int64_t sequence = 1; sequence <= 3; ++sequence) CommitNext(sequence);
  Tick();
  uploads_.GiveUp(run_, {1, 2, 3});
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1, 3));
}

TEST_F(UploadsTest, ACheckpointThatIsWholeInTheBucketCountsThoughItsUploadGotNoAnswer) {
  SetPolicy(1, /*keep_last=*/1);
  CommitNext(1);
  Tick();
  io_->EndUpload(ServerIsAway());  // It had arrived.
  run_->catalog.Remove(1);
  CommitNext(2);
  clock_.Advance(std::chrono::seconds(2));
  Tick();
  EXPECT_THAT(Asked(), ElementsAre(2));
  io_->EndUpload(100);
  Tick();
  RunCallbacks();
  ASSERT_EQ(io_->removals.size(), 1u);
  EXPECT_TRUE(io_->removals.front().checkpoint.given_up());
  io_->EndRemoval(MakeError(absl::StatusCode::kAlreadyExists, "OBJECT_EXISTS", "s1 is whole there"));
  Tick();
  RunCallbacks();
  ASSERT_EQ(io_->removals.size(), 1u) << "keep_last removes it as one of two";
  EXPECT_EQ(io_->removals.front().checkpoint.sequence(), 1);
  EXPECT_FALSE(io_->removals.front().checkpoint.given_up());
  io_->EndRemoval(absl::OkStatus());
  EXPECT_EQ(Described(2).state(), v1::CheckpointUpload::DONE);
}

TEST_F(UploadsTest, RemovesNothingBeforeItIsOnDiskThatItGoes) {
  SetPolicy(1, /*keep_last=*/1);
  CommitNext(1);
  Tick();
  io_->EndUpload(100);
  CommitNext(2);
  Tick();
  io_->EndUpload(100);  // The write of the record has begun.
  uploads_.OnTick(run_, clock_.Now());
  EXPECT_TRUE(io_->removals.empty()) << "a daemon that starts now would show s1 as uploaded";
  Tick();
  Tick();
  EXPECT_EQ(io_->removals.size(), 1u);
}

TEST_F(UploadsTest, WaitAnswersWhenTheCheckpointIsInTheBucket) {
  SetPolicy(2);
  CommitNext(1);
  CommitNext(2);
  std::optional<absl::Status> first, second, late;
  const auto into = [](std::optional<absl::Status>& answer) {
    return [&answer](const absl::Status& status) { answer = status; };
  };
  uploads_.Wait(run_, 1, "s1", clock_.Now() + std::chrono::seconds(9), into(first));
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(ReasonOf(*first), "NOT_UPLOADED");
  uploads_.Wait(run_, 2, "s2", clock_.Now() + std::chrono::seconds(9), into(second));
  uploads_.Wait(run_, 2, "s2", clock_.Now() + std::chrono::seconds(1), into(late));
  Tick();
  EXPECT_FALSE(second.has_value());
  clock_.Advance(std::chrono::seconds(1));
  Tick();
  ASSERT_TRUE(late.has_value());
  EXPECT_TRUE(absl::IsDeadlineExceeded(*late));
  io_->EndUpload(100);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(*second, absl::OkStatus());
}

TEST_F(UploadsTest, RefusesAPolicyThatTheDaemonDoesNotAllow) {
  v1::UploadPolicy policy;
  policy.set_url("s3://forbidden");
  EXPECT_EQ(ReasonOf(uploads_.Check(*run_, policy)), "UPLOAD_NOT_ALLOWED");
  policy.set_url("s3://bucket/run");
  policy.set_every(-1);
  EXPECT_EQ(ReasonOf(uploads_.Check(*run_, policy)), "INVALID_ARGUMENT");
  policy.set_every(1);
  policy.set_keep_last(1'000'001);
  EXPECT_EQ(ReasonOf(uploads_.Check(*run_, policy)), "INVALID_ARGUMENT");
}

}  // namespace
}  // namespace ckptd
