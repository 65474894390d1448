// Shared roots of two daemons, on the simulated etcd and a root in memory.
// tests/contract/nodes_run_contract_test.cc has what a run does there.
#include "daemon/runtime/cluster/shared_roots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/seams/authority.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"
#include "tests/testing/fake_shared_files.h"
#include "tests/testing/fake_shared_root.h"
#include "tests/testing/pausable_etcd.h"
#include "tests/testing/registered_nodes.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What a daemon has of this: its registration, those who follow it, and its engine's open run.
struct Node {
  explicit Node(std::string its_name, int its_rank) : name(std::move(its_name)), rank(its_rank) {}
  const std::string name;
  const int rank;
  bool seals = true;
  std::vector<std::string> heard;       // Ends of saves, and "lost".
  std::vector<std::string> asked_anew;  // Why its runs have asked for a new registration.

  Pause pause;
  std::unique_ptr<NodeRegistration> registration;
  std::vector<std::weak_ptr<const SharedRoots::Follower>> followers;
  std::unique_ptr<SharedRoots> roots;
  RootAccess access;
};

class SharedRootsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    nodes_.OnTick([this] {
      for (Node* node : {&one_, &two_}) {
        if (node->access.authority != nullptr) node->access.authority->OnTick();
      }
    });
  }
  void TearDown() override {
    nodes_.OnTick(nullptr);
    for (Node* node : {&one_, &two_}) Kill(*node);
  }

  // ---- daemons

  void Start(Node& node, Duration grace = seconds(30)) {
    node.registration = nodes_.Start(node.name);
    SharedRoots::Options options;
    *options.folders.Add() = "/shared";
    options.cluster_prefix = nodes_.prefix();
    options.grace = grace;
    node.roots = std::make_unique<SharedRoots>(
        nodes_.ClientOf(*node.registration), etcd_.clock(), std::move(options),
        [this](absl::AnyInvocable<void()> work) { etcd_.After(milliseconds(1), std::move(work)); },
        [&node](SharedRoots::Follower follower) {
          auto added = std::make_shared<const SharedRoots::Follower>(std::move(follower));
          node.followers.push_back(added);
          (*added)(nullptr);
          return added;
        },
        [&node](const absl::Status& why) { node.asked_anew.push_back(ReasonOf(why)); });
  }
  void Kill(Node& node) {
    node.access.authority = nullptr;  // It uses the other one, so it goes first.
    node.access.io = nullptr;
    node.roots = nullptr;
    if (node.registration != nullptr) nodes_.Kill(node.registration);
  }
  static void Tell(Node& node, bool registered) {
    for (const auto& follower : node.followers) {
      if (const auto tell = follower.lock()) (*tell)(registered ? &node.registration->identity() : nullptr);
    }
  }
  // As the engine does.
  void Open(Node& node) {
    const auto after = [this](Duration delay, absl::AnyInvocable<void()> event) {
      etcd_.After(delay, std::move(event));
    };
    node.access = node.roots->Open(
        std::make_unique<FakeSharedFiles>(&root_, &node.pause, after, "0123456789abcdef0123456789abcdef"),
        "/shared/run");
    const auto opened =
        Ask<absl::StatusOr<RootSnapshot>>([&](auto done) { node.access.io->Open(std::move(done)); });
    ASSERT_TRUE(opened.ok()) << opened.status();
    Authority::Hooks hooks;
    hooks.changed = [&node](const SaveId& save, const Authority::Decision& decision) {
      OnChanged(node, save, decision);
    };
    hooks.failed = [&node](const SaveId&, const absl::Status& why) { node.heard.push_back(ReasonOf(why)); };
    hooks.lost = [&node](const absl::Status&) { node.heard.emplace_back("lost"); };
    hooks.released = [](const SaveId&) {};
    hooks.removed = [](int64_t) {};
    hooks.newest_committed = [](int64_t, const auto&) {};
    hooks.root_changed = hooks.leadership_changed = [] {};
    node.access.authority->Start(std::move(hooks));
  }
  static void OnChanged(Node& node, const SaveId& save, const Authority::Decision& decision) {
    using Decision = Authority::Decision;
    Authority& run = *node.access.authority;
    if (decision.phase == Decision::kProposed) run.Accept(save, std::nullopt);
    if (decision.phase == Decision::kAdmitted && node.seals) run.Sealed(save);
    if (decision.phase == Decision::kSealed) run.Durable(save, "of " + node.name);
    if (decision.phase == Decision::kCommitted) node.heard.emplace_back("COMMITTED");
    if (decision.phase == Decision::kEnded) node.heard.push_back(ReasonOf(decision.end));
  }
  // Both daemons, registered, with the root open, joined.
  void StartBoth(Duration grace = seconds(30)) {
    for (Node* node : {&one_, &two_}) {
      Start(*node, grace);
      Open(*node);
      Tell(*node, true);
    }
    for (Node* node : {&one_, &two_}) {
      const auto attempt = Join(*node);
      ASSERT_TRUE(attempt.ok()) << attempt.status();
    }
    ASSERT_TRUE(Ask<absl::Status>([&](auto done) {
                  one_.access.authority->ledger()->Activate(1, std::move(done));
                }).ok());
    RunUntil([this] { return Coordinator() != nullptr; });
  }
  Node* Coordinator() {
    for (Node* node : {&one_, &two_}) {
      if (node->access.authority != nullptr && node->access.authority->coordinates()) return node;
    }
    return nullptr;
  }
  Node& Other() { return Coordinator() == &one_ ? two_ : one_; }

  // ---- time

  void RunUntil(const std::function<bool()>& done) { etcd_.caller().RunUntil(done); }
  void RunFor(Duration time) {
    const Instant end = etcd_.clock()->Now() + time;
    RunUntil([&] { return etcd_.clock()->Now() >= end; });
  }
  template <typename T>
  T Ask(const std::function<void(Callback<T>)>& ask) {
    auto answer = std::make_shared<std::optional<T>>();
    ask([answer](T result) { *answer = std::move(result); });
    RunUntil([&] { return answer->has_value(); });
    return answer->has_value() ? **std::move(answer) : T(absl::UnknownError("no answer"));
  }
  absl::StatusOr<int64_t> Join(Node& node) {
    Ledger::JoinSpec spec;
    spec.rank = node.rank;
    spec.world_size = 2;
    spec.launch_id = "launch";
    spec.instance = "process of " + node.name;
    return Ask<absl::StatusOr<int64_t>>(
        [&](auto done) { node.access.authority->ledger()->Join(spec, std::move(done)); });
  }
  void Begin(const std::string& tag) {
    for (Node* node : {&one_, &two_})
      node->access.authority->Begin({1, tag, 1}, etcd_.clock()->Now() + minutes(8), {});
  }

  AnyEtcd etcd_{EtcdKind{EtcdKind::kSimulated, 1}};
  RegisteredNodes nodes_{&etcd_};
  FakeSharedRoot root_{
      [this](Duration delay, absl::AnyInvocable<void()> event) { etcd_.After(delay, std::move(event)); }, 1,
      milliseconds(50)};
  Node one_{"one", 0}, two_{"two", 1};
};

TEST_F(SharedRootsTest, RootsBeneathItsFoldersAreShared) {
  Start(one_);
  EXPECT_TRUE(one_.roots->IsShared("/shared/run"));
  EXPECT_FALSE(one_.roots->IsShared("/local/run"));
  EXPECT_FALSE(one_.roots->IsShared(""));
  SharedFolders others;
  others.Add("/local");
  one_.roots->SetFolders(others);
  EXPECT_FALSE(one_.roots->IsShared("/shared/run"));
  EXPECT_TRUE(one_.roots->IsShared("/local/run"));
  v1::ClusterStatus status;
  one_.roots->Describe(&status);
  EXPECT_THAT(status.shared_folders(), ElementsAre("/local"));
  EXPECT_EQ(status.visibility_seconds(), 5);
}

TEST_F(SharedRootsTest, TwoDaemonsSaveOneCheckpoint) {
  StartBoth();
  Begin("step_1");
  RunUntil([this] { return !one_.heard.empty() && !two_.heard.empty(); });
  EXPECT_THAT(one_.heard, Contains("COMMITTED"));
  EXPECT_THAT(two_.heard, Contains("COMMITTED"));
  EXPECT_TRUE(root_.tags.contains("step_1"));
}

TEST_F(SharedRootsTest, RootOpensBeforeTheNodeIsRegisteredAndItsRunGoesOnWithTheRegistration) {
  Start(one_);
  Open(one_);
  std::optional<absl::StatusOr<int64_t>> joined;
  Ledger::JoinSpec spec;
  spec.world_size = 2;
  spec.launch_id = "launch";
  spec.instance = "process";
  one_.access.authority->ledger()->Join(
      spec, [&](absl::StatusOr<int64_t> attempt) { joined = std::move(attempt); });
  RunFor(seconds(10));
  EXPECT_FALSE(joined.has_value()) << "it waits";
  Tell(one_, true);
  RunUntil([&] { return joined.has_value(); });
  EXPECT_EQ(joined->value_or(-1), 1);
}

TEST_F(SharedRootsTest, ProcessThatWaitsForTheRegistrationTooLongHearsWhatIsMissing) {
  Start(one_);
  Open(one_);
  const absl::Status joined = Join(one_).status();
  EXPECT_EQ(joined.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(joined), "LEDGER_UNAVAILABLE");
  EXPECT_THAT(std::string(joined.message()),
              AllOf(HasSubstr("/shared/run"), HasSubstr("this node is not registered in etcd")));
}

TEST_F(SharedRootsTest, RunThatIsClosedHearsNoRegistration) {
  Start(one_);
  Open(one_);
  ASSERT_FALSE(one_.followers.at(0).expired());
  one_.access.authority = nullptr;
  one_.access.io = nullptr;
  EXPECT_TRUE(one_.followers.at(0).expired());
  Tell(one_, true);
  Open(one_);
  EXPECT_EQ(one_.followers.size(), 2u);
}

TEST_F(SharedRootsTest, LostRegistrationReachesTheRun) {
  StartBoth();
  Tell(one_, false);
  EXPECT_THAT(one_.heard, Contains("lost"));
  EXPECT_FALSE(one_.access.authority->coordinates());
}

TEST_F(SharedRootsTest, RunThatCannotGoOnAsksForANewRegistration) {
  StartBoth();
  Node& node = Other();
  etcdserverpb::LeaseRevokeRequest end;
  end.set_id(node.registration->identity().lease);
  etcd_.WithModel([&](EtcdModel& model) { EXPECT_TRUE(model.RevokeLease(end).ok()); });
  Begin("step_1");
  RunUntil([&] { return !node.asked_anew.empty(); });
  EXPECT_THAT(node.asked_anew, ::testing::ElementsAre("NODE_REPLACED"));
}

// The lease of a node lasts for 60 s.
TEST_F(SharedRootsTest, AnotherNodeCoordinatesAsSoonAsOneResigns) {
  StartBoth();
  Node& resigning = *Coordinator();
  Node& other = Other();
  const Instant begun = etcd_.clock()->Now();
  const absl::Status resigned =
      Ask<absl::Status>([&](auto done) { resigning.roots->Resign(std::move(done)); });
  EXPECT_TRUE(resigned.ok()) << resigned;
  EXPECT_FALSE(resigning.access.authority->coordinates());
  RunUntil([&] { return other.access.authority->coordinates(); });
  EXPECT_TRUE(other.access.authority->coordinates());
  EXPECT_LT(etcd_.clock()->Now() - begun, seconds(10));
}

TEST_F(SharedRootsTest, ShowsTheCoordinatorAndWhichNodesASaveWaitsFor) {
  StartBoth();
  Node& coordinator = *Coordinator();
  Node& other = Other();
  other.seals = false;
  Begin("step_1");
  const auto waits_for = [](const Node& node) {
    v1::ClusterStatus status;
    node.roots->Describe(&status);
    const bool any = status.shared_runs_size() == 1 && status.shared_runs(0).saves_size() == 1;
    return any ? status.shared_runs(0).saves(0).waits_for() : "";
  };
  const std::string missing = "seal their parts (missing: node " + other.name + ")";
  RunUntil([&] { return waits_for(coordinator).find(missing) != std::string::npos; });
  RunUntil([&] { return waits_for(other).find("seal their parts") != std::string::npos; });
  v1::ClusterStatus status;
  other.roots->Describe(&status);
  EXPECT_EQ(status.shared_runs(0).root(), "/shared/run");
  EXPECT_EQ(status.shared_runs(0).coordinator(), coordinator.name);
  EXPECT_EQ(status.shared_runs(0).saves(0).tag(), "step_1");
  EXPECT_EQ(status.shared_runs(0).saves(0).attempt(), 1);
  other.access.authority->Sealed({1, "step_1", 1});
  RunUntil([&] { return waits_for(coordinator).empty(); });
  EXPECT_THAT(coordinator.heard, Contains("COMMITTED"));
}

TEST_F(SharedRootsTest, ResigningWithoutARunIsAnsweredAtOnce) {
  Start(one_);
  std::optional<absl::Status> resigned;
  one_.roots->Resign([&](absl::Status status) { resigned = std::move(status); });
  EXPECT_EQ(resigned, absl::OkStatus());
}

TEST_F(SharedRootsTest, LostNodeHasTheGraceOfTheConfiguration) {
  StartBoth(/*grace=*/minutes(5));
  Node& lost = Other();
  Node& coordinator = *Coordinator();
  lost.seals = false;
  Begin("step_1");
  RunFor(seconds(10));
  Kill(lost);
  RunFor(minutes(4));
  EXPECT_THAT(coordinator.heard, IsEmpty());
  RunUntil([&] { return !coordinator.heard.empty(); });
  EXPECT_THAT(coordinator.heard, AllOf(Contains("NODE_LOST"), Not(Contains("COMMITTED"))));
}

}  // namespace
}  // namespace ckptd
