// Which daemon has the name of a node: run against the simulated etcd and its faults, a model over gRPC, and
// Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/nodes/launch_roots.h"
#include "daemon/ledger/nodes/node_registration.h"
#include "daemon/ledger/run/etcd_ledger.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"
#include "tests/testing/registered_nodes.h"

namespace ckptd {
namespace {

using etcdserverpb::TxnRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using StateDirectory = RegisteredNodes::StateDirectory;

class NodeContract : public ::testing::TestWithParam<EtcdKind> {
 protected:
  static void TearDownTestSuite() { AnyEtcd::StopCluster(); }
  void TearDown() override { nodes_.DeliverLateCopies(); }

  EtcdCaller& caller() { return etcd_.caller(); }
  std::string Key(const std::string& name) const { return nodes_.prefix() + "nodes/" + name; }
  std::unique_ptr<NodeRegistration> NewDaemon(const std::string& name, StateDirectory* state_directory) {
    return nodes_.New(name, state_directory);
  }
  absl::Status Register(NodeRegistration& daemon) { return nodes_.Register(daemon); }
  std::string Read(const std::string& key) { return nodes_.Read(key); }

  AnyEtcd etcd_{GetParam()};
  RegisteredNodes nodes_{&etcd_};
  StateDirectory state_, other_state_;
};

std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }
INSTANTIATE_TEST_SUITE_P(, NodeContract, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

TEST_P(NodeContract, NameBelongsToOneDaemonUntilItsLeaseHasEnded) {
  auto first = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*first).ok());
  EXPECT_TRUE(first->held());
  auto other = NewDaemon("node1", &other_state_);
  const absl::Status taken = Register(*other);
  EXPECT_EQ(ReasonOf(taken), ledger_reason::kNodeNameTaken);
  EXPECT_THAT(std::string(taken.message()), HasSubstr("on host host of node1"));
  nodes_.Kill(other);
  auto second = NewDaemon("node2", &other_state_);
  EXPECT_TRUE(Register(*second).ok()) << "another name";
  nodes_.WaitForTheEndOf(*first);
  nodes_.Kill(first);
  auto later = NewDaemon("node1", &other_state_);
  EXPECT_TRUE(Register(*later).ok());
  EXPECT_THAT(other_state_, ElementsAre(nodes_.prefix() + "4"));
}

TEST_P(NodeContract, SuccessorWithTheStateDirectoryTakesTheNameAtOnceAndThePredecessorHearsOfIt) {
  auto first = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*first).ok());
  auto successor = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*successor).ok());
  EXPECT_EQ(Read(Key("node1")), successor->identity().value);
  EXPECT_NE(first->identity().value, successor->identity().value);
  caller().RunUntil([&] { return !nodes_.lost().empty(); });
  EXPECT_THAT(nodes_.lost(), ElementsAre("node1 LEDGER_LEASE_ENDED"));
  EXPECT_FALSE(first->held());
  EXPECT_TRUE(successor->held());
  EXPECT_THAT(state_, ElementsAre(nodes_.prefix() + "2"));
}

// etcd may know a daemon that has never heard so.
TEST_P(NodeContract, DaemonThatEndsWhileItRegistersKeepsNobodyOut) {
  auto first = NewDaemon("node1", &state_);
  first->Register([](const absl::Status&) {});
  caller().RunUntil([&] { return Read(Key("node1")) == first->identity().value; });
  nodes_.Kill(first);
  auto second = NewDaemon("node1", &state_);
  EXPECT_TRUE(Register(*second).ok());
}

// TearDown delivers the late copy of the first registration.
TEST_P(NodeContract, LateCopyOfAPredecessorsRegistrationBringsNothingBack) {
  auto first = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*first).ok());
  nodes_.Kill(first);
  auto second = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*second).ok());
  nodes_.Release(*second);
  EXPECT_EQ(Read(Key("node1")), "(none)");
  EXPECT_TRUE(nodes_.lost().empty()) << "it was given up";
}

TEST_P(NodeContract, DaemonThatDoesNotTickLosesItsName) {
  auto first = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*first).ok());
  nodes_.WaitForTheEndOf(*first);
  if (GetParam().ends_leases()) {
    EXPECT_FALSE(first->held()) << "it ends for the daemon before it ends for etcd";
  }
  caller().RunUntil([&] { return !first->held(); });
  first->OnTick();
  EXPECT_THAT(nodes_.lost(), ElementsAre("node1 LEDGER_LEASE_ENDED"));
}

TEST_P(NodeContract, NothingIsRegisteredThatTheStateDirectoryDoesNotKnow) {
  auto daemon = std::make_unique<NodeRegistration>(
      etcd_.NewClient(), etcd_.clock(),
      NodeRegistration::Options{nodes_.prefix(), "node1", "host", "incarnation", {}, 60},
      [](const std::vector<std::string>&, NodeRegistration::Done remembered) {
        remembered(absl::ResourceExhaustedError("the disk is full"));
      },
      [](const absl::Status&) {});
  EXPECT_EQ(Register(*daemon).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Read(Key("node1")), "(none)");
}

// ---- a daemon that is paused in the middle of a decision

class PausedNode : public NodeContract {};

INSTANTIATE_TEST_SUITE_P(, PausedNode, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

// Its state directory was on a disk that hung.
TEST_P(PausedNode, HasNoNameIfItsLeaseEndedWhileItRegistered) {
  NodeRegistration::Done remembered;
  NodeRegistration slow(
      etcd_.NewClient(), etcd_.clock(),
      NodeRegistration::Options{nodes_.prefix(), "node1", "host", "slow", {}, 60},
      [&](const std::vector<std::string>&, NodeRegistration::Done done) { remembered = std::move(done); },
      [](const absl::Status&) { ADD_FAILURE() << "a registration was lost that never was one"; });
  std::string result;
  slow.Register([&](const absl::Status& answer) { result = ReasonOf(answer); });
  std::exchange(remembered, nullptr)(absl::OkStatus());
  caller().RunUntil([&] { return remembered != nullptr; });
  caller().RunUntil([&] { return !slow.held(); });
  slow.OnTick();
  EXPECT_EQ(result, "");
  remembered(absl::OkStatus());
  EXPECT_EQ(result, ledger_reason::kNodeReplaced);
}

// It has read; before it writes, its successor takes its name over. Nothing of what it has read has changed.
TEST_P(PausedNode, WritesNothingOnceItsSuccessorHasTheName) {
  auto first = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*first).ok());
  EtcdLedger ledger(nodes_.ClientOf(*first), etcd_.clock(),
                    {nodes_.prefix() + "run/", first->identity(), "test"});
  Ledger::JoinSpec spec;
  spec.world_size = 1;
  spec.launch_id = "launch";
  spec.instance = "process";
  std::optional<absl::StatusOr<int64_t>> joined, admitted;
  ledger.Join(spec, [&](absl::StatusOr<int64_t> answer) { joined = std::move(answer); });
  caller().RunUntil([&] { return joined.has_value(); });
  ASSERT_TRUE(joined->ok()) << joined->status();

  // The first transaction that reads is applied as it is; the name changes hands before the first that
  // writes.
  const std::string sequence = nodes_.prefix() + "run/sequence";
  etcd_.simulation().BeforeTransaction([&, taken = false](const TxnRequest& request) mutable {
    if (taken || request.success(0).request_put().key() != sequence) return;
    taken = true;
    etcd_.WithModel([&](EtcdModel& model) {
      TxnRequest takeover;
      *takeover.add_compare() = HasValue(first->identity().key, first->identity().value);
      *takeover.add_success() = Put(first->identity().key, "the successor's");
      EXPECT_TRUE(model.Txn(takeover).ok());
    });
  });
  ledger.Admit(**joined, [&](absl::StatusOr<int64_t> answer) { admitted = std::move(answer); });
  caller().RunUntil([&] { return admitted.has_value(); });
  EXPECT_EQ(ReasonOf(admitted->status()), ledger_reason::kNodeReplaced);
  EXPECT_EQ(Read(sequence), "(none)");
  etcd_.simulation().BeforeTransaction(nullptr);
}

// ---- roots that are not shared

class LaunchRoots : public NodeContract {
 protected:
  void SetUp() override {
    NodeContract::SetUp();
    first_ = NewDaemon("node1", &state_);
    second_ = NewDaemon("node2", &other_state_);
    ASSERT_TRUE(Register(*first_).ok() && Register(*second_).ok());
  }
  absl::Status Claim(const NodeRegistration& daemon, const std::string& launch, const std::string& path,
                     const std::string& run) {
    std::optional<absl::Status> result;
    ClaimRoot(caller().etcd(), daemon.identity(), {nodes_.prefix(), launch, path, run},
              [&](absl::Status answer) { result = std::move(answer); });
    caller().RunUntil([&] { return result.has_value(); });
    return result.value_or(absl::UnknownError("no answer"));
  }

  std::unique_ptr<NodeRegistration> first_, second_;
};

INSTANTIATE_TEST_SUITE_P(, LaunchRoots, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

TEST_P(LaunchRoots, TwoFoldersUnderOnePathOfALaunchAreFoundOut) {
  EXPECT_TRUE(Claim(*first_, "launch", "/mnt/root", "run a").ok());
  const absl::Status refused = Claim(*second_, "launch", "/mnt/root", "run b");
  EXPECT_EQ(ReasonOf(refused), ledger_reason::kRootNotShared);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("on node \"node2\" it holds run run b, and on node \"node1\" run run a"));
  EXPECT_EQ(ReasonOf(Claim(*first_, "launch", "/mnt/root", "run a")), ledger_reason::kRootNotShared);
}

TEST_P(LaunchRoots, SharedFoldersOtherPathsAndOtherLaunchesAreFine) {
  EXPECT_TRUE(Claim(*first_, "launch", "/mnt/root", "run a").ok());
  EXPECT_TRUE(Claim(*second_, "launch", "/mnt/root", "run a").ok());
  EXPECT_TRUE(Claim(*first_, "launch", "/mnt/root", "run a").ok());
  EXPECT_TRUE(Claim(*second_, "launch", "/mnt/root/below", "run b").ok());
  EXPECT_TRUE(Claim(*second_, "launch 2", "/mnt/root", "run c").ok());
  EXPECT_TRUE(Claim(*second_, "launch/2", "/mnt/root", "run d").ok());
  EXPECT_TRUE(Claim(*first_, "launch", "2/mnt/root", "run e").ok());
}

TEST_P(LaunchRoots, FolderThatWasMadeAgainIsFineWhenAllNodesHaveSeenIt) {
  EXPECT_TRUE(Claim(*first_, "launch", "/mnt/root", "old").ok());
  EXPECT_TRUE(Claim(*second_, "launch", "/mnt/root", "old").ok());
  EXPECT_EQ(ReasonOf(Claim(*first_, "launch", "/mnt/root", "new")), ledger_reason::kRootNotShared);
  EXPECT_TRUE(Claim(*second_, "launch", "/mnt/root", "new").ok());
  EXPECT_TRUE(Claim(*first_, "launch", "/mnt/root", "new").ok());
}

TEST_P(LaunchRoots, ClaimGoesWithItsDaemon) {
  EXPECT_TRUE(Claim(*first_, "launch", "/mnt/root", "run a").ok());
  nodes_.Release(*first_);
  EXPECT_TRUE(Claim(*second_, "launch", "/mnt/root", "run b").ok());
  EXPECT_EQ(ReasonOf(Claim(*first_, "launch", "/mnt/root", "run a")), ledger_reason::kNodeReplaced);
}

}  // namespace
}  // namespace ckptd
