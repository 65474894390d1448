#include "daemon/ledger/save/admission_rules.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Rank 0 of four is on node a, which has voted. The other ranks are missing.
class MissingRanksTest : public ::testing::Test {
 protected:
  MissingRanksTest() {
    view_.all_ranks = {0, 1, 2, 3};
    Join("a", {0});
    view_.registrations["a"] = "a 1";
    view_.votes["a"].set_registration("a 1");
  }
  void Join(const std::string& node, const std::vector<int>& ranks) {
    for (const int rank : ranks) view_.ranks[node].add_ranks(rank);
  }
  std::string Message() const { return EndByMissingRanks(view_, "step_1").message(); }

  SaveView view_;
};

TEST_F(MissingRanksTest, AreNamedWithTheirNodesAndWhatToDo) {
  Join("b", {1});
  Join("c", {2});
  view_.registrations["b"] = "b 2";
  view_.votes["b"].set_registration("b 1");
  const ledger::v1::SaveEnd end = EndByMissingRanks(view_, "step_1");
  EXPECT_EQ(end.reason(), "RANKS_MISSING");
  EXPECT_THAT(end.ranks(), ElementsAre(1, 2, 3));
  EXPECT_EQ(end.node(), "") << "of several nodes";
  EXPECT_THAT(
      end.message(),
      AllOf(HasSubstr("the save of step_1"), HasSubstr("node \"c\" (ranks 2): not registered in etcd; look"),
            HasSubstr("node \"b\" (ranks 1): registered, but its daemon was started again"),
            HasSubstr("no node (ranks 3): they have not joined the run; look"),
            Not(HasSubstr("node \"a\""))));
}

TEST_F(MissingRanksTest, OfManyNodesSomeAreNamed) {
  view_.all_ranks.clear();
  for (int rank = 0; rank < 30; ++rank) {
    view_.all_ranks.push_back(rank);
    if (rank > 0) Join("node" + std::to_string(rank), {rank});
  }
  EXPECT_THAT(Message(),
              AllOf(HasSubstr("node \"node1\" (ranks 1)"), HasSubstr(", 21 more nodes: not registered")));
}

TEST_F(MissingRanksTest, AreNotBlamedWhenAllHaveVoted) {
  view_.all_ranks = {0};
  const ledger::v1::SaveEnd end = EndByMissingRanks(view_, "step_1");
  EXPECT_EQ(end.reason(), "LEDGER_UNAVAILABLE");
  EXPECT_THAT(end.message(), HasSubstr("the coordinator of the run has not admitted it"));
}

}  // namespace
}  // namespace ckptd
