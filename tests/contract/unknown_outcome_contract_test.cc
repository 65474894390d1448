// How a run of several nodes goes on after a save whose outcome nobody knows: three nodes, run against the
// simulated etcd with its faults.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/contract/three_nodes.h"

namespace ckptd {
namespace {

using std::chrono::seconds;

std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }

// step_1, whose directory has gone, has ended; step_2 waits for it.
class UnknownOutcomeContract : public ThreeNodes {
 protected:
  void SetUp() override {
    ThreeNodes::SetUp();
    Hold("write");
    first_ = BeginAll("step_1");
    RunUntilAll(first_, "SEALED");
    inflight_ = root_.inflight;
    root_.Lose(1);
    LetGo();
    RunUntil([this] { return AllHaveEnded(); });
    ASSERT_EQ(EndOfSave(first_), "ENDED INDETERMINATE");
    second_ = BeginAll("step_2");
    RunUntil([this] {
      Node* const node = Coordinator();
      return node != nullptr && node->coordinator->WaitsFor().find("an operator") != std::string::npos;
    });
  }
  // "1 is a checkpoint", or the reason of the error. An operator asks the next coordinator, and again.
  std::string Settle(const std::string& tag, bool is_checkpoint) {
    std::string answer;
    for (int tries = 0; tries < 100; ++tries) {
      answer = SettleOnce(tag, is_checkpoint);
      const bool again = answer == ledger_reason::kNotCoordinator || answer == "LEDGER_UNAVAILABLE" ||
                         answer == reason::kOutcomePending;
      if (!again) break;
      RunFor(seconds(1));
    }
    return answer;
  }
  std::string SettleOnce(const std::string& tag, bool is_checkpoint) {
    RunUntil([this] { return Coordinator() != nullptr; });
    auto answer = std::make_shared<std::optional<absl::StatusOr<Authority::Settled>>>();
    Coordinator()->coordinator->SettleSave(
        tag, is_checkpoint,
        [answer](absl::StatusOr<Authority::Settled> settled) { *answer = std::move(settled); });
    RunUntil([answer] { return answer->has_value(); });
    if (!answer->has_value()) return "no answer";
    if (!(*answer)->ok()) return ReasonOf((*answer)->status());
    return absl::StrCat((**answer)->sequence, (**answer)->is_checkpoint ? " is a checkpoint" : " is none");
  }
  ledger::v1::SaveState::Found Found() { return HistoryOf(first_).back().found(); }

  SaveName first_, second_;
  std::map<std::string, int64_t> inflight_;
};
INSTANTIATE_TEST_SUITE_P(, UnknownOutcomeContract, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

TEST_P(UnknownOutcomeContract, RunGoesOnWhenAnOperatorSaysThatItIsNotThere) {
  RunFor(seconds(60));
  EXPECT_EQ(all_[0].parts.at(second_).heard, "") << "the coordinator does not say so by itself";
  EXPECT_EQ(Settle("step_1", true), "OUTCOME_DIFFERS");
  EXPECT_EQ(Found(), ledger::v1::SaveState::NOT_KNOWN);
  EXPECT_EQ(Settle("step_1", false), "1 is none");
  EXPECT_EQ(EndOfSave(second_), "COMMITTED");
  EXPECT_EQ(Settle("step_1", false), "1 is none") << "a second call";
  EXPECT_EQ(Settle("step_1", true), "OUTCOME_DIFFERS");
  EXPECT_EQ(Settle("step_2", false), "UNKNOWN_SAVE");
  EXPECT_EQ(HistoryOf(first_).back().end().reason(), "INDETERMINATE") << "what ranks have heard stays";
}

class ForgottenOutcomeContract : public UnknownOutcomeContract {
 protected:
  ForgottenOutcomeContract() { ended_kept_for_ = seconds(5); }
};
INSTANTIATE_TEST_SUITE_P(, ForgottenOutcomeContract, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)),
                         NameOf);

TEST_P(ForgottenOutcomeContract, EtcdKeepsItUntilItIsSettled) {
  RunFor(seconds(60));
  EXPECT_TRUE(KnownSaves().contains(1));
  EXPECT_EQ(Settle("step_1", false), "1 is none");
  EXPECT_EQ(EndOfSave(second_), "COMMITTED");
  RunUntil([this] { return !KnownSaves().contains(1); });
}

TEST_P(UnknownOutcomeContract, RunGoesOnWhenItTurnsUpAtItsTag) {
  root_.tags["step_1"] = 1;
  EXPECT_EQ(EndOfSave(second_), "COMMITTED");
  EXPECT_EQ(Found(), ledger::v1::SaveState::IS_CHECKPOINT);
}

TEST_P(UnknownOutcomeContract, RunGoesOnWhenItTurnsUpInTheTrash) {
  root_.trash = inflight_;
  EXPECT_EQ(EndOfSave(second_), "COMMITTED");
  EXPECT_EQ(Found(), ledger::v1::SaveState::IS_NO_CHECKPOINT);
}

TEST_P(UnknownOutcomeContract, OperatorWhoHasOverlookedItIsRefusedAndTheRunGoesOn) {
  root_.tags["step_1"] = 1;
  const std::string answer = Settle("step_1", false);
  EXPECT_EQ(answer, "OUTCOME_DIFFERS");
  EXPECT_EQ(EndOfSave(second_), "COMMITTED");
  EXPECT_EQ(Found(), ledger::v1::SaveState::IS_CHECKPOINT);
}

TEST_P(UnknownOutcomeContract, WordOfAnOperatorDoesNotCountWhileTheRootCannotBeRead) {
  root_.before = [this](const std::string& what) {
    if (what == "Find") root_.failures = 1;
    return true;
  };
  EXPECT_EQ(Settle("step_1", false), "IO_ERROR");
  root_.before = nullptr;
  root_.failures = 0;
  EXPECT_EQ(Found(), ledger::v1::SaveState::NOT_KNOWN);
}

TEST_P(UnknownOutcomeContract, NextCoordinatorGoesOnWithWhatIsKnown) {
  ASSERT_EQ(Settle("step_1", false), "1 is none");
  EXPECT_EQ(EndOfSave(second_), "COMMITTED");
  Node* const first = Coordinator();
  Kill(*first);
  RunUntil([&] { return Coordinator() != nullptr && Coordinator() != first; });
  EXPECT_EQ(Settle("step_1", false), "1 is none");
}

// It was in flight all the time, on a node whose names were stale. Nothing is published over it.
TEST_P(UnknownOutcomeContract, WhatTurnsUpInFlightIsSweptWhenItIsSettled) {
  root_.inflight.insert(inflight_.begin(), inflight_.end());
  RunFor(seconds(60));
  EXPECT_EQ(Found(), ledger::v1::SaveState::NOT_KNOWN);
  ASSERT_EQ(Settle("step_1", false), "1 is none");
  EXPECT_EQ(EndOfSave(second_), "COMMITTED");
  RunUntil([this] { return NothingIsInFlight(); });
  EXPECT_TRUE(NothingIsInFlight());
}

using PendingOutcomeContract = ThreeNodes;
INSTANTIATE_TEST_SUITE_P(, PendingOutcomeContract, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

TEST_P(PendingOutcomeContract, OperatorIsRefusedWhileTheCoordinatorStillLooks) {
  Hold("write");
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, "SEALED");
  root_.Lose(1);
  std::string answer;
  root_.before = [&](const std::string& what) {
    if (what != "Find" || !answer.empty()) return true;
    Coordinator()->coordinator->SettleSave(
        "step_1", false,
        [&](const absl::StatusOr<Authority::Settled>& settled) { answer = ReasonOf(settled.status()); });
    return true;
  };
  LetGo();
  RunUntil([&] { return !answer.empty(); });
  EXPECT_EQ(answer, "OUTCOME_PENDING");
}

}  // namespace
}  // namespace ckptd
