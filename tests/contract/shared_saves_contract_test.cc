// What becomes of a save on all of its nodes, whatever happens to them, to their coordinator and to etcd: run
// against the simulated etcd with its faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/save/save_admission.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "storage/base/errors.h"
#include "tests/contract/three_nodes.h"
#include "tests/sim/random.h"

namespace ckptd {

using ledger::v1::SaveState;

namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::_;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

class SharedSavesContract : public ThreeNodes {
 protected:
  static std::string LostBy(const Node& node) {
    return "ENDED NODE_LOST of " + node.name + ", ranks " + std::to_string(node.rank);
  }
};
std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }
INSTANTIATE_TEST_SUITE_P(, SharedSavesContract, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

TEST_P(SharedSavesContract, CommitsOnAllNodes) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  EXPECT_THAT(root_.published, ElementsAre("step_1 1"));
  EXPECT_TRUE(NothingIsInFlight());
  for (const Node& node : all_) EXPECT_FALSE(node.parts.at(Named("step_1")).released);
}

TEST_P(SharedSavesContract, OneNoEndsItOnAllNodesWithItsReason) {
  all_[1].no = "POOL_EXHAUSTED";
  EXPECT_EQ(Save("step_1"), "ENDED POOL_EXHAUSTED of node2, ranks 1");
  EXPECT_EQ(all_[0].parts.at(Named("step_1")).error, "node \"node2\" (ranks 1): no room");
  for (const Node& node : all_) EXPECT_TRUE(node.parts.at(Named("step_1")).released);
  RunUntil([&] { return NothingIsInFlight(); });
  all_[1].no.clear();
  EXPECT_EQ(Save("step_1", 2), "COMMITTED");
}

TEST_P(SharedSavesContract, PartThatFailsEndsItOnAllNodesWithItsReason) {
  all_[2].held = {"write"};
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, "SEALED");
  all_[2].fail = "NO_SPACE";
  EXPECT_EQ(EndOfSave(save), "ENDED NO_SPACE of node3, ranks 2");
  EXPECT_EQ(all_[0].parts.at(save).error, "node \"node3\" (ranks 2): a test's failure");
  RunUntil([&] { return NothingIsInFlight(); });
}

TEST_P(SharedSavesContract, DirectoryThatCannotBeMadeEndsItOnAllNodes) {
  root_.no_directory = MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE", "the disk is full");
  EXPECT_EQ(Save("step_1"), "ENDED NO_SPACE");
  EXPECT_EQ(
      all_[1].parts.at(Named("step_1")).error,
      "node \"" + Coordinator()->name +
          "\", which coordinates the run, could not make the directory of the save of step_1: the disk is "
          "full");
}

TEST_P(SharedSavesContract, RanksThatDoNotBeginEndItAtTheDeadlineAndAreNamed) {
  const SaveName save = Named("step_1");
  for (int i : {0, 2}) Begin(all_[i], save, minutes(2));
  RunUntilAll(save, "PROPOSED");
  RunFor(seconds(60));
  EXPECT_EQ(all_[0].saves->WaitsFor(save), "the other nodes to have room for the save");
  EXPECT_EQ(EndOfSave(save), "ENDED RANKS_MISSING of node2, ranks 1");
  EXPECT_THAT(
      all_[0].parts.at(save).error,
      HasSubstr("step_1 was not begun, or had no room, before its deadline on node \"node2\" (ranks 1): "
                "registered; look"));
  // What they begin later has ended, too.
  Begin(all_[1], save);
  EXPECT_EQ(EndOfSave(save), "ENDED RANKS_MISSING of node2, ranks 1");
}

TEST_P(SharedSavesContract, NodeThatHasNoRoomUntilTheDeadlineEndsIt) {
  all_[1].held = {"vote"};
  // Or another node says so first, for it waits as long.
  EXPECT_THAT(
      EndOfSave(BeginAll("step_1", 1, minutes(2))),
      ::testing::AnyOf("ENDED ADMISSION_TIMEOUT of node2, ranks 1", "ENDED RANKS_MISSING of node2, ranks 1"));
}

TEST_P(SharedSavesContract, OthersDoNotWaitForANodeThatHasSkippedTheSave) {
  Node& cut = Other();
  cut.client->CutOff(true);
  const SaveName save = BeginAll("step_1");
  cut.saves->SkipAfter(save, seconds(3));
  RunUntil([&] { return !cut.parts.at(save).heard.empty(); });
  EXPECT_EQ(cut.parts.at(save).heard, "FAILED SKIPPED");
  cut.client->CutOff(false);
  const Instant back = etcd_.clock()->Now();
  RunUntil([&] { return AllOthersHaveHeard(&cut, save); });
  EXPECT_LE(etcd_.clock()->Now() - back, minutes(1)) << "it says no as soon as etcd answers";
  for (const Node& node : all_) {
    if (&node == &cut) continue;
    EXPECT_THAT(node.parts.at(save).heard, StartsWith("ENDED SKIPPED of " + cut.name));
  }
  EXPECT_EQ(Save("step_2"), "COMMITTED");
}

// ---- what etcd keeps

class OldSavesContract : public SharedSavesContract {
 protected:
  OldSavesContract() { ended_kept_for_ = seconds(30); }
};
INSTANTIATE_TEST_SUITE_P(, OldSavesContract, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

TEST_P(OldSavesContract, EtcdKeepsTheNewestCheckpointAndLaterSavesAndForgetsTheOthersInTime) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  all_[1].no = "POOL_EXHAUSTED";
  EXPECT_EQ(Save("step_2"), "ENDED POOL_EXHAUSTED of node2, ranks 1");
  RunFor(minutes(2));
  const std::set<int64_t> before = KnownSaves();
  EXPECT_THAT(before, Contains(1)) << "no newer checkpoint is there";
  EXPECT_GT(*before.rbegin(), 1) << "it may be the last sequence";
  all_[1].no.clear();
  EXPECT_EQ(Save("step_3"), "COMMITTED");
  const int64_t newest = *KnownSaves().rbegin();
  RunUntil([&] { return *KnownSaves().begin() == newest; });
  nodes_.DeliverLateCopies();
  EXPECT_EQ(*KnownSaves().begin(), newest) << "a late copy has brought something back";
  EXPECT_EQ(Save("step_4"), "COMMITTED");
}

TEST_P(OldSavesContract, NextCoordinatorForgetsThemToo) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  EXPECT_EQ(Save("step_2"), "COMMITTED");
  RunUntil([this] { return Coordinator() != nullptr; });
  Restart(*Coordinator());
  RunUntil([this] { return !KnownSaves().contains(1); });
  EXPECT_EQ(Save("step_3"), "COMMITTED");
}

TEST_P(OldSavesContract, RankThatBeginsAForgottenSaveIsToldThatTheOthersAreMissing) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  EXPECT_EQ(Save("step_2"), "COMMITTED");
  RunUntil([this] { return !KnownSaves().contains(1); });
  RunFor(seconds(10));  // Until all nodes see that.
  const SaveName again = Named("step_1");
  for (Node& node : all_) node.parts.clear();
  Begin(all_[1], again, minutes(1));
  EXPECT_THAT(EndOfSave(again), StartsWith("ENDED RANKS_MISSING"));
  EXPECT_THAT(root_.published, Contains("step_1 1")) << "the checkpoint stays";
}

// ---- the order of saves

TEST_P(SharedSavesContract, YoungerSaveWaitsUntilTheOlderOneIsPublished) {
  all_[1].held = {"write"};
  const SaveName older = BeginAll("step_1");
  RunUntilAll(older, "SEALED");
  all_[1].held.clear();
  all_[1].parts.at(older).durable = true;  // Its engine is slow, and has said nothing.
  const SaveName younger = BeginAll("step_2");
  RunUntilAll(younger, "SEALED");
  RunFor(seconds(30));
  EXPECT_THAT(root_.published, IsEmpty());
  EXPECT_THAT(Coordinator()->coordinator->WaitsFor(),
              HasSubstr("the save of step_1, sequence 1, which is SEALED"));
  all_[1].parts.at(older).durable = false;
  EXPECT_EQ(EndOfSave(younger), "COMMITTED");
  EXPECT_THAT(root_.published, ElementsAre("step_1 1", StartsWith("step_2 ")));
}

TEST_P(SharedSavesContract, ResaveOfATagReplacesItsCheckpoint) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  EXPECT_EQ(Save("step_1", 2), "COMMITTED");
  EXPECT_GT(root_.tags.at("step_1"), 1);
  EXPECT_THAT(root_.removed, ElementsAre(1));
}

TEST_P(SharedSavesContract, CheckpointIsNotReplacedWhileANodeReadsIt) {
  for (const bool stale : {false, true}) {
    const std::string tag = stale ? "stale" : "fresh";
    EXPECT_EQ(Save(tag), "COMMITTED");
    const int64_t sequence = root_.tags.at(tag);
    Node& reader = Other();
    CheckpointReaders readers(reader.etcd.get(),
                              {nodes_.prefix() + "run/", reader.registration->identity(), "test"});
    std::optional<absl::Status> answer;
    readers.Begin(sequence, [&](const absl::Status& status) { answer = status; });
    RunUntil([&] { return answer.has_value(); });
    ASSERT_TRUE(answer->ok()) << *answer;
    stale_decisions_ = stale;
    if (stale) root_.hidden.insert(sequence);
    const SaveName save = BeginAll(tag, 2);
    RunUntil([&] {
      Node* const node = Coordinator();
      return node != nullptr && node->coordinator->WaitsFor().find("readers") != std::string::npos;
    });
    EXPECT_EQ(root_.tags.at(tag), sequence);
    root_.hidden.clear();  // No name is stale for ever.
    answer.reset();
    readers.End(sequence, [&](const absl::Status& status) { answer = status; });
    EXPECT_EQ(EndOfSave(save), "COMMITTED");
    EXPECT_GT(root_.tags.at(tag), sequence);
  }
}

// Somebody puts it there while the save waits for readers of the one that had the tag before.
TEST_P(SharedSavesContract, ResaveReplacesTheCheckpointThatHasTheTagWhenItsWaitEnds) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  Node& reader = Other();
  CheckpointReaders readers(reader.etcd.get(),
                            {nodes_.prefix() + "run/", reader.registration->identity(), "test"});
  std::optional<absl::Status> answer;
  readers.Begin(1, [&](const absl::Status& status) { answer = status; });
  RunUntil([&] { return answer.has_value(); });
  ASSERT_TRUE(answer->ok()) << *answer;
  const SaveName save = BeginAll("step_1", 2);
  RunUntil([&] {
    Node* const node = Coordinator();
    return node != nullptr && node->coordinator->WaitsFor().find("readers") != std::string::npos;
  });
  root_.tags["step_1"] = 100;
  answer.reset();
  readers.End(1, [&](const absl::Status& status) { answer = status; });
  EXPECT_EQ(EndOfSave(save), "COMMITTED");
  EXPECT_THAT(root_.removed, ElementsAre(100));
}

// Its removal is decided together with the publication, and cannot be taken back.
TEST_P(SharedSavesContract, CheckpointStaysIfTheSaveOfItsTagMakesNone) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  const int64_t sequence = root_.tags.at("step_1");
  root_.parts_conflict = true;
  EXPECT_THAT(EndOfSave(BeginAll("step_1", 2)), HasSubstr("FILE_CONFLICT"));
  root_.parts_conflict = false;
  Node& reader = Other();
  CheckpointReaders readers(reader.etcd.get(),
                            {nodes_.prefix() + "run/", reader.registration->identity(), "test"});
  std::optional<absl::Status> may_read;
  readers.Begin(sequence, [&](const absl::Status& status) { may_read = status; });
  RunUntil([&] { return may_read.has_value(); });
  EXPECT_TRUE(may_read->ok()) << *may_read;
  EXPECT_EQ(root_.tags.at("step_1"), sequence);
  may_read.reset();
  readers.End(sequence, [&](const absl::Status& status) { may_read = status; });
  RunUntil([&] { return may_read.has_value(); });
  EXPECT_EQ(EndOfSave(BeginAll("step_1", 3)), "COMMITTED");
}

// ---- saves that are made in advance

class PreparedSavesContract : public SharedSavesContract {
 protected:
  void SetUp() override {
    SharedSavesContract::SetUp();
    EXPECT_EQ(Save("step_1"), "COMMITTED");
    RunUntil([&] { return Prepared() != 0; });
    RunFor(seconds(2));  // All nodes have seen it.
    prepared_ = Prepared();
  }
  // The sequence of the save that is OPEN; 0: there is none.
  int64_t Prepared() {
    int64_t prepared = 0;
    for (const auto& [sequence, states] : History()) {
      if (states.back().phase() == SaveState::OPEN) prepared = sequence;
    }
    return prepared;
  }
  std::vector<std::string> PhasesOf(int64_t sequence) {
    std::vector<std::string> phases;
    const auto history = History();
    for (const SaveState& state : history.at(sequence))
      phases.push_back(SaveState::Phase_Name(state.phase()));
    return phases;
  }
  bool IsFaulty() const { return GetParam().name() != "simulated"; }

  int64_t prepared_ = 0;
};
INSTANTIATE_TEST_SUITE_P(, PreparedSavesContract, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

TEST_P(PreparedSavesContract, NextSaveGetsItsSequenceAndIsNotProposedFirst) {
  EXPECT_EQ(Save("step_2"), "COMMITTED");
  if (!IsFaulty()) {
    EXPECT_THAT(PhasesOf(prepared_), ElementsAre("OPEN", "ADMITTED", "SEALED", "PUBLISHING", "COMMITTED"));
  }
  EXPECT_EQ(Save("step_3"), "COMMITTED");
}

TEST_P(PreparedSavesContract, OneNoEndsItOnAllNodes) {
  all_[1].no = "POOL_EXHAUSTED";
  EXPECT_EQ(Save("step_2"), "ENDED POOL_EXHAUSTED of node2, ranks 1");
  for (const Node& node : all_) EXPECT_TRUE(node.parts.at(Named("step_2")).released);
  all_[1].no.clear();
  EXPECT_EQ(Save("step_3"), "COMMITTED");
  RunUntil([&] { return NothingIsInFlight(); });
}

TEST_P(PreparedSavesContract, NodeThatIsLateFindsTheSaveProposed) {
  const SaveName save = Named("step_2");
  for (int i : {0, 2}) Begin(all_[i], save);
  RunUntil([&] { return PhasesOf(prepared_).back() != "OPEN"; });
  EXPECT_EQ(PhasesOf(prepared_).back(), "PROPOSED");
  Begin(all_[1], save);
  EXPECT_EQ(EndOfSave(save), "COMMITTED");
  EXPECT_EQ(all_[1].parts.at(save).save.sequence, prepared_);
}

TEST_P(PreparedSavesContract, NodesThatBeginDifferentSavesGetBoth) {
  const SaveName one = Named("one"), other = Named("other");
  Begin(all_[0], one);
  Begin(all_[1], other);
  Begin(all_[2], one);
  RunFor(seconds(1));
  Begin(all_[0], other);
  Begin(all_[1], one);
  Begin(all_[2], other);
  EXPECT_EQ(EndOfSave(one), "COMMITTED");
  EXPECT_EQ(EndOfSave(other), "COMMITTED");
  EXPECT_NE(HistoryOf(one).size(), 0u);
  EXPECT_NE(all_[1].parts.at(one).save.sequence, all_[1].parts.at(other).save.sequence);
}

// The other nodes may begin it much later, or never.
TEST_P(PreparedSavesContract, SaveWhoseSequenceAnotherOneHasGotIsProposedWithoutWaitingForTheOtherNodes) {
  const SaveName one = Named("one"), other = Named("other");
  Begin(all_[0], one);
  Begin(all_[1], other);
  Begin(all_[2], one);
  RunFor(minutes(1));
  EXPECT_FALSE(HistoryOf(one).empty());
  EXPECT_FALSE(HistoryOf(other).empty());
}

TEST_P(PreparedSavesContract, NodesThatBeginItForDifferentRanksEndIt) {
  const SaveName save = Named("step_2");
  for (Node& node : all_) {
    Part& part = node.parts[save];
    part.deadline = etcd_.clock()->Now() + minutes(8);
    node.saves->Begin(save, part.deadline, node.rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{});
  }
  EXPECT_THAT(EndOfSave(save), HasSubstr("ENDED SAVE_CONFLICT"));
  EXPECT_EQ(Save("step_3"), "COMMITTED");
}

// It begins nothing, so its save is of no node, and is not in the way of a later one.
TEST_P(PreparedSavesContract, SaveWithALaterSequenceEndsIt) {
  SaveAdmission admission(Other().etcd.get(),
                          {nodes_.prefix() + "run/", Other().registration->identity(), "test"});
  std::optional<absl::StatusOr<SharedSave>> begun;
  admission.Begin({attempts_, "step_2", 1, {}, minutes(8)}, [&](auto save) { begun = std::move(save); });
  const Node* const beginner = &Other();
  RunUntil([&] { return begun.has_value(); });
  ASSERT_EQ(beginner, &Other());
  ASSERT_TRUE(begun->ok()) << begun->status();
  EXPECT_GT((*begun)->sequence, prepared_);
  EXPECT_EQ(Save("step_2"), "COMMITTED");
  EXPECT_EQ(PhasesOf(prepared_).back(), "ENDED");
  RunUntil([&] { return NothingIsInFlight(); });
}

TEST_P(PreparedSavesContract, NextCoordinatorGoesOnWithIt) {
  Node& dead = *Coordinator();
  Kill(dead);
  RunUntil([&] { return Coordinator() != nullptr; });
  Restart(dead);
  RunFor(seconds(2));  // It has seen the save.
  EXPECT_EQ(Save("step_2"), "COMMITTED");
  if (!IsFaulty()) {
    EXPECT_EQ(HistoryOf(Named("step_2")).front().phase(), SaveState::OPEN);
  }
}

TEST_P(PreparedSavesContract, DaemonThatHasVotedAndEndedHasNoPartInIt) {
  const SaveName save = Named("step_2");
  Node& dead = Other();
  Begin(dead, save, minutes(1));
  RunUntil([&] {
    return dead.saves->WaitsFor(save) == "the other nodes to have room for the save" ||
           !dead.parts.at(save).heard.empty();
  });
  Kill(dead);
  dead.parts.clear();  // Its trainers are gone, too.
  Restart(dead);
  for (Node& node : all_) {
    if (&node != &dead) Begin(node, save, minutes(2));
  }
  EXPECT_THAT(EndOfSave(save), HasSubstr("ENDED RANKS_MISSING"));
  EXPECT_EQ(Save("step_3"), "COMMITTED");
}

TEST_P(PreparedSavesContract, AttemptThatIsOverGetsNone) {
  const SaveName save = Named("step_2");
  for (Node& node : all_) node.held = {"vote"};
  BeginAll("step_2");
  RunFor(std::chrono::milliseconds(10));
  ActLater();
  LetGo();
  EXPECT_THAT(EndOfSave(save), ::testing::AnyOf("FAILED FENCED", "ENDED FENCED"));
  EXPECT_EQ(Save("step_2"), "COMMITTED");
}

// ---- what is in the root

TEST_P(SharedSavesContract, SomethingForeignInItsPlaceEndsItOnAllNodes) {
  root_.foreign.insert("step_1");
  EXPECT_EQ(Save("step_1"), "ENDED TAG_FOREIGN");
  EXPECT_EQ(Save("step_2"), "COMMITTED") << "others are published";
}

TEST_P(SharedSavesContract, SaveThatIsNowhereForLongEndsAsUnknownAndHoldsTheOthers) {
  Hold("write");
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, "SEALED");
  root_.Lose(1);
  std::optional<Instant> first_look;
  root_.before = [&](const std::string& what) {
    if (what == "Find" && !first_look) first_look = etcd_.clock()->Now();
    return true;
  };
  LetGo();
  RunUntil([&] { return AllHaveEnded(); });
  EXPECT_GE(etcd_.clock()->Now() - first_look.value(), seconds(10));
  EXPECT_EQ(EndOfSave(save), "ENDED INDETERMINATE");
  const SaveName next = BeginAll("step_2");
  RunUntil([&] {
    Node* const node = Coordinator();
    return node != nullptr && node->coordinator->WaitsFor().find("an operator") != std::string::npos;
  });
  EXPECT_EQ(all_[0].parts.at(next).heard, "");
}

// Its directory may be seen again later, or an operator may know what it is.
TEST_P(SharedSavesContract, DirectoryInFlightOfASaveThatEndedAsUnknownStays) {
  Hold("write");
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, "SEALED");
  const int64_t sequence = all_[0].parts.at(save).save.sequence;
  root_.hidden.insert(sequence);
  LetGo();
  EXPECT_EQ(EndOfSave(save), "ENDED INDETERMINATE");
  root_.hidden.clear();
  bool swept = false;
  root_.before = [&](const std::string& what) {
    swept = swept || what == "Sweep";
    return true;
  };
  all_[1].no = "POOL_EXHAUSTED";
  EXPECT_THAT(Save("step_2"), HasSubstr("ENDED POOL_EXHAUSTED"));
  RunUntil([&] { return swept; });
  RunFor(seconds(1));
  EXPECT_THAT(root_.inflight, Contains(Pair(_, sequence)));
  EXPECT_THAT(root_.trash, Not(Contains(Pair(_, sequence))));
}

// Which checkpoint it would replace is found by its parts.
TEST_P(SharedSavesContract, ResaveWhoseFilesAreGoneEndsAsUnknownAndTheCheckpointStays) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  const int64_t sequence = root_.tags.at("step_1");
  Hold("write");
  const SaveName save = BeginAll("step_1", 2);
  RunUntilAll(save, "SEALED");
  root_.inflight.clear();
  LetGo();
  EXPECT_EQ(EndOfSave(save), "ENDED INDETERMINATE");
  EXPECT_EQ(root_.tags.at("step_1"), sequence);
}

TEST_P(SharedSavesContract, SaveThatIsNowhereForAMomentIsPublished) {
  Hold("write");
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, "SEALED");
  root_.hidden.insert(1);
  bool looked = false;
  root_.before = [&](const std::string& what) {
    if (what == "Find" && !std::exchange(looked, true))
      etcd_.After(seconds(5), [&] { root_.hidden.clear(); });
    return true;
  };
  LetGo();
  EXPECT_EQ(EndOfSave(save), "COMMITTED");
  EXPECT_TRUE(looked);
}

TEST_P(SharedSavesContract, PublicationThatHasFailedOnceIsMadeAgain) {
  bool failed = false;
  root_.before = [&](const std::string& what) {
    if (what == "Publish" && !std::exchange(failed, true)) root_.failures = 1;
    return true;
  };
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  EXPECT_TRUE(failed);
}

TEST_P(SharedSavesContract, RequestsOfTheRootThatFailAreMadeAgain) {
  Hold("write");
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, "SEALED");
  root_.failures = 4;
  LetGo();
  EXPECT_EQ(EndOfSave(save), "COMMITTED");
  EXPECT_EQ(root_.failures, 0);
}

// ---- a node dies

struct Stage {
  std::string held;   // What the engines do not do then.
  std::string phase;  // Of the save.
  std::string dies;   // The end if a node dies then.
  std::string later;  // The end if a later attempt acts then.
};
const Stage kStages[] = {
    {"vote", "PROPOSED", "ENDED NODE_LOST", "ENDED FENCED"},
    {"seal", "ADMITTED", "ENDED NODE_LOST", "ENDED FENCED"},
    {"write", "SEALED", "ENDED NODE_LOST", "COMMITTED"},
};

TEST_P(SharedSavesContract, NodeThatDiesEndsWhatItsFilesAreNotDurableOf) {
  for (const Stage& stage : kStages) {
    Hold(stage.held);
    const SaveName save = BeginAll(stage.held);
    RunUntilAll(save, stage.phase);
    Node& dead = Other();
    Kill(dead);
    LetGo();
    EXPECT_THAT(EndOfSave(save), HasSubstr(stage.dies + " of " + dead.name)) << stage.held;
    Restart(dead);
    EXPECT_THAT(EndOfSave(save), HasSubstr(stage.dies + " of " + dead.name)) << stage.held;
  }
}

// The other nodes seal when it has been lost for long.
TEST_P(SharedSavesContract, NodeThatDiesWhenItsFilesAreDurableEndsNothing) {
  Node& dead = Other();
  Hold("seal");
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, "ADMITTED");
  dead.held.clear();
  RunUntil([&] {
    return dead.parts.at(save).durable && dead.saves->WaitsFor(save).find("etcd") == std::string::npos;
  });
  Kill(dead);
  RunFor(minutes(3));
  LetGo();
  EXPECT_EQ(EndOfSave(save), "COMMITTED");
}

TEST_P(SharedSavesContract, NodeThatIsBackInTimeGoesOnWithWhatItHadSealed) {
  Hold("write");
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, "SEALED");
  Node& dead = Other();
  Kill(dead);
  RunFor(seconds(55));  // Its lease ends after 40 to 62 s, and its grace at least 30 s later.
  Restart(dead);
  LetGo();
  EXPECT_EQ(EndOfSave(save), "COMMITTED");
}

TEST_P(SharedSavesContract, NodeThatIsBackWithoutItsMemoryEndsTheSaveAtOnce) {
  Hold("seal");
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, "ADMITTED");
  Node& dead = Other();
  Kill(dead);
  Restart(dead);
  const std::string end = EndOfSave(save);
  EXPECT_THAT(end,
              ::testing::AnyOf("ENDED NODE_LOST of " + dead.name + ", ranks " + std::to_string(dead.rank),
                               "ENDED STAGED_LOST of " + dead.name + ", ranks " + std::to_string(dead.rank)));
}

TEST_P(SharedSavesContract, NodeThatIsBackAndKnowsNothingOfTheSaveEndsIt) {
  for (const Stage& stage : {kStages[1], kStages[2]}) {
    Hold(stage.held);
    const SaveName save = BeginAll(stage.held);
    RunUntilAll(save, stage.phase);
    Node& dead = Other();
    Kill(dead);
    dead.parts.clear();  // Its trainers are gone, too.
    Restart(dead);
    EXPECT_EQ(EndOfSave(save), LostBy(dead)) << stage.held;
  }
  LetGo();
  EXPECT_EQ(Save("step_1"), "COMMITTED") << "nothing is held up";
}

// ---- a later attempt acts

TEST_P(SharedSavesContract, LaterAttemptEndsWhatNotAllNodesHaveSealed) {
  const Stage& stage = kStages[GetParam().seed % 3];
  Hold(stage.held);
  const SaveName save = BeginAll("step_1");
  RunUntilAll(save, stage.phase);
  if (stage.held == "seal") {
    all_[0].held.clear();
    RunUntil([&] { return all_[0].parts.at(save).sealed; });
  }
  const SaveName late = Named("step_2");
  ActLater();
  LetGo();
  EXPECT_EQ(EndOfSave(save), stage.later) << stage.held;
  Begin(all_[0], late);
  // The coordinator says so, if this node has not heard yet that a later attempt has acted.
  EXPECT_THAT(EndOfSave(late), ::testing::AnyOf("FAILED FENCED", "ENDED FENCED"));
  EXPECT_TRUE(all_[0].parts.at(late).released);
  EXPECT_EQ(Save("step_2"), "COMMITTED");
}

// ---- etcd is away

TEST_P(SharedSavesContract, SaveGoesOnWhenEtcdIsBack) {
  for (const Stage& stage : kStages) {
    Hold(stage.held);
    const SaveName save = BeginAll(stage.held);
    RunUntilAll(save, stage.phase);
    CutOff(true);
    LetGo();
    RunFor(seconds(15));
    EXPECT_EQ(all_[0].parts.at(save).heard, "");
    EXPECT_THAT(all_[0].saves->WaitsFor(save), HasSubstr("etcd"));
    CutOff(false);
    EXPECT_EQ(EndOfSave(save), "COMMITTED") << stage.held;
  }
}

TEST_P(SharedSavesContract, SaveGoesOnWhenEtcdHasRoomAgain) {
  for (const Stage& stage : kStages) {
    Hold(stage.held);
    const SaveName save = BeginAll(stage.held);
    RunUntilAll(save, stage.phase);
    etcd_.simulation().SetFull(true);
    LetGo();
    RunFor(seconds(15));
    EXPECT_EQ(all_[0].parts.at(save).heard, "");
    EXPECT_THAT(all_[0].saves->WaitsFor(save), HasSubstr("etcd takes no writes")) << stage.held;
    etcd_.simulation().SetFull(false);
    EXPECT_EQ(EndOfSave(save), "COMMITTED") << stage.held;
  }
}

TEST_P(SharedSavesContract, CoordinatorStaysWhenEtcdIsFullWhileItPublishes) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  bool full = false;
  int terms = 0;
  root_.before = [&](const std::string& what) {
    if (what == "BeginTerm") ++terms;
    if (what == "Publish" && !std::exchange(full, true)) etcd_.simulation().SetFull(true);
    return true;
  };
  const SaveName save = BeginAll("step_2");
  RunUntil([&] { return full; });
  RunFor(seconds(30));
  etcd_.simulation().SetFull(false);
  EXPECT_EQ(EndOfSave(save), "COMMITTED");
  EXPECT_EQ(terms, 0);
}

TEST_P(SharedSavesContract, SaveThatCannotBeBegunUntilItsDeadlineFailsAndSaysWhy) {
  RunUntil([&] { return Coordinator() != nullptr; });
  CutOff(true);
  const Instant begin = etcd_.clock()->Now();
  const SaveName save = BeginAll("step_1", 1, seconds(20));
  EXPECT_EQ(EndOfSave(save), "FAILED LEDGER_UNAVAILABLE");
  EXPECT_LE(etcd_.clock()->Now() - begin, seconds(31));
  EXPECT_THAT(all_[0].parts.at(save).error, HasSubstr("node \"node1\" waited for etcd, to begin the save"));
  EXPECT_FALSE(all_[0].parts.at(save).released) << "it may have been begun";
  CutOff(false);
  RunUntil([&] {
    return AllHaveEnded() &&
           std::all_of(all_.begin(), all_.end(), [&](Node& node) { return node.parts.at(save).released; });
  });
  EXPECT_EQ(Save("step_2"), "COMMITTED") << "it holds up no other";
}

// The promise counts although the node cannot hear that it has.
TEST_P(SharedSavesContract, NodeThatIsCutOffKeepsWhatItHasPromised) {
  Hold("vote");
  const SaveName save = BeginAll("step_1", 1, seconds(30));
  RunUntilAll(save, "PROPOSED");
  Node& cut = Other();
  cut.held.clear();
  RunUntil([&] { return cut.saves->WaitsFor(save) == "the other nodes to have room for the save"; });
  cut.client->CutOff(true);
  for (Node& node : all_) node.held = {"seal"};
  RunUntil([&] { return !cut.parts.at(save).heard.empty(); });
  EXPECT_EQ(cut.parts.at(save).heard, "FAILED LEDGER_UNAVAILABLE");
  EXPECT_FALSE(cut.parts.at(save).released);
  cut.client->CutOff(false);
  LetGo();
  RunUntil([&] { return cut.parts.at(save).released && AllHaveEnded(); });
  EXPECT_THAT(EndOfSave(save), HasSubstr("ENDED"));
}

// ---- the coordinator

// What it asks of the root.
const std::string kSteps[] = {"MakeInflight", "FindReplaced", "Find", "Publish", "Remove"};

class CoordinatorContract : public SharedSavesContract {
 protected:
  // Pauses the coordinator when it first makes such a request: before that is carried out, or answered.
  void PauseAt(const std::string& what) {
    paused_ = nullptr;
    root_.before = [this, what](const std::string& step) {
      Node* const node = Coordinator();
      if (step != what || node == nullptr || paused_ != nullptr) return true;
      paused_ = node;
      PauseNode(*node);
      return GetParam().seed % 2 == 0;
    };
  }
  // While it makes a directory its own part may not be durable; after that nothing depends on it.
  void CheckEnd(const std::string& what, const SaveName& save) {
    const std::string end = EndOfSave(save);
    const bool may_be_lost = what == "MakeInflight" && end == LostBy(*paused_);
    EXPECT_TRUE(end == "COMMITTED" || may_be_lost) << what << ": " << end;
  }
  Node* paused_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(, CoordinatorContract, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

TEST_P(CoordinatorContract, AnotherOneGoesOnWhereItWasKilled) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  int64_t ordinal = 1;
  for (const std::string& what : kSteps) {
    PauseAt(what);
    const SaveName save = BeginAll("step_1", ++ordinal);
    RunUntil([&] { return paused_ != nullptr; });
    Kill(*paused_);
    CheckEnd(what, save);
    Restart(*paused_);
    RunUntil([&] { return Coordinator() != nullptr; });
  }
}

TEST_P(CoordinatorContract, OneThatWasPausedForLongDoesNoHarm) {
  EXPECT_EQ(Save("step_1"), "COMMITTED");
  int64_t ordinal = 1;
  for (const std::string& what : kSteps) {
    PauseAt(what);
    const SaveName save = BeginAll("step_1", ++ordinal);
    RunUntil([&] { return paused_ != nullptr; });
    RunUntil([&] { return AllOthersHaveHeard(paused_, save); });
    ResumeNode(*paused_);
    CheckEnd(what, save);
    RunFor(seconds(5));
    EXPECT_NE(Coordinator(), paused_) << what;
  }
}

// The fake root expects that of whoever publishes.
TEST_P(CoordinatorContract, AnotherOneBeginsItsTermInTheRootBeforeItPublishes) {
  PauseAt("Publish");
  const SaveName save = BeginAll("step_1");
  RunUntil([&] { return paused_ != nullptr; });
  Kill(*paused_);
  int tries = 0;
  root_.before = [&](const std::string& what) {
    if (what == "BeginTerm" && ++tries <= 4) root_.failures = 1;
    return true;
  };
  EXPECT_EQ(EndOfSave(save), "COMMITTED");
  EXPECT_EQ(tries, 5);
}

TEST_P(CoordinatorContract, OneThatWasPausedWhileItGaveUpIsFollowed) {
  root_.foreign.insert("step_1");
  PauseAt("Publish");
  const SaveName save = BeginAll("step_1");
  RunUntil([&] { return paused_ != nullptr; });
  RunUntil([&] { return AllOthersHaveHeard(paused_, save); });
  ResumeNode(*paused_);
  EXPECT_EQ(EndOfSave(save), "ENDED TAG_FOREIGN");
}

TEST_P(CoordinatorContract, DirectoryThatIsMadeLateIsSweptWhenASaveEnds) {
  PauseAt("MakeInflight");
  Hold("vote");
  const SaveName save = BeginAll("step_1");
  RunUntil([&] { return paused_ != nullptr; });
  RunUntil([&] { return Coordinator() != nullptr && Coordinator() != paused_; });
  ResumeNode(*paused_);
  LetGo();
  EXPECT_THAT(EndOfSave(save), ::testing::AnyOf("COMMITTED", LostBy(*paused_)));
  all_[0].no = "POOL_EXHAUSTED";
  Save("step_2");
  RunUntil([&] { return NothingIsInFlight(); });
}

// Those who have proposed it have all gone, and no node says no.
TEST_P(CoordinatorContract, SaveThatNobodyWaitsForEnds) {
  Node& gone = Other();
  Begin(gone, Named("step_1"), minutes(1));
  RunUntil([&] { return !History().empty(); });
  Kill(gone);
  gone.parts.clear();  // Neither do its trainers.
  Restart(gone);
  RunFor(minutes(1));
  EXPECT_FALSE(AllHaveEnded());
  RunUntil([&] { return AllHaveEnded(); });
  EXPECT_EQ(History().at(1).back().end().reason(), "RANKS_MISSING");
  EXPECT_EQ(Save("step_2"), "COMMITTED");
}

// ---- all of it at random

class ClusterSimulation : public ThreeNodes {
 protected:
  Node& AnyNode() { return all_[random_.Below(kNodes)]; }
  void BeginOne() {
    const std::string tag = random_.Percent(10) ? "foreign" : random_.Percent(50) ? "step_1" : "step_2";
    BeginAll(tag, ++ordinals_, seconds(random_.Between(20, 240)));
  }
  void HoldOne() {
    const char* const what[] = {"vote", "seal", "write"};
    AnyNode().held = {what[random_.Below(3)]};
  }
  void BreakOne() {
    Node& node = AnyNode();
    if (node.registration == nullptr) return Restart(node);
    if (node.pause.paused()) return ResumeNode(node);
    switch (random_.Below(4)) {
      case 0:
        return Kill(node);
      case 1:
        return node.client->CutOff(random_.Percent(50));
      default:
        return PauseNode(node);
    }
  }
  void Disturb() {
    switch (random_.Below(12)) {
      case 0:
        return HoldOne();
      case 1:
        return LetGo();
      case 2:
        AnyNode().no = random_.Percent(50) ? "POOL_EXHAUSTED" : "";
        return;
      case 3:
        AnyNode().fail = random_.Percent(30) ? "IO_ERROR" : "";
        return;
      case 4:
        root_.failures = static_cast<int>(random_.Below(4));
        return;
      case 5:
        root_.hidden.insert(random_.Between(1, 10));
        return etcd_.After(seconds(random_.Between(1, 5)), [this] { root_.hidden.clear(); });
      case 6:
      case 7:
        return BreakOne();
      default:
        return BeginOne();
    }
  }
  void Heal() {
    root_.failures = 0;
    root_.hidden.clear();
    LetGo();
    for (Node& node : all_) {
      node.no.clear();
      node.fail.clear();
      if (node.registration == nullptr) Restart(node);
      if (node.pause.paused()) ResumeNode(node);
    }
    CutOff(false);
  }
  bool AllHaveHeard() {
    return std::all_of(all_.begin(), all_.end(), [](const Node& node) {
      return std::all_of(node.parts.begin(), node.parts.end(),
                         [](const auto& part) { return !part.second.heard.empty(); });
    });
  }

  sim::Random random_{GetParam().seed + 1};
  int64_t ordinals_ = 0;
};
INSTANTIATE_TEST_SUITE_P(, ClusterSimulation, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/200)), NameOf);

// The invariants are those of ThreeNodes::CheckInvariants.
TEST_P(ClusterSimulation, EverySaveHasOneOutcomeThatAllNodesHear) {
  root_.foreign.insert("foreign");
  for (int round = 0; round < 30 && !HasFailure(); ++round) {
    Disturb();
    RunFor(std::chrono::milliseconds(random_.Between(1, 15'000)));
    if (round == 15) {
      Heal();
      RunFor(seconds(1));
      ActLater();
    }
  }
  Heal();
  RunUntil([&] { return AllHaveEnded() && AllHaveHeard(); });
  RunFor(minutes(2));  // Nodes that were away have registered again.
  EXPECT_EQ(Save("last"), "COMMITTED");
}

}  // namespace
}  // namespace ckptd
