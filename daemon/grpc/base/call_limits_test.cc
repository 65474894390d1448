#include "daemon/grpc/base/call_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<CallTicket> Started(CallLimits& limits, uid_t uid = 1000) {
  auto ticket = limits.Start(uid);
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  return ticket.ok() ? *ticket : nullptr;
}

TEST(CallLimits, RefusesCallsAboveTheLimitUntilOneEnds) {
  CallLimits limits(2, 100);
  auto first = Started(limits);
  const auto second = Started(limits);
  const absl::Status refused = limits.Start(1000).status();
  EXPECT_EQ(ReasonOf(refused), "LIMIT_EXCEEDED");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uid 1000 has reached the limit of 2 calls at once"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("limits.calls_per_uid"));
  const auto other = Started(limits, 1001);
  first.reset();
  EXPECT_TRUE(limits.Start(1000).ok());
  EXPECT_EQ(limits.calls(1000), 1);
}

TEST(CallLimits, SumsTheMemoryOfAllCallsOfAUser) {
  CallLimits limits(10, 100);
  auto first = Started(limits);
  const auto second = Started(limits);
  EXPECT_TRUE(first->Charge(60).ok());
  const absl::Status refused = second->Charge(41);
  EXPECT_EQ(ReasonOf(refused), "LIMIT_EXCEEDED");
  EXPECT_EQ(DetailsOf(refused).at("limit"), "limits.call_memory_bytes_per_uid");
  EXPECT_TRUE(second->Charge(40).ok());
  EXPECT_EQ(limits.memory(1000), 100);
  first->Refund(10);
  EXPECT_EQ(limits.memory(1000), 90);
  first.reset();
  EXPECT_EQ(limits.memory(1000), 40);
  EXPECT_EQ(limits.memory(1001), 0);
}

TEST(CallLimits, GrantsMemoryToWaitingCallsInOrder) {
  CallLimits limits(10, 100);
  auto holder = Started(limits);
  const auto large = Started(limits), small = Started(limits);
  std::vector<std::string> ready;
  holder->ChargeWhenAvailable(80, [&](bool charged) { ready.push_back(charged ? "holder" : "stopped"); });
  EXPECT_THAT(ready, ElementsAre("holder"));
  large->ChargeWhenAvailable(60, [&](bool charged) { ready.push_back(charged ? "large" : "stopped"); });
  small->ChargeWhenAvailable(10, [&](bool charged) { ready.push_back(charged ? "small" : "stopped"); });
  EXPECT_THAT(ready, ElementsAre("holder"));  // The small request does not overtake.
  holder.reset();
  EXPECT_THAT(ready, ElementsAre("holder", "large", "small"));
  EXPECT_EQ(limits.memory(1000), 70);
}

TEST(CallLimits, NewLimitsCountAtOnceAndLetWaitingCallsGoOn) {
  CallLimits limits(1, 100);
  const auto holder = Started(limits);
  limits.SetLimits(2, 100);
  const auto waiting = Started(limits);
  EXPECT_EQ(ReasonOf(limits.Start(1000).status()), "LIMIT_EXCEEDED");
  ASSERT_TRUE(holder->Charge(80).ok());
  std::vector<std::string> ready;
  waiting->ChargeWhenAvailable(90, [&](bool charged) { ready.push_back(charged ? "waiting" : "stopped"); });
  EXPECT_THAT(ready, IsEmpty());
  limits.SetLimits(2, 170);
  EXPECT_THAT(ready, ElementsAre("waiting"));
  EXPECT_EQ(limits.memory(1000), 170);
}

TEST(CallLimits, NobodyWaitsForMoreThanALoweredLimit) {
  CallLimits limits(10, 100);
  auto holder = Started(limits);
  const auto waiting = Started(limits);
  ASSERT_TRUE(holder->Charge(80).ok());
  std::vector<std::string> ready;
  waiting->ChargeWhenAvailable(90, [&](bool charged) { ready.push_back(charged ? "waiting" : "stopped"); });
  limits.SetLimits(10, 50);
  EXPECT_THAT(ready, IsEmpty());
  holder.reset();
  EXPECT_THAT(ready, ElementsAre("waiting"));
  EXPECT_EQ(limits.memory(1000), 50);
}

TEST(CallLimits, StopWaitingAnswersFalseAndLetsOthersPass) {
  CallLimits limits(10, 100);
  const auto holder = Started(limits), large = Started(limits), small = Started(limits);
  ASSERT_TRUE(holder->Charge(80).ok());
  std::vector<std::string> ready;
  large->ChargeWhenAvailable(60, [&](bool charged) { ready.push_back(charged ? "large" : "stopped"); });
  small->ChargeWhenAvailable(10, [&](bool charged) { ready.push_back(charged ? "small" : "stopped"); });
  EXPECT_THAT(ready, IsEmpty());
  large->StopWaiting();
  EXPECT_THAT(ready, ElementsAre("stopped", "small"));
  large->StopWaiting();
  EXPECT_THAT(ready, ElementsAre("stopped", "small"));
}

TEST(CallLimits, GrantsMoreThanTheLimitOnlyWhenNothingElseIsCharged) {
  CallLimits limits(10, 100);
  auto holder = Started(limits);
  const auto huge = Started(limits);
  ASSERT_TRUE(holder->Charge(1).ok());
  bool charged = false;
  huge->ChargeWhenAvailable(1000, [&](bool yes) { charged = yes; });
  EXPECT_FALSE(charged);
  holder.reset();
  EXPECT_TRUE(charged);
  EXPECT_EQ(limits.memory(1000), 100);
}

}  // namespace
}  // namespace ckptd
