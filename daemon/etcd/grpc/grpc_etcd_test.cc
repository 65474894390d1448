// How the client behaves when members fail, which those of a real etcd do not do on demand.
// tests/contract/etcd_contract_test.cc tests what every implementation must do.
#include "daemon/etcd/grpc/grpc_etcd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/etcd/etcd_errors.h"
#include "storage/base/errors.h"
#include "tests/testing/etcd_caller.h"
#include "tests/testing/etcd_fake_member.h"
#include "tests/testing/inbox.h"

namespace ckptd {
namespace {

using etcdserverpb::Event;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

grpc::Status Unavailable() { return {grpc::StatusCode::UNAVAILABLE, "etcdserver: no leader"}; }

class GrpcEtcdTest : public ::testing::Test {
 protected:
  // Two members with different contents, by which a test tells which member has answered.
  EtcdOptions Options(int members = 1) {
    EtcdOptions options;
    options.endpoints.push_back(first_.endpoint());
    if (members == 2) options.endpoints.push_back(second_.endpoint());
    options.call_timeout = std::chrono::seconds(30);
    return options;
  }
  static std::string Message(const absl::Status& status) { return std::string(status.message()); }

  EtcdFakeMember first_, second_;
};

// ---- members

TEST_F(GrpcEtcdTest, AsksAnotherMemberWhenOneFailsAndStaysWithIt) {
  EtcdCaller caller(Options(2));
  first_.FailNext(Unavailable());
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  ASSERT_TRUE(caller.Write({Put("a", "2")}).ok());
  EXPECT_EQ(first_.requests(), 1);
  EXPECT_EQ(second_.requests(), 2);
}

TEST_F(GrpcEtcdTest, MemberThatDoesNotAnswerIsLeftAfterItsTime) {
  EtcdOptions options = Options(2);
  options.try_timeout = milliseconds(300);
  EtcdCaller caller(options);
  first_.IgnoreNext();
  EXPECT_TRUE(caller.Write({Put("a", "1")}).ok());
  EXPECT_EQ(second_.requests(), 1);
}

TEST_F(GrpcEtcdTest, KnowsWhichMembersAnswerAndReportsEachCallOnce) {
  EtcdCaller caller(Options(2));
  auto* const etcd = static_cast<GrpcEtcd*>(caller.etcd());
  std::vector<std::string> ended;
  etcd->OnCallEnded([&](Duration took, const absl::Status& outcome) {
    EXPECT_GE(took, Duration::zero());
    ended.push_back(outcome.ok() ? "OK" : ReasonOf(outcome));
  });
  EXPECT_EQ(etcd->members()[0].endpoint, first_.endpoint());
  EXPECT_EQ(etcd->members()[0].answers, std::nullopt);
  first_.FailNext(Unavailable());
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  EXPECT_EQ(etcd->members()[0].answers, false);
  EXPECT_THAT(etcd->members()[0].error, HasSubstr("no leader"));
  EXPECT_EQ(etcd->members()[1].answers, true);
  second_.FailNext({grpc::StatusCode::PERMISSION_DENIED, "etcdserver: permission denied"});
  EXPECT_FALSE(caller.Write({Put("a", "2")}).ok());
  EXPECT_EQ(etcd->members()[1].answers, true) << "a refusal is an answer";
  second_.FailNext(Unavailable());
  ASSERT_TRUE(caller.Write({Put("a", "3")}).ok());
  EXPECT_EQ(etcd->members()[0].answers, true);
  EXPECT_EQ(etcd->members()[0].error, "");
  EXPECT_THAT(ended, ElementsAre("OK", ledger_reason::kRefused, "OK")) << "with all its tries";
}

// Without the probe, the failed member would be asked nothing while the other one answers, and would be
// reported as failed for ever.
TEST_F(GrpcEtcdTest, MemberThatFailedOnceIsFoundToAnswerAgain) {
  EtcdOptions options = Options(2);
  options.probe_after = milliseconds(20);
  EtcdCaller caller(options);
  auto* const etcd = static_cast<GrpcEtcd*>(caller.etcd());
  first_.FailNext(Unavailable());
  first_.FailNext(Unavailable());
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  EXPECT_EQ(etcd->members()[0].answers, false);
  caller.RunUntil([&] { return etcd->members()[0].answers == true; });
  EXPECT_EQ(first_.requests(), 3) << "one probe has failed";
  EXPECT_EQ(etcd->members()[0].error, "");
  EXPECT_EQ(second_.requests(), 1);
  ASSERT_TRUE(caller.Write({Put("a", "2")}).ok());
  EXPECT_EQ(second_.requests(), 2) << "a call stays with the member that answers";
}

TEST_F(GrpcEtcdTest, CallOutlivesAnElection) {
  EtcdCaller caller(Options(2));
  for (int round = 0; round < 3; ++round) {
    first_.FailNext(Unavailable());
    second_.FailNext(Unavailable());
  }
  EXPECT_TRUE(caller.Write({Put("a", "1")}).ok());
}

TEST_F(GrpcEtcdTest, SaysWhoHasNotAnsweredWhileWhatAndWhy) {
  EtcdOptions options;
  {
    EtcdFakeMember gone;
    options.endpoints = {gone.endpoint()};
  }
  options.call_timeout = milliseconds(300);
  EtcdCaller caller(options);
  const absl::Status error = caller.Write({Put("a", "1")}).status();
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(error), ledger_reason::kUnavailable);
  EXPECT_THAT(Message(error), AllOf(HasSubstr(options.endpoints[0]), HasSubstr("while writing for a test"),
                                    HasSubstr("Connection refused"), HasSubstr("check that")));
}

TEST_F(GrpcEtcdTest, WhatEtcdRefusesIsNotAskedAgain) {
  EtcdCaller caller(Options(2));
  struct {
    grpc::Status status;
    const char* reason;
  } refusals[] = {
      {{grpc::StatusCode::PERMISSION_DENIED, "etcdserver: permission denied"}, ledger_reason::kRefused},
      {{grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: user name is empty"}, ledger_reason::kRefused},
      {{grpc::StatusCode::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"},
       ledger_reason::kFull},
      {{grpc::StatusCode::NOT_FOUND, "etcdserver: requested lease not found"}, ledger_reason::kLeaseEnded},
      {{grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: too many operations in txn request"},
       ledger_reason::kError},
  };
  for (const auto& refusal : refusals) {
    first_.FailNext(refusal.status);
    const absl::Status error = caller.Write({Put("a", "1")}).status();
    EXPECT_EQ(ReasonOf(error), refusal.reason);
    EXPECT_THAT(Message(error), HasSubstr("writing for a test"));
  }
  EXPECT_EQ(second_.requests(), 0);
}

TEST_F(GrpcEtcdTest, OverloadedMemberIsAskedAgain) {
  EtcdCaller caller(Options());
  first_.FailNext({grpc::StatusCode::RESOURCE_EXHAUSTED, "etcdserver: too many requests"});
  EXPECT_TRUE(caller.Write({Put("a", "1")}).ok());
}

TEST_F(GrpcEtcdTest, NothingIsAnsweredAfterItsEnd) {
  EtcdCaller caller(Options());
  first_.IgnoreNext();
  bool answered = false;
  caller.etcd()->Range(RangeRequest(), "reading",
                       [&](const absl::StatusOr<RangeResponse>&) { answered = true; });
  caller.RunUntil([this] { return first_.requests() == 1; });
  caller.Destroy();
  EtcdCaller other(Options());
  ASSERT_TRUE(other.Write({Put("a", "1")}).ok());
  EXPECT_FALSE(answered);
}

// Work that is posted after the owner's end is dropped on a thread of gRPC's, and with it the last references
// to calls, streams and channels. The owner ends after 0 to 11 callbacks, before its watch or after it.
TEST_F(GrpcEtcdTest, OwnerMayEndWhileCallsAndWatchesAreUnderWay) {
  for (int round = 0; round < 48; ++round) {
    const auto inbox = std::make_shared<Inbox>();
    const auto open = std::make_shared<std::atomic<bool>>(true);
    bool answered_late = false;
    const auto answer = [&answered_late, open](const auto&) { answered_late |= !*open; };
    auto etcd = GrpcEtcd::Make(Options(), &SystemClock(), [inbox, open](absl::AnyInvocable<void()> work) {
      if (*open) inbox->Post(std::move(work));
    });
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    auto watch = (*etcd)->Watch({"a", "", 1, "watching", answer, answer});
    for (int call = 0; call < 4; ++call) {
      TxnRequest request;
      *request.add_success() = Put("a", "1");
      (*etcd)->Txn(request, "writing", answer);
    }
    for (int step = 0; step < round % 12; ++step) {
      if (auto work = inbox->Take(milliseconds(20))) work();
      (*etcd)->OnTick();
    }
    *open = false;
    if (round % 2 == 0) watch.reset();
    etcd->reset();
    while (auto work = inbox->Take(milliseconds(0))) work();
    EXPECT_FALSE(answered_late);
  }
}

// ---- lost answers

// The transaction compares that "a" does not exist. Its second copy therefore writes nothing, and reads the
// value that the first copy has written.
TEST_F(GrpcEtcdTest, TransactionWhoseAnswerIsLostFindsItsOwnOutcome) {
  EtcdCaller caller(Options());
  first_.LoseNextAnswer();
  TxnRequest request;
  *request.add_compare() = Absent("a");
  *request.add_success() = Put("a", "mine");
  *request.add_failure() = Get("a");
  const auto answer = caller.Txn(request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_FALSE(answer->succeeded());
  ASSERT_NE(Found(*answer, 0), nullptr);
  EXPECT_EQ(Found(*answer, 0)->value(), "mine");
  EXPECT_EQ(Found(*answer, 0)->version(), 1) << "it was applied once";
}

// ---- an etcd that goes back in time

TEST_F(GrpcEtcdTest, LowerRevisionThanAnsweredBeforeEndsEverything) {
  EtcdCaller caller(Options());
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  ASSERT_TRUE(caller.Write({Put("a", "2")}).ok());
  first_.SetRevisionBack(1);
  EXPECT_EQ(ReasonOf(caller.Read("a").status()), ledger_reason::kRestored);
  first_.SetRevisionBack(0);
  const absl::Status still = caller.Read("a").status();
  EXPECT_EQ(ReasonOf(still), ledger_reason::kRestored) << "what was decided meanwhile may be gone";
  EXPECT_THAT(Message(still), HasSubstr("it was at revision 3, and is at 2"));
}

// An answer with a lower revision than an earlier one may only have been overtaken by it.
TEST_F(GrpcEtcdTest, RevisionIsComparedWithWhatWasKnownWhenTheRequestWasSent) {
  EtcdCaller caller(Options());
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  int answers = 0;
  for (int i = 0; i < 50; ++i) {
    TxnRequest request;
    *request.add_success() = Put("a", "1");
    caller.etcd()->Txn(request, "writing", [&](const auto& answer) { answers += answer.ok(); });
  }
  caller.RunUntil([&] { return answers == 50; });
}

TEST_F(GrpcEtcdTest, AnotherClusterIsNoticed) {
  EtcdCaller caller(Options());
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  first_.SetClusterId(7);
  EXPECT_EQ(ReasonOf(caller.Write({Put("a", "2")}).status()), ledger_reason::kRestored);
}

TEST_F(GrpcEtcdTest, FutureRevisionMeansThatEtcdWasRestored) {
  EtcdCaller caller(Options());
  RangeRequest request;
  request.set_key("a");
  request.set_revision(1000);
  EXPECT_EQ(ReasonOf(caller.Range(request).status()), ledger_reason::kRestored);
  EXPECT_EQ(ReasonOf(caller.Read("a").status()), ledger_reason::kRestored);
}

// ---- lists

TEST_F(GrpcEtcdTest, ListBeginsAgainWhenEtcdIsCompactedBetweenTwoPages) {
  EtcdCaller caller(Options());
  for (const char* key : {"p/1", "p/2", "p/3"}) ASSERT_TRUE(caller.Write({Put(key, "old")}).ok());
  first_.AnswerNext();
  first_.FailNext({grpc::StatusCode::OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"});
  const auto listing = caller.List("p/", 2);
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_EQ(listing->keys.size(), 3u);
}

// ---- users

TEST_F(GrpcEtcdTest, AuthenticatesOnceAndAgainWhenTheTokenHasExpired) {
  first_.RequireUser("ckptd", "secret");
  EtcdOptions options = Options();
  options.user = "ckptd";
  options.password = "secret";
  EtcdCaller caller(options);
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  ASSERT_TRUE(caller.Write({Put("a", "2")}).ok());
  EXPECT_EQ(first_.authentications(), 1);
  first_.RequireUser("ckptd", "secret");
  ASSERT_TRUE(caller.Write({Put("a", "3")}).ok());
  EXPECT_EQ(first_.authentications(), 2);
}

// The answer to Renew.
absl::StatusOr<bool> Renew(EtcdCaller& caller, const EtcdCredentials& credentials) {
  std::optional<absl::StatusOr<bool>> answer;
  static_cast<GrpcEtcd*>(caller.etcd())->Renew(credentials, [&](absl::StatusOr<bool> changed) {
    answer = std::move(changed);
  });
  caller.RunUntil([&] { return answer.has_value(); });
  return answer.value_or(absl::UnknownError("no answer"));
}

TEST_F(GrpcEtcdTest, NewPasswordIsUsedFromThenOnAndAWrongOneIsNot) {
  EtcdOptions options = Options();
  options.user = "ckptd";
  options.password = "old";
  first_.RequireUser("ckptd", "old");
  EtcdCaller caller(options);
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  EXPECT_EQ(Renew(caller, {.user = "ckptd", .password = "old"}).value(), false);
  const absl::StatusOr<bool> refused = Renew(caller, {.user = "ckptd", .password = "typo"});
  EXPECT_EQ(ReasonOf(refused.status()), "LEDGER_REFUSED") << refused.status();
  ASSERT_TRUE(caller.Write({Put("a", "2")}).ok());
  first_.RequireUser("ckptd", "new");
  EXPECT_EQ(Renew(caller, {.user = "ckptd", .password = "new"}).value(), true);
  EXPECT_TRUE(caller.Write({Put("a", "3")}).ok());
}

TEST_F(GrpcEtcdTest, CredentialsThatNoMemberAnswersReplaceOnlyThoseThatNoneAnswersEither) {
  EtcdOptions options = Options();
  options.try_timeout = milliseconds(300);
  EtcdCaller caller(options);
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  first_.IgnoreNext();
  const absl::StatusOr<bool> refused = Renew(caller, {.ca = "another"});
  EXPECT_EQ(ReasonOf(refused.status()), "LEDGER_UNAVAILABLE");
  EXPECT_THAT(Message(refused.status()), HasSubstr(first_.endpoint()));
  EXPECT_EQ(Renew(caller, {.ca = "another"}).value(), true);
  EXPECT_TRUE(caller.Write({Put("a", "2")}).ok());

  EtcdOptions away = options;
  away.endpoints = {"127.0.0.1:9"};
  EtcdCaller lonely(away);
  EXPECT_EQ(Renew(lonely, {.ca = "another"}).value(), true);
}

TEST_F(GrpcEtcdTest, WrongPasswordIsSaidAtOnceAndEndsWatches) {
  first_.RequireUser("ckptd", "secret");
  EtcdOptions options = Options();
  options.user = "ckptd";
  options.password = "wrong";
  EtcdCaller caller(options);
  const absl::Status refused = caller.Write({Put("a", "1")}).status();
  EXPECT_EQ(ReasonOf(refused), ledger_reason::kRefused);
  EXPECT_THAT(Message(refused), HasSubstr("correct the user or the password"));
  absl::Status ended;
  const auto watch = caller.etcd()->Watch(
      {"a", "", 1, "watching", [](const auto&) {}, [&](const absl::Status& why) { ended = why; }});
  caller.RunUntil([&] { return !ended.ok(); });
  EXPECT_EQ(ReasonOf(ended), ledger_reason::kRefused);
}

// ---- watches

class GrpcWatchTest : public GrpcEtcdTest {
 protected:
  // Reports each batch as "key=value,key=value", and the end as its reason.
  std::unique_ptr<EtcdWatch> Watch(EtcdCaller& caller, int64_t from = 2) {
    return caller.etcd()->Watch({"w/", PrefixEnd("w/"), from, "watching for a test",
                                 [this](const std::vector<Event>& events) { Report(events); },
                                 [this](const absl::Status& why) { reports_.push_back(ReasonOf(why)); }});
  }
  void Report(const std::vector<Event>& events) {
    std::string batch;
    for (const Event& event : events) {
      batch += (batch.empty() ? "" : ",") + event.kv().key() +
               (event.type() == Event::DELETE ? " deleted" : "=" + event.kv().value());
    }
    reports_.push_back(batch);
  }
  void RunUntilReports(EtcdCaller& caller, size_t count) {
    caller.RunUntil([&] { return reports_.size() >= count; });
  }

  std::vector<std::string> reports_;
};

TEST_F(GrpcWatchTest, ReportsAllEventsOfARevisionTogether) {
  EtcdCaller caller(Options());
  ASSERT_TRUE(caller.Write({Put("w/1", "a"), Put("w/2", "b"), Put("other", "c")}).ok());
  const auto watch = Watch(caller);
  ASSERT_TRUE(caller.Write({Delete("w/1")}).ok());
  RunUntilReports(caller, 2);
  EXPECT_THAT(reports_, ElementsAre("w/1=a,w/2=b", "w/1 deleted"));
}

TEST_F(GrpcWatchTest, GoesOnWithoutGapOrRepetitionWhenStreamsBreak) {
  EtcdCaller caller(Options());
  ASSERT_TRUE(caller.Write({Put("w/1", "a")}).ok());
  const auto watch = Watch(caller);
  RunUntilReports(caller, 1);
  first_.BreakWatches(3);
  first_.WithModel([](EtcdModel& model) {
    TxnRequest request;
    *request.add_success() = Put("w/2", "b");
    ASSERT_TRUE(model.Txn(request).ok());
  });
  RunUntilReports(caller, 2);
  ASSERT_TRUE(caller.Write({Put("w/3", "c")}).ok());
  RunUntilReports(caller, 3);
  EXPECT_THAT(reports_, ElementsAre("w/1=a", "w/2=b", "w/3=c"));
}

TEST_F(GrpcWatchTest, SaysThatEventsAreForgottenWhenEtcdWasCompacted) {
  EtcdCaller caller(Options());
  for (const char* value : {"a", "b", "c"}) ASSERT_TRUE(caller.Write({Put("w/1", value)}).ok());
  first_.WithModel([](EtcdModel& model) { model.Compact(4); });
  const auto watch = Watch(caller, 2);
  RunUntilReports(caller, 1);
  EXPECT_THAT(reports_, ElementsAre(ledger_reason::kCompacted));
}

TEST_F(GrpcWatchTest, EndsWhenEtcdHasLostItsPast) {
  EtcdCaller caller(Options());
  const auto watch = Watch(caller);
  ASSERT_TRUE(caller.Write({Put("w/1", "a")}).ok());
  RunUntilReports(caller, 1);
  first_.SetRevisionBack(1);
  first_.BreakWatches(0);
  RunUntilReports(caller, 2);
  EXPECT_THAT(reports_, ElementsAre("w/1=a", ledger_reason::kRestored));
}

TEST_F(GrpcWatchTest, GetsANewTokenWhenItsOwnHasExpired) {
  first_.RequireUser("ckptd", "secret");
  EtcdOptions options = Options();
  options.user = "ckptd";
  options.password = "secret";
  EtcdCaller caller(options);
  ASSERT_TRUE(caller.Write({Put("w/1", "a")}).ok());
  first_.RequireUser("ckptd", "secret");
  const auto watch = Watch(caller);
  RunUntilReports(caller, 1);
  EXPECT_THAT(reports_, ElementsAre("w/1=a"));
}

TEST_F(GrpcWatchTest, MayBeDestroyedByItsOwnCallback) {
  EtcdCaller caller(Options());
  std::unique_ptr<EtcdWatch> watch;
  int batches = 0;
  watch = caller.etcd()->Watch({"w/", PrefixEnd("w/"), 2, "watching",
                                [&](const auto&) {
                                  ++batches;
                                  watch.reset();
                                },
                                [](const absl::Status&) {}});
  ASSERT_TRUE(caller.Write({Put("w/1", "a")}).ok());
  ASSERT_TRUE(caller.Write({Put("w/1", "b")}).ok());
  caller.RunUntil([&] { return batches > 0; });
  ASSERT_TRUE(caller.Write({Put("w/1", "c")}).ok());
  EXPECT_EQ(batches, 1);
}

TEST(EtcdOptionsTest, BadValueIsNamedWithWhatToWrite) {
  const auto error = [](std::vector<std::string> endpoints, auto change) {
    EtcdOptions options;
    options.endpoints = std::move(endpoints);
    change(options);
    return std::string(CheckEtcdOptions(options).message());
  };
  const auto nothing = [](EtcdOptions&) {};
  EXPECT_THAT(error({}, nothing), HasSubstr("no endpoints"));
  EXPECT_THAT(error({"https://10.0.0.1:2379"}, nothing), HasSubstr("write \"10.0.0.1:2379\""));
  for (const char* endpoint : {"10.0.0.1", ":2379", "10.0.0.1:99999", "10.0.0.1:http"}) {
    EXPECT_THAT(error({endpoint}, nothing), HasSubstr("no host:port"));
  }
  EXPECT_THAT(error({"a:1"}, [](EtcdOptions& options) { options.user = "u"; }), HasSubstr("its password"));
  EXPECT_THAT(error({"a:1"},
                    [](EtcdOptions& options) {
                      options.tls = EtcdTls{"", "c", ""};
                    }),
              HasSubstr("certificate and its key"));
  EXPECT_EQ(error({"etcd-0.etcd:2379", "[fd00::1]:2379"}, nothing), "");
}

}  // namespace
}  // namespace ckptd
