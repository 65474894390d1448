// Which daemon coordinates a run: run against the simulated etcd and its faults, a model over gRPC, and
// Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/nodes/run_coordinator.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"
#include "tests/testing/registered_nodes.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using Leadership = RunCoordinator::Leadership;

class CoordinatorContract : public ::testing::TestWithParam<EtcdKind> {
 protected:
  // A daemon, and what it has heard.
  struct Daemon {
    explicit Daemon(std::set<Daemon*>* daemons) : all(daemons) { all->insert(this); }
    ~Daemon() { all->erase(this); }

    std::set<Daemon*>* const all;
    std::unique_ptr<NodeRegistration> registration;
    std::unique_ptr<RunCoordinator> coordinator;
    std::vector<Leadership> leaderships;
    std::string ended;

    std::string Heard() const {  // Of the latest.
      if (leaderships.empty()) return "";
      return std::to_string(leaderships.back().term) + " " + leaderships.back().node +
             (leaderships.back().mine ? "!" : "");
    }
  };

  static void TearDownTestSuite() { AnyEtcd::StopCluster(); }
  void SetUp() override {
    nodes_.OnTick([this] {
      for (Daemon* const daemon : daemons_) {
        if (daemon->coordinator != nullptr) daemon->coordinator->OnTick();
      }
    });
  }
  void TearDown() override { nodes_.DeliverLateCopies(); }

  std::unique_ptr<Daemon> NewDaemon(const std::string& name) {
    auto daemon = std::make_unique<Daemon>(&daemons_);
    daemon->registration = nodes_.Start(name);
    daemon->coordinator = std::make_unique<RunCoordinator>(
        nodes_.ClientOf(*daemon->registration), etcd_.clock(),
        RunCoordinator::Options{nodes_.prefix() + "run/", daemon->registration->identity(), "test"},
        [raw = daemon.get()](const Leadership& leadership) { raw->leaderships.push_back(leadership); },
        [raw = daemon.get()](const absl::Status& why) { raw->ended = ReasonOf(why); });
    return daemon;
  }
  std::unique_ptr<Daemon> Start(const std::string& name) {
    auto daemon = NewDaemon(name);
    daemon->coordinator->Start();
    return daemon;
  }
  void Kill(std::unique_ptr<Daemon>& daemon) {
    daemon->coordinator = nullptr;
    nodes_.Kill(daemon->registration);
    daemon = nullptr;
  }
  void RunUntil(const std::function<bool()>& done) { etcd_.caller().RunUntil(done); }
  // Writes a key as a decision of the leadership; the reason if it is refused.
  std::string Decide(const Leadership& leadership) {
    const std::string text = "decision " + std::to_string(++decisions_);
    return Write(nodes_.prefix() + "decision", {leadership.held}, text,
                 Put(nodes_.prefix() + "decision", text));
  }
  // What else happens to a key: afterwards it has this value, or is not there.
  std::string Write(const std::string& key, const std::vector<CompareAndSwap::Held>& held,
                    const std::string& value, const etcdserverpb::RequestOp& operation) {
    CompareAndSwap swap;
    swap.ranges = {{key}};
    swap.held = held;
    swap.decide = [&](const CompareAndSwap::Found& found) -> std::vector<etcdserverpb::RequestOp> {
      if ((found[0].empty() ? "" : found[0][0].value()) == value) return {};
      return {operation};
    };
    swap.purpose = "writing for a test";
    const absl::Status written = nodes_.Await(
        [&](NodeRegistration::Done done) { ckptd::SwapIn(etcd_.caller().etcd(), swap, std::move(done)); });
    return ReasonOf(written);
  }

  AnyEtcd etcd_{GetParam()};
  RegisteredNodes nodes_{&etcd_};
  std::set<Daemon*> daemons_;
  int decisions_ = 0;
};

std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }
INSTANTIATE_TEST_SUITE_P(, CoordinatorContract, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

TEST_P(CoordinatorContract, OfDaemonsThatStartTogetherOneHasTheLeadershipAndAllHearWho) {
  const auto first = NewDaemon("node1"), second = NewDaemon("node2"), third = NewDaemon("node3");
  for (const Daemon* daemon : {first.get(), second.get(), third.get()}) daemon->coordinator->Start();
  RunUntil([&] {
    return !first->leaderships.empty() && !second->leaderships.empty() && !third->leaderships.empty();
  });
  int mine = 0;
  for (const Daemon* daemon : {first.get(), second.get(), third.get()}) {
    EXPECT_EQ(daemon->leaderships[0].term, 1);
    EXPECT_EQ(daemon->leaderships[0].node, first->leaderships[0].node);
    mine += daemon->leaderships[0].mine;
  }
  EXPECT_EQ(mine, 1);
}

TEST_P(CoordinatorContract, SuccessorHasALaterTermAndTheDecisionsOfTheDeadCoordinatorDoNotCount) {
  auto first = Start("node1");
  RunUntil([&] { return first->Heard() == "1 node1!"; });
  const auto second = Start("node2");
  RunUntil([&] { return second->Heard() == "1 node1"; });
  const Leadership old = first->leaderships[0];
  EXPECT_EQ(Decide(old), "");
  nodes_.WaitForTheEndOf(*first->registration);
  RunUntil([&] { return second->Heard() == "2 node2!"; });
  EXPECT_EQ(Decide(old), ledger_reason::kNotCoordinator);
  EXPECT_EQ(Decide(second->leaderships.back()), "");
}

TEST_P(CoordinatorContract, TermsRiseAlsoAfterAllDaemonsHaveGone) {
  auto first = Start("node1");
  RunUntil([&] { return first->Heard() == "1 node1!"; });
  nodes_.Release(*first->registration);
  Kill(first);
  const auto later = Start("node2");
  RunUntil([&] { return later->Heard() == "2 node2!"; });
}

TEST_P(CoordinatorContract, CoordinatorThatResignsIsFollowedAtOnceAndByAnother) {
  const auto first = Start("node1");
  RunUntil([&] { return first->Heard() == "1 node1!"; });
  const auto second = Start("node2");
  RunUntil([&] { return second->Heard() == "1 node1"; });
  std::optional<absl::Status> resigned;
  first->coordinator->Resign([&](absl::Status answer) { resigned = std::move(answer); });
  RunUntil([&] { return resigned.has_value(); });
  EXPECT_TRUE(resigned->ok()) << *resigned;
  RunUntil([&] { return second->Heard() == "2 node2!"; });
  EXPECT_EQ(Decide(first->leaderships[0]), ledger_reason::kNotCoordinator);
  EXPECT_EQ(first->Heard(), "1 node1!") << "it wants the leadership no more";
}

TEST_P(CoordinatorContract, CoordinatorThatIsUnwillingIsFollowedAtOnceAndCanFollowAgain) {
  const auto first = Start("node1");
  RunUntil([&] { return first->Heard() == "1 node1!"; });
  auto second = Start("node2");
  RunUntil([&] { return second->Heard() == "1 node1"; });
  first->coordinator->SetWilling(false);
  EXPECT_FALSE(first->coordinator->follows_another()) << "etcd may not have heard";
  RunUntil([&] { return second->Heard() == "2 node2!" && first->Heard() == "2 node2"; });
  EXPECT_EQ(Decide(first->leaderships[0]), ledger_reason::kNotCoordinator);
  EXPECT_TRUE(first->coordinator->follows_another());
  first->coordinator->SetWilling(true);
  nodes_.Release(*second->registration);
  RunUntil([&] { return first->Heard() == "3 node1!"; });
  EXPECT_EQ(Decide(first->leaderships.back()), "");
}

TEST_P(CoordinatorContract, LeadershipIsVacantWhileNobodyIsWilling) {
  const auto first = NewDaemon("node1");
  first->coordinator->SetWilling(false);
  first->coordinator->Start();
  const auto second = Start("node2");
  RunUntil([&] { return second->Heard() == "1 node2!" && first->Heard() == "1 node2"; });
  second->coordinator->SetWilling(false);
  const std::string key = LedgerKeys(nodes_.prefix() + "run/").Coordinator();
  RunUntil([&] { return nodes_.Read(key) == "(none)"; });
  RunUntil([&] { return second->coordinator->follows_another(); });
  EXPECT_EQ(nodes_.Read(key), "(none)");
  second->coordinator->SetWilling(true);
  RunUntil([&] { return second->Heard() == "2 node2!" && first->Heard() == "2 node2"; });
}

TEST_P(CoordinatorContract, CoordinatorThatChangesItsMindHasALaterTerm) {
  const auto first = Start("node1");
  RunUntil([&] { return first->Heard() == "1 node1!"; });
  first->coordinator->SetWilling(false);
  first->coordinator->SetWilling(true);
  RunUntil([&] { return first->Heard() == "2 node1!"; });
  EXPECT_EQ(Decide(first->leaderships[0]), ledger_reason::kNotCoordinator);
  EXPECT_EQ(Decide(first->leaderships[1]), "");
}

// As in an etcd that was restored from a backup: the same daemon has been given the same term again.
TEST_P(CoordinatorContract, DecisionsOfALeadershipWithTheSameTermOfAnEarlierTimeDoNotCount) {
  const auto first = Start("node1");
  RunUntil([&] { return first->Heard() == "1 node1!"; });
  first->coordinator = nullptr;  // It would take the leadership again.
  const CompareAndSwap::Held held = first->leaderships[0].held;
  EXPECT_EQ(Write(held.key, {}, "", Delete(held.key)), "");
  const auto put = Put(held.key, held.value, first->registration->identity().lease);
  EXPECT_EQ(Write(held.key, {}, held.value, put), "");
  EXPECT_EQ(Decide(first->leaderships[0]), ledger_reason::kNotCoordinator);
}

TEST_P(CoordinatorContract, DecisionsDoNotCountOnceTheKeySaysSomethingElse) {
  const auto first = Start("node1");
  RunUntil([&] { return first->Heard() == "1 node1!"; });
  const CompareAndSwap::Held held = first->leaderships[0].held;
  const auto put = Put(held.key, "another term", first->registration->identity().lease);
  EXPECT_EQ(Write(held.key, {}, "another term", put), "");
  EXPECT_EQ(Decide(first->leaderships[0]), ledger_reason::kNotCoordinator);
}

TEST_P(CoordinatorContract, DaemonWithoutItsNameIsNoCandidate) {
  const auto first = Start("node1");
  RunUntil([&] { return first->Heard() == "1 node1!"; });
  const auto second = Start("node2");
  RunUntil([&] { return second->Heard() == "1 node1"; });
  nodes_.Release(*second->registration);
  nodes_.Release(*first->registration);
  RunUntil([&] { return !second->ended.empty(); });
  EXPECT_EQ(second->ended, ledger_reason::kNodeReplaced);
  EXPECT_EQ(second->Heard(), "1 node1");
}

class PausedCoordinator : public CoordinatorContract {};

INSTANTIATE_TEST_SUITE_P(, PausedCoordinator, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

// Between its reading and its writing, another leadership takes the place of its own.
TEST_P(PausedCoordinator, WritesNothingInTheNameOfALeadershipThatIsOver) {
  const auto first = Start("node1");
  RunUntil([&] { return first->Heard() == "1 node1!"; });
  first->coordinator = nullptr;
  const CompareAndSwap::Held held = first->leaderships[0].held;
  const std::string decision = nodes_.prefix() + "decision";
  etcd_.simulation().BeforeTransaction([&, over = false](const etcdserverpb::TxnRequest& request) mutable {
    if (over || request.success(0).request_put().key() != decision) return;
    over = true;
    etcd_.WithModel([&](EtcdModel& model) {
      etcdserverpb::TxnRequest end, again;
      *end.add_compare() = CreatedAt(held.key, held.create_revision);
      *end.add_success() = Delete(held.key);
      *again.add_compare() = Absent(held.key);
      *again.add_success() = Put(held.key, held.value);
      EXPECT_TRUE(model.Txn(end).ok() && model.Txn(again).ok());
    });
  });
  EXPECT_EQ(Decide(first->leaderships[0]), ledger_reason::kNotCoordinator);
  EXPECT_EQ(nodes_.Read(decision), "(none)");
  etcd_.simulation().BeforeTransaction(nullptr);
}

TEST_P(PausedCoordinator, LeadershipThatWasTakenByADaemonThatIsUnwillingByThenIsGivenUp) {
  const auto first = NewDaemon("node1");
  const std::string key = LedgerKeys(nodes_.prefix() + "run/").Coordinator();
  etcd_.simulation().BeforeTransaction([&](const etcdserverpb::TxnRequest& request) {
    if (request.success_size() > 0 && request.success(0).request_put().key() == key)
      first->coordinator->SetWilling(false);
  });
  first->coordinator->Start();
  RunUntil([&] { return nodes_.Read(key) != "(none)"; });
  RunUntil([&] { return nodes_.Read(key) == "(none)"; });
  EXPECT_EQ(first->Heard(), "");
  first->coordinator->SetWilling(true);
  etcd_.simulation().BeforeTransaction(nullptr);
  RunUntil([&] { return first->Heard() == "2 node1!"; });
}

}  // namespace
}  // namespace ckptd
