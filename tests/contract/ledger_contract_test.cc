// What the daemons of a run decide, and that it stays decided: run against LocalLedger, and against
// EtcdLedger with the simulated etcd and its faults, with a model over gRPC, with one that loses answers, and
// with Debian's etcd. Where there are several nodes, the ranks of each test are on two of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/nodes/node_registration.h"
#include "daemon/ledger/run/etcd_ledger.h"
#include "storage/base/errors.h"
#include "storage/ledger/ledger.h"
#include "storage/ledger/local_ledger.h"
#include "tests/testing/any_etcd.h"
#include "tests/testing/counting_etcd.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Choice = Ledger::ResumeChoice;

template <typename T>
using Answer = Ledger::Answer<T>;

// One daemon's ledger.
class Node {
 public:
  virtual ~Node() = default;
  virtual void Join(const Ledger::JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) = 0;
  virtual void ProcessEnded(const std::string& instance) = 0;
  virtual void Activate(int64_t attempt, Answer<absl::Status> answer) = 0;
  virtual void WatchActiveAttempt(std::function<void(int64_t)> changed) = 0;
  virtual void Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) = 0;
  virtual void DecideResume(int64_t attempt, const Choice& newest, Answer<absl::StatusOr<Choice>> answer) = 0;
  virtual void DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<Choice>>> answer) = 0;
  virtual void RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) = 0;
  virtual void AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) = 0;
  virtual void ResumeFailed(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) = 0;
  // Answers with what retention leaves alone now.
  virtual void Committed(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) = 0;
};

void ResumeFailed(LocalLedger& ledger, int64_t attempt, int64_t sequence, Answer<absl::Status> answer) {
  ledger.ResumeFailed(attempt, sequence);
  answer(absl::OkStatus());
}
void ResumeFailed(EtcdLedger& ledger, int64_t attempt, int64_t sequence, Answer<absl::Status> answer) {
  ledger.ResumeFailed(attempt, sequence, std::move(answer));
}
void Committed(LocalLedger& ledger, int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) {
  ledger.Committed(attempt);
  answer(ledger.record().retained_through());
}
void Committed(EtcdLedger& ledger, int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) {
  ledger.Committed({attempt}, std::move(answer));
}

template <typename AnyLedger>
class NodeOf : public Node {
 public:
  explicit NodeOf(std::shared_ptr<AnyLedger> ledger) : ledger_(std::move(ledger)) {}
  void Join(const Ledger::JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) override {
    ledger_->Join(spec, std::move(answer));
  }
  void ProcessEnded(const std::string& instance) override { ledger_->ProcessEnded(instance); }
  void Activate(int64_t attempt, Answer<absl::Status> answer) override {
    ledger_->Activate(attempt, std::move(answer));
  }
  void WatchActiveAttempt(std::function<void(int64_t)> changed) override {
    ledger_->WatchActiveAttempt(std::move(changed));
  }
  void Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) override {
    ledger_->Admit(attempt, std::move(answer));
  }
  void DecideResume(int64_t attempt, const Choice& newest, Answer<absl::StatusOr<Choice>> answer) override {
    ledger_->DecideResume(attempt, newest, std::move(answer));
  }
  void DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<Choice>>> answer) override {
    ledger_->DecidedResume(attempt, std::move(answer));
  }
  void RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) override {
    ledger_->RejectResume(attempt, sequence, std::move(answer));
  }
  void AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) override {
    ledger_->AgreeResume(attempt, sequence, std::move(answer));
  }
  void ResumeFailed(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) override {
    ckptd::ResumeFailed(*ledger_, attempt, sequence, std::move(answer));
  }
  void Committed(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) override {
    ckptd::Committed(*ledger_, attempt, std::move(answer));
  }

 private:
  const std::shared_ptr<AnyLedger> ledger_;
};

// The run's daemons, and what outlives them.
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<Node> StartNode(const std::string& name) = 0;
  virtual void RunUntil(const std::function<bool()>& done) = 0;
  virtual bool several_nodes() const = 0;
  // Transactions of all nodes that were for nothing, because another one had written first.
  virtual int64_t conflicts() const { return 0; }
  // What is still under way of a request that was asked again arrives now, and must change nothing.
  virtual void DeliverLateCopies() {}
};

class LocalWorld : public World {
 public:
  std::unique_ptr<Node> StartNode(const std::string&) override {
    return std::make_unique<NodeOf<LocalLedger>>(std::make_shared<LocalLedger>(
        saved_, 0, [this](const storage::v1::RunRecord& what, absl::AnyInvocable<void(absl::Status)> done) {
          saved_ = what;
          done(absl::OkStatus());
        }));
  }
  void RunUntil(const std::function<bool()>& done) override { EXPECT_TRUE(done()); }
  bool several_nodes() const override { return false; }

 private:
  storage::v1::RunRecord saved_;
};

class EtcdWorld : public World {
 public:
  explicit EtcdWorld(EtcdKind kind) : etcd_(kind) {
    static int64_t runs = 0;
    prefix_ = "runs/" + std::to_string(++runs) + "/";
    etcd_.caller().OnTick([this] {
      for (const auto& each : ledgers_) {
        if (const auto ledger = each.lock()) ledger->OnTick();
      }
    });
  }

  std::unique_ptr<Node> StartNode(const std::string& name) override {
    Etcd* const client =
        clients_.emplace_back(std::make_unique<CountingEtcd>(etcd_.NewClient(), &counts_)).get();
    const auto ledger = std::make_shared<EtcdLedger>(
        client, etcd_.clock(), EtcdLedger::Options{prefix_, Register(client, name), "test"});
    ledgers_.push_back(ledger);
    return std::make_unique<NodeOf<EtcdLedger>>(ledger);
  }
  void RunUntil(const std::function<bool()>& done) override { etcd_.caller().RunUntil(done); }
  bool several_nodes() const override { return true; }
  int64_t conflicts() const override { return counts_.conflicts; }
  void DeliverLateCopies() override {
    if (!etcd_.has_model()) return;
    etcd_.WithModel([](EtcdModel& model) {
      const int64_t before = model.revision();
      model.ReplayTransactions();
      EXPECT_EQ(model.revision(), before) << "a late copy of a transaction was applied";
    });
  }

 private:
  NodeIdentity Register(Etcd* client, const std::string& name) {
    std::vector<std::string>& state_directory = state_directories_[name];
    NodeRegistration::Options options;
    options.prefix = prefix_;
    options.name = name;
    options.incarnation = std::to_string(++incarnations_);
    options.predecessors = state_directory;
    options.lease_seconds = 3600;  // So nobody needs to tick.
    const auto remember = [&](const std::vector<std::string>& all, NodeRegistration::Done remembered) {
      state_directory = all;
      remembered(absl::OkStatus());
    };
    NodeRegistration registration(client, etcd_.clock(), options, remember, [](const absl::Status&) {});
    std::optional<absl::Status> result;
    registration.Register([&](absl::Status answer) { result = std::move(answer); });
    RunUntil([&] { return result.has_value(); });
    EXPECT_TRUE(result && result->ok()) << *result;
    return registration.identity();
  }

  AnyEtcd etcd_;
  EtcdCounts counts_;
  std::vector<std::unique_ptr<CountingEtcd>> clients_;
  std::vector<std::weak_ptr<EtcdLedger>> ledgers_;
  std::string prefix_;
  std::map<std::string, std::vector<std::string>> state_directories_;
  int incarnations_ = 0;
};

// Nothing: one node, without etcd.
using Kind = std::optional<EtcdKind>;

std::unique_ptr<World> MakeWorld(const Kind& kind) {
  if (!kind) return std::make_unique<LocalWorld>();
  return std::make_unique<EtcdWorld>(*kind);
}

std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds = {std::nullopt};
  for (const EtcdKind& kind : AllEtcds(/*seeds=*/20)) kinds.push_back(kind);
  return kinds;
}

class LedgerContract : public ::testing::TestWithParam<Kind> {
 protected:
  static void TearDownTestSuite() { AnyEtcd::StopCluster(); }
  void SetUp() override { Restart(); }
  void TearDown() override { world_->DeliverLateCopies(); }

  // The daemons end and start again.
  void Restart() {
    second_ = nullptr;
    first_ = world_->StartNode("node1");
    if (world_->several_nodes()) second_ = world_->StartNode("node2");
  }
  // Rank 0 is on one node, rank 1 on the other, if there are two.
  Node& NodeOfRank(int rank) { return rank == 0 || second_ == nullptr ? *first_ : *second_; }

  template <typename T>
  T Await(const std::function<void(Answer<T>)>& ask) {
    std::optional<T> result;
    ask([&result](T answer) { result = std::move(answer); });
    world_->RunUntil([&] { return result.has_value(); });
    return result ? *std::move(result) : T(absl::UnknownError("no answer"));
  }
  static Ledger::JoinSpec Spec(int rank, const std::string& launch, const std::string& instance) {
    Ledger::JoinSpec spec;
    spec.rank = rank;
    spec.world_size = 2;
    spec.launch_id = launch;
    spec.instance = instance;
    return spec;
  }
  absl::StatusOr<int64_t> Join(const Ledger::JoinSpec& spec) {
    return Await<absl::StatusOr<int64_t>>(
        [&](auto answer) { NodeOfRank(spec.rank).Join(spec, std::move(answer)); });
  }
  absl::StatusOr<int64_t> Join(int rank, const std::string& launch, const std::string& instance) {
    return Join(Spec(rank, launch, instance));
  }
  absl::Status Activate(int64_t attempt, int rank = 0) {
    return Await<absl::Status>([&](auto answer) { NodeOfRank(rank).Activate(attempt, std::move(answer)); });
  }
  absl::StatusOr<int64_t> Admit(int64_t attempt, int rank = 0) {
    return Await<absl::StatusOr<int64_t>>(
        [&](auto answer) { NodeOfRank(rank).Admit(attempt, std::move(answer)); });
  }
  // The tag; the reason if it is refused.
  std::string Decide(int64_t attempt, const std::string& tag, int64_t sequence, int rank = 0) {
    const auto choice = Await<absl::StatusOr<Choice>>([&](auto answer) {
      NodeOfRank(rank).DecideResume(attempt, Choice{tag, sequence}, std::move(answer));
    });
    return choice.ok() ? choice->tag : ReasonOf(choice.status());
  }
  // As "tag" or "tag agreed"; empty if nothing is decided.
  std::string Decided(int64_t attempt, int rank = 0) {
    const auto decided = Await<absl::StatusOr<std::optional<Choice>>>(
        [&](auto answer) { NodeOfRank(rank).DecidedResume(attempt, std::move(answer)); });
    if (!decided.ok()) return ReasonOf(decided.status());
    return *decided ? (*decided)->tag + ((*decided)->agreed ? " agreed" : "") : "";
  }
  absl::Status Reject(int64_t attempt, int64_t sequence, int rank = 0) {
    return Await<absl::Status>(
        [&](auto answer) { NodeOfRank(rank).RejectResume(attempt, sequence, std::move(answer)); });
  }
  std::string Agree(int64_t attempt, int64_t sequence, int rank = 0) {
    return ReasonOf(Await<absl::Status>(
        [&](auto answer) { NodeOfRank(rank).AgreeResume(attempt, sequence, std::move(answer)); }));
  }

  void ResumeFailed(int64_t attempt, int64_t sequence, int rank = 0) {
    const absl::Status written = Await<absl::Status>(
        [&](auto answer) { NodeOfRank(rank).ResumeFailed(attempt, sequence, std::move(answer)); });
    EXPECT_TRUE(written.ok()) << written;
  }
  // What retention leaves alone then; -1: an error.
  int64_t Committed(int64_t attempt, int rank = 0) {
    return Await<absl::StatusOr<int64_t>>(
               [&](auto answer) { NodeOfRank(rank).Committed(attempt, std::move(answer)); })
        .value_or(-1);
  }

  const std::unique_ptr<World> world_ = MakeWorld(GetParam());
  std::unique_ptr<Node> first_, second_;
};

std::string NameOf(const ::testing::TestParamInfo<Kind>& kind) {
  return kind.param ? kind.param->name() : "local";
}
INSTANTIATE_TEST_SUITE_P(, LedgerContract, ::testing::ValuesIn(AllKinds()), NameOf);

// ---- attempts

TEST_P(LedgerContract, LaunchesAreNumberedInTheirOrderAndRanksOfOneShareItsAttempt) {
  EXPECT_EQ(*Join(0, "restart 7", "a"), 1);
  EXPECT_EQ(*Join(1, "restart 7", "b"), 1);
  EXPECT_EQ(*Join(1, "restart 2", "c"), 2);
  EXPECT_EQ(*Join(0, "restart 2", "d"), 2);
}

TEST_P(LedgerContract, RanksThatJoinTogetherGetOneAttempt) {
  std::vector<int64_t> attempts;
  for (int rank : {0, 1}) {
    NodeOfRank(rank).Join(
        Spec(rank, "x", "process " + std::to_string(rank)),
        [&](const absl::StatusOr<int64_t>& attempt) { attempts.push_back(attempt.value_or(-1)); });
  }
  world_->RunUntil([&] { return attempts.size() == 2; });
  EXPECT_THAT(attempts, ElementsAre(1, 1));
}

// One after the other, n nodes meet n * n / 2 changes of others.
TEST_P(LedgerContract, NodesThatJoinALaunchTogetherDoNotWaitForOneAnother) {
  if (!world_->several_nodes()) GTEST_SKIP() << "there is one node";
  constexpr int kNodes = 24, kRanks = 16;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < kNodes; ++i) nodes.push_back(world_->StartNode("n" + std::to_string(i)));
  for (const std::string launch : {"first", "second"}) {
    const int64_t before = world_->conflicts();
    std::set<int64_t> attempts;
    int answers = 0;
    for (int rank = 0; rank < kNodes * kRanks; ++rank) {
      Ledger::JoinSpec spec = Spec(rank, launch, launch + std::to_string(rank));
      spec.world_size = kNodes * kRanks;
      nodes[static_cast<size_t>(rank / kRanks)]->Join(spec, [&](const absl::StatusOr<int64_t>& attempt) {
        ++answers;
        attempts.insert(attempt.value_or(-1));
      });
    }
    world_->RunUntil([&] { return answers == kNodes * kRanks; });
    EXPECT_THAT(attempts, ElementsAre(launch == "first" ? 1 : 2));
    // Requests that are asked again count, too. Without them almost only the node with rank 0 begins the launch.
    const bool loses_answers =
        GetParam()->way == EtcdKind::kFaulty || GetParam()->way == EtcdKind::kModelThatLosesAnswers;
    EXPECT_LE(world_->conflicts() - before, loses_answers ? 3 * kNodes : kNodes / 4);
  }
}

// What one node has found when it joined is not what it must find later.
TEST_P(LedgerContract, RanksOfOneNodeInManyBlocksJoinOneByOneAndAreAllKnown) {
  constexpr int kRanks = 100;
  const auto spec = [](int rank, const std::string& launch, int process) {
    Ledger::JoinSpec made = Spec(rank, launch, "process " + std::to_string(process));
    made.world_size = kRanks;
    made.job = launch;
    return made;
  };
  for (int rank = 0; rank < kRanks; rank += 7) ASSERT_EQ(*Join(spec(rank, "x", rank)), 1);
  Restart();
  for (int rank = 1; rank < kRanks; rank += 7) ASSERT_EQ(*Join(spec(rank, "x", rank)), 1);
  for (int rank = 0; rank < kRanks; rank += 7) ASSERT_EQ(*Join(spec(rank, "x", rank)), 1);
  EXPECT_EQ(ReasonOf(Join(spec(14, "x", 1000)).status()), "RANK_TAKEN");
  const absl::Status refused = Join(spec(0, "y", 1000)).status();
  EXPECT_EQ(ReasonOf(refused), "RUN_IN_USE");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("attempt 1 (ranks 0,1,7,8,14,15,"));
  NodeOfRank(14).ProcessEnded("process 14");
  EXPECT_EQ(*Join(spec(14, "x", 1000)), 2);
  EXPECT_EQ(*Join(spec(21, "x", 21)), 1) << "it reconnects";
}

TEST_P(LedgerContract, RankOfALivingProcessIsTaken) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  EXPECT_EQ(ReasonOf(Join(0, "x", "b").status()), "RANK_TAKEN");
  if (second_ == nullptr) return;
  const auto elsewhere = Await<absl::StatusOr<int64_t>>(
      [&](auto answer) { second_->Join(Spec(0, "x", "b"), std::move(answer)); });
  EXPECT_EQ(ReasonOf(elsewhere.status()), "RANK_TAKEN");
}

TEST_P(LedgerContract, ProcessThatReconnectsKeepsItsAttemptAlsoWithTheNextDaemon) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_EQ(*Join(1, "x", "b"), 1);
  ASSERT_TRUE(Activate(1).ok());
  NodeOfRank(0).ProcessEnded("a");
  EXPECT_EQ(*Join(0, "x", "a"), 1);
  Restart();
  EXPECT_EQ(*Join(0, "x", "a"), 1);
  EXPECT_EQ(*Join(1, "x", "b"), 1);
}

TEST_P(LedgerContract, SuccessorOfAnEndedProcessBeginsTheNextAttemptWhichTheOthersJoin) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_EQ(*Join(1, "x", "b"), 1);
  NodeOfRank(0).ProcessEnded("a");
  NodeOfRank(1).ProcessEnded("b");
  EXPECT_EQ(*Join(0, "x", "c"), 2);
  EXPECT_EQ(*Join(1, "x", "d"), 2);
}

TEST_P(LedgerContract, ProcessThatEndsBeforeItsJoinIsAnsweredMayBeSucceeded) {
  const auto spec = [](int rank, const std::string& instance) {
    Ledger::JoinSpec made = Spec(rank, "x", instance);
    made.world_size = 4;
    return made;
  };
  int answers = 0;
  const auto answer = [&answers](const absl::StatusOr<int64_t>&) { ++answers; };
  NodeOfRank(1).Join(spec(1, "p1"), answer);
  NodeOfRank(3).Join(spec(3, "p3"), answer);
  NodeOfRank(3).ProcessEnded("p3");
  world_->RunUntil([&] { return answers == 2; });
  EXPECT_EQ(*Join(spec(3, "successor")), 2);
}

TEST_P(LedgerContract, ProcessThatJoinsAgainBeforeItsEndIsAnsweredLives) {
  ASSERT_EQ(*Join(0, "x", "p0"), 1);
  int answers = 0;
  NodeOfRank(1).Join(Spec(1, "x", "p1"), [&answers](const absl::StatusOr<int64_t>&) { ++answers; });
  NodeOfRank(1).ProcessEnded("p1");
  NodeOfRank(1).Join(Spec(1, "x", "p1"), [&answers](const absl::StatusOr<int64_t>&) { ++answers; });
  world_->RunUntil([&] { return answers == 2; });
  EXPECT_EQ(ReasonOf(Join(1, "x", "another").status()), "RANK_TAKEN");
}

TEST_P(LedgerContract, SuccessorInAnOldLaunchIsFencedAndItsPredecessorGoesOn) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_EQ(*Join(1, "x", "b"), 1);
  NodeOfRank(0).ProcessEnded("a");
  ASSERT_EQ(*Join(1, "y", "c"), 2);
  EXPECT_EQ(ReasonOf(Join(0, "x", "d").status()), "FENCED");
  EXPECT_EQ(*Join(0, "x", "a"), 1);
}

TEST_P(LedgerContract, AttemptHasOneWorldSizeAndIsTheOneThatWasAskedFor) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  Ledger::JoinSpec larger = Spec(1, "x", "b");
  larger.world_size = 3;
  EXPECT_EQ(ReasonOf(Join(larger).status()), "WORLD_SIZE_MISMATCH");
  Ledger::JoinSpec other = Spec(1, "x", "b");
  other.requested_attempt = 5;
  EXPECT_EQ(ReasonOf(Join(other).status()), "FENCED");
  EXPECT_EQ(*Join(1, "x", "b"), 1);
}

TEST_P(LedgerContract, LaunchOfAnotherJobIsRefusedWhileTheFirstRunsAndMayTakeItOver) {
  const auto spec = [](int rank, const std::string& launch, const std::string& instance,
                       const std::string& job) {
    Ledger::JoinSpec made = Spec(rank, launch, instance);
    made.job = job;
    return made;
  };
  ASSERT_EQ(*Join(spec(0, "one", "a", "job 1")), 1);
  ASSERT_EQ(*Join(spec(1, "one", "b", "job 1")), 1);
  const absl::Status refused = Join(spec(1, "two", "c", "job 2")).status();
  EXPECT_EQ(ReasonOf(refused), "RUN_IN_USE");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("attempt 1 (ranks 0,1) of another job"));
  Ledger::JoinSpec takeover = spec(1, "two", "c", "job 2");
  takeover.takeover = true;
  EXPECT_EQ(*Join(takeover), 2);
  EXPECT_EQ(*Join(spec(0, "two", "e", "job 2")), 2);
  EXPECT_EQ(ReasonOf(Join(spec(0, "three", "d", "job 3")).status()), "RUN_IN_USE");
  NodeOfRank(0).ProcessEnded("a");
  NodeOfRank(1).ProcessEnded("c");
  ASSERT_EQ(*Join(spec(1, "one", "b", "job 1")), 1);  // After this, the node has told the others of c's end.
  EXPECT_EQ(*Join(spec(0, "three", "d", "job 3")), 3) << "one process of each launch has ended";
}

TEST_P(LedgerContract, PartsOfOneLaunchUnderTwoIdsAreRefusedWithBothIdsAndNodes) {
  if (!world_->several_nodes()) GTEST_SKIP() << "one node has one id";
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  for (const std::string job : {"", "another job"}) {
    Ledger::JoinSpec other = Spec(1, "y", "b");
    other.job = job;
    const absl::Status refused = Join(other).status();
    EXPECT_EQ(ReasonOf(refused), "LAUNCH_IDS_DIFFER");
    EXPECT_THAT(
        std::string(refused.message()),
        HasSubstr("rank 1 on node \"node2\" has the launch id \"y\", and ranks 0 on node \"node1\", of as "
                  "many, have \"x\"; set CKPTD_LAUNCH_ID to one text on all nodes"));
  }
  EXPECT_EQ(*Join(1, "x", "b"), 1);
}

TEST_P(LedgerContract, LaunchWhoseOnlyProcessHasEndedIsNoPartOfTheNext) {
  if (!world_->several_nodes()) GTEST_SKIP() << "one node has one id";
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  NodeOfRank(0).ProcessEnded("a");
  const auto flushed = Await<absl::StatusOr<int64_t>>(
      [&](auto answer) { NodeOfRank(0).Join(Spec(1, "z", "z1"), std::move(answer)); });
  ASSERT_TRUE(flushed.ok()) << flushed.status();  // After this, the node has told the others of a's end.
  const auto joined = Join(1, "y", "y1");
  EXPECT_TRUE(joined.ok()) << joined.status();
}

TEST_P(LedgerContract, LaunchThatFollowsOneOnOtherNodesIsNoPartOfIt) {
  // Which has all ranks.
  ASSERT_EQ(*Join(0, "a", "a0"), 1);
  ASSERT_EQ(*Join(1, "a", "a1"), 1);
  EXPECT_EQ(*Join(1, "b", "b1"), 2);
  ASSERT_EQ(*Join(0, "b", "b0"), 2);
  // Which has only its first rank, after a process has begun this one with that rank.
  ASSERT_EQ(*Join(0, "c", "c0"), 3);
  ASSERT_TRUE(Activate(3).ok());
  if (second_ == nullptr) return;
  ASSERT_EQ(ReasonOf(Join(1, "d", "d1").status()), "LAUNCH_IDS_DIFFER");
  const auto on_second = [this](int rank, const std::string& instance) {
    return Await<absl::StatusOr<int64_t>>(
        [&](auto answer) { second_->Join(Spec(rank, "d", instance), std::move(answer)); });
  };
  EXPECT_EQ(*on_second(0, "d0"), 4);
  EXPECT_EQ(*on_second(1, "d1"), 4);
  // Which is over.
  NodeOfRank(0).ProcessEnded("c0");
  second_->ProcessEnded("d0");
  ASSERT_EQ(*Join(0, "e", "e0"), 5);
  Ledger::JoinSpec takeover = Spec(1, "f", "f1");
  ASSERT_EQ(ReasonOf(Join(takeover).status()), "LAUNCH_IDS_DIFFER");
  takeover.takeover = true;
  EXPECT_EQ(*Join(takeover), 6);
  ASSERT_TRUE(Activate(6, 1).ok());
  second_->ProcessEnded("f1");
  EXPECT_EQ(*Join(1, "g", "g1"), 7) << "attempt 5 acts no more";
  NodeOfRank(1).ProcessEnded("g1");
  Ledger::JoinSpec next = Spec(0, "h", "h0");
  next.takeover = true;  // The other node may not have heard yet that g1 has ended.
  ASSERT_EQ(*Join(next), 8);
  Ledger::JoinSpec larger = Spec(1, "i", "i1");
  larger.world_size = 3;
  EXPECT_EQ(*Join(larger), 9);
}

TEST_P(LedgerContract, DaemonThatIsReplacedDecidesNothing) {
  if (!world_->several_nodes()) GTEST_SKIP() << "one node has one daemon";
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(Decide(1, "step_5", 5), "step_5");
  const auto successor = world_->StartNode("node1");
  const std::string replaced = ledger_reason::kNodeReplaced;
  EXPECT_EQ(ReasonOf(Join(0, "y", "b").status()), replaced);
  EXPECT_EQ(ReasonOf(Activate(1)), replaced);
  EXPECT_EQ(ReasonOf(Admit(1).status()), replaced);
  EXPECT_EQ(Decide(1, "step_9", 9), replaced);
  EXPECT_EQ(ReasonOf(Reject(1, 5)), replaced);
  EXPECT_EQ(Agree(1, 5), replaced);
  EXPECT_EQ(Decided(1, 1), "step_5") << "on the other node";
  EXPECT_EQ(*Join(1, "x", "c"), 1);
}

// ---- which attempt acts

TEST_P(LedgerContract, LaterAttemptThatActsFencesTheEarlierForGood) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_EQ(*Join(1, "x", "c"), 1);
  ASSERT_EQ(*Join(1, "y", "b"), 2);
  EXPECT_TRUE(Activate(1, 0).ok());
  EXPECT_TRUE(Activate(1, 0).ok());
  EXPECT_TRUE(Activate(2, 1).ok());
  EXPECT_EQ(ReasonOf(Activate(1, 0)), "FENCED");
  EXPECT_EQ(ReasonOf(Admit(1, 0).status()), "FENCED");
  EXPECT_EQ(Decide(1, "s1", 1), "FENCED");
  EXPECT_EQ(Agree(1, 1), "FENCED");
  Restart();
  EXPECT_EQ(ReasonOf(Activate(1, 0)), "FENCED");
}

TEST_P(LedgerContract, UnknownAttemptDoesNotAct) {
  EXPECT_EQ(ReasonOf(Activate(7)), "NOT_JOINED");
  EXPECT_EQ(Decide(7, "s1", 1), "NOT_JOINED");
}

TEST_P(LedgerContract, WatchersHearOfANewerAttemptAndTheOneThatActsBeforeItsAnswer) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_EQ(*Join(1, "x", "c"), 1);
  ASSERT_EQ(*Join(1, "y", "b"), 2);
  std::vector<int64_t> here, there;
  first_->WatchActiveAttempt([&](int64_t attempt) { here.push_back(attempt); });
  if (second_ != nullptr) second_->WatchActiveAttempt([&](int64_t attempt) { there.push_back(attempt); });
  world_->RunUntil([&] { return !here.empty() && (second_ == nullptr || !there.empty()); });
  bool heard_first = false;
  const absl::Status active = Await<absl::Status>([&](auto answer) {
    first_->Activate(1, [&, answer = std::move(answer)](absl::Status result) mutable {
      heard_first = here.back() == 1;
      answer(std::move(result));
    });
  });
  EXPECT_TRUE(active.ok()) << active;
  EXPECT_TRUE(heard_first);
  ASSERT_TRUE(Activate(2, 1).ok());
  world_->RunUntil([&] { return here.back() == 2; });
  EXPECT_THAT(here, ElementsAre(0, 1, 2));
  if (second_ == nullptr) return;
  world_->RunUntil([&] { return there.back() == 2; });
  EXPECT_TRUE(std::is_sorted(there.begin(), there.end()));
}

TEST_P(LedgerContract, WatcherThatComesLaterHearsWhatActsAlready) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  for (int rank : {0, 1}) {
    std::vector<int64_t> heard;
    NodeOfRank(rank).WatchActiveAttempt([&](int64_t attempt) { heard.push_back(attempt); });
    world_->RunUntil([&] { return !heard.empty(); });
    EXPECT_THAT(heard, ElementsAre(1));
    NodeOfRank(rank).WatchActiveAttempt([](int64_t) {});
  }
}

// ---- sequences

TEST_P(LedgerContract, SequencesRiseOnAllNodesAndNoneIsGivenTwice) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  int64_t last = 0;
  for (int save = 0; save < 6; ++save) {
    const int64_t sequence = *Admit(1, save % 2);
    EXPECT_GT(sequence, last);
    last = sequence;
  }
  std::set<int64_t> given;
  int answers = 0;
  for (int save = 0; save < 10; ++save) {
    NodeOfRank(save % 2).Admit(1, [&](const absl::StatusOr<int64_t>& sequence) {
      ++answers;
      given.insert(sequence.value_or(-1));
    });
  }
  world_->RunUntil([&] { return answers == 10; });
  EXPECT_EQ(given.size(), 10u);
  EXPECT_GT(*given.begin(), last);
}

// ---- what to resume from

TEST_P(LedgerContract, ResumeIsDecidedOnceForAllRanksAndSurvivesDaemons) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  EXPECT_EQ(Decided(1), "");
  EXPECT_EQ(Decide(1, "step_5", 5, 0), "step_5");
  EXPECT_EQ(Decide(1, "step_9", 9, 1), "step_5");
  Restart();
  EXPECT_EQ(Decide(1, "step_9", 9, 1), "step_5");
  EXPECT_EQ(Decided(1, 0), "step_5");
}

TEST_P(LedgerContract, RanksThatDecideTogetherGetOneAnswer) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  std::vector<std::string> told;
  for (int rank : {0, 1}) {
    NodeOfRank(rank).DecideResume(1, Choice{"step " + std::to_string(rank), rank + 1},
                                  [&](const absl::StatusOr<Choice>& choice) {
                                    told.push_back(choice.ok() ? choice->tag : ReasonOf(choice.status()));
                                  });
  }
  world_->RunUntil([&] { return told.size() == 2; });
  EXPECT_EQ(told[0], told[1]);
}

TEST_P(LedgerContract, DamagedChoiceIsWithdrawnOnceAndDecidedAnew) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(Decide(1, "two", 2, 0), "two");
  EXPECT_TRUE(Reject(1, 1).ok());
  EXPECT_EQ(Decided(1, 1), "two") << "another one was rejected";
  EXPECT_TRUE(Reject(1, 2, 1).ok());
  EXPECT_EQ(Decided(1, 0), "");
  EXPECT_TRUE(Reject(1, 2, 0).ok());
  EXPECT_EQ(Decide(1, "one", 1, 1), "one");
  EXPECT_TRUE(Reject(1, 2, 0).ok());
  EXPECT_EQ(Decided(1, 0), "one");
}

TEST_P(LedgerContract, AgreementHoldsForTheDecisionThatStands) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  EXPECT_EQ(Agree(1, 2), "NO_CHECKPOINT");
  ASSERT_EQ(Decide(1, "two", 2, 0), "two");
  EXPECT_EQ(Agree(1, 1), "NO_CHECKPOINT");
  EXPECT_EQ(Agree(1, 2, 1), "");
  EXPECT_EQ(Agree(1, 2, 0), "");
  EXPECT_EQ(Decided(1, 0), "two agreed");
  Restart();
  EXPECT_EQ(Decided(1, 1), "two agreed");
  ASSERT_TRUE(Reject(1, 2).ok());
  EXPECT_EQ(Agree(1, 2), "NO_CHECKPOINT");
  ASSERT_EQ(Decide(1, "one", 1), "one");
  EXPECT_EQ(Decided(1, 1), "one");
}

TEST_P(LedgerContract, LaunchThatCouldNotResumeSetsTheCheckpointsBeforeItAside) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(Decide(1, "two", 2), "two");
  EXPECT_EQ(Committed(1), 0) << "nothing has failed";
  ResumeFailed(1, 1, 1);
  EXPECT_EQ(Committed(1), 0) << "another checkpoint has failed";
  ResumeFailed(1, 2, 1);
  EXPECT_EQ(Committed(1, 0), 2);
  EXPECT_EQ(Committed(1, 1), 2) << "on all nodes";

  ASSERT_EQ(*Join(0, "y", "c"), 2);
  ASSERT_TRUE(Activate(2).ok());
  EXPECT_EQ(Committed(2), 2) << "it stays";
  Ledger::JoinSpec takeover = Spec(0, "z", "e");
  takeover.takeover = true;
  ASSERT_EQ(*Join(takeover), 3);
  ASSERT_TRUE(Activate(3).ok());
  EXPECT_EQ(Committed(2, 1), 0) << "it counts them";
  EXPECT_EQ(Committed(1), 0) << "also when etcd hears again what the launch before has saved";
  ASSERT_EQ(Decide(3, "five", 5), "five");
  ResumeFailed(3, 5);
  EXPECT_EQ(Committed(3), 0) << "whatever it could not load";
}

TEST_P(LedgerContract, LaunchThatResumesInTheEndSetsNothingAside) {
  ASSERT_EQ(*Join(0, "x", "a"), 1);
  ASSERT_TRUE(Activate(1).ok());
  ASSERT_EQ(Decide(1, "two", 2), "two");
  ResumeFailed(1, 2);
  EXPECT_EQ(Agree(1, 2, 1), "");
  EXPECT_EQ(Committed(1), 0);
}

}  // namespace
}  // namespace ckptd
