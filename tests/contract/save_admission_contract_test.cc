// How two nodes admit a save of both, and report how far they are: run against the simulated etcd and its
// faults, a model over gRPC, and Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/ledger/etcd_ledger.h"
#include "daemon/ledger/keys.h"
#include "daemon/ledger/ledger_reasons.h"
#include "daemon/ledger/run_coordinator.h"
#include "daemon/ledger/save_admission.h"
#include "daemon/ledger/save_reports.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"
#include "tests/testing/registered_nodes.h"

namespace ckptd {
namespace {

using ledger::v1::NodeVote;
using ledger::v1::SaveState;
using Save = SaveAdmission::Save;

class SaveAdmissionContract : public ::testing::TestWithParam<EtcdKind> {
 protected:
  struct Daemon {
    std::unique_ptr<NodeRegistration> registration;
    std::unique_ptr<EtcdLedger> ledger;
    std::unique_ptr<SaveAdmission> saves;
    std::unique_ptr<SaveReports> reports;
  };

  static void TearDownTestSuite() { AnyEtcd::StopCluster(); }
  void SetUp() override {
    first_ = Start("node1");
    second_ = Start("node2");
    coordinator_ = std::make_unique<RunCoordinator>(
        nodes_.ClientOf(*first_.registration),
        RunCoordinator::Options{nodes_.prefix() + "run/", first_.registration->identity(), "test"},
        [this](const RunCoordinator::Office& office) { office_ = office.held; }, [](const absl::Status&) {});
    coordinator_->Start();
    etcd_.caller().RunUntil([this] { return !office_.key.empty(); });
    ASSERT_EQ(Join(first_, 0), 1);
  }
  void TearDown() override { nodes_.DeliverLateCopies(); }

  Daemon Start(const std::string& name) {
    Daemon daemon;
    daemon.registration = nodes_.Start(name);
    Etcd* const client = nodes_.ClientOf(*daemon.registration);
    const NodeIdentity& node = daemon.registration->identity();
    const std::string prefix = nodes_.prefix() + "run/";
    daemon.ledger = std::make_unique<EtcdLedger>(client, EtcdLedger::Options{prefix, node, "test"});
    daemon.saves = std::make_unique<SaveAdmission>(client, SaveAdmission::Options{prefix, node, "test"});
    daemon.reports = std::make_unique<SaveReports>(client, SaveReports::Options{prefix, node, "test"});
    return daemon;
  }
  // The daemon's successor; the processes of its ranks go on.
  void Restart(Daemon& daemon) {
    const std::string name = daemon.registration->identity().name;
    daemon.reports = nullptr;
    daemon.saves = nullptr;
    daemon.ledger = nullptr;
    nodes_.Kill(daemon.registration);
    daemon = Start(name);
  }

  template <typename T>
  T Await(const std::function<void(absl::AnyInvocable<void(T)>)>& ask) {
    std::optional<T> result;
    ask([&result](T answer) { result = std::move(answer); });
    etcd_.caller().RunUntil([&] { return result.has_value(); });
    return result ? *std::move(result) : T(absl::UnknownError("no answer"));
  }
  // The attempt.
  int64_t Join(Daemon& daemon, int rank, const std::string& launch = "launch") {
    Ledger::JoinSpec spec;
    spec.rank = rank;
    spec.world_size = 2;
    spec.launch_id = launch;
    spec.instance = launch + std::to_string(rank);
    const auto attempt =
        Await<absl::StatusOr<int64_t>>([&](auto answer) { daemon.ledger->Join(spec, std::move(answer)); });
    EXPECT_TRUE(attempt.ok()) << attempt.status();
    return attempt.value_or(-1);
  }
  void Activate(int64_t attempt) {
    const auto active =
        Await<absl::Status>([&](auto answer) { first_.ledger->Activate(attempt, std::move(answer)); });
    EXPECT_TRUE(active.ok()) << active;
  }
  absl::StatusOr<Save> TryBegin(Daemon& daemon, const std::string& tag, int64_t ordinal = 1) {
    return Await<absl::StatusOr<Save>>(
        [&](auto answer) { daemon.saves->Begin(1, tag, ordinal, std::move(answer)); });
  }
  Save Begin(Daemon& daemon, const std::string& tag, int64_t ordinal = 1) {
    auto save = TryBegin(daemon, tag, ordinal);
    EXPECT_TRUE(save.ok()) << save.status();
    return save.value_or(Save());
  }
  // As "PROPOSED", or "ENDED REASON of node node2, ranks 1".
  static std::string Text(const absl::StatusOr<Save>& save) {
    if (!save.ok()) return ReasonOf(save.status());
    std::string text = SaveState::Phase_Name(save->state.phase());
    if (!save->state.has_end()) return text;
    text += " " + save->state.end().reason();
    if (!save->state.end().node().empty()) text += " of " + save->state.end().node() + ", ranks";
    for (int rank : save->state.end().ranks()) text += " " + std::to_string(rank);
    return text;
  }
  std::string Vote(Daemon& daemon, const Save& save, const std::string& no = "") {
    NodeVote vote;
    if (!no.empty()) vote.mutable_no()->set_reason(no);
    return Text(
        Await<absl::StatusOr<Save>>([&](auto answer) { daemon.saves->Vote(save, vote, std::move(answer)); }));
  }
  std::string Decide(const Save& save) {
    return Text(Await<absl::StatusOr<Save>>(
        [&](auto answer) { first_.saves->Decide(save, office_, std::move(answer)); }));
  }
  std::string End(const Save& save, const std::string& reason) {
    ledger::v1::SaveEnd end;
    end.set_reason(reason);
    return Text(Await<absl::StatusOr<Save>>(
        [&](auto answer) { first_.saves->End(save, office_, end, std::move(answer)); }));
  }

  // A save that both nodes have voted for.
  Save Admitted(const std::string& tag) {
    const Save save = Begin(first_, tag);
    Vote(first_, save);
    Vote(second_, save);
    EXPECT_EQ(Decide(save), "ADMITTED");
    return save;
  }
  std::string Sealed(Daemon& daemon, const Save& save) {
    return Text(
        Await<absl::StatusOr<Save>>([&](auto answer) { daemon.reports->Sealed(save, std::move(answer)); }));
  }
  std::string Durable(Daemon& daemon, const Save& save, const std::string& digest) {
    return Text(Await<absl::StatusOr<Save>>(
        [&](auto answer) { daemon.reports->Durable(save, digest, std::move(answer)); }));
  }
  // What etcd knows of node2: "SEALED" or "DURABLE digest".
  std::string Stage(const Save& save) {
    NodeVote vote;
    vote.ParseFromString(nodes_.Read(LedgerKeys(nodes_.prefix() + "run/").Vote(save.sequence, "node2")));
    return NodeVote::Stage_Name(vote.stage()) + (vote.digest().empty() ? "" : " " + vote.digest());
  }

  AnyEtcd etcd_{GetParam()};
  RegisteredNodes nodes_{&etcd_};
  Daemon first_, second_;
  std::unique_ptr<RunCoordinator> coordinator_;
  CompareAndSwap::Held office_;
};

std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }
INSTANTIATE_TEST_SUITE_P(, SaveAdmissionContract, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

TEST_P(SaveAdmissionContract, FirstBeginOnAnyNodeProposesTheSaveThatTheOthersFind) {
  const Save save = Begin(first_, "step_1");
  EXPECT_EQ(save.sequence, 1);
  EXPECT_EQ(Text(save), "PROPOSED");
  EXPECT_EQ(Begin(second_, "step_1").sequence, 1);
  EXPECT_EQ(Begin(first_, "step_1").sequence, 1);
  EXPECT_EQ(Begin(second_, "step_1", 2).sequence, 2) << "the tag once more";
  EXPECT_EQ(Begin(second_, "step_1/a").sequence, 3);
}

TEST_P(SaveAdmissionContract, NodesThatBeginTogetherFindOneSave) {
  std::vector<int64_t> sequences;
  for (Daemon* daemon : {&first_, &second_}) {
    daemon->saves->Begin(1, "step_1", 1, [&](const absl::StatusOr<Save>& save) {
      sequences.push_back(save.ok() ? save->sequence : -1);
    });
  }
  etcd_.caller().RunUntil([&] { return sequences.size() == 2; });
  EXPECT_EQ(sequences, (std::vector<int64_t>{1, 1}));
}

TEST_P(SaveAdmissionContract, IsAdmittedWhenTheNodesOfAllRanksHaveVotedYes) {
  const Save save = Begin(first_, "step_1");
  EXPECT_EQ(Vote(first_, save), "PROPOSED");
  EXPECT_EQ(Decide(save), "PROPOSED") << "rank 1 has not joined";
  ASSERT_EQ(Join(second_, 1), 1);
  EXPECT_EQ(Decide(save), "PROPOSED") << "node2 has not voted";
  EXPECT_EQ(Vote(second_, save), "PROPOSED");
  EXPECT_EQ(Decide(save), "ADMITTED");
  EXPECT_EQ(Text(Begin(second_, "step_1")), "ADMITTED");
  EXPECT_EQ(Decide(save), "ADMITTED");
}

TEST_P(SaveAdmissionContract, OneNoEndsItAndSaysWhose) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  EXPECT_EQ(Vote(second_, save, "NO_MEMORY"), "PROPOSED");
  EXPECT_EQ(Decide(save), "ENDED NO_MEMORY of node2, ranks 1");
  EXPECT_EQ(Vote(first_, save), "ENDED NO_MEMORY of node2, ranks 1");
  EXPECT_EQ(Decide(save), "ENDED NO_MEMORY of node2, ranks 1");
  EXPECT_EQ(Text(Begin(second_, "step_1")), "ENDED NO_MEMORY of node2, ranks 1");
}

// TearDown delivers the late copy of the yes.
TEST_P(SaveAdmissionContract, VoteThatWasTakenBackDoesNotCountAndOneThatHasCountedIsNotTakenBack) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  EXPECT_EQ(Vote(second_, save, "WITHDRAWN"), "PROPOSED") << "its memory is free";
  EXPECT_EQ(Vote(second_, save), "PROPOSED");
  EXPECT_EQ(Decide(save), "ADMITTED");
  const std::string vote = LedgerKeys(nodes_.prefix() + "run/").Vote(save.sequence, "node2");
  const std::string yes = nodes_.Read(vote);
  EXPECT_EQ(Vote(second_, save, "WITHDRAWN"), "ADMITTED") << "its memory is needed";
  EXPECT_EQ(nodes_.Read(vote), yes);
  EXPECT_EQ(Decide(save), "ADMITTED");
}

TEST_P(SaveAdmissionContract, VoteOfADaemonThatHasEndedDoesNotCount) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  Restart(second_);
  EXPECT_EQ(Decide(save), "PROPOSED");
  Vote(second_, save);
  EXPECT_EQ(Decide(save), "ADMITTED");
}

TEST_P(SaveAdmissionContract, FencedAttemptBeginsNothingAndItsProposedSaveEnds) {
  ASSERT_EQ(Join(second_, 1), 1);
  Activate(1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  ASSERT_EQ(Join(second_, 1, "launch 2"), 2);
  Activate(2);
  EXPECT_EQ(Text(TryBegin(first_, "step_2")), "FENCED");
  EXPECT_EQ(Text(Begin(first_, "step_1")), "PROPOSED") << "it was begun before";
  EXPECT_EQ(Decide(save), "ENDED FENCED");
}

TEST_P(SaveAdmissionContract, DaemonThatIsReplacedBeginsNothingAndDoesNotVote) {
  const Save save = Begin(first_, "step_1");
  const auto successor = nodes_.Start("node2");
  EXPECT_EQ(Text(TryBegin(second_, "step_2")), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Vote(second_, save), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Begin(first_, "step_3").sequence, 2);
}

TEST_P(SaveAdmissionContract, SaveEndsOnce) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  EXPECT_EQ(End(save, "CANCELLED"), "ENDED CANCELLED");
  EXPECT_EQ(End(save, "TIMEOUT"), "ENDED CANCELLED");
  EXPECT_EQ(Decide(save), "ENDED CANCELLED") << "all have voted yes";
}

TEST_P(SaveAdmissionContract, OnlyTheCoordinatorDecides) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(first_, save);
  Vote(second_, save);
  std::optional<absl::Status> resigned;
  coordinator_->Resign([&](absl::Status answer) { resigned = std::move(answer); });
  etcd_.caller().RunUntil([&] { return resigned.has_value(); });
  EXPECT_EQ(Decide(save), ledger_reason::kNotCoordinator);
  EXPECT_EQ(End(save, "TIMEOUT"), ledger_reason::kNotCoordinator);
  EXPECT_EQ(Text(Begin(second_, "step_1")), "PROPOSED");
}

// ---- how far the nodes are

TEST_P(SaveAdmissionContract, NodeReportsItsPartsInOrderAndTheFirstReportCounts) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Admitted("step_1");
  EXPECT_EQ(Durable(second_, save, "digest"), ledger_reason::kNotInSave) << "it is not sealed";
  EXPECT_EQ(Sealed(second_, save), "ADMITTED");
  EXPECT_EQ(Stage(save), "SEALED");
  EXPECT_EQ(Durable(second_, save, "digest"), "ADMITTED");
  EXPECT_EQ(Durable(second_, save, "other"), "ADMITTED");
  EXPECT_EQ(Sealed(second_, save), "ADMITTED");
  EXPECT_EQ(Stage(save), "DURABLE digest");
}

TEST_P(SaveAdmissionContract, NothingIsReportedOfASaveThatIsNotAdmittedOrThatTheNodeTakesNoPartIn) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save save = Begin(first_, "step_1");
  Vote(second_, save);
  EXPECT_EQ(Sealed(second_, save), "PROPOSED");
  EXPECT_EQ(Stage(save), "VOTED");
  Daemon third = Start("node3"), fourth = Start("node4");
  EXPECT_EQ(Vote(third, save, "NO_MEMORY"), "PROPOSED") << "it has no ranks";
  Vote(first_, save);
  EXPECT_EQ(Decide(save), "ADMITTED");
  EXPECT_EQ(Sealed(third, save), ledger_reason::kNotInSave);
  EXPECT_EQ(Sealed(fourth, save), ledger_reason::kNotInSave);
  EXPECT_EQ(End(save, "CANCELLED"), "ENDED CANCELLED");
  EXPECT_EQ(Sealed(second_, save), "ENDED CANCELLED");
  EXPECT_EQ(Stage(save), "VOTED");
}

TEST_P(SaveAdmissionContract, FencedAttemptSealsNothingMoreAndWhatItHasSealedBecomesDurable) {
  ASSERT_EQ(Join(second_, 1), 1);
  Activate(1);
  const Save sealed = Admitted("step_1"), written = Admitted("step_2");
  EXPECT_EQ(Sealed(second_, sealed), "ADMITTED");
  ASSERT_EQ(Join(first_, 0, "launch 2"), 2);
  Activate(2);
  EXPECT_EQ(Sealed(second_, written), "FENCED");
  EXPECT_EQ(Stage(written), "VOTED");
  EXPECT_EQ(Durable(second_, sealed, "digest"), "ADMITTED");
  EXPECT_EQ(Stage(sealed), "DURABLE digest");
}

TEST_P(SaveAdmissionContract, SuccessorGoesOnWithWhatWasSealedAndNotWithWhatWasOnlyVotedFor) {
  ASSERT_EQ(Join(second_, 1), 1);
  const Save sealed = Admitted("step_1"), written = Admitted("step_2");
  EXPECT_EQ(Sealed(second_, sealed), "ADMITTED");
  Daemon replaced = std::move(second_);
  second_ = Start("node2");
  EXPECT_EQ(Sealed(replaced, written), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Durable(replaced, sealed, "of the old one"), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Sealed(second_, written), ledger_reason::kNotInSave);
  EXPECT_EQ(Sealed(second_, sealed), "ADMITTED");
  EXPECT_EQ(Durable(second_, sealed, "digest"), "ADMITTED");
  EXPECT_EQ(Stage(sealed), "DURABLE digest");
}

}  // namespace
}  // namespace ckptd
