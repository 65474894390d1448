// A node over gRPC, with a model of etcd. tests/integration/cluster_test.cc has whole daemons and Debian's
// etcd.
#include "daemon/runtime/cluster/cluster_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/errors.h"
#include "tests/testing/etcd_fake_member.h"
#include "tests/testing/inbox.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a daemon has of this: the thread's work, and the state directory.
struct Daemon {
  std::shared_ptr<Inbox> inbox;
  std::vector<std::string> state;
  int registrations = 0;
  std::string state_shown = "SERVING";  // In its summary.
  int answered = 0, failed = 0;         // Requests to etcd.
  std::unique_ptr<ClusterNode> node;
};

class ClusterNodeTest : public ::testing::Test {
 protected:
  Daemon& Start(const std::string& name, const std::string& host, std::vector<std::string> endpoints) {
    Daemon& daemon = *daemons_.emplace_back(std::make_unique<Daemon>());
    daemon.inbox = NewInbox();
    ClusterNode::Options options;
    options.etcd.endpoints = std::move(endpoints);
    options.etcd.call_timeout = seconds(1);
    options.etcd.try_timeout = milliseconds(500);
    options.membership = {"/c/", name, host, {}, /*lease_seconds=*/2, milliseconds(50), "1.2.3"};
    ClusterNode::Hooks hooks;
    hooks.post = [inbox = daemon.inbox](absl::AnyInvocable<void()> work) { inbox->Post(std::move(work)); };
    hooks.remember = [&daemon](const std::vector<std::string>& incarnations, NodeRegistration::Done done) {
      daemon.state = incarnations;
      done(absl::OkStatus());
    };
    hooks.new_incarnation = [&daemon, host] { return host + std::to_string(++daemon.registrations); };
    hooks.call_ended = [&daemon](Duration, const absl::Status& outcome) {
      ++(outcome.ok() ? daemon.answered : daemon.failed);
    };
    auto made = ClusterNode::Make(std::move(options), std::move(hooks));
    EXPECT_TRUE(made.ok()) << made.status();
    daemon.node = *std::move(made);
    return daemon;
  }
  Daemon& Start(const std::string& name) { return Start(name, "host of " + name, {member_.endpoint()}); }

  void RunUntil(const std::string& what, const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(60);
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "waited in vain for " << what;
      for (const auto& daemon : daemons_) {
        if (auto work = daemon->inbox->Take(milliseconds(5))) work();
        daemon->node->OnTick([&] {
          v1::Status status;
          status.set_state(daemon->state_shown);
          status.set_sessions(3);
          return status;
        });
      }
    }
  }
  void WaitUntilRegistered(Daemon& daemon) {
    RunUntil("the registration", [&] { return daemon.node->Status().registered(); });
  }
  static std::vector<std::string> Names(const Daemon& daemon) {
    std::vector<std::string> names;
    const v1::ClusterStatus status = daemon.node->Status();
    for (const auto& node : status.nodes()) names.push_back(node.name());
    return names;
  }
  // The lease of the node's key.
  int64_t LeaseOf(const std::string& name) {
    etcdserverpb::RangeRequest request;
    request.set_key("/c/nodes/" + name);
    int64_t lease = 0;
    member_.WithModel([&](EtcdModel& model) {
      const auto found = model.Range(request);
      if (found.ok() && found->kvs_size() > 0) lease = found->kvs(0).lease();
    });
    return lease;
  }

  EtcdFakeMember member_;
  std::vector<std::unique_ptr<Daemon>> daemons_;

 private:
  // They stay until the process ends: gRPC's threads may post after the end of the test.
  static std::shared_ptr<Inbox> NewInbox() {
    static auto* const inboxes = new std::vector<std::shared_ptr<Inbox>>;
    return inboxes->emplace_back(std::make_shared<Inbox>());
  }
};

TEST_F(ClusterNodeTest, ShowsItselfAndTheOtherNodes) {
  Daemon& one = Start("one");
  Daemon& two = Start("two");
  EXPECT_EQ(one.node->identity(), nullptr);
  EXPECT_FALSE(one.node->Status().has_error()) << "no try has ended";
  EXPECT_FALSE(one.node->Status().etcd_members(0).has_answers());
  RunUntil("both nodes", [&] { return Names(one).size() == 2 && Names(two).size() == 2; });
  WaitUntilRegistered(one);
  const v1::ClusterStatus status = one.node->Status();
  EXPECT_EQ(status.node(), "one");
  EXPECT_GT(status.register_time().seconds(), 1'700'000'000);
  EXPECT_EQ(status.lost_leases(), 0);
  EXPECT_EQ(status.etcd_members(0).endpoint(), member_.endpoint());
  EXPECT_TRUE(status.etcd_members(0).answers());
  EXPECT_EQ(status.nodes(1).name(), "two");
  EXPECT_EQ(status.nodes(1).host(), "host of two");
  EXPECT_EQ(status.nodes(1).daemon_version(), "1.2.3");
  EXPECT_GT(status.nodes(1).register_time().seconds(), 1'700'000'000);
  EXPECT_EQ(one.node->identity()->key, "/c/nodes/one");
  EXPECT_GE(one.answered, 3) << "a lease, the name, a list";
}

TEST_F(ClusterNodeTest, ShowsWhatEachNodeHasReportedAndForgetsItWithTheRegistration) {
  Daemon& one = Start("one");
  Daemon& two = Start("two");
  two.state_shown = "DRAINED";
  const auto ask = [&] {
    std::optional<v1::Status> answer;
    v1::Status status;
    *status.mutable_cluster() = one.node->Status();
    one.node->AddSummaries(std::move(status), [&](absl::StatusOr<v1::Status> read) { answer = *read; });
    RunUntil("the answer", [&] { return answer.has_value(); });
    return answer->cluster();
  };
  v1::ClusterStatus seen;
  RunUntil("both reports", [&] {
    seen = ask();
    return seen.nodes_size() == 2 && seen.nodes(0).has_summary() && seen.nodes(1).has_summary();
  });
  EXPECT_EQ(seen.nodes(0).summary().state(), "SERVING");
  EXPECT_EQ(seen.nodes(1).summary().state(), "DRAINED");
  EXPECT_EQ(seen.nodes(1).summary().sessions(), 3);
  EXPECT_GT(seen.nodes(1).summary().time().seconds(), 1'700'000'000);
  EXPECT_LT(seen.nodes(1).summary().ByteSizeLong(), 300);
  bool released = false;
  two.node->Release([&](const absl::Status&) { released = true; });
  RunUntil("the release", [&] { return released; });
  RunUntil("its loss", [&] { return ask().lost_nodes_size() == 1; });
  EXPECT_EQ(ask().lost_nodes(0), "two");
  EXPECT_EQ(ask().nodes_size(), 1);
}

TEST_F(ClusterNodeTest, SaysWhichMemberAnswersAndWhyAnotherDoesNot) {
  std::string gone;
  {
    EtcdFakeMember ended;
    gone = ended.endpoint();
  }
  Daemon& daemon = Start("one", "h", {gone, member_.endpoint()});
  WaitUntilRegistered(daemon);
  const v1::ClusterStatus status = daemon.node->Status();
  EXPECT_TRUE(status.etcd_members(0).has_answers() && !status.etcd_members(0).answers());
  EXPECT_THAT(status.etcd_members(0).error(), HasSubstr("Connection refused"));
  EXPECT_TRUE(status.etcd_members(1).answers());
  EXPECT_EQ(status.etcd_members(1).error(), "");
}

TEST_F(ClusterNodeTest, SaysThatEtcdDoesNotAnswer) {
  std::string gone;
  {
    EtcdFakeMember ended;
    gone = ended.endpoint();
  }
  Daemon& daemon = Start("one", "h", {gone});
  RunUntil("the error", [&] { return daemon.node->Status().has_error(); });
  EXPECT_EQ(daemon.node->Status().error().reason(), ledger_reason::kUnavailable);
  EXPECT_THAT(daemon.node->Status().error().message(), HasSubstr(gone));
  EXPECT_FALSE(daemon.node->Status().registered());
  EXPECT_GE(daemon.failed, 1);
  EXPECT_EQ(daemon.answered, 0);
}

TEST_F(ClusterNodeTest, RegistersAgainWhenItsLeaseWasLostAndCountsIt) {
  Daemon& daemon = Start("one");
  WaitUntilRegistered(daemon);
  const int64_t before = LeaseOf("one");
  member_.EndLease(before);
  RunUntil("the loss", [&] { return daemon.node->Status().lost_leases() == 1; });
  WaitUntilRegistered(daemon);
  EXPECT_NE(LeaseOf("one"), before);
  EXPECT_EQ(daemon.node->Status().lost_leases(), 1);
  EXPECT_FALSE(daemon.node->Status().has_error());
}

// What a follower has heard: the values of registrations, "none" for null.
struct Heard {
  explicit Heard(ClusterNode& node)
      : following(node.Follow([this](const NodeIdentity* identity) {
          registrations.push_back(identity == nullptr ? "none" : identity->value);
        })) {}
  std::vector<std::string> registrations;
  std::shared_ptr<const ClusterNode::Follower> following;
};

TEST_F(ClusterNodeTest, FollowersHearOfEachRegistrationAndLossOnce) {
  Daemon& daemon = Start("one");
  Heard early(*daemon.node);
  WaitUntilRegistered(daemon);
  const std::string first = daemon.node->identity()->value;
  Heard late(*daemon.node);
  member_.EndLease(LeaseOf("one"));
  RunUntil("the loss", [&] { return daemon.node->Status().lost_leases() == 1; });
  WaitUntilRegistered(daemon);
  const std::string second = daemon.node->identity()->value;
  EXPECT_NE(first, second);
  EXPECT_THAT(early.registrations, ElementsAre("none", first, "none", second));
  EXPECT_THAT(late.registrations, ElementsAre(first, "none", second));
}

TEST_F(ClusterNodeTest, FollowersHearNothingOfTriesThatFail) {
  std::string gone;
  {
    EtcdFakeMember ended;
    gone = ended.endpoint();
  }
  Daemon& daemon = Start("one", "h", {gone});
  Heard heard(*daemon.node);
  RunUntil("the error", [&] { return daemon.node->Status().has_error(); });
  EXPECT_THAT(heard.registrations, ElementsAre("none"));
}

TEST_F(ClusterNodeTest, FollowersHearOfTheReleaseBeforeTheNameIsFree) {
  Daemon& daemon = Start("one");
  WaitUntilRegistered(daemon);
  const std::string value = daemon.node->identity()->value;
  Heard heard(*daemon.node);
  int64_t lease_when_heard = 0;
  const auto following = daemon.node->Follow([&](const NodeIdentity* identity) {
    if (identity == nullptr) lease_when_heard = LeaseOf("one");
  });
  bool released = false;
  daemon.node->Release([&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    released = true;
  });
  EXPECT_THAT(heard.registrations, ElementsAre(value, "none"));
  EXPECT_NE(lease_when_heard, 0);
  RunUntil("the release", [&] { return released; });
  EXPECT_EQ(LeaseOf("one"), 0);
  EXPECT_THAT(heard.registrations, ElementsAre(value, "none"));
  EXPECT_EQ(daemon.node->Status().lost_leases(), 0);
}

TEST_F(ClusterNodeTest, FollowerMayEndAnotherOneWhileItIsCalled) {
  Daemon& daemon = Start("one");
  std::unique_ptr<Heard> other;
  const auto following = daemon.node->Follow([&](const NodeIdentity*) { other.reset(); });
  other = std::make_unique<Heard>(*daemon.node);
  WaitUntilRegistered(daemon);
  EXPECT_EQ(other, nullptr);
}

TEST_F(ClusterNodeTest, WaitsForANameThatAnotherDaemonHas) {
  Daemon& first = Start("one", "h1", {member_.endpoint()});
  WaitUntilRegistered(first);
  Daemon& second = Start("one", "h2", {member_.endpoint()});
  RunUntil("the refusal", [&] { return second.node->Status().has_error(); });
  EXPECT_EQ(second.node->Status().error().reason(), ledger_reason::kNodeNameTaken);
  EXPECT_THAT(second.node->Status().error().message(), HasSubstr("a daemon on host h1 "));
  EXPECT_EQ(second.node->Status().nodes(0).host(), "h1");
  EXPECT_EQ(second.node->Status().lost_leases(), 0);
  absl::Status released = absl::UnknownError("not answered");
  first.node->Release([&](absl::Status status) { released = std::move(status); });
  WaitUntilRegistered(second);
  EXPECT_TRUE(released.ok()) << released;
  EXPECT_FALSE(first.node->Status().registered());
}

// The lease is acquired and the nodes are listed at once; both requests are refused.
TEST_F(ClusterNodeTest, TriesAgainWhatWasRefused) {
  const grpc::Status denied(grpc::StatusCode::PERMISSION_DENIED, "etcdserver: permission denied");
  member_.FailNext(denied);
  member_.FailNext(denied);
  Daemon& daemon = Start("one");
  RunUntil("both errors", [&] {
    const v1::ClusterStatus status = daemon.node->Status();
    return status.has_error() && status.has_nodes_error();
  });
  EXPECT_EQ(daemon.node->Status().error().reason(), ledger_reason::kRefused);
  EXPECT_EQ(daemon.node->Status().nodes_error().reason(), ledger_reason::kRefused);
  EXPECT_TRUE(daemon.node->Status().etcd_members(0).answers()) << "a refusal is an answer";
  RunUntil("the nodes", [&] { return Names(daemon) == std::vector<std::string>{"one"}; });
  EXPECT_FALSE(daemon.node->Status().has_nodes_error());
  WaitUntilRegistered(daemon);
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(ClusterNodeTest, LogsEachNodeThatIsLostAndThatIsBackOnce) {
  Daemon& one = Start("one");
  Daemon& two = Start("two");
  RunUntil("both nodes", [&] { return Names(one).size() == 2; });
  WaitUntilRegistered(two);
  ::testing::internal::CaptureStderr();
  two.node->Release([](const absl::Status&) {});
  RunUntil("the loss", [&] { return Names(one).size() == 1; });
  Daemon& again = Start("two", "another host", {member_.endpoint()});
  WaitUntilRegistered(again);
  RunUntil("the return", [&] { return Names(one).size() == 2; });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(Count(log, "another node is no longer registered in etcd"), 1) << log;
  EXPECT_EQ(Count(log, "node=one lost=two host=\"host of two\""), 1) << log;
  EXPECT_EQ(Count(log, "another node is registered in etcd again node=one back=two host=\"another host\""), 1)
      << log;
}

TEST_F(ClusterNodeTest, LogsOnceThatEtcdIsFullAndThatItTakesWritesAgain) {
  const grpc::Status full(grpc::StatusCode::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded");
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) member_.FailNext(full);  // A list of the nodes, and two leases.
  Daemon& daemon = Start("one");
  WaitUntilRegistered(daemon);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(Count(log, "etcd is full"), 1) << log;
  EXPECT_EQ(Count(log, "disarm its NOSPACE alarm"), 2) << "and why the node is not registered: " << log;
  EXPECT_EQ(Count(log, "etcd takes writes again node=one"), 1) << log;
}

// Those who wait for the registration hear what keeps it away: a restored etcd is no etcd that does not
// answer.
TEST_F(ClusterNodeTest, SaysWhyItIsNotRegistered) {
  Daemon& daemon = Start("one");
  EXPECT_EQ(ReasonOf(daemon.node->WhyUnregistered()), ledger_reason::kUnavailable);
  EXPECT_THAT(std::string(daemon.node->WhyUnregistered().message()),
              HasSubstr("node \"one\" is not registered in etcd yet"));
  WaitUntilRegistered(daemon);
  EXPECT_EQ(daemon.node->WhyUnregistered(), absl::OkStatus());
  member_.SetClusterId(7);
  RunUntil("the loss", [&] { return !daemon.node->WhyUnregistered().ok(); });
  RunUntil("the reason", [&] { return daemon.node->Status().error().reason() == ledger_reason::kRestored; });
  const absl::Status why = daemon.node->WhyUnregistered();
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(why), ledger_reason::kRestored);
  EXPECT_THAT(std::string(why.message()),
              ::testing::AllOf(HasSubstr("node \"one\""), HasSubstr("restart the daemon")));
}

TEST_F(ClusterNodeTest, RefusesFilesThatCannotBeRead) {
  ClusterNode::Options options;
  options.etcd.endpoints = {member_.endpoint()};
  options.etcd.tls = EtcdTls{"/none/ca.pem", "", ""};
  const auto made = ClusterNode::Make(
      std::move(options),
      {.post = [](auto) {}, .remember = nullptr, .new_incarnation = nullptr, .call_ended = nullptr});
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("/none/ca.pem"));
}

}  // namespace
}  // namespace ckptd
