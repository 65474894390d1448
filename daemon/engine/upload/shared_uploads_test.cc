// Uploads of a run that several nodes share, on one of them: as the coordinator, and as another node.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/engine/upload/uploads.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/shared_run_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

storage::v1::UploadRecord PolicyOf(int every, int keep_last = 0) {
  storage::v1::UploadRecord policy;
  policy.set_url("s3://bucket/run");
  policy.set_every(every);
  policy.set_keep_last(keep_last);
  return policy;
}

class SharedUploadsTest : public SharedRunTest {
 protected:
  void Tick() { uploads_.OnTick(run_, clock_.Now()); }
  // Until the coordinator has counted what it sees, and all nodes know that.
  void Settle() {
    for (bool is_over = false; !is_over;) {
      Tick();
      is_over = etcd().reads.empty() && etcd().writes.empty();
      while (!etcd().reads.empty()) etcd().AnswerRead();
      while (!etcd().writes.empty()) etcd().AnswerWrite();
    }
  }
  void Lead() {
    nodes_->leads = true;
    Settle();
  }
  void LoseLeadership() {
    nodes_->leads = false;
    etcd().EndTerm();
    Tick();
  }
  void CommitAgain(const std::string& tag, int64_t sequence) {
    CommittedCheckpoint again;
    again.summary.set_tag(tag);
    again.summary.set_sequence(sequence);
    run_->catalog.RemoveTag(tag);
    run_->catalog.Add(again);
  }
  std::vector<int64_t> Asked() const {
    std::vector<int64_t> sequences;
    for (const FakeUploadIo::Asked& asked : io_->uploads) sequences.push_back(asked.checkpoint.sequence());
    return sequences;
  }
  v1::CheckpointUpload Described(int64_t sequence) const {
    v1::Checkpoint checkpoint;
    checkpoint.set_tag("s" + std::to_string(sequence));
    uploads_.Describe(*run_, sequence, &checkpoint);
    return checkpoint.upload();
  }
  // Its answer: "", "OK", "DEADLINE" or a reason.
  std::shared_ptr<std::string> Wait(int64_t sequence, Duration timeout = std::chrono::seconds(9)) {
    auto answer = std::make_shared<std::string>();
    uploads_.Wait(
        run_, sequence, "s" + std::to_string(sequence), clock_.Now() + timeout,
        [answer](const absl::Status& status) {
          *answer = status.ok() ? "OK" : absl::IsDeadlineExceeded(status) ? "DEADLINE" : ReasonOf(status);
        });
    return answer;
  }

  int released_ = 0;
  std::vector<int64_t> changed_;
  Uploads uploads_{
      &clock_,
      this,
      {.released = [this](ckptd::Run*) { ++released_; },
       .changed = [this](const ckptd::Run&, int64_t sequence) { changed_.push_back(sequence); }}};
};

// ---- the coordinator

TEST_F(SharedUploadsTest, CoordinatorUploadsEachNthCheckpointOfAllNodes) {
  etcd().etcd.policy = PolicyOf(2);
  Lead();
  for (int64_t sequence = 1; sequence <= 5; ++sequence) {
    Commit(run_, sequence);
    Settle();
  }
  EXPECT_THAT(Asked(), ElementsAre(2));
  io_->EndUpload(100);
  EXPECT_THAT(Asked(), ElementsAre(4));
  io_->EndUpload(100);
  Settle();
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_EQ(etcd().etcd.record.uploaded_size(), 2);
  EXPECT_EQ(etcd().etcd.counted_through, 5);
  EXPECT_EQ(Described(4).state(), v1::CheckpointUpload::DONE);
}

TEST_F(SharedUploadsTest, ANodeThatDoesNotCoordinateUploadsAndWritesNothing) {
  etcd().etcd.policy = PolicyOf(1);
  etcd().Show();
  Commit(run_, 1);
  Settle();
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_TRUE(etcd().etcd.record.url().empty());
}

TEST_F(SharedUploadsTest, WhatEarlierLaunchesHaveSavedIsNotUploaded) {
  Commit(run_, 1, /*attempt=*/1);
  Commit(run_, 2, /*attempt=*/2);
  etcd().etcd.policy = PolicyOf(1);
  etcd().etcd.attempt = 3;
  Lead();
  EXPECT_THAT(Asked(), IsEmpty());
  Commit(run_, 3, /*attempt=*/3);
  Settle();
  EXPECT_THAT(Asked(), ElementsAre(3));
}

// Its launch has joined after the question was asked, and this answer does not know its policy.
TEST_F(SharedUploadsTest, ACheckpointIsCountedByAPolicyThatWasReadAfterItWasSeen) {
  Lead();
  Commit(run_, 1, /*attempt=*/1);
  Tick();
  ASSERT_THAT(etcd().reads, SizeIs(1));
  Commit(run_, 2, /*attempt=*/2);  // By a launch with a policy.
  etcd().AnswerRead();
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(2));
  etcd().etcd.policy = PolicyOf(1);
  etcd().etcd.attempt = 2;
  Settle();
  EXPECT_THAT(Asked(), ElementsAre(2));
}

TEST_F(SharedUploadsTest, RetentionKeepsWhatIsNotCountedAndWhatWaits) {
  etcd().etcd.policy = PolicyOf(2);
  Commit(run_, 1);
  nodes_->leads = true;
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1)) << "it does not know yet what waits";
  Tick();
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1));
  etcd().AnswerRead();
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1))
      << "the next coordinator does not know yet that it was counted";
  released_ = 0;
  etcd().AnswerWrite();
  EXPECT_THAT(uploads_.Held(*run_), IsEmpty());
  EXPECT_GT(released_, 0) << "retention is told";
  Commit(run_, 2);
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(2));
  Settle();
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(2)) << "it waits";
  io_->EndUpload(100);
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(2)) << "the next coordinator would take it for lost";
  Settle();
  EXPECT_THAT(uploads_.Held(*run_), IsEmpty());
}

TEST_F(SharedUploadsTest, RetentionIsNotHeldUpByARunWithoutUploads) {
  Lead();
  Commit(run_, 1);
  Settle();
  EXPECT_THAT(uploads_.Held(*run_), IsEmpty());
  EXPECT_TRUE(etcd().etcd.record.url().empty()) << "nothing was to be written";
}

TEST_F(SharedUploadsTest, KeepLastRemovesTheOldestFromTheBucket) {
  etcd().etcd.policy = PolicyOf(1, /*keep_last=*/2);
  Lead();
  for (int64_t sequence = 1; sequence <= 3; ++sequence) Commit(run_, sequence);
  Settle();
  for (int i = 0; i < 3; ++i) io_->EndUpload(100);
  ASSERT_THAT(io_->removals, SizeIs(1));
  EXPECT_EQ(io_->removals.front().checkpoint.sequence(), 1);
  Settle();
  EXPECT_EQ(etcd().etcd.record.obsolete_size(), 1) << "the next coordinator removes it";
  io_->EndRemoval(absl::OkStatus());
  Settle();
  EXPECT_EQ(etcd().etcd.record.obsolete_size(), 0);
}

TEST_F(SharedUploadsTest, ALaterPolicyCountsAtOnce) {
  etcd().etcd.policy = PolicyOf(1);
  Lead();
  Commit(run_, 1);
  Settle();
  etcd().etcd.policy = storage::v1::UploadRecord();
  etcd().Show();
  Settle();
  EXPECT_EQ(etcd().etcd.record.every(), 0);
  Commit(run_, 2);
  Settle();
  EXPECT_EQ(etcd().etcd.counted_through, 2);
  EXPECT_EQ(etcd().etcd.record.waiting_size(), 1) << "what waits is still uploaded";
}

TEST_F(SharedUploadsTest, AResaveOfATagThatWaitsIsUploadedInItsPlace) {
  etcd().etcd.policy = PolicyOf(1);
  Lead();
  Commit(run_, 1);
  Commit(run_, 2);
  Settle();
  CommitAgain("s2", 3);
  Settle();
  io_->EndUpload(100);
  ASSERT_THAT(io_->removals, SizeIs(1)) << "of what may have arrived";
  EXPECT_EQ(io_->removals.front().checkpoint.sequence(), 2);
  io_->EndRemoval(absl::OkStatus());
  EXPECT_THAT(Asked(), ElementsAre(3));
}

TEST_F(SharedUploadsTest, ACheckpointThatThisNodeDoesNotSeeYetIsTriedAgain) {
  etcd().etcd.policy = PolicyOf(1);
  Lead();
  Commit(run_, 1);
  Settle();
  io_->EndUpload(MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint, "not here"));
  EXPECT_EQ(Described(1).state(), v1::CheckpointUpload::WAITING);
  clock_.Advance(std::chrono::seconds(1));
  Tick();
  EXPECT_THAT(Asked(), ElementsAre(1));
}

TEST_F(SharedUploadsTest, ACheckpointThatWasRemovedIsGivenUpOnceNewerOnesAreSeen) {
  etcd().etcd.policy = PolicyOf(1);
  etcd().etcd.record = PolicyOf(1);
  for (int64_t sequence : {1, 3}) {
    auto& waiting = *etcd().etcd.record.add_waiting();
    waiting.set_tag("s" + std::to_string(sequence));
    waiting.set_sequence(sequence);
  }
  etcd().etcd.counted_through = 3;
  Commit(run_, 2);
  Lead();
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("s1 is not uploaded")));
  EXPECT_EQ(etcd().etcd.record.waiting_size(), 1) << "of the other one this node may not know yet";
}

TEST_F(SharedUploadsTest, EtcdThatFailsIsAskedAgain) {
  etcd().etcd.policy = PolicyOf(1);
  nodes_->leads = true;
  Commit(run_, 1);
  Tick();
  etcd().FailRead(absl::UnavailableError("away"));
  Tick();
  EXPECT_THAT(etcd().reads, IsEmpty());
  clock_.Advance(std::chrono::seconds(1));
  Tick();
  ASSERT_THAT(etcd().reads, SizeIs(1));
  etcd().AnswerRead();
  etcd().AnswerWrite(absl::UnavailableError("away"));
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1, 1)) << "it waits, and is not known as counted";
  clock_.Advance(std::chrono::seconds(1));
  Tick();
  ASSERT_THAT(etcd().writes, SizeIs(1));
  etcd().AnswerWrite();
  EXPECT_EQ(etcd().etcd.record.waiting_size(), 1);
}

TEST_F(SharedUploadsTest, ARecordThatCannotBeReadIsSaidOnceAndNothingIsUploaded) {
  const absl::Status corrupt =
      MakeError(absl::StatusCode::kDataLoss, "CORRUPT_KEY", "etcd's key uploads/record is not ckptd's");
  etcd().etcd.policy = PolicyOf(1);
  nodes_->leads = true;
  Commit(run_, 1);
  for (int i = 0; i < 3; ++i) {
    Tick();
    etcd().FailRead(corrupt);
    clock_.Advance(std::chrono::seconds(1));
  }
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("uploads/record")));
  EXPECT_EQ(uploads_.WhyUnread(*run_), corrupt) << "status shows it";
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_THAT(etcd().writes, IsEmpty()) << "the lists would be lost";
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1)) << "nor is anything removed";
  Tick();
  etcd().FailRead(absl::UnavailableError("away"));
  EXPECT_THAT(warnings_, SizeIs(2)) << "that is another reason";
  clock_.Advance(std::chrono::seconds(1));
  Settle();
  EXPECT_EQ(uploads_.WhyUnread(*run_), absl::OkStatus());
  EXPECT_THAT(Asked(), ElementsAre(1));
}

// ---- one coordinator after the other

TEST_F(SharedUploadsTest, TheNextCoordinatorGoesOnWithWhatWaits) {
  etcd().etcd.policy = PolicyOf(1);
  etcd().etcd.record = PolicyOf(1);
  etcd().etcd.counted_through = 1;
  auto& waiting = *etcd().etcd.record.add_waiting();
  waiting.set_tag("s1");
  waiting.set_sequence(1);
  Commit(run_, 1);
  Commit(run_, 2);
  EXPECT_THAT(Asked(), IsEmpty());
  Lead();
  EXPECT_THAT(Asked(), ElementsAre(1));
  io_->EndUpload(0);
  EXPECT_THAT(Asked(), ElementsAre(2)) << "the coordinator before has not counted it";
}

TEST_F(SharedUploadsTest, WhatAFormerCoordinatorUploadsSendsNoMoreAndItsAnswersCountNoMore) {
  etcd().etcd.policy = PolicyOf(1);
  Lead();
  Commit(run_, 1);
  Settle();
  ASSERT_THAT(Asked(), ElementsAre(1));
  EXPECT_TRUE(io_->uploads.front().may_go_on());
  etcd().Show();
  LoseLeadership();
  EXPECT_FALSE(io_->uploads.front().may_go_on());
  io_->EndUpload(100);
  EXPECT_EQ(Described(1).state(), v1::CheckpointUpload::WAITING);
  EXPECT_THAT(etcd().writes, IsEmpty());
  clock_.Advance(std::chrono::minutes(1));
  Tick();
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(SharedUploadsTest, ACoordinatorThatWasOneBeforeReadsTheRecordAnew) {
  etcd().etcd.policy = PolicyOf(1);
  Lead();
  Commit(run_, 1);
  Settle();
  // Another node has led, and uploaded it, between two ticks of this one.
  etcd().EndTerm();
  EXPECT_THAT(uploads_.Held(*run_), ElementsAre(1, 1)) << "waits, and may be counted otherwise";
  auto& record = etcd().etcd.record;
  *record.add_uploaded() = record.waiting(0);
  record.clear_waiting();
  io_->EndUpload(absl::CancelledError("another node goes on with it"));
  Settle();
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_EQ(Described(1).state(), v1::CheckpointUpload::DONE);
  EXPECT_THAT(uploads_.Held(*run_), IsEmpty());
}

// ---- another node

TEST_F(SharedUploadsTest, AnotherNodeShowsWhatTheCoordinatorHasWritten) {
  etcd().etcd.record = PolicyOf(1);
  etcd().etcd.counted_through = 2;
  for (int64_t sequence : {1, 2}) {
    auto& waiting = *etcd().etcd.record.add_waiting();
    waiting.set_tag("s" + std::to_string(sequence));
    waiting.set_sequence(sequence);
    Commit(run_, sequence);
  }
  etcd().Show();
  Tick();
  EXPECT_EQ(Described(1).state(), v1::CheckpointUpload::WAITING);
  EXPECT_TRUE(uploads_.IsActive(*run_)) << "it takes over if the coordinator dies";
  auto& record = etcd().etcd.record;
  *record.add_uploaded() = record.waiting(0);
  record.mutable_waiting()->DeleteSubrange(0, 1);
  etcd().Show();
  Tick();
  EXPECT_EQ(Described(1).state(), v1::CheckpointUpload::DONE);
  EXPECT_THAT(changed_, ElementsAre(1)) << "watchers are told";
  v1::Run described;
  uploads_.Describe(*run_, &described);
  EXPECT_EQ(described.uploads().waiting_size(), 1);
  EXPECT_EQ(described.uploads().kept(), 1);
}

TEST_F(SharedUploadsTest, AnotherNodeAnswersWhatWaitsWhenTheCoordinatorHasUploadedIt) {
  v1::JoinRunRequest joined;
  joined.set_rank(1);
  joined.mutable_upload()->set_url("s3://bucket/run");
  uploads_.OnJoined(run_, 1, joined);
  Commit(run_, 1);
  Commit(run_, 2);
  const auto first = Wait(1), second = Wait(2), late = Wait(2, std::chrono::seconds(1));
  Tick();
  EXPECT_EQ(*first, "") << "the coordinator has not counted it yet";
  clock_.Advance(std::chrono::seconds(1));
  Tick();
  EXPECT_EQ(*late, "DEADLINE");
  auto& record = etcd().etcd.record;
  record = PolicyOf(2);
  etcd().etcd.counted_through = 2;
  record.add_waiting()->set_sequence(2);
  etcd().Show();
  Tick();
  EXPECT_EQ(*first, "NOT_UPLOADED") << "it is not its turn";
  EXPECT_EQ(*second, "");
  *record.add_uploaded() = record.waiting(0);
  record.clear_waiting();
  etcd().Show();
  Tick();
  EXPECT_EQ(*second, "OK");
}

TEST_F(SharedUploadsTest, AWaitInARunWithoutUploadsIsRefusedAtOnce) {
  Commit(run_, 1);
  EXPECT_EQ(*Wait(1), "NOT_UPLOADED");
}

// ---- policies

TEST_F(SharedUploadsTest, APolicyKeepsAtMostAThousandInTheBucket) {
  v1::UploadPolicy policy;
  policy.set_url("s3://bucket/run");
  EXPECT_EQ(uploads_.Check(*run_, policy), absl::OkStatus());
  policy.set_keep_last(1001);
  EXPECT_EQ(ReasonOf(uploads_.Check(*run_, policy)), "INVALID_ARGUMENT");
}

TEST_F(SharedUploadsTest, TheRecordForgetsTheOldestOfVeryManyInTheBucket) {
  etcd().etcd.policy = etcd().etcd.record = PolicyOf(1);
  for (int64_t sequence = 1; sequence <= 1000; ++sequence)
    etcd().etcd.record.add_uploaded()->set_sequence(sequence);
  etcd().etcd.counted_through = 1000;
  Lead();
  Commit(run_, 1001);
  Settle();
  io_->EndUpload(100);
  Settle();
  EXPECT_EQ(etcd().etcd.record.uploaded_size(), 1000);
  EXPECT_EQ(etcd().etcd.record.uploaded(0).sequence(), 2);
  EXPECT_EQ(etcd().etcd.record.obsolete_size(), 0) << "it stays in the bucket";
}

}  // namespace
}  // namespace ckptd
