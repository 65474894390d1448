// JoinRun: what is checked, what the ledger is asked, and what the rank hears.
#include "daemon/engine/resume/run_joiner.h"

#include <optional>

#include "daemon/engine/run/session_table.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RunJoinerTest : public ClassTest {
 protected:
  RunJoinerTest() {
    for (SessionId session : {1, 2, 3}) {
      SessionInfo info;
      info.id = session;
      info.uid = 1000;
      info.client_instance = "process " + std::to_string(session);
      sessions_.Add(info);
    }
    run_ = AddRun(1000);
  }
  static v1::JoinRunRequest Request(int rank, int world_size, const std::string& launch = "launch") {
    v1::JoinRunRequest request;
    request.set_rank(rank);
    request.set_world_size(world_size);
    request.set_launch_id(launch);
    return request;
  }
  using Answer = std::optional<absl::StatusOr<v1::JoinRunResponse>>;
  Answer Join(SessionId session, const v1::JoinRunRequest& request) {
    auto answer = std::make_shared<Answer>();
    joiner_.Join(session, run_, request,
                 [answer](absl::StatusOr<v1::JoinRunResponse> joined) { *answer = std::move(joined); });
    RunCallbacks();
    return *answer;
  }
  // The error of a request that is refused, "" if it is not.
  std::string Refused(const v1::JoinRunRequest& request) {
    const Answer answer = Join(1, request);
    return answer->ok() ? "" : std::string(answer->status().message());
  }

  Run* run_;
  SessionTable sessions_;
  bool closed_ = false;
  std::vector<int64_t> joined_;      // Attempts.
  std::vector<int64_t> fenced_off_;  // Attempts that fenced off older ones.
  RunJoiner joiner_{
      8,
      /*node=*/"",
      this,
      &sessions_,
      {.find_run = [this](const std::string&) { return closed_ ? nullptr : run_; },
       .joined = [this](Run*, int64_t attempt, const v1::JoinRunRequest&) { joined_.push_back(attempt); },
       .fence_off = [this](Run*, int64_t attempt) { fenced_off_.push_back(attempt); }}};
  RunJoiner joiner_of_node_{8, "gpu17", this, &sessions_, {}};
};

TEST_F(RunJoinerTest, ASessionBecomesARankOfTheAttemptOfItsLaunch) {
  const Answer first = Join(1, Request(0, 2)), second = Join(2, Request(1, 2));
  EXPECT_EQ((*first)->attempt(), 1);
  EXPECT_EQ((*second)->attempt(), 1);
  EXPECT_EQ((*first)->run(), run_->name);
  EXPECT_THAT(joined_, ElementsAre(1, 1));
  const Member* member = run_->members.Find(2, 1);
  ASSERT_NE(member, nullptr);
  EXPECT_EQ(member->instance, "process 2");
  EXPECT_EQ(member->world_size, 2);
}

TEST_F(RunJoinerTest, NamesTheFieldThatIsWrong) {
  EXPECT_THAT(Refused(Request(0, 0)), HasSubstr("world_size is 0"));
  EXPECT_THAT(Refused(Request(2, 2)), HasSubstr("rank is 2; it is in [0, 2)"));
  EXPECT_THAT(Refused(Request(-1, 2)), HasSubstr("rank is -1"));
  EXPECT_THAT(Refused(Request(0, 2, "")), HasSubstr("launch_id has 0 characters"));
  EXPECT_THAT(Refused(Request(0, 9)), HasSubstr("limits.ranks_per_run"));
  v1::JoinRunRequest orphaned = Request(0, 2);
  orphaned.add_orphaned()->set_tag("../up");
  EXPECT_NE(Refused(orphaned), "");
  EXPECT_TRUE(run_->members.empty());
  EXPECT_THAT(joined_, IsEmpty());
}

TEST_F(RunJoinerTest, RefusesARunThatSpansNodes) {
  v1::JoinRunRequest request = Request(0, 4);
  request.set_local_world_size(2);
  const Answer alone = Join(1, request);
  EXPECT_EQ(ReasonOf(alone->status()), reason::kMultiNodeUnsupported);
  EXPECT_THAT(std::string(alone->status().message()),
              AllOf(HasSubstr("world_size 4 spans nodes (2 ranks are on this one)"),
                    HasSubstr("it needs `cluster { etcd_endpoints: \"https://HOST:2379\" }`"),
                    HasSubstr("of the root /root0 in `cluster { shared_folders: ... }`")));
  Answer in_cluster;
  joiner_of_node_.Join(1, run_, request, [&in_cluster](absl::StatusOr<v1::JoinRunResponse> joined) {
    in_cluster = std::move(joined);
  });
  EXPECT_EQ(ReasonOf(in_cluster->status()), reason::kMultiNodeUnsupported);
  EXPECT_THAT(std::string(in_cluster->status().message()),
              AllOf(HasSubstr("node \"gpu17\" does not share this root"), HasSubstr("shared_folders"),
                    Not(HasSubstr("etcd_endpoints"))));
}

TEST_F(RunJoinerTest, SaysWhyARootIsOfOneNodeForGood) {
  class BucketRootIo : public FakeRootIo {
   public:
    using FakeRootIo::FakeRootIo;
    std::string why_one_node() const override { return "it is in a bucket: use a shared folder"; }
  };
  FakeRootIo::Queue queue;
  BucketRootIo bucket(std::make_shared<FakeDisk>(), &queue);
  run_->local_io = &bucket;
  v1::JoinRunRequest request = Request(0, 4);
  request.set_local_world_size(2);
  const Answer refused = Join(1, request);
  EXPECT_EQ(ReasonOf(refused->status()), reason::kMultiNodeUnsupported);
  EXPECT_THAT(std::string(refused->status().message()),
              HasSubstr("(2 ranks are on this one); it is in a bucket"));
}

TEST_F(RunJoinerTest, TheFirstLabelOfARunStays) {
  v1::JoinRunRequest request = Request(0, 2);
  request.set_run_id("llama");
  EXPECT_EQ((*Join(1, request))->run_id(), "llama");
  request = Request(1, 2);
  EXPECT_EQ((*Join(2, request))->run_id(), "llama") << "a rank that names none hears the run's";
  request.set_run_id("gpt");
  EXPECT_EQ(ReasonOf(Join(2, request)->status()), reason::kRunIdMismatch);
}

TEST_F(RunJoinerTest, TheRankOfALivingProcessIsTaken) {
  ASSERT_TRUE(Join(1, Request(0, 2))->ok());
  EXPECT_EQ(ReasonOf(Join(2, Request(0, 2))->status()), reason::kRankTaken);
  EXPECT_EQ(run_->members.FindRank(1, 0)->session, 1);
}

// A ledger of several nodes answers later.
class LaterLedger : public LocalLedger {
 public:
  using LocalLedger::LocalLedger;
  void Join(const JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) override {
    later_.push_back(
        [this, spec, answer = std::move(answer)]() mutable { LocalLedger::Join(spec, std::move(answer)); });
  }
  void ProcessEnded(const std::string& instance) override { ended.push_back(instance); }
  std::vector<std::string> ended;
  void AnswerAll() {
    for (auto& answer : std::exchange(later_, {})) answer();
  }

 private:
  std::vector<absl::AnyInvocable<void()>> later_;
};

TEST_F(RunJoinerTest, WhoseSessionOrRunEndsBeforeTheLedgerAnswersDoesNotJoin) {
  auto ledger = std::make_unique<LaterLedger>(
      storage::v1::RunRecord(), 0,
      [](const storage::v1::RunRecord&, absl::AnyInvocable<void(absl::Status)>) {});
  LaterLedger& later = *ledger;
  run_->SetLedger(std::move(ledger));
  std::vector<std::string> reasons;
  const auto join = [&](SessionId session, int rank) {
    joiner_.Join(session, run_, Request(rank, 2), [&](absl::StatusOr<v1::JoinRunResponse> joined) {
      reasons.push_back(ReasonOf(joined.status()));
    });
  };
  join(1, 0);
  EXPECT_THAT(reasons, IsEmpty());
  sessions_.Remove(1);
  later.AnswerAll();
  join(2, 1);
  closed_ = true;
  later.AnswerAll();
  EXPECT_THAT(reasons, ElementsAre(reason::kUnknownToken, reason::kUnknownToken));
  EXPECT_TRUE(run_->members.empty());
  EXPECT_THAT(joined_, IsEmpty());
}

// Else it would count as a process that lives for as long as the daemon does, and another launch would be
// refused.
TEST_F(RunJoinerTest, LedgerHearsOfTheEndOfAProcessThatEndedBeforeItsAnswer) {
  auto ledger = std::make_unique<LaterLedger>(
      storage::v1::RunRecord(), 0,
      [](const storage::v1::RunRecord&, absl::AnyInvocable<void(absl::Status)>) {});
  LaterLedger& later = *ledger;
  run_->SetLedger(std::move(ledger));
  joiner_.Join(1, run_, Request(0, 2), [](const absl::StatusOr<v1::JoinRunResponse>&) {});
  joiner_.Join(2, run_, Request(1, 2), [](const absl::StatusOr<v1::JoinRunResponse>&) {});
  SessionInfo again = *sessions_.Find(2);
  sessions_.Remove(1);
  sessions_.Remove(2);
  again.id = 4;
  sessions_.Add(again);  // The process has connected anew.
  later.AnswerAll();
  EXPECT_THAT(later.ended, ElementsAre("process 1"));
}

TEST_F(RunJoinerTest, RankZeroHearsOfTheRootsWarningsAndOfATakeover) {
  run_->probe.warnings = {"rename is slow"};
  v1::JoinRunRequest running = Request(0, 1);
  running.set_process("1/1");
  running.set_job("first");
  EXPECT_THAT((*Join(1, running))->warnings(), ElementsAre(HasSubstr("rename is slow")));
  v1::JoinRunRequest other = Request(0, 1, "other launch");
  other.set_process("2/2");
  other.set_job("second");
  EXPECT_EQ(ReasonOf(Join(2, other)->status()), "RUN_IN_USE");
  EXPECT_THAT(fenced_off_, IsEmpty());
  other.set_takeover(true);
  const Answer taken = Join(2, other);
  ASSERT_TRUE(taken->ok()) << taken->status();
  EXPECT_EQ((*taken)->attempt(), 2);
  EXPECT_THAT((*taken)->warnings(), ElementsAre(HasSubstr("rename is slow"), HasSubstr("from attempt 1")));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("is fenced off now"))) << "the log says it, too";
  EXPECT_THAT(fenced_off_, ElementsAre(2));
}

}  // namespace
}  // namespace ckptd
