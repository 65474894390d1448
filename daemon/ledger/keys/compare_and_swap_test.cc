#include "daemon/ledger/keys/compare_and_swap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/etcd/etcd_requests.h"
#include "tests/sim/schedule.h"
#include "tests/testing/etcd_model.h"
#include "tests/testing/simulated_etcd.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

// Copies the value of `key` to "copy". Each test sets the guess of `key`, and its real value.
class CompareAndSwapTest : public ::testing::Test {
 protected:
  // Returns the revision of the change.
  int64_t Write(const std::string& key, const std::string& value) {
    etcdserverpb::TxnRequest request;
    *request.add_success() = Put(key, value);
    int64_t revision = 0;
    etcd_.WithModel([&](EtcdModel& model) { revision = model.Txn(request)->header().revision(); });
    return revision;
  }
  std::string Read(const std::string& key) {
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    std::string value = "(none)";
    etcd_.WithModel([&](EtcdModel& model) {
      const auto found = model.Range(request);
      if (found->kvs_size() > 0) value = found->kvs(0).value();
    });
    return value;
  }
  static etcdserverpb::KeyValue Key(const std::string& key, const std::string& value,
                                    int64_t mod_revision = 0) {
    etcdserverpb::KeyValue found;
    found.set_key(key);
    found.set_value(value);
    found.set_mod_revision(mod_revision);
    return found;
  }
  // `guess`: the guessed keys of `range`.
  absl::Status Copy(const CompareAndSwap::Range& range,
                    std::optional<std::vector<etcdserverpb::KeyValue>> guess,
                    std::vector<CompareAndSwap::Held> held = {}) {
    CompareAndSwap swap;
    swap.ranges = {range};
    swap.held = std::move(held);
    if (guess) swap.guess = {*std::move(guess)};
    swap.purpose = "copying a value";
    swap.decide = [this](const CompareAndSwap::Found& found) -> std::vector<etcdserverpb::RequestOp> {
      decided_from_.push_back(found[0].empty() ? "(none)" : found[0][0].value());
      return {Put("copy", decided_from_.back())};
    };
    std::optional<absl::Status> done;
    SwapIn(client_.get(), std::move(swap), [&](const absl::Status& status) { done = status; });
    while (!done) schedule_.RunNext();
    return *done;
  }

  sim::Schedule schedule_;
  SimulatedEtcd etcd_{
      [this](Duration delay, absl::AnyInvocable<void()> event) { schedule_.After(delay, std::move(event)); },
      &schedule_.clock(), /*seed=*/1, SimulatedEtcd::Faults()};
  std::unique_ptr<SimulatedEtcd::Client> client_ = etcd_.Connect();
  std::vector<std::string> decided_from_;  // The value in each round.
};

TEST_F(CompareAndSwapTest, DecidesFromWhatItReads) {
  Write("key", "1");
  EXPECT_TRUE(Copy({"key"}, std::nullopt).ok());
  EXPECT_EQ(Read("copy"), "1");
  EXPECT_THAT(decided_from_, ElementsAre("1"));
}

TEST_F(CompareAndSwapTest, GuessThatIsRightIsNotReadAgain) {
  const int64_t revision = Write("key", "1");
  EXPECT_TRUE(Copy({"key"}, {{Key("key", "1", revision)}}).ok());
  EXPECT_EQ(Read("copy"), "1");
  EXPECT_THAT(decided_from_, ElementsAre("1"));
}

TEST_F(CompareAndSwapTest, GuessOfAnEarlierRevisionIsNotWritten) {
  const int64_t revision = Write("key", "1");
  Write("key", "2");
  EXPECT_TRUE(Copy({"key"}, {{Key("key", "1", revision)}}).ok());
  EXPECT_EQ(Read("copy"), "2");
  EXPECT_THAT(decided_from_, ElementsAre("1", "2"));
}

TEST_F(CompareAndSwapTest, GuessThatAKeyIsAbsentIsNotWrittenWhenItIsThere) {
  Write("key", "1");
  EXPECT_TRUE(Copy({"key"}, {std::vector<etcdserverpb::KeyValue>()}).ok());
  EXPECT_EQ(Read("copy"), "1");
  EXPECT_THAT(decided_from_, ElementsAre("(none)", "1"));
}

TEST_F(CompareAndSwapTest, GuessOfAPrefixIsNotWrittenWhenItHasANewerKey) {
  const int64_t revision = Write("keys/b", "1");
  Write("keys/a", "2");
  EXPECT_TRUE(Copy({"keys/", true}, {{Key("keys/b", "1", revision)}}).ok());
  EXPECT_EQ(Read("copy"), "2");
}

TEST_F(CompareAndSwapTest, GuessOfAValueAloneIsComparedByTheValue) {
  Write("key", "1");
  EXPECT_TRUE(Copy({"key"}, {{Key("key", "1")}}).ok());
  EXPECT_THAT(decided_from_, ElementsAre("1"));
  Write("key", "2");
  EXPECT_TRUE(Copy({"key"}, {{Key("key", "1")}}).ok());
  EXPECT_EQ(Read("copy"), "2");
  EXPECT_THAT(decided_from_, ElementsAre("1", "1", "2"));
}

TEST_F(CompareAndSwapTest, LateCopyDoesNotFollowADeletionOfTheKeyThatItHadRead) {
  etcdserverpb::TxnRequest write, remove;  // Neither has an effect when it is repeated.
  *write.add_compare() = Absent("step");
  *write.add_success() = Put("key", "1");
  *write.add_success() = Put("step", "written");
  *remove.add_compare() = HasValue("step", "written");
  *remove.add_success() = Delete("key");
  *remove.add_success() = Delete("copy");
  *remove.add_success() = Put("step", "removed");
  etcd_.WithModel([&](EtcdModel& model) { EXPECT_TRUE(model.Txn(write)->succeeded()); });
  EXPECT_TRUE(Copy({"key"}, std::nullopt).ok());
  EXPECT_EQ(Read("copy"), "1");
  etcd_.WithModel([&](EtcdModel& model) {
    EXPECT_TRUE(model.Txn(remove)->succeeded());
    model.ReplayTransactions();
  });
  EXPECT_EQ(Read("copy"), "(none)");
}

TEST_F(CompareAndSwapTest, WritesNothingWhenWhatIsHeldIsLost) {
  const int64_t revision = Write("key", "1");
  Write("leadership", "another node");
  const absl::Status lost = absl::AbortedError("the leadership is lost");
  EXPECT_EQ(Copy({"key"}, {{Key("key", "1", revision)}}, {{"leadership", "this node", lost, 0}}), lost);
  EXPECT_EQ(Read("copy"), "(none)");
}

}  // namespace
}  // namespace ckptd
