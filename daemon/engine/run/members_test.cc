#include "daemon/engine/run/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

Member Of(SessionId session, const std::string& instance, int rank, int64_t attempt = 1) {
  return {.session = session, .instance = instance, .rank = rank, .world_size = 4, .attempt = attempt};
}

class MembersTest : public ::testing::Test {
 protected:
  MembersTest() {
    members_.Join(Of(1, "a", 0));
    members_.Join(Of(1, "a", 2));
    members_.Join(Of(2, "b", 1));
  }
  Members members_;
};

TEST_F(MembersTest, FindsByWhatTheSessionHasJoinedAs) {
  ASSERT_NE(members_.Find(1, 2), nullptr);
  EXPECT_EQ(members_.Find(1, 2)->rank, 2);
  EXPECT_EQ(members_.Find(1, 1), nullptr) << "rank 1 is another session's";
  EXPECT_THAT(members_.OfSession(1), ElementsAre(Field(&Member::rank, 0), Field(&Member::rank, 2)));
  EXPECT_THAT(members_.OfSession(3), IsEmpty());
}

TEST_F(MembersTest, FindsARankOfItsOwnAttemptOnly) {
  members_.Join(Of(3, "c", 1, /*attempt=*/2));
  EXPECT_EQ(members_.FindRank(1, 1)->session, 2);
  EXPECT_EQ(members_.FindRank(2, 1)->session, 3);
  EXPECT_EQ(members_.FindRank(2, 0), nullptr);
}

TEST_F(MembersTest, AProcessThatReconnectsHasItsRankOnce) {
  members_.Join(Of(4, "b", 1));
  EXPECT_EQ(members_.Find(2, 1), nullptr);
  EXPECT_EQ(members_.FindRank(1, 1)->session, 4);
  EXPECT_THAT(members_.OfSession(1), ElementsAre(Field(&Member::rank, 0), Field(&Member::rank, 2)));
}

TEST_F(MembersTest, RankOfASessionIsTheOneThatItJoinedLast) {
  EXPECT_EQ(members_.RankOf(1), 2);
  EXPECT_EQ(members_.RankOf(2), 1);
  EXPECT_EQ(members_.RankOf(3), -1);
}

TEST_F(MembersTest, ASessionThatLeavesTakesAllItsRanks) {
  EXPECT_THAT(members_.Leave(1), ElementsAre(Field(&Member::rank, 0), Field(&Member::rank, 2)));
  EXPECT_THAT(members_.Leave(1), IsEmpty());
  EXPECT_NE(members_.Find(2, 1), nullptr);
  members_.Leave(2);
  EXPECT_TRUE(members_.empty());
}

}  // namespace
}  // namespace ckptd
