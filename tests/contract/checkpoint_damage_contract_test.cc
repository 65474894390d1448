// What the nodes of a run know of damaged checkpoints, and that nothing is resumed from them or counted with
// them afterwards: run against the simulated etcd and its faults, a model over gRPC, and Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/checkpoint_damage.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "tests/contract/spanning_saves.h"

namespace ckptd {
namespace {

using Choice = EtcdLedger::ResumeChoice;
using Decision = std::optional<Choice>;
using Act = std::function<void(absl::AnyInvocable<void(absl::Status)>)>;

class CheckpointDamageContract : public SpanningSaves {
 protected:
  void SetUp() override {
    SpanningSaves::SetUp();
    ASSERT_EQ(Join(second_, 1), 1);
    Activate(1);
  }
  CheckpointDamage DamageOn(const Daemon& daemon) {
    return {nodes_.ClientOf(*daemon.registration),
            {nodes_.prefix() + "run/", daemon.registration->identity(), "test"}};
  }
  CheckpointReaders ReadersOn(const Daemon& daemon) {
    return {nodes_.ClientOf(*daemon.registration),
            {nodes_.prefix() + "run/", daemon.registration->identity(), "test"}};
  }
  static storage::v1::Damage DamageOf(int64_t sequence, const std::string& message) {
    storage::v1::Damage damage;
    damage.set_tag("step_" + std::to_string(sequence));
    damage.set_sequence(sequence);
    damage.set_message(message);
    return damage;
  }
  // "OK", or the reason.
  std::string Ask(const Act& act) {
    const auto status = Await<absl::Status>([&](auto done) { act(std::move(done)); });
    return status.ok() ? "OK" : ReasonOf(status);
  }
  std::string Mark(CheckpointDamage& damage, int64_t sequence, const std::string& message = "chunk 3") {
    return Ask([&](auto done) { damage.Mark(DamageOf(sequence, message), std::move(done)); });
  }
  std::string Remember(CheckpointDamage& damage, int64_t sequence) {
    return Ask([&](auto done) { damage.Remember(DamageOf(sequence, "long ago"), std::move(done)); });
  }
  std::string Clear(CheckpointDamage& damage, int64_t sequence) {
    return Ask([&](auto done) { damage.Clear(sequence, std::move(done)); });
  }
  std::string Evict(CheckpointReaders& readers, int64_t sequence, const std::set<int64_t>& damaged,
                    const std::set<int64_t>& listed = {}, const std::set<int64_t>& leaving = {}) {
    const CheckpointReaders::Count count{damaged, std::make_shared<const std::set<int64_t>>(listed),
                                         std::make_shared<const std::set<int64_t>>(leaving)};
    return Ask(
        [&](auto done) { readers.Evict({.sequence = sequence}, count, leadership_, std::move(done)); });
  }
  // What etcd says: the message of the damage, "repaired", or nothing.
  std::string Known(int64_t sequence) {
    const std::string value = nodes_.Read(LedgerKeys(nodes_.prefix() + "run/").Damaged(sequence));
    if (value == "(none)") return "";
    ledger::v1::DamageMark mark;
    EXPECT_TRUE(mark.ParseFromString(value));
    return mark.has_damage() ? mark.damage().message() : "repaired";
  }

  // The tag, or the reason.
  std::string DecideOn(Daemon& daemon, int64_t sequence, int64_t attempt = 1) {
    const Choice newest{"step_" + std::to_string(sequence), sequence};
    const auto choice = Await<absl::StatusOr<Choice>>(
        [&](auto answer) { daemon.ledger->DecideResume(attempt, newest, std::move(answer)); });
    return choice.ok() ? choice->tag : ReasonOf(choice.status());
  }
  std::string Decided(Daemon& daemon) {
    const auto decided = Await<absl::StatusOr<Decision>>(
        [&](auto answer) { daemon.ledger->DecidedResume(1, std::move(answer)); });
    if (!decided.ok()) return ReasonOf(decided.status());
    return *decided ? (*decided)->tag + ((*decided)->agreed ? " agreed" : "") : "";
  }
  std::string AgreeOn(Daemon& daemon, int64_t sequence) {
    return Ask([&](auto done) { daemon.ledger->AgreeResume(1, sequence, std::move(done)); });
  }
};
INSTANTIATE_TEST_SUITE_P(, CheckpointDamageContract, ::testing::ValuesIn(AllEtcds(/*seeds=*/10)), NameOf);

// ---- marks

TEST_P(CheckpointDamageContract, FirstMarkStaysUntilItIsClearedOnAnyNode) {
  CheckpointDamage first = DamageOn(first_), second = DamageOn(second_);
  EXPECT_EQ(Known(7), "");
  EXPECT_EQ(Mark(first, 7, "by node 1"), "OK");
  EXPECT_EQ(Mark(second, 7, "by node 2"), "OK");
  EXPECT_EQ(Known(7), "by node 1");
  EXPECT_EQ(Known(8), "");
  EXPECT_EQ(Clear(second, 7), "OK");
  EXPECT_EQ(Known(7), "repaired");
  EXPECT_EQ(Clear(first, 7), "OK");
  EXPECT_EQ(Mark(second, 7, "again"), "OK");
  EXPECT_EQ(Known(7), "again");
}

TEST_P(CheckpointDamageContract, WhatARootRemembersCountsOnlyIfEtcdHasNeverHeardOfIt) {
  CheckpointDamage first = DamageOn(first_), second = DamageOn(second_);
  EXPECT_EQ(Remember(first, 7), "OK");
  EXPECT_EQ(Known(7), "long ago");
  EXPECT_EQ(Clear(first, 7), "OK");
  EXPECT_EQ(Remember(second, 7), "OK");
  EXPECT_EQ(Known(7), "repaired") << "the root's record is older";
  EXPECT_EQ(Clear(first, 8), "OK");
  EXPECT_EQ(Remember(second, 8), "OK");
  EXPECT_EQ(Known(8), "repaired") << "it was cleared before etcd had heard of the damage";
}

// A reader that was paused sees the removal of what it reads: its registration, which kept the checkpoint, is
// over by then.
TEST_P(CheckpointDamageContract, WhatAReaderSeesOfARemovalIsNoDamage) {
  CheckpointReaders readers = ReadersOn(first_);
  CheckpointDamage second = DamageOn(second_);
  EXPECT_EQ(Evict(readers, 7, {}), "OK");
  EXPECT_EQ(Mark(second, 7), ledger_reason::kBeingRemoved);
  EXPECT_EQ(Known(7), "");
  EXPECT_EQ(Clear(second, 7), ledger_reason::kBeingRemoved);
}

TEST_P(CheckpointDamageContract, NodeThatIsLostMarksNothing) {
  CheckpointDamage second = DamageOn(second_);
  nodes_.WaitForTheEndOf(*second_.registration);
  EXPECT_EQ(Mark(second, 7), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Known(7), "");
}

// ---- what is resumed from

TEST_P(CheckpointDamageContract, NobodyDecidesOnWhatAnyNodeHasFoundDamaged) {
  CheckpointDamage first = DamageOn(first_);
  EXPECT_EQ(Mark(first, 7), "OK");
  EXPECT_EQ(DecideOn(second_, 7), "CHECKPOINT_DAMAGED");
  EXPECT_EQ(Decided(second_), "");
  EXPECT_EQ(DecideOn(second_, 6), "step_6");
  EXPECT_EQ(DecideOn(first_, 7), "step_6") << "it is decided";
}

TEST_P(CheckpointDamageContract, RepairedCheckpointIsResumedFrom) {
  CheckpointDamage first = DamageOn(first_);
  EXPECT_EQ(Mark(first, 7), "OK");
  EXPECT_EQ(Clear(first, 7), "OK");
  EXPECT_EQ(DecideOn(second_, 7), "step_7");
  EXPECT_EQ(AgreeOn(second_, 7), "OK");
}

TEST_P(CheckpointDamageContract, MarkTakesTheDecisionBackOnAllNodes) {
  CheckpointDamage second = DamageOn(second_);
  ASSERT_EQ(DecideOn(first_, 7), "step_7");
  EXPECT_EQ(Mark(second, 7), "OK");
  EXPECT_EQ(AgreeOn(first_, 7), "CHECKPOINT_DAMAGED");
  EXPECT_EQ(Decided(first_), "");
  EXPECT_EQ(DecideOn(first_, 7), "CHECKPOINT_DAMAGED") << "this node has not heard of the mark yet";
  EXPECT_EQ(DecideOn(second_, 6), "step_6");
  EXPECT_EQ(Decided(first_), "step_6");
  EXPECT_EQ(AgreeOn(first_, 7), "CHECKPOINT_DAMAGED");
  EXPECT_EQ(AgreeOn(first_, 6), "OK");
}

TEST_P(CheckpointDamageContract, DecisionThatIsTakenBackIsMadeAnewInOneStep) {
  CheckpointDamage second = DamageOn(second_);
  ASSERT_EQ(DecideOn(first_, 7), "step_7");
  EXPECT_EQ(Mark(second, 7), "OK");
  EXPECT_EQ(DecideOn(first_, 6), "step_6");
  EXPECT_EQ(Clear(second, 7), "OK");
  EXPECT_EQ(Decided(second_), "step_6") << "the decision that was taken back stays so";
}

TEST_P(CheckpointDamageContract, RanksThatHaveAllReadTheirPartsGoOn) {
  CheckpointDamage second = DamageOn(second_);
  ASSERT_EQ(DecideOn(first_, 7), "step_7");
  ASSERT_EQ(AgreeOn(first_, 7), "OK");
  EXPECT_EQ(Mark(second, 7), "OK");
  EXPECT_EQ(Decided(second_), "step_7 agreed");
  EXPECT_EQ(AgreeOn(second_, 7), "OK") << "a rank whose answer was lost";
  EXPECT_EQ(DecideOn(second_, 6), "step_7");
  // The next attempt decides anew.
  ASSERT_EQ(Join(first_, 0, "launch2"), 2);
  ASSERT_EQ(Join(second_, 1, "launch2"), 2);
  Activate(2);
  EXPECT_EQ(DecideOn(first_, 7, 2), "CHECKPOINT_DAMAGED");
}

TEST_P(CheckpointDamageContract, OfADecisionAndAMarkThatMeetTheMarkHolds) {
  CheckpointDamage second = DamageOn(second_);
  std::optional<absl::StatusOr<Choice>> decided;
  std::optional<absl::Status> marked;
  first_.ledger->DecideResume(1, {"step_7", 7},
                              [&](absl::StatusOr<Choice> choice) { decided = std::move(choice); });
  second.Mark(DamageOf(7, "chunk 3"), [&](absl::Status status) { marked = std::move(status); });
  etcd_.caller().RunUntil([&] { return decided && marked; });
  EXPECT_TRUE(marked->ok()) << *marked;
  EXPECT_EQ(Decided(first_), "") << decided->status();
  EXPECT_EQ(AgreeOn(first_, 7), "CHECKPOINT_DAMAGED");
}

// ---- what is removed

TEST_P(CheckpointDamageContract, NothingIsRemovedByACountThatHasADamagedOne) {
  CheckpointReaders readers = ReadersOn(first_);
  CheckpointDamage second = DamageOn(second_);
  EXPECT_EQ(Mark(second, 7), "OK");
  EXPECT_EQ(Evict(readers, 5, {}), ledger_reason::kDamageFound);
  EXPECT_EQ(Evict(readers, 5, {7}), "OK");
  EXPECT_EQ(Clear(second, 7), "OK");
  EXPECT_EQ(Evict(readers, 6, {7}), ledger_reason::kDamageFound);
  EXPECT_EQ(Evict(readers, 6, {}), "OK");
}

TEST_P(CheckpointDamageContract, NothingIsRemovedByACountThatHasOneThatGoes) {
  CheckpointReaders readers = ReadersOn(first_);
  EXPECT_EQ(Evict(readers, 4, {}, {3, 4, 6, 7}), "OK");
  EXPECT_EQ(Evict(readers, 3, {}, {3, 4, 6, 7}, {3}), ledger_reason::kRemovalFound);
  EXPECT_EQ(Evict(readers, 3, {}, {3, 4, 6, 7}, {3, 4}), "OK") << "it did not count";
  EXPECT_EQ(Evict(readers, 6, {}, {6, 7}), "OK") << "what goes is not listed";
  EXPECT_EQ(Evict(readers, 4, {}, {3, 4, 6, 7}), "OK") << "it is decided";
}

TEST_P(CheckpointDamageContract, DamagedCheckpointIsRemovedAndItsMarkStays) {
  CheckpointReaders readers = ReadersOn(first_);
  CheckpointDamage second = DamageOn(second_);
  EXPECT_EQ(Mark(second, 7), "OK");
  EXPECT_EQ(Evict(readers, 7, {7}), "OK");
  EXPECT_EQ(Mark(second, 7), "OK") << "it is known";
  EXPECT_EQ(Known(7), "chunk 3");
}

}  // namespace
}  // namespace ckptd
