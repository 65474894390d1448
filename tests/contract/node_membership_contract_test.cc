// That a daemon stays registered as a node: run against the simulated etcd and its faults, a model over gRPC,
// and Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/nodes/node_membership.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"
#include "tests/testing/registered_nodes.h"

namespace ckptd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Incarnations = std::vector<std::string>;

// A daemon, its state directory, and what it has heard of its membership.
struct Member {
  Etcd* client = nullptr;
  Incarnations state;
  absl::Status disk;  // What a write of the state directory answers.
  int writes = 0;
  std::vector<std::string> changes;  // "registered", or the reason of an error.
  std::unique_ptr<NodeMembership> membership;
  bool hangs = false;  // It does not tick.
};

class MembershipContract : public ::testing::TestWithParam<EtcdKind> {
 protected:
  static void TearDownTestSuite() { AnyEtcd::StopCluster(); }
  void SetUp() override {
    etcd_.caller().OnTick([this] {
      for (auto& [name, member] : members_) {
        if (!member.hangs && member.membership != nullptr) member.membership->OnTick();
      }
    });
  }
  void TearDown() override { nodes_.DeliverLateCopies(); }

  // `member`: which of the daemons; several may be configured with one name.
  Member& Start(const std::string& member, const std::string& node) {
    Member& started = members_[member];
    if (started.client == nullptr) started.client = etcd_.NewClient();
    started.membership = std::make_unique<NodeMembership>(
        started.client, etcd_.clock(),
        NodeMembership::Options{nodes_.prefix(), node, "host of " + member, started.state,
                                etcd_.simulated() ? 60 : 2},
        [&started](const Incarnations& incarnations, NodeRegistration::Done remembered) {
          ++started.writes;
          if (started.disk.ok()) started.state = incarnations;
          remembered(started.disk);
        },
        [this] { return nodes_.prefix() + std::to_string(++incarnations_); },
        [&started](const absl::StatusOr<NodeIdentity>& changed) {
          started.changes.push_back(changed.ok() ? "registered" : ReasonOf(changed.status()));
        });
    return started;
  }
  void RunUntil(const std::function<bool()>& done) { etcd_.caller().RunUntil(done); }
  void WaitUntilRegistered(Member& member) {
    RunUntil([&] { return member.membership->identity() != nullptr; });
  }
  std::string Read(const std::string& node) { return nodes_.Read(nodes_.prefix() + "nodes/" + node); }
  // The lease of a daemon that hangs or has ended.
  void WaitForTheEndOf(const NodeIdentity& identity) {
    etcd_.EndLeaseOfModel(identity.lease);
    RunUntil([&] { return nodes_.Read(identity.key) == "(none)"; });
  }

  AnyEtcd etcd_{GetParam()};
  RegisteredNodes nodes_{&etcd_};  // For its prefix and its readings.
  std::map<std::string, Member> members_;
  int incarnations_ = 0;
};

std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }
INSTANTIATE_TEST_SUITE_P(, MembershipContract, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

TEST_P(MembershipContract, RegistersAndRemembersOneIncarnation) {
  Member& daemon = Start("a", "node1");
  EXPECT_EQ(daemon.membership->identity(), nullptr) << "not before the first tick";
  WaitUntilRegistered(daemon);
  EXPECT_EQ(Read("node1"), daemon.membership->identity()->value);
  EXPECT_EQ(daemon.changes.back(), "registered");
  EXPECT_THAT(daemon.state, ElementsAre(nodes_.prefix() + "1"));
}

TEST_P(MembershipContract, RegistersAnewWithAnotherIncarnationWhenItsLeaseHasEnded) {
  Member& daemon = Start("a", "node1");
  WaitUntilRegistered(daemon);
  const NodeIdentity before = *daemon.membership->identity();
  daemon.changes.clear();
  daemon.hangs = true;
  WaitForTheEndOf(before);
  RunUntil([&] { return daemon.membership->identity() == nullptr; });
  EXPECT_THAT(daemon.changes, IsEmpty()) << "nobody has noticed yet";
  daemon.hangs = false;
  WaitUntilRegistered(daemon);
  EXPECT_EQ(daemon.changes.front(), ledger_reason::kLeaseEnded);
  EXPECT_EQ(daemon.changes.back(), "registered");
  EXPECT_NE(daemon.membership->identity()->value, before.value);
  EXPECT_EQ(Read("node1"), daemon.membership->identity()->value);
  EXPECT_THAT(daemon.state, ElementsAre(nodes_.prefix() + "2"));
}

TEST_P(MembershipContract, RegistersAnewWhenItsRegistrationIsGivenUp) {
  Member& daemon = Start("a", "node1");
  daemon.membership->RegisterAnew(absl::InternalError("there is none yet"));
  WaitUntilRegistered(daemon);
  const NodeIdentity before = *daemon.membership->identity();
  daemon.changes.clear();
  daemon.membership->RegisterAnew(
      MakeError(absl::StatusCode::kPermissionDenied, ledger_reason::kRefused, "a run cannot go on"));
  EXPECT_THAT(daemon.changes, IsEmpty()) << "the next tick says so";
  RunUntil([&] { return daemon.changes.size() == 2; });
  EXPECT_THAT(daemon.changes, ElementsAre(ledger_reason::kRefused, "registered"));
  EXPECT_NE(daemon.membership->identity()->value, before.value);
  EXPECT_EQ(Read("node1"), daemon.membership->identity()->value);
  RunUntil([&] { return daemon.state.size() == 1; });
  EXPECT_THAT(daemon.state, ElementsAre(nodes_.prefix() + "2"));
}

TEST_P(MembershipContract, ReportsATakenNameOnceAndTakesItWhenItIsFree) {
  Member& first = Start("a", "node1");
  WaitUntilRegistered(first);
  Member& second = Start("b", "node1");
  RunUntil([&] { return second.writes >= 3; });  // It has tried three times.
  EXPECT_THAT(second.changes, Contains(ledger_reason::kNodeNameTaken).Times(1));
  EXPECT_THAT(second.changes, Not(Contains("registered")));
  EXPECT_THAT(second.state, SizeIs(1)) << "the incarnation of each try is the same";
  const NodeIdentity before = *first.membership->identity();
  first.membership = nullptr;
  etcd_.EndLeaseOfModel(before.lease);
  WaitUntilRegistered(second);
  EXPECT_EQ(second.changes.back(), "registered");
  EXPECT_THAT(second.state, ElementsAre(nodes_.prefix() + "2"));
}

TEST_P(MembershipContract, SuccessorWithTheStateDirectoryTakesTheNameOver) {
  Member& daemon = Start("a", "node1");
  WaitUntilRegistered(daemon);
  const std::string before = daemon.membership->identity()->value;
  Start("a", "node1");  // The daemon has ended without a word, and this is its successor.
  WaitUntilRegistered(daemon);
  EXPECT_THAT(daemon.changes, Not(Contains(ledger_reason::kNodeNameTaken)));
  EXPECT_NE(daemon.membership->identity()->value, before);
  EXPECT_THAT(daemon.state, ElementsAre(nodes_.prefix() + "2"));
}

TEST_P(MembershipContract, DoesNotRegisterWhatTheStateDirectoryCannotHold) {
  Member& daemon = Start("a", "node1");
  daemon.disk = MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE", "the disk is full");
  RunUntil([&] { return daemon.writes >= 3; });
  EXPECT_THAT(daemon.changes, ElementsAre("NO_SPACE"));
  EXPECT_EQ(Read("node1"), "(none)");
  daemon.disk = absl::OkStatus();
  WaitUntilRegistered(daemon);
  EXPECT_EQ(daemon.changes.back(), "registered");
}

TEST_P(MembershipContract, GivesTheNameUpAndDoesNotTakeItAgain) {
  Member& daemon = Start("a", "node1");
  WaitUntilRegistered(daemon);
  daemon.changes.clear();
  const absl::Status released =
      nodes_.Await([&](NodeRegistration::Done done) { daemon.membership->Release(std::move(done)); });
  EXPECT_TRUE(released.ok()) << released;
  EXPECT_EQ(Read("node1"), "(none)");
  Member& other = Start("b", "node1");
  WaitUntilRegistered(other);
  EXPECT_THAT(daemon.changes, IsEmpty());
  EXPECT_EQ(daemon.membership->identity(), nullptr);
}

TEST_P(MembershipContract, CanBeReleasedBeforeItHasRegistered) {
  Member& daemon = Start("a", "node1");
  daemon.disk = absl::ResourceExhaustedError("the disk is full");
  RunUntil([&] { return daemon.writes >= 1; });
  bool answered = false;
  daemon.membership->Release([&](const absl::Status& released) { answered = released.ok(); });
  EXPECT_TRUE(answered);
  Member& other = Start("b", "node1");
  WaitUntilRegistered(other);
  EXPECT_EQ(daemon.writes, 1) << "it does not try again";
}

// ---- an etcd that cannot be reached

class CutOffMember : public MembershipContract {};
INSTANTIATE_TEST_SUITE_P(, CutOffMember, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

TEST_P(CutOffMember, TriesUntilEtcdAnswersAndItsStateDirectoryStaysShort) {
  Member& daemon = Start("a", "node1");
  WaitUntilRegistered(daemon);
  Start("a", "node1");
  auto* const client = static_cast<SimulatedEtcd::Client*>(daemon.client);
  client->CutOff(true);
  daemon.changes.clear();
  RunUntil([&] { return daemon.writes >= 6; });
  EXPECT_THAT(daemon.changes, ElementsAre(ledger_reason::kUnavailable));
  EXPECT_THAT(daemon.state, SizeIs(2)) << "its predecessor's, and its own";
  client->CutOff(false);
  WaitUntilRegistered(daemon);
  EXPECT_EQ(daemon.changes.back(), "registered");
  EXPECT_THAT(daemon.state, ElementsAre(nodes_.prefix() + "2"));
}

TEST_P(CutOffMember, HasNoIdentityFromTheEndOfItsLeaseOn) {
  Member& daemon = Start("a", "node1");
  WaitUntilRegistered(daemon);
  daemon.changes.clear();
  static_cast<SimulatedEtcd::Client*>(daemon.client)->CutOff(true);
  RunUntil([&] { return daemon.membership->identity() == nullptr; });
  RunUntil([&] { return !daemon.changes.empty(); });
  EXPECT_THAT(daemon.changes, ElementsAre(ledger_reason::kLeaseEnded));
  static_cast<SimulatedEtcd::Client*>(daemon.client)->CutOff(false);
  WaitUntilRegistered(daemon);
  EXPECT_THAT(daemon.state, ElementsAre(nodes_.prefix() + "2"));
}

// etcd may keep the lease for longer than the daemon counts on it.
TEST_P(CutOffMember, TakesItsNameOverFromTheRegistrationThatItHasLost) {
  Member& daemon = Start("a", "node1");
  WaitUntilRegistered(daemon);
  auto* const client = static_cast<SimulatedEtcd::Client*>(daemon.client);
  client->CutOff(true);
  const Instant start = etcd_.clock()->Now();
  RunUntil([&] { return etcd_.clock()->Now() - start > std::chrono::seconds(30); });
  etcd_.simulation().ChangeLeader();  // Its lease has its full time again.
  RunUntil([&] { return daemon.membership->identity() == nullptr; });
  ASSERT_NE(Read("node1"), "(none)");
  daemon.changes.clear();
  client->CutOff(false);
  WaitUntilRegistered(daemon);
  EXPECT_THAT(daemon.changes, Not(Contains(ledger_reason::kNodeNameTaken)));
}

// ---- a state directory that answers late

class SlowStateDirectory : public MembershipContract {};
INSTANTIATE_TEST_SUITE_P(, SlowStateDirectory, ::testing::Values(EtcdKind{EtcdKind::kSimulated}), NameOf);

TEST_P(SlowStateDirectory, MayAnswerAfterTheEndOfTheMembership) {
  NodeRegistration::Done remembered;
  auto membership = std::make_unique<NodeMembership>(
      etcd_.NewClient(), etcd_.clock(), NodeMembership::Options{nodes_.prefix(), "node1", "host", {}, 60},
      [&](const Incarnations&, NodeRegistration::Done done) { remembered = std::move(done); },
      [] { return std::string("incarnation"); }, [](const absl::StatusOr<NodeIdentity>&) { FAIL(); });
  membership->OnTick();
  ASSERT_TRUE(remembered != nullptr);
  membership = nullptr;
  remembered(absl::OkStatus());
  EXPECT_EQ(Read("node1"), "(none)");
}

}  // namespace
}  // namespace ckptd
