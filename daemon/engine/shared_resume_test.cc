// Resume in a run that several nodes share, on one of them.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_fixture.h"
#include "tests/testing/fake_shared_run.h"

namespace ckptd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

// Ranks 0 and 1 of four are on this node, and the root has two checkpoints.
class SharedResumeTest : public EngineTest {
 protected:
  std::unique_ptr<Authority> MakeShared(uint64_t inode) override {
    auto shared = std::make_unique<FakeSharedRun>(ios_.at(inode));
    nodes_ = shared.get();
    return shared;
  }
  void SetUp() override {
    EngineTest::SetUp();
    disks_[1] = std::make_shared<FakeDisk>();
    for (const auto& [tag, sequence] : {std::pair("older", 6), std::pair("a", 7)}) {
      CommittedCheckpoint checkpoint;
      checkpoint.summary.set_tag(tag);
      checkpoint.summary.set_sequence(sequence);
      checkpoint.summary.set_world_size(4);
      disks_[1]->committed[sequence] = checkpoint;
      disks_[1]->manifests[sequence].summary = checkpoint.summary;
    }
    for (int rank = 0; rank < local_ranks(); ++rank) Join(rank);
    nodes_->calls.clear();
  }
  virtual int local_ranks() const { return 2; }
  void Join(int rank) {
    sessions_.push_back(Trainer("trainer" + std::to_string(rank)));
    v1::JoinRunRequest request;
    request.set_root(Attach(sessions_.back()));
    request.set_rank(rank);
    request.set_world_size(4);
    request.set_local_world_size(local_ranks());
    request.set_launch_id("launch");
    Answer<v1::JoinRunResponse> answer;
    engine_->JoinRun(As(sessions_.back()), request, answer.reply());
    RunQueued();
    ASSERT_TRUE(answer.status().ok());
  }
  void ResumeHere() {
    for (int rank = 0; rank < local_ranks(); ++rank) resumed_.push_back(Resume(sessions_[rank], rank));
    nodes_->settles.at(0)(absl::OkStatus());
    RunQueued();
    ASSERT_TRUE(resumed_.back().status().ok());
  }
  Answer<v1::FinishResumeResponse> Finish(int rank, const std::string& failure = "", int64_t sequence = 7) {
    v1::FinishResumeRequest request;
    request.set_run(run_);
    request.set_rank(rank);
    request.set_sequence(sequence);
    request.set_failure(failure);
    Answer<v1::FinishResumeResponse> answer;
    engine_->FinishResume(As(sessions_[rank]), request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::FinishResumeResponse> FinishDamaged(int rank) {
    v1::FinishResumeRequest request;
    request.set_run(run_);
    request.set_rank(rank);
    request.set_sequence(7);
    request.mutable_damage()->set_message("chunk 3 is wrong");
    Answer<v1::FinishResumeResponse> answer;
    engine_->FinishResume(As(sessions_[rank]), request, answer.reply());
    RunQueued();
    return answer;
  }
  // All nodes know that checkpoint a is damaged.
  void HearOfDamage(const std::string& message = "a wrong checksum") {
    storage::v1::Damage damage;
    damage.set_tag("a");
    damage.set_sequence(7);
    damage.set_message(message);
    nodes_->hooks.damage_changed(7, damage, nullptr);
    RunQueued();
  }
  // The tag that a rank resumes from once all nodes have settled.
  std::string ResumedTag(int rank) {
    const auto resumed = Resume(sessions_[rank], rank);
    nodes_->settles.back()(absl::OkStatus());
    RunQueued();
    return resumed.status().ok() ? resumed.get().checkpoint().tag() : resumed.reason();
  }
  v1::Checkpoint Get(const std::string& tag) {
    v1::GetCheckpointRequest request;
    request.set_name(run_ + "/checkpoints/" + tag);
    Answer<v1::Checkpoint> answer;
    engine_->GetCheckpoint(As(sessions_[0]), request, answer.reply());
    RunQueued();
    return answer.status().ok() ? answer.get() : v1::Checkpoint();
  }
  std::vector<std::string> Calls() { return std::exchange(nodes_->calls, {}); }

  FakeSharedRun* nodes_ = nullptr;
  std::vector<SessionId> sessions_;
  std::vector<Answer<v1::ResumeResponse>> resumed_;
};

TEST_F(SharedResumeTest, WaitsForTheSavesOfAllNodesAndLooksAtTheRootThen) {
  const auto first = Resume(sessions_[0], 0), second = Resume(sessions_[1], 1);
  EXPECT_THAT(Calls(), ElementsAre("WhenSettled 1")) << "once for the ranks of the attempt";
  EXPECT_FALSE(first.has());
  CommittedCheckpoint newer = disks_[1]->committed[7];  // Of another node.
  newer.summary.set_sequence(8);
  newer.summary.set_tag("b");
  disks_[1]->committed[8] = newer;
  disks_[1]->manifests[8].summary = newer.summary;
  nodes_->settles.at(0)(absl::OkStatus());
  RunQueued();
  EXPECT_EQ(first.get().checkpoint().tag(), "b");
  EXPECT_EQ(second.get().checkpoint().tag(), "b");
}

TEST_F(SharedResumeTest, HearsWhyTheOtherNodesCannotSettle) {
  const auto resumed = Resume(sessions_[0], 0);
  nodes_->settles.at(0)(MakeError(absl::StatusCode::kUnavailable, "LEDGER_UNAVAILABLE", "etcd is away"));
  RunQueued();
  EXPECT_EQ(resumed.reason(), "LEDGER_UNAVAILABLE");
}

TEST_F(SharedResumeTest, IsFinishedWhenTheRanksOfAllNodesAre) {
  ResumeHere();
  Calls();
  const auto first = Finish(0);
  EXPECT_THAT(Calls(), ElementsAre()) << "rank 1 of this node still reads";
  const auto second = Finish(1);
  EXPECT_THAT(Calls(), ElementsAre("FinishResume 1 7"));
  EXPECT_FALSE(first.has());
  nodes_->finishes.at(0)(absl::OkStatus());
  RunQueued();
  EXPECT_TRUE(first.status().ok());
  EXPECT_TRUE(second.status().ok());
  engine_->SessionClosed(sessions_[0], "done");
  EXPECT_THAT(Calls(), ElementsAre()) << "it is agreed";
}

TEST_F(SharedResumeTest, OtherNodesHearAtOnceThatARankCannot) {
  ResumeHere();
  Calls();
  Finish(1, "out of memory");
  EXPECT_THAT(Calls(), ElementsAre("FinishResume 1 7 RESUME_FAILED"));
}

TEST_F(SharedResumeTest, OtherNodesHearAtOnceThatATrainerHasEnded) {
  ResumeHere();
  const auto first = Finish(0), second = Finish(1);
  engine_->SessionClosed(sessions_[1], "killed");
  RunQueued();
  EXPECT_THAT(Calls(), Contains("FinishResume 1 7 RESUME_FAILED"));
  EXPECT_EQ(first.reason(), reason::kResumeFailed) << "and not that another call has replaced its own";
}

// A rank that waits alone: nobody is left to hear of the failure when its session ends.
class SharedResumeOfOneRankTest : public SharedResumeTest {
 protected:
  int local_ranks() const override { return 1; }
};

TEST_F(SharedResumeOfOneRankTest, FinishesAnewAfterItHasReconnected) {
  ResumeHere();
  Finish(0);
  EXPECT_THAT(Calls(), Contains("FinishResume 1 7"));
  engine_->SessionClosed(sessions_[0], "connection lost");
  RunQueued();
  EXPECT_THAT(Calls(), ElementsAre("FinishResume 1 7 RESUME_FAILED"));
  sessions_.clear();
  Join(0);
  EXPECT_EQ(ResumedTag(0), "a");
  Calls();
  const auto again = Finish(0);
  EXPECT_THAT(Calls(), ElementsAre("FinishResume 1 7"));
  nodes_->FinishAll(1, absl::OkStatus());
  RunQueued();
  EXPECT_TRUE(again.status().ok()) << again.status();
}

TEST_F(SharedResumeTest, HearsTheErrorOfAnotherNode) {
  ResumeHere();
  const auto first = Finish(0), second = Finish(1);
  nodes_->finishes.at(0)(MakeError(absl::StatusCode::kAborted, reason::kResumeFailed, "node b could not"));
  RunQueued();
  EXPECT_EQ(first.reason(), reason::kResumeFailed);
  EXPECT_EQ(second.reason(), reason::kResumeFailed);
}

// ---- damage

TEST_F(SharedResumeTest, DamageThatARankFindsCountsOnceAllNodesKnowIt) {
  ResumeHere();
  Calls();
  const auto first = Finish(0), second = FinishDamaged(1);
  EXPECT_THAT(Calls(), ElementsAre("MarkDamaged a 7"));
  EXPECT_FALSE(second.has());
  EXPECT_EQ(Get("latest").tag(), "a") << "nobody knows it yet";
  HearOfDamage();
  EXPECT_THAT(Calls(), ElementsAre("FinishResume 1 7 CHECKPOINT_DAMAGED"));
  EXPECT_EQ(first.reason(), reason::kCheckpointDamaged);
  EXPECT_FALSE(second.has());
  nodes_->marks.at(0)(absl::OkStatus());
  RunQueued();
  EXPECT_TRUE(second.status().ok()) << second.status();
  EXPECT_EQ(Get("latest").tag(), "older");
  EXPECT_EQ(ResumedTag(0), "older");
  EXPECT_EQ(ResumedTag(1), "older");
}

TEST_F(SharedResumeTest, WhatTheNodesDoNotMarkIsNotDamaged) {
  ResumeHere();
  const auto damaged = FinishDamaged(1);
  nodes_->marks.at(0)(MakeError(absl::StatusCode::kUnavailable, "BEING_REMOVED", "a newer one is there"));
  RunQueued();
  EXPECT_EQ(damaged.reason(), "BEING_REMOVED");
  EXPECT_FALSE(Get("a").has_damage());
  EXPECT_EQ(ResumedTag(1), "a");
}

TEST_F(SharedResumeTest, FileThatIsMissingAtTheOpeningIsDamageOnceAllNodesKnowIt) {
  disks_[1]->unreadable.insert(7);
  const auto resumed = Resume(sessions_[0], 0);
  nodes_->settles.at(0)(absl::OkStatus());
  RunQueued();
  EXPECT_THAT(Calls(), Contains("MarkDamaged a 7"));
  EXPECT_FALSE(resumed.has());
  HearOfDamage(nodes_->damage.message());
  nodes_->marks.at(0)(absl::OkStatus());
  RunQueued();
  EXPECT_EQ(resumed.get().checkpoint().tag(), "older");
}

TEST_F(SharedResumeTest, FileThatIsMissingBecauseOfARemovalIsNoDamage) {
  disks_[1]->unreadable.insert(7);
  v1::GetCheckpointRequest request;
  request.set_name(run_ + "/checkpoints/a");
  request.set_view(v1::FULL);
  Answer<v1::Checkpoint> described;
  engine_->GetCheckpoint(As(sessions_[0]), request, described.reply());
  const auto resumed = Resume(sessions_[0], 0);
  nodes_->settles.at(0)(absl::OkStatus());
  RunQueued();
  ASSERT_EQ(nodes_->marks.size(), 2U);
  for (auto& marked : nodes_->marks)
    marked(MakeError(absl::StatusCode::kUnavailable, "BEING_REMOVED", "a newer one is there"));
  RunQueued();
  EXPECT_EQ(described.reason(), "BEING_REMOVED");
  EXPECT_EQ(resumed.reason(), "BEING_REMOVED");
  EXPECT_FALSE(Get("a").has_damage());
}

TEST_F(SharedResumeTest, RanksResumeFromNothingThatAnotherNodeHasFoundDamaged) {
  HearOfDamage("chunk 3 is wrong");
  EXPECT_EQ(Get("a").damage().message(), "chunk 3 is wrong");
  EXPECT_EQ(Get("latest").tag(), "older");
  EXPECT_THAT(Calls(), ElementsAre()) << "it is known to all";
  EXPECT_EQ(ResumedTag(0), "older");
  EXPECT_TRUE(disks_[1]->committed.at(7).damage.has_value()) << "for the pointer files";
}

TEST_F(SharedResumeTest, RanksThatWaitForOtherNodesHearOfTheDamageThatTheseFind) {
  ResumeHere();
  const auto first = Finish(0), second = Finish(1);
  Calls();
  HearOfDamage();
  EXPECT_EQ(first.reason(), reason::kCheckpointDamaged);
  EXPECT_EQ(second.reason(), reason::kCheckpointDamaged);
  EXPECT_EQ(ResumedTag(0), "older");
}

TEST_F(SharedResumeTest, RanksThatHaveAllReadTheirPartsKeepTheirChoice) {
  ResumeHere();
  const auto first = Finish(0), second = Finish(1);
  nodes_->ledger()->AgreeResume(1, 7, [](const absl::Status&) {});
  Calls();
  HearOfDamage();
  EXPECT_THAT(Calls(), ElementsAre());
  EXPECT_FALSE(first.has());
  nodes_->FinishAll(1, absl::OkStatus());
  RunQueued();
  EXPECT_TRUE(first.status().ok()) << first.status();
  EXPECT_TRUE(second.status().ok()) << second.status();
  EXPECT_EQ(ResumedTag(0), "a") << "its peers train on from that";
}

TEST_F(SharedResumeTest, RankWaitsToHearOfTheDamageThatTheLedgerKnows) {
  nodes_->damaged = {7};
  const auto resumed = Resume(sessions_[0], 0);
  nodes_->settles.at(0)(absl::OkStatus());
  RunQueued();
  EXPECT_FALSE(resumed.has()) << "which one is whole is not known here";
  HearOfDamage();
  EXPECT_EQ(resumed.get().checkpoint().tag(), "older");
  EXPECT_EQ(resumed.get().passed_over(0).tag(), "a");
}

TEST_F(SharedResumeTest, RankHearsWhatItWaitsForWhenItsNodeDoesNotHearOfTheDamage) {
  nodes_->damaged = {7};
  const auto resumed = Resume(sessions_[0], 0);
  nodes_->settles.at(0)(absl::OkStatus());
  RunQueued();
  clock_.now += std::chrono::seconds(61);
  engine_->Tick();
  RunQueued();
  EXPECT_EQ(resumed.reason(), reason::kResumeTimeout);
  EXPECT_THAT(std::string(resumed.status().message()), ::testing::HasSubstr("damage"));
}

TEST_F(SharedResumeTest, RankWhoseDecisionWasTakenBackHearsOfTheDamageBeforeItsNodeDoes) {
  ResumeHere();
  nodes_->ledger()->RejectResume(1, 7, [](const absl::Status&) {});
  EXPECT_EQ(Finish(0).reason(), reason::kCheckpointDamaged);
  nodes_->damaged = {7};
  const auto resumed = Resume(sessions_[0], 0);
  nodes_->settles.back()(absl::OkStatus());
  RunQueued();
  HearOfDamage();
  EXPECT_EQ(resumed.get().checkpoint().tag(), "older");
  EXPECT_EQ(Finish(1).reason(), reason::kCheckpointDamaged) << "the other rank still reads the first one";
}

// The ledger may answer late.
TEST_F(SharedResumeTest, RankThatFinishesWithTheOlderCheckpointHearsNothingOfTheDamagedOne) {
  ResumeHere();
  const auto waits = Finish(0);
  nodes_->answers_late = true;
  HearOfDamage();
  nodes_->answers_late = false;
  EXPECT_FALSE(waits.has());
  nodes_->ledger()->RejectResume(1, 7, [](const absl::Status&) {});
  EXPECT_EQ(ResumedTag(1), "older");
  Calls();
  const auto goes_on = Finish(1, "", 6);
  EXPECT_EQ(waits.reason(), reason::kCheckpointDamaged);
  nodes_->AnswerLate();
  RunQueued();
  EXPECT_FALSE(goes_on.has()) << goes_on.status();
  EXPECT_THAT(Calls(), ElementsAre()) << "and neither do the other nodes";
}

TEST_F(SharedResumeTest, RepairedCheckpointIsOfferedOnceAllNodesKnowIt) {
  HearOfDamage();
  Answer<v1::Checkpoint> cleared;
  engine_->ClearDamage(Caller{0, 0, true}, run_ + "/checkpoints/a", cleared.reply());
  RunQueued();
  EXPECT_THAT(Calls(), ElementsAre("ClearDamage 7"));
  EXPECT_FALSE(cleared.has());
  EXPECT_TRUE(Get("a").has_damage());
  nodes_->hooks.damage_changed(7, std::nullopt, nullptr);
  nodes_->clearings.at(0)(absl::OkStatus());
  RunQueued();
  ASSERT_TRUE(cleared.status().ok()) << cleared.status();
  EXPECT_FALSE(cleared.get().has_damage());
  EXPECT_FALSE(disks_[1]->committed.at(7).damage.has_value());
  EXPECT_EQ(ResumedTag(0), "a");
}

TEST_F(SharedResumeTest, MarkOfACheckpointThatIsNotListedYetIsNotLost) {
  storage::v1::Damage damage;
  damage.set_tag("b");
  damage.set_sequence(8);
  nodes_->hooks.damage_changed(8, damage, nullptr);
  RunQueued();
  EXPECT_EQ(ios_[1]->calls["SetDamage"], 1) << "the next look at the root says so";
}

}  // namespace
}  // namespace ckptd
