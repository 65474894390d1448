#include "daemon/engine/run/file_places.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

TEST(FilePlacesTest, FindsEachFileWhateverTheGuess) {
  FilePlaces places;
  for (int i = 0; i < 100; ++i) places.Add("f" + std::to_string(i), i, i * 4096);
  for (const size_t guess : {0, 7, 99, 100, 1'000'000}) {
    for (int i = 0; i < 100; ++i) {
      const PlacedFile* found = places.Find("f" + std::to_string(i), guess);
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->size, i);
    }
    EXPECT_EQ(places.Find("f100", guess), nullptr);
    EXPECT_EQ(places.Find("", guess), nullptr);
  }
}

TEST(FilePlacesTest, FindsFilesThatAreAddedAfterALook) {
  FilePlaces places;
  EXPECT_EQ(places.Find("a"), nullptr);
  const PlacedFile* const first = &places.Add("a", 1, 0);
  EXPECT_EQ(places.Find("b"), nullptr);
  for (int i = 0; i < 1000; ++i) places.Add("b" + std::to_string(i), 2, 4096);
  EXPECT_EQ(places.Find("a", 500), first) << "it stays where it is";
  EXPECT_NE(places.Find("b999"), nullptr);
}

TEST(FilePlacesTest, SealsAllFilesAsPlaced) {
  FilePlaces places;
  places.Add("b", 3, 0);
  places.Add("a", 0, 4096);
  const std::vector<SealedFile> sealed = places.Sealed();
  ASSERT_EQ(sealed.size(), 2u);
  EXPECT_EQ(sealed[0].placed->path, "b");
  EXPECT_EQ(sealed[0].size, 3);
  EXPECT_EQ(sealed[1].placed->path, "a");
  EXPECT_EQ(sealed[1].size, 0);
}

}  // namespace
}  // namespace ckptd
