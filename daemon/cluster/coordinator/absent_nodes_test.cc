#include "daemon/cluster/coordinator/absent_nodes.h"

#include <chrono>

#include "gtest/gtest.h"

namespace ckptd {
namespace {

using std::chrono::seconds;

TEST(AbsentNodes, NodeIsOverdueAfterTheGraceAndSaidOnce) {
  AbsentNodes nodes(seconds(30));
  const Instant begin{};
  nodes.Absent("a", begin);
  nodes.Absent("a", begin + seconds(20));  // It has been absent since the beginning.
  EXPECT_FALSE(nodes.Update(begin + seconds(29)));
  EXPECT_FALSE(nodes.IsOverdue("a"));
  EXPECT_TRUE(nodes.Update(begin + seconds(30)));
  EXPECT_TRUE(nodes.IsOverdue("a"));
  EXPECT_FALSE(nodes.IsOverdue("b"));
  EXPECT_FALSE(nodes.Update(begin + seconds(31))) << "said again";
}

TEST(AbsentNodes, NodeThatWasBackHasTheWholeGraceAgain) {
  AbsentNodes nodes(seconds(30));
  const Instant begin{};
  nodes.Absent("a", begin);
  nodes.Back("a");
  EXPECT_FALSE(nodes.Update(begin + seconds(40))) << "it is there";
  nodes.Absent("a", begin + seconds(40));
  EXPECT_FALSE(nodes.Update(begin + seconds(69)));
  EXPECT_TRUE(nodes.Update(begin + seconds(70)));
  nodes.Back("a");
  EXPECT_FALSE(nodes.IsOverdue("a"));
}

}  // namespace
}  // namespace ckptd
