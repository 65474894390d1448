#include "daemon/engine/admission/kept_layouts.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

using Owner = KeptLayouts::Owner;

std::shared_ptr<FilePlaces> PlacesOf(int files) {
  auto places = std::make_shared<FilePlaces>();
  for (int i = 0; i < files; ++i) places->Add(std::to_string(i), 1, i * 4096);
  return places;
}

TEST(KeptLayoutsTest, FindsOnlyTheOwnersLastLayoutByItsNumber) {
  KeptLayouts layouts({});
  const Owner owner{1, "runs/a", 0};
  const auto first = PlacesOf(2), second = PlacesOf(2);
  const int64_t one = layouts.Keep(1000, owner, first);
  ASSERT_GT(one, 0);
  EXPECT_EQ(layouts.Find(owner, one), first);
  EXPECT_EQ(layouts.Find({2, "runs/a", 0}, one), nullptr) << "another session";
  EXPECT_EQ(layouts.Find({1, "runs/b", 0}, one), nullptr) << "another run";
  EXPECT_EQ(layouts.Find({1, "runs/a", 1}, one), nullptr) << "another rank";
  EXPECT_EQ(layouts.Find(owner, one + 1), nullptr);
  const int64_t two = layouts.Keep(1000, owner, second);
  EXPECT_EQ(layouts.Find(owner, two), second);
  EXPECT_EQ(layouts.Find(owner, one), nullptr) << "replaced";
}

TEST(KeptLayoutsTest, ForgetsTheLayoutsOfASessionThatEndsAndNoOthers) {
  KeptLayouts layouts({});
  const int64_t ends = layouts.Keep(1000, {2, "runs/a", 5}, PlacesOf(1));
  const int64_t too = layouts.Keep(1000, {2, "runs/b", 0}, PlacesOf(1));
  const int64_t before = layouts.Keep(1000, {1, "runs/z", 9}, PlacesOf(1));
  const int64_t after = layouts.Keep(1000, {3, "runs/a", 0}, PlacesOf(1));
  layouts.OnSessionEnded(2);
  EXPECT_EQ(layouts.Find({2, "runs/a", 5}, ends), nullptr);
  EXPECT_EQ(layouts.Find({2, "runs/b", 0}, too), nullptr);
  EXPECT_NE(layouts.Find({1, "runs/z", 9}, before), nullptr);
  EXPECT_NE(layouts.Find({3, "runs/a", 0}, after), nullptr);
  const int64_t again = layouts.Keep(1000, {2, "runs/a", 5}, PlacesOf(1));
  EXPECT_GT(again, after) << "no number is used again";
}

TEST(KeptLayoutsTest, KeepsAsManyFilesOfAUserAsTheLimitAllows) {
  KeptLayouts layouts({.files_per_uid = 10});
  const Owner one{1, "runs/a", 0}, two{2, "runs/a", 1};
  EXPECT_EQ(layouts.Keep(1000, one, PlacesOf(11)), 0);
  const int64_t kept = layouts.Keep(1000, one, PlacesOf(6));
  EXPECT_GT(kept, 0);
  EXPECT_EQ(layouts.Keep(1000, two, PlacesOf(5)), 0);
  EXPECT_GT(layouts.Keep(1001, {3, "runs/b", 0}, PlacesOf(10)), 0) << "another user";
  EXPECT_GT(layouts.Keep(1000, one, PlacesOf(5)), 0) << "in the place of the 6";
  EXPECT_EQ(layouts.Find(one, kept), nullptr);
  EXPECT_GT(layouts.Keep(1000, two, PlacesOf(5)), 0);
  layouts.OnSessionEnded(2);
  EXPECT_EQ(layouts.Keep(1000, one, PlacesOf(11)), 0) << "and the 5 are forgotten";
  EXPECT_GT(layouts.Keep(1000, one, PlacesOf(10)), 0);
}

TEST(KeptLayoutsTest, APartWithoutFilesHasNoLayout) {
  EXPECT_EQ(KeptLayouts({}).Keep(1000, {1, "runs/a", 0}, PlacesOf(0)), 0);
}

}  // namespace
}  // namespace ckptd
