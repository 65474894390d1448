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

// Ranks 0 and 1 of four are on this node, and the root has one checkpoint.
class SharedResumeTest : public EngineTest {
 protected:
  std::unique_ptr<SharedRun> MakeShared(uint64_t inode) override {
    auto shared = std::make_unique<FakeSharedRun>(ios_.at(inode));
    nodes_ = shared.get();
    return shared;
  }
  void SetUp() override {
    EngineTest::SetUp();
    disks_[1] = std::make_shared<FakeDisk>();
    CommittedCheckpoint checkpoint;
    checkpoint.summary.set_tag("a");
    checkpoint.summary.set_sequence(7);
    checkpoint.summary.set_world_size(4);
    disks_[1]->committed[7] = checkpoint;
    disks_[1]->manifests[7].summary = checkpoint.summary;
    for (int rank : {0, 1}) {
      sessions_.push_back(Trainer("trainer" + std::to_string(rank)));
      v1::JoinRunRequest request;
      request.set_root(Attach(sessions_.back()));
      request.set_rank(rank);
      request.set_world_size(4);
      request.set_local_world_size(2);
      request.set_launch_id("launch");
      Answer<v1::JoinRunResponse> answer;
      engine_->JoinRun(As(sessions_.back()), request, answer.reply());
      RunQueued();
      ASSERT_TRUE(answer.status().ok());
    }
    nodes_->calls.clear();
  }
  void ResumeHere() {
    for (int rank : {0, 1}) resumed_.push_back(Resume(sessions_[rank], rank));
    nodes_->settles.at(0)(absl::OkStatus());
    RunQueued();
    ASSERT_TRUE(resumed_[1].status().ok());
  }
  Answer<v1::FinishResumeResponse> Finish(int rank, const std::string& failure = "") {
    v1::FinishResumeRequest request;
    request.set_run(run_);
    request.set_rank(rank);
    request.set_sequence(7);
    request.set_failure(failure);
    Answer<v1::FinishResumeResponse> answer;
    engine_->FinishResume(As(sessions_[rank]), request, answer.reply());
    RunQueued();
    return answer;
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
  nodes_->settles.at(0)(
      MakeError(absl::StatusCode::kUnavailable, "LEDGER_UNAVAILABLE", "etcd is away"));
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
  EXPECT_EQ(first.reason(), reason::kResumeFailed);
  nodes_->finishes.at(0)(absl::AbortedError("replaced"));  // By the call that followed.
  RunQueued();
}

TEST_F(SharedResumeTest, HearsTheErrorOfAnotherNode) {
  ResumeHere();
  const auto first = Finish(0), second = Finish(1);
  nodes_->finishes.at(0)(MakeError(absl::StatusCode::kAborted, reason::kResumeFailed, "node b could not"));
  RunQueued();
  EXPECT_EQ(first.reason(), reason::kResumeFailed);
  EXPECT_EQ(second.reason(), reason::kResumeFailed);
}

}  // namespace
}  // namespace ckptd
