#include "daemon/engine/admission/expected_sizes.h"

#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ExpectedSizesTest : public ClassTest {
 protected:
  ExpectedSizes sizes_;
};

TEST_F(ExpectedSizesTest, RanksThatHaveNotBegunAreKnownFromTheLastSealedSave) {
  Run* run = AddRun(1000);
  Save* first = AddSave(run, 2, 1000);
  first->PartOf(1).begun = false;
  EXPECT_THAT(sizes_.UnknownRanks(*first), ElementsAre(1));
  sizes_.Remember(*first);
  Save* second = AddSave(run, 2, 300);
  second->parts.erase(1);
  EXPECT_THAT(sizes_.UnknownRanks(*second), IsEmpty());
  EXPECT_EQ(sizes_.TotalBytes(*second), 300 + 1000);
}

TEST_F(ExpectedSizesTest, AnotherWorldSizeForgetsTheLastSave) {
  Run* run = AddRun(1000);
  sizes_.Remember(*AddSave(run, 2, 1000));
  Save* larger = AddSave(run, 3, 10);
  larger->parts.erase(2);
  EXPECT_THAT(sizes_.UnknownRanks(*larger), ElementsAre(2));
}

TEST_F(ExpectedSizesTest, AGrowingPartIsExpectedToBecomeAsLargeAsTheLastOne) {
  Run* run = AddRun(1000);
  sizes_.Remember(*AddSave(run, 1, 1000));
  Save* save = AddSave(run, 1, 10);
  EXPECT_EQ(sizes_.PartBytes(*save, 0), 10);
  save->PartOf(0).growing = true;
  EXPECT_EQ(sizes_.PartBytes(*save, 0), 1000);
}

}  // namespace
}  // namespace ckptd
