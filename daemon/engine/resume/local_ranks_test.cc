// Which ranks of a world are on this node.
#include "daemon/engine/resume/local_ranks.h"

#include <initializer_list>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JoinRunRequest Request(int rank, int world, int local, std::initializer_list<int> ranks = {}) {
  v1::JoinRunRequest request;
  request.set_rank(rank);
  request.set_world_size(world);
  request.set_local_world_size(local);
  for (int local_rank : ranks) request.add_local_ranks(local_rank);
  return request;
}

std::string Refused(const v1::JoinRunRequest& request) {
  const auto ranks = LocalRanksOf(request);
  return ranks.ok() ? "" : std::string(ranks.status().message());
}

TEST(LocalRanksTest, AWorldOfOneNodeHasNoList) {
  EXPECT_THAT(*LocalRanksOf(Request(1, 4, 0)), IsEmpty());
  EXPECT_THAT(*LocalRanksOf(Request(1, 4, 4)), IsEmpty());
  EXPECT_THAT(*LocalRanksOf(Request(1, 4, 4, {0, 1, 2, 3})), IsEmpty());
}

TEST(LocalRanksTest, IsTheBlockOfTheRankUnlessTheyAreNamed) {
  EXPECT_THAT(*LocalRanksOf(Request(1, 6, 2)), ElementsAre(0, 1));
  EXPECT_THAT(*LocalRanksOf(Request(2, 6, 2)), ElementsAre(2, 3));
  EXPECT_THAT(*LocalRanksOf(Request(5, 6, 2)), ElementsAre(4, 5));
  EXPECT_THAT(*LocalRanksOf(Request(5, 6, 2, {1, 5})), ElementsAre(1, 5));
  EXPECT_THAT(*LocalRanksOf(Request(5, 6, 0, {1, 5})), ElementsAre(1, 5));
}

TEST(LocalRanksTest, RefusesWhatDoesNotTellThem) {
  EXPECT_THAT(Refused(Request(1, 5, 2)), HasSubstr("no multiple of local_world_size 2"));
  EXPECT_THAT(Refused(Request(1, 4, -1)), HasSubstr("local_world_size is -1"));
  EXPECT_THAT(Refused(Request(1, 4, 5)), HasSubstr("local_world_size is 5"));
  EXPECT_THAT(Refused(Request(1, 4, 2, {2, 3})), HasSubstr("rank 1 is not in local_ranks"));
  EXPECT_THAT(Refused(Request(1, 4, 2, {1, 0})), HasSubstr("not ascending"));
  EXPECT_THAT(Refused(Request(1, 4, 2, {1, 1})), HasSubstr("names a rank twice"));
  EXPECT_THAT(Refused(Request(1, 4, 2, {1, 4})), HasSubstr("[1, 4]; they are in [0, 4)"));
  EXPECT_THAT(Refused(Request(1, 4, 2, {-1, 1})), HasSubstr("[-1, 1]"));
  EXPECT_THAT(Refused(Request(1, 4, 3, {0, 1})), HasSubstr("names 2 ranks, and local_world_size is 3"));
}

}  // namespace
}  // namespace ckptd
