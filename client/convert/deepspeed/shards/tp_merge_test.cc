#include "client/convert/deepspeed/shards/tp_merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

// Each input is a file of float32 numbers: rank 0 has 0, 1, 2, ...; rank 1 has 100, 101, ...
float NumberOf(int input, int64_t index) { return static_cast<float>(100 * input + index); }

absl::Status Read(const SourceRange& range, std::span<std::byte> into) {
  for (int64_t i = 0; i < range.size / 4; ++i) {
    const float number = NumberOf(range.input, range.from / 4 + i);
    std::memcpy(into.data() + i * 4, &number, 4);
  }
  return absl::OkStatus();
}

// Slices of ranks 0, 1, ..., each in fragments of at most 3 numbers.
std::vector<TpSlice> Slices(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<TpSlice> slices;
  for (size_t rank = 0; rank < shapes.size(); ++rank) {
    int64_t elements = 1;
    for (const int64_t size : shapes[rank]) elements *= size;
    TpSlice slice = {shapes[rank], {}};
    for (int64_t at = 0; at < elements; at += 3)
      slice.ranges.push_back({static_cast<int>(rank), at * 4, std::min<int64_t>(3, elements - at) * 4});
    slices.push_back(std::move(slice));
  }
  return slices;
}

std::vector<float> Numbers(const MergedTensor& merged) {
  std::vector<float> numbers;
  for (const SourceRange& range : merged.ranges) {
    std::vector<std::byte> bytes(static_cast<size_t>(range.size));
    if (range.input == Piece::kLiteral) {
      std::memcpy(bytes.data(), merged.literals.data() + range.from, bytes.size());
    } else {
      Read(range, bytes).IgnoreError();
    }
    const size_t before = numbers.size();
    numbers.resize(before + bytes.size() / 4);
    std::memcpy(numbers.data() + before, bytes.data(), bytes.size());
  }
  return numbers;
}

absl::StatusOr<MergedTensor> Merge(const TpRule& rule, const std::vector<TpSlice>& slices) {
  return MergeTpSlices(rule, slices, DataType::kFloat32, Read);
}

using Floats = std::vector<float>;
using Shape = std::vector<int64_t>;

TEST(TpMergeTest, ConcatenatesUnevenSlicesAlongADimension) {
  const absl::StatusOr<MergedTensor> rows = Merge({}, Slices({{2, 2}, {1, 2}}));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->shape, (Shape{3, 2}));
  EXPECT_EQ(Numbers(*rows), (Floats{0, 1, 2, 3, 100, 101}));
  const absl::StatusOr<MergedTensor> columns = Merge({.dimension = 1}, Slices({{2, 2}, {2, 1}}));
  ASSERT_TRUE(columns.ok()) << columns.status();
  EXPECT_EQ(columns->shape, (Shape{2, 3}));
  EXPECT_EQ(Numbers(*columns), (Floats{0, 1, 100, 2, 3, 101}));
  EXPECT_EQ(*columns->notes.Find("cat_dim")->As<int64_t>(), 1);
  EXPECT_EQ(ReasonOf(Merge({.dimension = 1}, Slices({{2, 2}, {3, 1}})).status()), "CANNOT_CONVERT");
  EXPECT_EQ(ReasonOf(Merge({.dimension = 1}, Slices({{4}, {4}})).status()), "CANNOT_CONVERT");
}

TEST(TpMergeTest, PutsHalvesOfTwoSubParametersTogether) {
  const absl::StatusOr<MergedTensor> merged =
      Merge({.kind = TpRule::Kind::kTwoSubParams}, Slices({{4}, {2}}));
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(Numbers(*merged), (Floats{0, 1, 100, 2, 3, 101}));
}

TEST(TpMergeTest, PutsSubParametersTogetherByTheirWidths) {
  TpRule rule = {.kind = TpRule::Kind::kSubParams};
  rule.subs.emplace();
  rule.subs->logical_shape = {5, -1};
  rule.subs->sizes = {3, 2};
  rule.subs->widths = {{{2, 1}, {1, 1}}};
  rule.subs->shape = torch::Make(torch::Tuple());
  rule.subs->patterns = torch::Make(torch::List());
  const absl::StatusOr<MergedTensor> merged = Merge(rule, Slices({{3, 2}, {2, 2}}));
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->shape, (Shape{5, 2}));
  EXPECT_EQ(Numbers(*merged), (Floats{0, 1, 2, 3, 100, 101, 4, 5, 102, 103}));
  rule.subs->widths = {{{2, 0}, {1, 2}}};
  EXPECT_EQ(ReasonOf(Merge(rule, Slices({{3, 2}, {2, 2}})).status()), "CANNOT_CONVERT");
}

TEST(TpMergeTest, AveragesFromTheFirstRankOn) {
  const absl::StatusOr<MergedTensor> merged = Merge({.kind = TpRule::Kind::kAverage}, Slices({{3}, {3}}));
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(Numbers(*merged), (Floats{50, 51, 52}));
}

TEST(TpMergeTest, TakesEqualReplicasAndRefusesOthers) {
  std::vector<TpSlice> slices = Slices({{4}, {4}});
  EXPECT_EQ(ReasonOf(Merge({.kind = TpRule::Kind::kReplicated}, slices).status()), "CANNOT_CONVERT");
  slices[1] = slices[0];
  const absl::StatusOr<MergedTensor> merged = Merge({.kind = TpRule::Kind::kReplicated}, slices);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(Numbers(*merged), (Floats{0, 1, 2, 3}));
}

TEST(TpMergeTest, CutsThePaddingOfTheVocabulary) {
  const absl::StatusOr<MergedTensor> merged = Merge({.vocabulary = 3}, Slices({{2, 2}, {2, 2}}));
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(merged->shape, (Shape{3, 2}));
  EXPECT_EQ(Numbers(*merged), (Floats{0, 1, 2, 3, 100, 101}));
}

TEST(TpMergeTest, RefusesFragmentsOfAnotherSize) {
  std::vector<TpSlice> slices = Slices({{4}, {4}});
  slices[1].ranges.pop_back();
  EXPECT_EQ(ReasonOf(Merge({}, slices).status()), "CANNOT_CONVERT");
}

}  // namespace
}  // namespace ckptd
