#include "client/convert/deepspeed/state/affine_map.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

using torch::ValueRef;
using Sizes = std::vector<int64_t>;

ValueRef ListOf(std::vector<ValueRef> items) { return torch::Make(torch::List{std::move(items)}); }

ValueRef Numbers(const Sizes& numbers) {
  std::vector<ValueRef> items;
  for (const int64_t number : numbers) items.push_back(torch::MakeInt(number));
  return ListOf(std::move(items));
}

using Fields = std::vector<std::pair<std::string, ValueRef>>;

ValueRef DictOf(const Fields& fields) {
  torch::Dict dict;
  for (const auto& [key, value] : fields) dict.Set(key, value);
  return torch::Make(std::move(dict));
}

// A piece as DeepSpeed writes it, with more fields.
ValueRef PieceOf(const Sizes& shape, int64_t whole, const Sizes& whole_strides, int64_t slice,
                 const Sizes& slice_strides, const Fields& more = {}) {
  Fields fields = {{"shape", Numbers(shape)},
                   {"source", ListOf({torch::MakeInt(whole), Numbers(whole_strides)})},
                   {"dest", ListOf({torch::MakeInt(slice), Numbers(slice_strides)})}};
  fields.insert(fields.end(), more.begin(), more.end());
  return DictOf(fields);
}

struct RankFields {
  Sizes shape;
  std::vector<ValueRef> pieces;
};

absl::StatusOr<AffineMap> Parse(const Sizes& shape, const std::vector<RankFields>& ranks) {
  torch::Dict of_ranks;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    of_ranks.Set(static_cast<int64_t>(rank), DictOf({{"shard_shape", Numbers(ranks[rank].shape)},
                                                     {"pieces", ListOf(ranks[rank].pieces)}}));
  }
  return ParseAffineMap(
      DictOf({{"logical_shape", Numbers(shape)}, {"ranks", torch::Make(std::move(of_ranks))}}));
}

// Two rows of five numbers: rank 0 has columns 0, 1 and 4, rank 1 has columns 2 to 4.
std::vector<RankFields> Columns() {
  return {{{2, 3}, {PieceOf({2, 2}, 0, {5, 1}, 0, {3, 1}), PieceOf({2, 1}, 4, {5, 1}, 2, {3, 1})}},
          {{2, 3}, {PieceOf({2, 2}, 2, {5, 1}, 0, {3, 1}), PieceOf({2, 1}, 4, {5, 1}, 2, {3, 1})}}};
}

// The slice of a rank is a file of the numbers 10 * rank, 10 * rank + 1, …, but for what `changed` says.
using Changes = std::map<int64_t, float>;

absl::StatusOr<std::vector<float>> Merge(const absl::StatusOr<AffineMap>& map,
                                         const std::vector<Sizes>& shapes, const Changes& changed = {}) {
  if (!map.ok()) return map.status();
  std::vector<TpSlice> slices;
  for (const Sizes& shape : shapes) {
    int64_t bytes = 4;
    for (const int64_t size : shape) bytes *= size;
    slices.push_back({shape, {{static_cast<int>(slices.size()), 0, bytes}}});
  }
  const auto read = [&](const SourceRange& range, std::span<std::byte> into) {
    for (int64_t i = 0; i < range.size / 4; ++i) {
      const int64_t number = 10 * range.input + range.from / 4 + i;
      const float value = changed.contains(number) ? changed.at(number) : static_cast<float>(number);
      std::memcpy(into.data() + i * 4, &value, 4);
    }
    return absl::OkStatus();
  };
  const absl::StatusOr<std::vector<SourceRange>> ranges = MergeByMap(*map, slices, DataType::kFloat32, read);
  if (!ranges.ok()) return ranges.status();
  std::vector<float> numbers;
  for (const SourceRange& range : *ranges) {
    std::vector<float> some(static_cast<size_t>(range.size / 4));
    read(range, std::as_writable_bytes(std::span(some))).IgnoreError();
    numbers.insert(numbers.end(), some.begin(), some.end());
  }
  return numbers;
}

void ExpectRefused(const absl::Status& status, const std::string& words) {
  EXPECT_EQ(ReasonOf(status), "CANNOT_CONVERT") << status;
  EXPECT_NE(status.message().find(words), std::string::npos) << status;
}

const Changes kEqualCopies = {{12, 2.0F}, {15, 5.0F}};  // Those of column 4.

TEST(AffineMapTest, PutsStridedPiecesInTheirPlacesAndTakesEqualCopiesOnce) {
  const auto numbers = Merge(Parse({2, 5}, Columns()), {{2, 3}, {2, 3}}, kEqualCopies);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_EQ(*numbers, (std::vector<float>{0, 1, 10, 11, 2, 3, 4, 13, 14, 5}));
}

TEST(AffineMapTest, RefusesCopiesThatDiffer) {
  // The copies of the second row only.
  ExpectRefused(Merge(Parse({2, 5}, Columns()), {{2, 3}, {2, 3}}, {{12, 2.0F}}).status(),
                "from element 9 on");
}

TEST(AffineMapTest, AcceptsARankWithoutElementsAndAScaleOfOne) {
  const Fields scale = {{"scale", torch::Make(1.0)}};
  const auto map =
      Parse({3}, {{{3}, {PieceOf({3}, 0, {1}, 0, {1}, scale)}}, {{0}, {PieceOf({0}, 3, {1}, 0, {1})}}});
  const auto numbers = Merge(map, {{3}, {0}});
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_EQ(*numbers, (std::vector<float>{0, 1, 2}));
}

TEST(AffineMapTest, RefusesAMapThatLeavesElementsOut) {
  const auto map = Parse({4}, {{{2}, {PieceOf({2}, 0, {1}, 0, {1})}}, {{1}, {PieceOf({1}, 3, {1}, 0, {1})}}});
  ExpectRefused(Merge(map, {{2}, {1}}).status(), "leaves element 2 of 4 to no rank");
}

TEST(AffineMapTest, RefusesPiecesThatOverlapInPart) {
  const auto map = Parse({4}, {{{3}, {PieceOf({3}, 0, {1}, 0, {1})}}, {{2}, {PieceOf({2}, 2, {1}, 0, {1})}}});
  ExpectRefused(Merge(map, {{3}, {2}}).status(), "overlap at element 2");
}

TEST(AffineMapTest, RefusesPiecesThatDoNotMakeUpTheSlice) {
  const ValueRef twice = PieceOf({1}, 0, {1}, 0, {1});
  const auto map = Parse({2}, {{{2}, {twice, PieceOf({1}, 1, {1}, 0, {1})}}});
  ExpectRefused(Merge(map, {{2}}).status(), "element 1 of 2 is in none of them, or in several");
}

TEST(AffineMapTest, RefusesSlicesOfOtherRanksAndShapes) {
  const auto map = Parse({2, 5}, Columns());
  ExpectRefused(Merge(map, {{2, 3}}, kEqualCopies).status(), "of 2 ranks, and there are 1");
  ExpectRefused(Merge(map, {{2, 3}, {2, 2}}, kEqualCopies).status(), "rank 1 has it as");
}

TEST(AffineMapTest, RefusesWhatIsNoMap) {
  ExpectRefused(ParseAffineMap(torch::MakeInt(1)).status(), "affine_map");
  ExpectRefused(ParseAffineMap(DictOf({{"logical_shape", Numbers({2})}})).status(), "ranks of an affine_map");
  ExpectRefused(Parse({int64_t{1} << 40, int64_t{1} << 40}, {}).status(), "impossible shape");
  const auto with = [](const ValueRef& piece) { return Parse({4}, {{{2}, {piece}}}).status(); };
  ExpectRefused(with(PieceOf({2}, 0, {1}, 0, {1}, {{"scale", torch::Make(0.5)}})), "scaled");
  ExpectRefused(with(PieceOf({2}, 0, {1}, 0, {1}, {{"scale", torch::MakeInt(2)}})), "scaled");
  ExpectRefused(with(PieceOf({2}, 3, {1}, 0, {1})), "exceeds");
  ExpectRefused(with(PieceOf({2}, 0, {1}, 1, {1})), "exceeds");
  ExpectRefused(with(PieceOf({2}, -1, {1}, 0, {1})), "exceeds");
  ExpectRefused(with(PieceOf({2}, 0, {-1}, 0, {1})), "negative");
  ExpectRefused(with(PieceOf({2}, 0, {1, 1}, 0, {1})), "exceeds");
  // A product that wraps around to something small.
  ExpectRefused(with(PieceOf({3}, 0, {int64_t{1} << 62}, 0, {1})), "exceeds");
}

}  // namespace
}  // namespace ckptd
