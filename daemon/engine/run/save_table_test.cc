#include "daemon/engine/run/save_table.h"

#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

using SaveTableTest = ClassTest;

TEST_F(SaveTableTest, NumbersSavesInTheOrderInWhichTheyBegan) {
  Run* run = AddRun(1000);
  Run* other = AddRun(2000);
  Save* first = AddSave(run, 1, 0);
  Save* second = AddSave(other, 1, 0);
  EXPECT_LT(first->id, second->id);
  EXPECT_THAT(saves_.all(), ElementsAre(Pair(first->id, first), Pair(second->id, second)));
  EXPECT_EQ(saves_.Find(first->id), first);
  EXPECT_EQ(saves_.Find(0), nullptr) << "0 names no save";
}

TEST_F(SaveTableTest, TheRunOwnsTheSaveUntilItIsRemoved) {
  Run* run = AddRun(1000);
  Save* save = AddSave(run, 1, 0);
  EXPECT_EQ(run->saves.at(save->sequence).get(), save);
  const int64_t id = save->id;
  const std::unique_ptr<Save> removed = saves_.Remove(save);
  EXPECT_EQ(removed.get(), save);
  EXPECT_TRUE(run->saves.empty());
  EXPECT_EQ(saves_.Find(id), nullptr);
}

TEST_F(SaveTableTest, TheNumberOfAnEndedSaveIsNotGivenAgain) {
  Run* run = AddRun(1000);
  Save* save = AddSave(run, 1, 0);
  const int64_t id = save->id;
  saves_.Remove(save);
  EXPECT_GT(AddSave(run, 1, 0)->id, id);
}

}  // namespace
}  // namespace ckptd
