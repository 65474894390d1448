#include "client/cpp/reading/ranges.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "gtest/gtest.h"

namespace ckptd::client {
namespace {

std::vector<std::byte> File(size_t size) {
  std::vector<std::byte> file(size);
  std::mt19937_64 random(7);
  for (std::byte& byte : file) byte = static_cast<std::byte>(random());
  return file;
}

// Reads by the plan, as a reader does, and returns the number of bytes read.
size_t Read(const std::vector<std::byte>& file, const RangePlan& plan) {
  size_t read = 0;
  int64_t end = 0;
  for (const FilePiece& piece : plan.pieces) {
    EXPECT_FALSE(piece.into.empty());
    EXPECT_GE(piece.offset, end) << "pieces are in the order of the file and do not overlap";
    end = piece.offset + std::ssize(piece.into);
    std::memcpy(piece.into.data(), file.data() + piece.offset, piece.into.size());
    read += piece.into.size();
  }
  for (const CopyStep& step : plan.copies) std::memcpy(step.to, step.from, step.size);
  return read;
}

TEST(PlanRanges, ReadsDisjointSlicesInTheOrderOfTheFile) {
  std::vector<std::byte> a(10), b(20), none;
  const RangePlan plan = PlanRanges({{50, b}, {60, none}, {7, a}});
  ASSERT_EQ(plan.pieces.size(), 2u);
  EXPECT_EQ(plan.pieces[0].offset, 7);
  EXPECT_EQ(plan.pieces[0].into.data(), a.data());
  EXPECT_EQ(plan.pieces[1].offset, 50);
  EXPECT_EQ(plan.pieces[1].into.data(), b.data());
  EXPECT_TRUE(plan.copies.empty());
  EXPECT_TRUE(PlanRanges({}).pieces.empty());
}

TEST(PlanRanges, ReadsNoByteOfOverlappingSlicesTwice) {
  const std::vector<std::byte> file = File(200);
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::vector<std::byte>> buffers;
    std::vector<size_t> offsets;
    std::vector<bool> touched(file.size());
    for (int i = 0; i < 6; ++i) {
      offsets.push_back(random() % file.size());
      buffers.emplace_back(random() % (file.size() - offsets.back() + 1));
      std::fill_n(touched.begin() + static_cast<ptrdiff_t>(offsets.back()), buffers.back().size(), true);
    }
    std::vector<FilePiece> wanted;
    for (size_t i = 0; i < buffers.size(); ++i)
      wanted.push_back({static_cast<int64_t>(offsets[i]), buffers[i]});
    EXPECT_EQ(Read(file, PlanRanges(wanted)),
              static_cast<size_t>(std::count(touched.begin(), touched.end(), true)));
    for (size_t i = 0; i < buffers.size(); ++i)
      ASSERT_TRUE(
          std::equal(buffers[i].begin(), buffers[i].end(), file.begin() + static_cast<ptrdiff_t>(offsets[i])))
          << "round " << round << ", slice " << i;
  }
}

}  // namespace
}  // namespace ckptd::client
