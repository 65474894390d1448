#include "daemon/sessions/session_registry.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

SessionRequest Request(uid_t uid, bool keeper = false) {
  SessionRequest request;
  request.user = FileUser{uid, uid + 1, {7, 8}};
  request.pid = 42;
  request.client_instance = "instance";
  request.client_name = "test/1";
  request.keeper = keeper;
  return request;
}

TEST(SessionRegistryTest, TokenNamesItsSessionAndNoOther) {
  SessionRegistry registry(10);
  auto one = registry.Open(Request(1000));
  auto two = registry.Open(Request(1000));
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE(one->token, two->token);
  EXPECT_THAT(one->token, testing::MatchesRegex("[0-9a-f]{32}"));
  auto found = registry.Find(two->token, 1000);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->id, two->info.id);
  EXPECT_EQ(found->uid, 1000u);
  EXPECT_EQ(found->gid, 1001u);
  EXPECT_EQ(found->pid, 42);
  EXPECT_EQ(found->client_instance, "instance");
  auto user = registry.UserOf(two->info.id);
  ASSERT_TRUE(user.ok());
  EXPECT_EQ(user->groups, (std::vector<gid_t>{7, 8}));
}

TEST(SessionRegistryTest, RefusesATokenFromAnotherUser) {
  SessionRegistry registry(10);
  auto opened = registry.Open(Request(1000));
  ASSERT_TRUE(opened.ok());
  for (uid_t uid : {0u, 1001u, 65534u}) {
    auto found = registry.Find(opened->token, uid);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kPermissionDenied) << uid;
    EXPECT_EQ(ReasonOf(found.status()), "WRONG_UID");
  }
}

TEST(SessionRegistryTest, TokenEndsWithItsSession) {
  SessionRegistry registry(10);
  auto opened = registry.Open(Request(1000));
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE(registry.Close(opened->info.id));
  EXPECT_FALSE(registry.Close(opened->info.id));
  for (const std::string& token : {opened->token, std::string(), std::string("garbage")}) {
    auto found = registry.Find(token, 1000);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(ReasonOf(found.status()), "UNKNOWN_TOKEN");
  }
  EXPECT_EQ(ReasonOf(registry.UserOf(opened->info.id).status()), "UNKNOWN_TOKEN");
}

TEST(SessionRegistryTest, RefusesSessionsAboveTheLimitUntilOneEnds) {
  SessionRegistry registry(2);
  auto one = registry.Open(Request(1));
  auto two = registry.Open(Request(2));
  ASSERT_TRUE(one.ok() && two.ok());
  auto refused = registry.Open(Request(3));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused.status()), "TOO_MANY_SESSIONS");
  EXPECT_EQ(registry.sessions(), 2);
  registry.Close(one->info.id);
  auto three = registry.Open(Request(3));
  ASSERT_TRUE(three.ok());
  EXPECT_GT(three->info.id, two->info.id);  // Ids are never reused.
}

TEST(SessionRegistryTest, CountsKeepers) {
  SessionRegistry registry(10);
  auto keeper = registry.Open(Request(1, true));
  auto guest = registry.Open(Request(1));
  auto second = registry.Open(Request(1, true));
  ASSERT_TRUE(keeper.ok() && guest.ok() && second.ok());
  EXPECT_EQ(registry.keepers(), 2);
  registry.Close(guest->info.id);
  EXPECT_EQ(registry.keepers(), 2);
  registry.Close(keeper->info.id);
  registry.Close(keeper->info.id);
  EXPECT_EQ(registry.keepers(), 1);
  registry.Close(second->info.id);
  EXPECT_EQ(registry.keepers(), 0);
}

TEST(SessionRegistryTest, KeeperKeepsTheDaemonRunningOrIsRefused) {
  SessionRegistry registry(10);
  auto keeper = registry.Open(Request(1, true));
  ASSERT_TRUE(keeper.ok());
  EXPECT_FALSE(registry.CloseToKeepers());
  ASSERT_TRUE(registry.Open(Request(1, true)).ok());  // The refused CloseToKeepers changed nothing.

  SessionRegistry ending(10);
  EXPECT_TRUE(ending.CloseToKeepers());
  EXPECT_EQ(ReasonOf(ending.Open(Request(1, true)).status()), "DRAINING");
  EXPECT_EQ(ending.keepers(), 0);
  EXPECT_TRUE(ending.Open(Request(1)).ok());  // A session that only waits for sealed saves.
}

TEST(SessionRegistryTest, ManyThreadsOpenAndCloseConcurrently) {
  SessionRegistry registry(1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&registry] {
      for (int j = 0; j < 200; ++j) {
        auto opened = registry.Open(Request(5, true));
        ASSERT_TRUE(opened.ok());
        auto found = registry.Find(opened->token, 5);
        ASSERT_TRUE(found.ok());
        EXPECT_EQ(found->id, opened->info.id);
        EXPECT_TRUE(registry.Close(opened->info.id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.sessions(), 0);
  EXPECT_EQ(registry.keepers(), 0);
}

TEST(SessionRegistryLimits, LimitsSessionsOfEachUser) {
  SessionRegistry registry(10, /*max_sessions_per_uid=*/2);
  SessionRequest mine, other;
  mine.user.uid = 1000;
  other.user.uid = 1001;
  const auto first = registry.Open(mine);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(registry.Open(mine).ok());
  const absl::Status refused = registry.Open(mine).status();
  EXPECT_EQ(ReasonOf(refused), "LIMIT_EXCEEDED");
  EXPECT_EQ(DetailsOf(refused).at("limit"), "limits.sessions_per_uid");
  EXPECT_TRUE(registry.Open(other).ok());
  registry.SetMostPerUser(3);
  EXPECT_TRUE(registry.Open(mine).ok());
  registry.SetMostPerUser(2);
  EXPECT_EQ(ReasonOf(registry.Open(mine).status()), "LIMIT_EXCEEDED");
  registry.SetMostPerUser(3);
  EXPECT_TRUE(registry.Close(first->info.id));
  EXPECT_TRUE(registry.Open(mine).ok());
}

}  // namespace
}  // namespace ckptd
