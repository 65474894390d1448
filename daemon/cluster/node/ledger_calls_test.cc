#include "daemon/cluster/node/ledger_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "storage/base/errors.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LedgerCallsTest : public ::testing::Test {
 protected:
  void Ask(Instant deadline) {
    calls_.Ask<absl::Status>(
        "to join", deadline,
        [this](LedgerCalls::Answer<absl::Status> done) { sent_.push_back(std::move(done)); },
        [this](const absl::Status& answer) {
          answers_.push_back(answer.ok() ? "OK" : ReasonOf(answer));
          last_ = answer;
        });
  }
  static absl::Status Away() {
    return MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable, "no leader");
  }
  void Wait(Duration time) {
    clock_.Advance(time);
    calls_.OnTick();
  }

  FakeClock clock_;
  LedgerCalls calls_{&clock_, "run /shared"};
  std::vector<LedgerCalls::Answer<absl::Status>> sent_;
  std::vector<std::string> answers_;
  absl::Status last_;
};

TEST_F(LedgerCallsTest, IsSentOnceTheNodeIsRegistered) {
  Ask(clock_.Now() + seconds(30));
  Wait(seconds(1));
  EXPECT_THAT(sent_, IsEmpty());
  calls_.SetRegistered(true);
  ASSERT_EQ(sent_.size(), 1u);
  sent_[0](absl::OkStatus());
  EXPECT_THAT(answers_, ElementsAre("OK"));
  Wait(seconds(60));
  EXPECT_EQ(sent_.size(), 1u);
}

TEST_F(LedgerCallsTest, IsSentAgainWhileEtcdIsAwayAndByTheNextRegistration) {
  calls_.SetRegistered(true);
  Ask(clock_.Now() + seconds(30));
  ASSERT_EQ(sent_.size(), 1u);
  sent_[0](Away());
  Wait(seconds(1));
  ASSERT_EQ(sent_.size(), 2u) << "etcd was away";
  calls_.SetRegistered(false);
  Wait(seconds(1));
  EXPECT_EQ(sent_.size(), 2u) << "nobody may ask in the node's name";
  calls_.SetRegistered(true);
  ASSERT_EQ(sent_.size(), 3u) << "the registration is another one";
  sent_[1](absl::InternalError("of the earlier registration"));
  EXPECT_THAT(answers_, IsEmpty()) << "what was asked by an earlier registration is not heard";
  sent_[2](absl::OkStatus());
  EXPECT_THAT(answers_, ElementsAre("OK"));
}

TEST_F(LedgerCallsTest, IsSentAgainWhenTheLeaseHasEnded) {
  calls_.SetRegistered(true);
  Ask(clock_.Now() + seconds(30));
  sent_[0](MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kLeaseEnded, "not kept alive"));
  EXPECT_THAT(answers_, IsEmpty()) << "the next registration has another lease";
  Wait(seconds(1));
  ASSERT_EQ(sent_.size(), 2u);
  sent_[1](absl::OkStatus());
  EXPECT_THAT(answers_, ElementsAre("OK"));
}

TEST_F(LedgerCallsTest, ErrorThatAnotherTryDoesNotMendIsTheAnswer) {
  calls_.SetRegistered(true);
  Ask(clock_.Now() + seconds(30));
  sent_[0](MakeError(absl::StatusCode::kFailedPrecondition, "FENCED", "a later attempt acts"));
  EXPECT_THAT(answers_, ElementsAre("FENCED"));
}

TEST_F(LedgerCallsTest, DeadlineNamesWhatItWaitedFor) {
  calls_.SetRegistered(true);
  Ask(clock_.Now() + seconds(30));
  sent_[0](Away());
  Wait(seconds(31));
  EXPECT_THAT(answers_, ElementsAre("LEDGER_UNAVAILABLE"));
  EXPECT_THAT(std::string(last_.message()), HasSubstr("to join run /shared: no leader"));
  for (size_t i = 1; i < sent_.size(); ++i) sent_[i](absl::OkStatus());
  EXPECT_EQ(answers_.size(), 1u) << "a late answer is not heard";
}

TEST_F(LedgerCallsTest, LaunchThatLooksLikeAPartOfAnotherIsAskedForUntilTheDeadline) {
  const auto differ = [] {
    return MakeError(absl::StatusCode::kFailedPrecondition, "LAUNCH_IDS_DIFFER", "x and y");
  };
  calls_.SetRegistered(true);
  Ask(clock_.Now() + seconds(30));
  sent_[0](differ());
  EXPECT_THAT(answers_, IsEmpty());
  Wait(seconds(1));
  ASSERT_EQ(sent_.size(), 2u);
  sent_[1](differ());
  Wait(seconds(30));
  EXPECT_THAT(answers_, ElementsAre("LAUNCH_IDS_DIFFER"));
  EXPECT_EQ(last_.message(), "x and y");
}

TEST_F(LedgerCallsTest, DeadlineWithoutARegistrationSaysSo) {
  Ask(clock_.Now() + seconds(30));
  Wait(seconds(30));
  EXPECT_THAT(answers_, ElementsAre("LEDGER_UNAVAILABLE"));
  EXPECT_THAT(std::string(last_.message()), HasSubstr("not registered"));
}

// An operator who checked the connection to etcd would find nothing.
TEST_F(LedgerCallsTest, DeadlineWithoutARegistrationSaysWhyThereIsNone) {
  LedgerCalls calls(&clock_, "run /shared", [] {
    return MakeError(absl::StatusCode::kFailedPrecondition, "LEDGER_RESTORED", "restart it");
  });
  absl::Status answer;
  calls.Ask<absl::Status>(
      "to join", clock_.Now() + seconds(30), [](const LedgerCalls::Answer<absl::Status>&) {},
      [&answer](const absl::Status& given) { answer = given; });
  clock_.Advance(seconds(30));
  calls.OnTick();
  EXPECT_EQ(answer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(answer), "LEDGER_RESTORED");
  EXPECT_EQ(answer.message(), "no answer in time to join run /shared: restart it");
}

}  // namespace
}  // namespace ckptd
