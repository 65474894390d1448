#include "daemon/engine/run/session_table.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

class SessionTableTest : public ::testing::Test {
 protected:
  void Add(SessionId id, uid_t uid, const std::string& instance) {
    SessionInfo info;
    info.id = id;
    info.uid = uid;
    info.client_instance = instance;
    table_.Add(info);
  }
  SessionTable table_;
};

TEST_F(SessionTableTest, KnowsASessionUntilItIsRemoved) {
  Add(1, 1000, "a");
  EXPECT_TRUE(table_.IsOpen(1));
  EXPECT_EQ(table_.Find(1)->uid, 1000u);
  const std::optional<SessionInfo> removed = table_.Remove(1);
  ASSERT_TRUE(removed.has_value());
  EXPECT_EQ(removed->client_instance, "a");
  EXPECT_FALSE(table_.IsOpen(1));
  EXPECT_EQ(table_.Find(1), nullptr);
  EXPECT_FALSE(table_.Remove(1).has_value()) << "it is not open any more";
  EXPECT_EQ(table_.count(), 0);
}

TEST_F(SessionTableTest, ASessionBelongsToItsUser) {
  Add(1, 1000, "a");
  EXPECT_TRUE(table_.IsOfUser(1, 1000));
  EXPECT_FALSE(table_.IsOfUser(1, 2000));
  EXPECT_FALSE(table_.IsOfUser(2, 1000)) << "session 2 is not open";
}

TEST_F(SessionTableTest, AnInstanceLivesAsLongAsOneOfItsSessions) {
  Add(1, 1000, "a");
  Add(2, 1000, "a");
  table_.Remove(1);
  EXPECT_TRUE(table_.InstanceLives("a"));
  table_.Remove(2);
  EXPECT_FALSE(table_.InstanceLives("a"));
}

}  // namespace
}  // namespace ckptd
