#include "daemon/etcd/etcd_lease.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "daemon/etcd/etcd_errors.h"
#include "storage/base/errors.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {
namespace {

using namespace etcdserverpb;
using std::chrono::seconds;

constexpr int64_t kTtl = 9;

// Keeps each answer's callback for the test to run.
class ManualEtcd : public Etcd {
 public:
  void Range(const RangeRequest&, const std::string&, Answer<RangeResponse>) override {}
  void Txn(const TxnRequest&, const std::string&, Answer<TxnResponse>) override {}
  void GrantLease(const LeaseGrantRequest&, const std::string&, Answer<LeaseGrantResponse> answer) override {
    grants.push_back(std::move(answer));
  }
  void KeepLeaseAlive(const LeaseKeepAliveRequest&, const std::string&,
                      Answer<LeaseKeepAliveResponse> answer) override {
    keep_alives.push_back(std::move(answer));
  }
  void RevokeLease(const LeaseRevokeRequest&, const std::string&, Answer<LeaseRevokeResponse>) override {}
  std::unique_ptr<EtcdWatch> Watch(EtcdWatchSpec) override { return nullptr; }

  std::deque<Answer<LeaseGrantResponse>> grants;
  std::deque<Answer<LeaseKeepAliveResponse>> keep_alives;
};

class EtcdLeaseTest : public ::testing::Test {
 protected:
  void Grant(int64_t ttl = kTtl) {
    lease_.Acquire([this](absl::StatusOr<int64_t> id) { acquired_ = std::move(id); });
    LeaseGrantResponse response;
    response.set_id(7);
    response.set_ttl(ttl);
    etcd_.grants.front()(response);
  }
  void AnswerKeepAlive(int64_t ttl = kTtl) {
    ASSERT_EQ(etcd_.keep_alives.size(), 1u);
    LeaseKeepAliveResponse response;
    response.set_ttl(ttl);
    auto answer = std::move(etcd_.keep_alives.front());
    etcd_.keep_alives.pop_front();
    answer(response);
  }
  void Advance(Duration by) {
    clock_.Advance(by);
    lease_.OnTick();
  }

  FakeClock clock_;
  ManualEtcd etcd_;
  std::string lost_;
  absl::StatusOr<int64_t> acquired_ = absl::UnknownError("no answer");
  EtcdLease lease_{&etcd_, &clock_, kTtl, "living",
                   [this](const absl::Status& why) { lost_ = ReasonOf(why); }};
};

TEST_F(EtcdLeaseTest, TimeCountsFromTheSendingOfTheRequest) {
  lease_.Acquire([this](absl::StatusOr<int64_t> id) { acquired_ = std::move(id); });
  Advance(seconds(4));
  LeaseGrantResponse response;
  response.set_id(7);
  response.set_ttl(kTtl);
  etcd_.grants.front()(response);
  EXPECT_EQ(*acquired_, 7);
  EXPECT_EQ(lease_.ends(), clock_.Now() + seconds(kTtl - 4));
}

TEST_F(EtcdLeaseTest, GrantThatComesAfterItsTimeIsNone) {
  lease_.Acquire([this](absl::StatusOr<int64_t> id) { acquired_ = std::move(id); });
  Advance(seconds(kTtl));
  LeaseGrantResponse response;
  response.set_id(7);
  response.set_ttl(kTtl);
  etcd_.grants.front()(response);
  EXPECT_EQ(ReasonOf(acquired_.status()), ledger_reason::kUnavailable);
  EXPECT_FALSE(lease_.held());
}

TEST_F(EtcdLeaseTest, EtcdMayGiveMoreTimeThanWasAskedFor) {
  Grant(20);
  EXPECT_EQ(lease_.ends(), clock_.Now() + seconds(20));
}

TEST_F(EtcdLeaseTest, IsKeptAliveAtAThirdOfItsTimeFromTheSendingOn) {
  Grant();
  Advance(seconds(2));
  EXPECT_TRUE(etcd_.keep_alives.empty());
  Advance(seconds(1));
  const Instant sent = clock_.Now();
  Advance(seconds(2));
  AnswerKeepAlive();
  EXPECT_EQ(lease_.ends(), sent + seconds(kTtl));
  EXPECT_TRUE(etcd_.keep_alives.empty());
  Advance(seconds(1));
  EXPECT_EQ(etcd_.keep_alives.size(), 1u);
}

TEST_F(EtcdLeaseTest, IsLostWhenNothingConfirmsItInTime) {
  Grant();
  Advance(seconds(kTtl - 1));
  EXPECT_TRUE(lease_.held());
  clock_.Advance(seconds(1));
  EXPECT_FALSE(lease_.held()) << "also before the next tick";
  EXPECT_EQ(lost_, "");
  lease_.OnTick();
  EXPECT_EQ(lost_, ledger_reason::kLeaseEnded);
  lost_.clear();
  Advance(seconds(1));
  EXPECT_EQ(lost_, "") << "once";
}

// As after a suspension of the machine: etcd may have extended the lease, but callers may have seen meanwhile
// that held() was false.
TEST_F(EtcdLeaseTest, AnswerAfterTheEndDoesNotBringItBack) {
  Grant();
  Advance(seconds(3));
  clock_.Advance(seconds(kTtl));
  AnswerKeepAlive(100);
  EXPECT_FALSE(lease_.held());
  lease_.OnTick();
  EXPECT_EQ(lost_, ledger_reason::kLeaseEnded);
}

TEST_F(EtcdLeaseTest, FailedRequestIsMadeAgainAndAnEndedLeaseIsLostAtOnce) {
  Grant();
  Advance(seconds(3));
  etcd_.keep_alives.front()(absl::UnavailableError("no answer"));
  etcd_.keep_alives.pop_front();
  Advance(seconds(0));
  AnswerKeepAlive(0);
  EXPECT_EQ(lost_, ledger_reason::kLeaseEnded);
  EXPECT_FALSE(lease_.held());
}

// For other threads, which may be the first to run after the process was paused.
TEST_F(EtcdLeaseTest, ItsEndIsKnownBeforeTheNextTickAndWhenItIsGone) {
  EXPECT_TRUE(lease_.end()->IsOver()) << "not acquired";
  Grant();
  const auto end = lease_.end();
  Advance(seconds(3));
  AnswerKeepAlive();
  clock_.Advance(seconds(kTtl - 1));
  EXPECT_FALSE(end->IsOver());
  clock_.Advance(seconds(1));
  EXPECT_TRUE(end->IsOver());
  auto other = std::make_unique<EtcdLease>(&etcd_, &clock_, kTtl, "living", [](const absl::Status&) {});
  other->Acquire([](const absl::StatusOr<int64_t>&) {});
  LeaseGrantResponse response;
  response.set_id(8);
  response.set_ttl(kTtl);
  etcd_.grants.back()(response);
  const auto other_end = other->end();
  EXPECT_FALSE(other_end->IsOver());
  other = nullptr;
  EXPECT_TRUE(other_end->IsOver());
}

TEST_F(EtcdLeaseTest, ReleasedLeaseIsNotLost) {
  Grant();
  lease_.Release([](const absl::Status&) {});
  Advance(seconds(2 * kTtl));
  EXPECT_EQ(lost_, "");
  EXPECT_FALSE(lease_.held());
}

}  // namespace
}  // namespace ckptd
