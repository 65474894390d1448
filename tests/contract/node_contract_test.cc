// Which daemon has the name of a node: run against the simulated etcd and its faults, a model over gRPC, and
// Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/ledger/etcd_ledger.h"
#include "daemon/ledger/ledger_reasons.h"
#include "daemon/ledger/node_registration.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"

namespace ckptd {
namespace {

using etcdserverpb::TxnRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using StateDirectory = std::vector<std::string>;

class NodeContract : public ::testing::TestWithParam<EtcdKind> {
 protected:
  static void TearDownTestSuite() { AnyEtcd::StopCluster(); }
  void SetUp() override {
    caller().OnTick([this] {
      for (NodeRegistration* daemon : living_) daemon->OnTick();
    });
  }
  // What is still under way of a request that was asked again arrives now, and must change nothing.
  void TearDown() override {
    if (!etcd_.has_model()) return;
    etcd_.WithModel([](EtcdModel& model) {
      const int64_t before = model.revision();
      model.ReplayTransactions();
      EXPECT_EQ(model.revision(), before) << "a late copy of a transaction was applied";
    });
  }

  EtcdCaller& caller() { return etcd_.caller(); }
  std::string Key(const std::string& name) const { return prefix_ + "nodes/" + name; }

  // A daemon that has not registered yet.
  std::unique_ptr<NodeRegistration> NewDaemon(const std::string& name, StateDirectory* state_directory) {
    NodeRegistration::Options options;
    options.prefix = prefix_;
    options.name = name;
    options.host = "host of " + name;
    options.incarnation = prefix_ + std::to_string(++daemons_);
    options.predecessors = *state_directory;
    // Where requests are lost, a short lease may end by itself.
    options.lease_seconds = GetParam().simulated() ? 60 : 2;
    auto daemon = std::make_unique<NodeRegistration>(
        etcd_.NewClient(), etcd_.clock(), options,
        [state_directory](const std::vector<std::string>& incarnations, NodeRegistration::Done remembered) {
          *state_directory = incarnations;
          remembered(absl::OkStatus());
        },
        [this, name](const absl::Status& why) { lost_.push_back(name + " " + ReasonOf(why)); });
    living_.insert(daemon.get());
    return daemon;
  }
  absl::Status Register(NodeRegistration& daemon) {
    std::optional<absl::Status> result;
    daemon.Register([&](absl::Status answer) { result = std::move(answer); });
    caller().RunUntil([&] { return result.has_value(); });
    return result.value_or(absl::UnknownError("no answer"));
  }
  // As if it hung: it no longer ticks.
  void WaitForTheEndOf(NodeRegistration& daemon) {
    living_.erase(&daemon);
    etcd_.EndLeaseOfModel(daemon.identity().lease);
    caller().RunUntil([&] { return Read(daemon.identity().key) == "(none)"; });
  }
  // It ends without a word.
  void Kill(std::unique_ptr<NodeRegistration>& daemon) {
    living_.erase(daemon.get());
    daemon = nullptr;
  }
  void Release(NodeRegistration& daemon) {
    std::optional<absl::Status> result;
    daemon.Release([&](absl::Status answer) { result = std::move(answer); });
    caller().RunUntil([&] { return result.has_value(); });
    EXPECT_TRUE(result->ok()) << *result;
  }
  std::string Read(const std::string& key) { return caller().Read(key).value_or("(error)"); }

  AnyEtcd etcd_{GetParam()};
  const std::string prefix_ =
      std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + "/";
  int daemons_ = 0;
  std::set<NodeRegistration*> living_;
  std::vector<std::string> lost_;
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
  Kill(other);
  auto second = NewDaemon("node2", &other_state_);
  EXPECT_TRUE(Register(*second).ok()) << "another name";
  WaitForTheEndOf(*first);
  Kill(first);
  auto later = NewDaemon("node1", &other_state_);
  EXPECT_TRUE(Register(*later).ok());
  EXPECT_THAT(other_state_, ElementsAre(prefix_ + "4"));
}

TEST_P(NodeContract, SuccessorWithTheStateDirectoryTakesTheNameAtOnceAndThePredecessorHearsOfIt) {
  auto first = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*first).ok());
  auto successor = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*successor).ok());
  EXPECT_EQ(Read(Key("node1")), successor->identity().value);
  EXPECT_NE(first->identity().value, successor->identity().value);
  caller().RunUntil([&] { return !lost_.empty(); });
  EXPECT_THAT(lost_, ElementsAre("node1 LEDGER_LEASE_ENDED"));
  EXPECT_FALSE(first->held());
  EXPECT_TRUE(successor->held());
  EXPECT_THAT(state_, ElementsAre(prefix_ + "2"));
}

// etcd may know a daemon that has never heard so.
TEST_P(NodeContract, DaemonThatEndsWhileItRegistersKeepsNobodyOut) {
  auto first = NewDaemon("node1", &state_);
  first->Register([](const absl::Status&) {});
  caller().RunUntil([&] { return Read(Key("node1")) == first->identity().value; });
  Kill(first);
  auto second = NewDaemon("node1", &state_);
  EXPECT_TRUE(Register(*second).ok());
}

// TearDown delivers the late copy of the first registration.
TEST_P(NodeContract, LateCopyOfAPredecessorsRegistrationBringsNothingBack) {
  auto first = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*first).ok());
  Kill(first);
  auto second = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*second).ok());
  Release(*second);
  EXPECT_EQ(Read(Key("node1")), "(none)");
  EXPECT_TRUE(lost_.empty()) << "it was given up";
}

TEST_P(NodeContract, DaemonThatDoesNotTickLosesItsName) {
  auto first = NewDaemon("node1", &state_);
  ASSERT_TRUE(Register(*first).ok());
  WaitForTheEndOf(*first);
  if (GetParam().ends_leases()) {
    EXPECT_FALSE(first->held()) << "it ends for the daemon before it ends for etcd";
  }
  caller().RunUntil([&] { return !first->held(); });
  first->OnTick();
  EXPECT_THAT(lost_, ElementsAre("node1 LEDGER_LEASE_ENDED"));
}

TEST_P(NodeContract, NothingIsRegisteredThatTheStateDirectoryDoesNotKnow) {
  auto daemon = std::make_unique<NodeRegistration>(
      etcd_.NewClient(), etcd_.clock(),
      NodeRegistration::Options{prefix_, "node1", "host", "incarnation", {}, 60},
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
      etcd_.NewClient(), etcd_.clock(), NodeRegistration::Options{prefix_, "node1", "host", "slow", {}, 60},
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
  EtcdLedger ledger(&etcd_.latest_client(), {prefix_ + "run/", first->identity(), "test"});
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
  const std::string sequence = prefix_ + "run/sequence";
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

}  // namespace
}  // namespace ckptd
