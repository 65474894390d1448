// That a mirror of keys follows them: run against the simulated etcd and its faults, a model over gRPC, and
// Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/etcd/etcd_requests.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Values = std::map<std::string, std::string>;  // By key, without the test's prefix.

class MirrorContract : public ::testing::TestWithParam<EtcdKind> {
 protected:
  static void TearDownTestSuite() { AnyEtcd::StopCluster(); }

  std::string Key(const std::string& name) const { return prefix_ + name; }
  // Compares and counts, so that a late copy changes nothing. Asked again until there is an answer.
  void Write(const std::vector<etcdserverpb::RequestOp>& operations) {
    const std::string counter = "writes of " + prefix_;
    etcdserverpb::TxnRequest request;
    *request.add_compare() = writes_ == 0 ? Absent(counter) : HasValue(counter, std::to_string(writes_));
    *request.add_success() = Put(counter, std::to_string(++writes_));
    for (const etcdserverpb::RequestOp& operation : operations) *request.add_success() = operation;
    while (!etcd_.caller().Txn(request).ok()) {
    }
  }
  std::unique_ptr<EtcdMirror> NewMirror(Etcd* client) {
    return std::make_unique<EtcdMirror>(
        client, prefix_, "following the keys of a test",
        [this](const std::vector<std::string>& keys) {
          ++calls_;
          for (const std::string& key : keys) changed_.insert(key.substr(prefix_.size()));
          if (on_change_) on_change_();
        },
        [](const absl::Status& why) { ADD_FAILURE() << why; });
  }
  void Start() {
    client_ = etcd_.NewClient();
    mirror_ = NewMirror(client_);
    mirror_->Start();
  }
  Values Mirrored() const {
    Values values;
    for (const auto& [name, key] : mirror_->keys()) values[name.substr(prefix_.size())] = key.value();
    return values;
  }
  void WaitFor(const Values& values) {
    etcd_.caller().RunUntil([&] { return calls_ > 0 && Mirrored() == values; });
  }
  std::set<std::string> TakeChanged() { return std::exchange(changed_, {}); }

  AnyEtcd etcd_{GetParam()};
  // The real etcd serves all tests of a process, each of which has keys of its own.
  const std::string prefix_ =
      std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + "/";
  Etcd* client_ = nullptr;
  int writes_ = 0;
  int calls_ = 0;
  std::set<std::string> changed_;
  std::function<void()> on_change_;
  std::unique_ptr<EtcdMirror> mirror_;  // Destroyed first.
};

std::string NameOf(const ::testing::TestParamInfo<EtcdKind>& kind) { return kind.param.name(); }
INSTANTIATE_TEST_SUITE_P(, MirrorContract, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

TEST_P(MirrorContract, ShowsWhatIsThereAndThenEachChange) {
  Write({Put(Key("a"), "1"), Put(Key("b"), "1")});
  Start();
  EXPECT_EQ(calls_, 0) << "not before Start has returned";
  WaitFor({{"a", "1"}, {"b", "1"}});
  EXPECT_THAT(TakeChanged(), ElementsAre("a", "b"));
  Write({Put(Key("c"), "1"), Put(Key("a"), "2")});
  WaitFor({{"a", "2"}, {"b", "1"}, {"c", "1"}});
  EXPECT_THAT(TakeChanged(), ElementsAre("a", "c"));
  Write({Delete(Key("b"))});
  WaitFor({{"a", "2"}, {"c", "1"}});
  EXPECT_THAT(TakeChanged(), ElementsAre("b"));
  EXPECT_EQ(*mirror_->Find(Key("c")), "1");
  EXPECT_EQ(mirror_->Find(Key("b")), nullptr);
}

TEST_P(MirrorContract, SaysThatThereIsNothing) {
  Start();
  etcd_.caller().RunUntil([&] { return calls_ == 1; });
  EXPECT_THAT(changed_, IsEmpty());
}

// A transaction puts the same value under two keys.
TEST_P(MirrorContract, ShowsNoTransactionInPart) {
  on_change_ = [&] {
    const std::string* const a = mirror_->Find(Key("a"));
    const std::string* const b = mirror_->Find(Key("b"));
    ASSERT_EQ(a == nullptr, b == nullptr);
    if (a != nullptr) {
      EXPECT_EQ(*a, *b);
    }
  };
  Start();
  std::mt19937 random(GetParam().seed);
  for (int i = 0; i < 20; ++i) {
    if (random() % 4 == 0) {
      Write({Delete(Key("a")), Delete(Key("b"))});
    } else {
      Write({Put(Key("a"), std::to_string(i)), Put(Key("b"), std::to_string(i))});
    }
  }
  Write({Put(Key("a"), "last"), Put(Key("b"), "last")});
  WaitFor({{"a", "last"}, {"b", "last"}});
}

TEST_P(MirrorContract, MayEndInItsOwnCallback) {
  Write({Put(Key("a"), "1")});
  on_change_ = [&] { mirror_ = nullptr; };
  Start();
  etcd_.caller().RunUntil([&] { return calls_ == 1; });
  Write({Put(Key("a"), "2")});
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(mirror_, nullptr);
  on_change_ = [&] {
    if (calls_ == 3) mirror_ = nullptr;
  };
  Start();
  etcd_.caller().RunUntil([&] { return calls_ == 2; });
  Write({Put(Key("a"), "3")});
  etcd_.caller().RunUntil([&] { return calls_ == 3; });
  EXPECT_EQ(mirror_, nullptr);
}

TEST_P(MirrorContract, ReportsNothingAfterItsEnd) {
  Write({Put(Key("a"), "1")});
  Start();
  mirror_ = nullptr;  // While it lists.
  Write({Put(Key("a"), "2")});
  EXPECT_EQ(calls_, 0);
}

// ---- an etcd that forgets

class ForgettingEtcd : public MirrorContract {};
INSTANTIATE_TEST_SUITE_P(, ForgettingEtcd, ::testing::ValuesIn(SimulatedEtcds(/*seeds=*/20)), NameOf);

TEST_P(ForgettingEtcd, ListsAgainWhatItHasMissed) {
  Write({Put(Key("gone"), "1"), Put(Key("same"), "1"), Put(Key("changed"), "1")});
  Start();
  WaitFor({{"changed", "1"}, {"gone", "1"}, {"same", "1"}});
  TakeChanged();
  auto* const client = static_cast<SimulatedEtcd::Client*>(client_);
  client->CutOff(true);
  Write({Delete(Key("gone")), Put(Key("new"), "1")});
  Write({Put(Key("changed"), "2")});
  etcd_.WithModel([](EtcdModel& model) { model.Compact(model.revision()); });
  client->CutOff(false);
  WaitFor({{"changed", "2"}, {"new", "1"}, {"same", "1"}});
  EXPECT_THAT(TakeChanged(), ElementsAre("changed", "gone", "new"));
  Write({Put(Key("same"), "2")});
  WaitFor({{"changed", "2"}, {"new", "1"}, {"same", "2"}});
}

TEST_P(ForgettingEtcd, GoesOnWhenEtcdCanBeReachedAgain) {
  client_ = etcd_.NewClient();
  auto* const client = static_cast<SimulatedEtcd::Client*>(client_);
  client->CutOff(true);
  mirror_ = NewMirror(client_);
  mirror_->Start();
  Write({Put(Key("a"), "1")});
  const Instant start = etcd_.clock()->Now();
  etcd_.caller().RunUntil([&] { return etcd_.clock()->Now() - start > std::chrono::minutes(2); });
  EXPECT_EQ(calls_, 0);
  client->CutOff(false);
  WaitFor({{"a", "1"}});
}

// ---- an etcd that refuses

class RefusingEtcd : public MirrorContract {};
INSTANTIATE_TEST_SUITE_P(, RefusingEtcd, ::testing::Values(EtcdKind{EtcdKind::kSimulated}), NameOf);

TEST_P(RefusingEtcd, EndsTheMirror) {
  // What etcd answers to whoever may not read the keys.
  class Refusing : public Etcd {
   public:
    void Range(const etcdserverpb::RangeRequest&, const std::string&,
               Answer<etcdserverpb::RangeResponse> answer) override {
      answer(MakeError(absl::StatusCode::kPermissionDenied, ledger_reason::kRefused, "permission denied"));
    }
    void Txn(const etcdserverpb::TxnRequest&, const std::string&,
             Answer<etcdserverpb::TxnResponse>) override {}
    void GrantLease(const etcdserverpb::LeaseGrantRequest&, const std::string&,
                    Answer<etcdserverpb::LeaseGrantResponse>) override {}
    void KeepLeaseAlive(const etcdserverpb::LeaseKeepAliveRequest&, const std::string&,
                        Answer<etcdserverpb::LeaseKeepAliveResponse>) override {}
    void RevokeLease(const etcdserverpb::LeaseRevokeRequest&, const std::string&,
                     Answer<etcdserverpb::LeaseRevokeResponse>) override {}
    std::unique_ptr<EtcdWatch> Watch(EtcdWatchSpec) override { return nullptr; }
  };
  Refusing refusing;
  std::string ended;
  EtcdMirror mirror(
      &refusing, prefix_, "following the keys of a test", [](const auto&) { FAIL(); },
      [&](const absl::Status& why) { ended = ReasonOf(why); });
  mirror.Start();
  EXPECT_EQ(ended, ledger_reason::kRefused);
}

}  // namespace
}  // namespace ckptd
