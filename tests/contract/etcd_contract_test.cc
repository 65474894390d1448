// What ckptd relies on in etcd: run against Debian's etcd, and against what stands for it in other tests: a
// model, over gRPC and in the simulation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_lease.h"
#include "daemon/etcd/etcd_requests.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"

namespace ckptd {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::Event;
using etcdserverpb::RangeRequest;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }

class EtcdContract : public ::testing::TestWithParam<EtcdKind> {
 protected:
  static void TearDownTestSuite() { AnyEtcd::StopCluster(); }

  std::string Key(const std::string& name) const { return prefix_ + name; }
  int64_t Write(const std::vector<etcdserverpb::RequestOp>& operations) {
    const absl::StatusOr<TxnResponse> written = caller_->Write(operations);
    EXPECT_TRUE(written.ok()) << written.status();
    return written.ok() ? written->header().revision() : 0;
  }
  bool Holds(const Compare& compare) {
    TxnRequest request;
    *request.add_compare() = compare;
    const absl::StatusOr<TxnResponse> answer = caller_->Txn(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() && answer->succeeded();
  }
  std::string Read(const std::string& key) { return caller_->Read(key).value_or("(error)"); }
  void Compact(int64_t revision) {
    if (etcd_.has_model()) return etcd_.WithModel([&](EtcdModel& model) { model.Compact(revision); });
    grpc::ClientContext context;
    etcdserverpb::CompactionRequest request;
    request.set_revision(revision);
    etcdserverpb::CompactionResponse response;
    const grpc::Status compacted = AnyEtcd::Cluster().NewKv(0)->Compact(&context, request, &response);
    EXPECT_TRUE(compacted.ok()) << compacted.error_message();
  }

  AnyEtcd etcd_{GetParam()};
  EtcdCaller* const caller_ = &etcd_.caller();
  // The real one serves all tests, each of which has keys of its own.
  const std::string prefix_ =
      std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + "/";
};

const auto kKinds =
    ::testing::Values(EtcdKind{EtcdKind::kSimulated}, EtcdKind{EtcdKind::kModel}, EtcdKind{EtcdKind::kReal});
INSTANTIATE_TEST_SUITE_P(, EtcdContract, kKinds, NameOf);

// ---- keys

TEST_P(EtcdContract, KeyCountsItsChangesAndRemembersTheirRevisions) {
  const int64_t created = Write({Put(Key("a"), "1")});
  const int64_t changed = Write({Put(Key("a"), "2")});
  EXPECT_EQ(changed, created + 1);
  RangeRequest request;
  request.set_key(Key("a"));
  const auto found = caller_->Range(request);
  ASSERT_TRUE(found.ok() && found->kvs_size() == 1);
  EXPECT_EQ(found->kvs(0).create_revision(), created);
  EXPECT_EQ(found->kvs(0).mod_revision(), changed);
  EXPECT_EQ(found->kvs(0).version(), 2);
  Write({Delete(Key("a"))});
  EXPECT_EQ(Read(Key("a")), "(none)");
  Write({Put(Key("a"), "3")});
  EXPECT_EQ(caller_->Range(request)->kvs(0).version(), 1);
}

TEST_P(EtcdContract, AllPagesOfAListShowOneRevision) {
  for (int i = 0; i < 7; ++i) Write({Put(Key("p/" + std::to_string(i)), "old")});
  Write({Put(Key("q"), "outside"), Put(Key("p"), "outside")});
  std::optional<absl::StatusOr<EtcdListing>> listing;
  ListPrefix(
      caller_->etcd(), Key("p/"), "listing", [&](auto answer) { listing = std::move(answer); }, 2);
  Write({Put(Key("p/6"), "new"), Delete(Key("p/5")), Put(Key("p/8"), "new")});
  caller_->RunUntil([&] { return listing.has_value(); });
  ASSERT_TRUE(listing->ok()) << listing->status();
  std::string values;
  const bool before = (*listing)->keys.back().value() == "old";
  for (const auto& key : (*listing)->keys) values += key.key().substr(prefix_.size()) + " ";
  EXPECT_EQ(values, before ? "p/0 p/1 p/2 p/3 p/4 p/5 p/6 " : "p/0 p/1 p/2 p/3 p/4 p/6 p/8 ");
}

TEST_P(EtcdContract, ReadOfAForgottenRevisionSaysSo) {
  const int64_t old = Write({Put(Key("a"), "1")});
  const int64_t newer = Write({Put(Key("a"), "2")});
  Compact(newer);
  RangeRequest request;
  request.set_key(Key("a"));
  request.set_revision(old);
  EXPECT_EQ(ReasonOf(caller_->Range(request).status()), ledger_reason::kCompacted);
  request.set_revision(newer);
  EXPECT_TRUE(caller_->Range(request).ok());
}

// ---- transactions

TEST_P(EtcdContract, TransactionAppliesOneOfItsBranchesAsAWhole) {
  TxnRequest request;
  *request.add_compare() = Absent(Key("a"));
  *request.add_compare() = Absent(Key("b"));
  *request.add_success() = Put(Key("a"), "1");
  *request.add_success() = Put(Key("b"), "1");
  *request.add_failure() = Get(Key("a"));
  *request.add_failure() = Get(Key("none"));
  ASSERT_TRUE(caller_->Txn(request)->succeeded());
  Write({Delete(Key("b"))});
  const auto refused = caller_->Txn(request);
  ASSERT_TRUE(refused.ok() && !refused->succeeded());
  EXPECT_EQ(Found(*refused, 0)->value(), "1");
  EXPECT_EQ(Found(*refused, 1), nullptr);
  EXPECT_EQ(Read(Key("b")), "(none)");
}

TEST_P(EtcdContract, ComparesRevisionsAndValuesOfKeysAndRanges) {
  const int64_t revision = Write({Put(Key("r/a"), "x")});
  EXPECT_TRUE(Holds(LastChangedAt(Key("r/a"), revision)));
  EXPECT_FALSE(Holds(LastChangedAt(Key("r/a"), revision - 1)));
  EXPECT_FALSE(Holds(Absent(Key("r/a"))));
  EXPECT_TRUE(Holds(Absent(Key("r/b"))));
  EXPECT_TRUE(Holds(HasValue(Key("r/a"), "x")));
  EXPECT_FALSE(Holds(HasValue(Key("r/a"), "y")));
  EXPECT_FALSE(Holds(HasValue(Key("r/b"), "")));
  EXPECT_FALSE(Holds(NoneBelow(Key("r/"))));
  EXPECT_TRUE(Holds(NoneBelow(Key("s/"))));
  Write({Delete(Key("r/a"))});
  EXPECT_TRUE(Holds(NoneBelow(Key("r/"))));
}

TEST_P(EtcdContract, RefusesMoreThan128OperationsAndOneKeyTwice) {
  std::vector<etcdserverpb::RequestOp> operations(128);
  for (size_t i = 0; i < operations.size(); ++i) operations[i] = Put(Key(std::to_string(i)), "");
  EXPECT_NE(Write(operations), 0);
  operations.push_back(Put(Key("one more"), ""));
  EXPECT_EQ(ReasonOf(caller_->Write(operations).status()), ledger_reason::kError);
  EXPECT_EQ(ReasonOf(caller_->Write({Put(Key("a"), "1"), Put(Key("a"), "2")}).status()),
            ledger_reason::kError);
}

// ---- leases

class EtcdLeaseContract : public EtcdContract {
 protected:
  std::unique_ptr<EtcdLease> Acquire(int64_t ttl_seconds) {
    auto lease = std::make_unique<EtcdLease>(caller_->etcd(), etcd_.clock(), ttl_seconds, "living for a test",
                                             [this](const absl::Status& why) { lost_ = ReasonOf(why); });
    const auto id = caller_->Await<int64_t>([&](auto answer) { lease->Acquire(std::move(answer)); });
    EXPECT_TRUE(id.ok()) << id.status();
    caller_->OnTick([raw = lease.get()] { raw->OnTick(); });
    return lease;
  }
  std::string lost_;
};

INSTANTIATE_TEST_SUITE_P(, EtcdLeaseContract, kKinds, NameOf);

TEST_P(EtcdLeaseContract, KeysGoWithTheLeaseThatIsReleased) {
  const auto lease = Acquire(60);
  Write({Put(Key("mine"), "1", lease->id()), Put(Key("stays"), "1")});
  const auto released = caller_->Await<bool>([&](auto answer) {
    lease->Release([answer = std::move(answer)](const absl::Status& status) mutable { answer(status.ok()); });
  });
  EXPECT_TRUE(*released);
  EXPECT_FALSE(lease->held());
  EXPECT_EQ(Read(Key("mine")), "(none)");
  EXPECT_EQ(Read(Key("stays")), "1");
}

TEST_P(EtcdLeaseContract, IsKeptAliveBeyondItsTime) {
  const auto lease = Acquire(2);
  Write({Put(Key("mine"), "1", lease->id())});
  const Instant first_end = lease->ends();
  caller_->RunUntil([&] { return etcd_.clock()->Now() > first_end + std::chrono::milliseconds(500); });
  EXPECT_EQ(lost_, "");
  EXPECT_TRUE(lease->held());
  EXPECT_EQ(Read(Key("mine")), "1");
  caller_->OnTick(nullptr);
}

TEST_P(EtcdLeaseContract, LeaseThatEtcdHasEndedIsLostAndTakesNoKeys) {
  const auto lease = Acquire(2);
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease->id());
  const auto revoked = caller_->Await<etcdserverpb::LeaseRevokeResponse>(
      [&](auto answer) { caller_->etcd()->RevokeLease(request, "ending", std::move(answer)); });
  ASSERT_TRUE(revoked.ok()) << revoked.status();
  EXPECT_EQ(ReasonOf(caller_->Write({Put(Key("mine"), "1", lease->id())}).status()),
            ledger_reason::kLeaseEnded);
  // Of a transaction, that of what it does not write does not count.
  TxnRequest request_of_both;
  *request_of_both.add_compare() = Absent(Key("a"));
  *request_of_both.add_success() = Put(Key("a"), "1", lease->id());
  EXPECT_EQ(ReasonOf(caller_->Txn(request_of_both).status()), ledger_reason::kLeaseEnded);
  Write({Put(Key("a"), "2")});
  const auto not_written = caller_->Txn(request_of_both);
  EXPECT_TRUE(not_written.ok() && !not_written->succeeded()) << not_written.status();
  caller_->RunUntil([this] { return !lost_.empty(); });
  EXPECT_EQ(lost_, ledger_reason::kLeaseEnded);
  caller_->OnTick(nullptr);
}

// ---- watches

TEST_P(EtcdContract, WatchReportsWhatHappensInItsRangeFromARevisionOn) {
  Write({Put(Key("w/a"), "too early")});
  const int64_t from = Write({Put(Key("w/a"), "1"), Put(Key("w/b"), "1")});
  std::vector<std::string> reports;
  const auto watch = caller_->etcd()->Watch({Key("w/"), PrefixEnd(Key("w/")), from, "watching",
                                             [&](const std::vector<Event>& events) {
                                               std::string batch;
                                               for (const Event& event : events) {
                                                 batch += event.kv().key().substr(prefix_.size()) +
                                                          (event.type() == Event::DELETE ? "! " : " ");
                                               }
                                               reports.push_back(batch);
                                             },
                                             [](const absl::Status& why) { ADD_FAILURE() << why; }});
  caller_->RunUntil([&] { return reports.size() == 1; });
  Write({Put(Key("x"), "outside")});
  Write({Delete(Key("w/a"))});
  caller_->RunUntil([&] { return reports.size() == 2; });
  EXPECT_THAT(reports, ElementsAre("w/a w/b ", "w/a! "));
}

TEST_P(EtcdContract, WatchFromAForgottenRevisionEnds) {
  const int64_t old = Write({Put(Key("a"), "1")});
  const int64_t newer = Write({Put(Key("a"), "2")});
  Compact(newer);
  absl::Status ended;
  const auto watch = caller_->etcd()->Watch(
      {Key("a"), "", old, "watching", [](const auto&) {}, [&](const absl::Status& why) { ended = why; }});
  caller_->RunUntil([&] { return !ended.ok(); });
  EXPECT_EQ(ReasonOf(ended), ledger_reason::kCompacted);
  EXPECT_THAT(std::string(ended.message()), HasSubstr(std::to_string(newer)));
}

}  // namespace
}  // namespace ckptd
