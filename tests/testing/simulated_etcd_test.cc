// That the faults of the simulated etcd happen. What it promises is in tests/contract/etcd_contract_test.cc.
#include "tests/testing/simulated_etcd.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "storage/base/errors.h"
#include "tests/sim/schedule.h"

namespace ckptd {
namespace {

using etcdserverpb::Event;
using etcdserverpb::LeaseGrantRequest;
using etcdserverpb::TxnRequest;
using std::chrono::seconds;

class SimulatedEtcdTest : public ::testing::Test {
 protected:
  std::unique_ptr<SimulatedEtcd> Make(const SimulatedEtcd::Faults& faults, uint64_t seed = 1) {
    return std::make_unique<SimulatedEtcd>(
        [this](Duration delay, absl::AnyInvocable<void()> event) {
          schedule_.After(delay, std::move(event));
        },
        &schedule_.clock(), seed, faults);
  }
  void RunFor(Duration time) {
    bool over = false;
    schedule_.After(time, [&] { over = true; });
    while (!over) schedule_.RunNext();
  }
  // Asks to write a key; the answer, when there is one, is in the result.
  std::shared_ptr<std::optional<absl::Status>> Write(SimulatedEtcd::Client& client, int64_t lease = 0) {
    TxnRequest request;
    *request.add_success() = Put("a", "1", lease);
    auto answer = std::make_shared<std::optional<absl::Status>>();
    client.Txn(request, "writing", [answer](const auto& result) { *answer = result.status(); });
    return answer;
  }
  int64_t Version(SimulatedEtcd& etcd) {
    etcdserverpb::RangeRequest request;
    request.set_key("a");
    int64_t version = 0;
    etcd.WithModel([&](EtcdModel& model) {
      const auto found = model.Range(request);
      version = found->kvs_size() == 0 ? 0 : found->kvs(0).version();
    });
    return version;
  }

  sim::Schedule schedule_;
};

TEST_F(SimulatedEtcdTest, LateCopyOfARequestIsAppliedAfterItsAnswer) {
  SimulatedEtcd::Faults faults;
  faults.late_requests = 100;
  const auto etcd = Make(faults);
  const auto client = etcd->Connect();
  const auto answer = Write(*client);
  while (!answer->has_value()) schedule_.RunNext();
  EXPECT_TRUE((*answer)->ok());
  const int64_t version = Version(*etcd);
  RunFor(seconds(30));
  EXPECT_GT(Version(*etcd), version);
}

TEST_F(SimulatedEtcdTest, LostAnswerIsAskedForAgainAndTheRequestAppliedTwice) {
  SimulatedEtcd::Faults faults;
  faults.lost_answers = 80;
  const auto etcd = Make(faults);
  const auto client = etcd->Connect();
  const auto answer = Write(*client);
  while (!answer->has_value()) schedule_.RunNext();
  EXPECT_TRUE((*answer)->ok());
  EXPECT_GT(Version(*etcd), 1);
}

TEST_F(SimulatedEtcdTest, ClientThatIsCutOffHearsThatEtcdIsAwayWhileOthersGoOn) {
  const auto etcd = Make({});
  const auto cut = etcd->Connect(), other = etcd->Connect();
  cut->CutOff(true);
  const auto unanswered = Write(*cut);
  const auto answered = Write(*other);
  RunFor(seconds(30));
  EXPECT_FALSE(unanswered->has_value());
  EXPECT_TRUE((*answered)->ok());
  RunFor(seconds(60));
  EXPECT_EQ(ReasonOf(**unanswered), ledger_reason::kUnavailable);
  EXPECT_EQ(Version(*etcd), 1);
  cut->CutOff(false);
  const auto later = Write(*cut);
  RunFor(seconds(1));
  EXPECT_TRUE((*later)->ok());
}

TEST_F(SimulatedEtcdTest, WatchLosesToCompactionWhatItHasNotReportedYet) {
  const auto etcd = Make({});
  const auto client = etcd->Connect(), other = etcd->Connect();
  int events = 0;
  std::string ended;
  const auto watch = client->Watch({"a", "", 1, "watching", [&](const std::vector<Event>&) { ++events; },
                                    [&](const absl::Status& why) { ended = ReasonOf(why); }});
  Write(*other);
  RunFor(seconds(1));
  EXPECT_EQ(events, 1);
  client->CutOff(true);
  Write(*other);
  Write(*other);
  RunFor(seconds(5));
  etcd->WithModel([](EtcdModel& model) { model.Compact(model.revision()); });
  client->CutOff(false);
  RunFor(seconds(5));
  EXPECT_EQ(events, 1);
  EXPECT_EQ(ended, ledger_reason::kCompacted);
}

TEST_F(SimulatedEtcdTest, LeaseEndsByItselfAndLaterIfTheLeaderChanges) {
  const auto etcd = Make({});
  const auto client = etcd->Connect();
  int64_t lease = 0;
  LeaseGrantRequest request;
  request.set_ttl(10);
  client->GrantLease(request, "living", [&](const auto& granted) { lease = granted->id(); });
  RunFor(seconds(1));
  Write(*client, lease);
  RunFor(seconds(8));
  etcd->ChangeLeader();
  RunFor(seconds(8));
  EXPECT_EQ(Version(*etcd), 1);
  RunFor(seconds(4));
  EXPECT_EQ(Version(*etcd), 0);
}

TEST_F(SimulatedEtcdTest, RestoreForgetsWhatCameLaterAndGivesLeasesOfTheBackupTheirTime) {
  SimulatedEtcd::Faults faults;
  faults.late_requests = 100;
  const auto etcd = Make(faults);
  auto client = etcd->Connect();
  LeaseGrantRequest request;
  request.set_ttl(60);
  int64_t lease = 0;
  client->GrantLease(request, "granting", [&lease](const auto& granted) { lease = granted->id(); });
  while (lease == 0) schedule_.RunNext();
  const auto written = Write(*client, lease);
  while (!written->has_value()) schedule_.RunNext();
  RunFor(seconds(25));
  int64_t backup = 0;
  etcd->WithModel([&backup](EtcdModel& model) { backup = model.revision(); });
  RunFor(seconds(70));
  EXPECT_EQ(Version(*etcd), 0) << "the lease has not ended";
  const auto late = Write(*client);
  while (!late->has_value()) schedule_.RunNext();
  const int64_t version = Version(*etcd);
  client = nullptr;
  etcd->Restore(backup);
  const int64_t restored = Version(*etcd);
  EXPECT_GT(restored, 0);
  RunFor(seconds(50));
  EXPECT_EQ(Version(*etcd), restored) << "after " << version << ", a late request was applied";
  RunFor(seconds(20));
  EXPECT_EQ(Version(*etcd), 0) << "a lease of the backup lives for ever";
}

TEST_F(SimulatedEtcdTest, SeedDecidesWhatHappens) {
  SimulatedEtcd::Faults faults;
  faults.lost_requests = faults.lost_answers = faults.late_requests = 30;
  const auto course = [&](uint64_t seed) {
    const auto etcd = Make(faults, seed);
    const auto client = etcd->Connect();
    std::vector<int64_t> answered_after;
    const Instant begin = schedule_.clock().Now();
    for (int i = 0; i < 20; ++i) {
      const auto answer = Write(*client);
      while (!answer->has_value()) schedule_.RunNext();
      answered_after.push_back((schedule_.clock().Now() - begin).count());
    }
    RunFor(seconds(60));
    return std::pair(answered_after, Version(*etcd));
  };
  EXPECT_EQ(course(7), course(7));
  EXPECT_NE(course(7), course(8));
}

}  // namespace
}  // namespace ckptd
