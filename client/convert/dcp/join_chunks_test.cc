#include "client/convert/dcp/join_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/torch/value.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr int64_t kItem = 4;

// A file per chunk, with the number of the tensor's element at each element's place.
struct Files {
  std::vector<std::vector<int64_t>> elements;
  std::vector<ChunkSource> chunks;
};

// Appends a box. Its elements are in the file in order, or transposed.
void AppendBox(const std::vector<int64_t>& shape, const std::vector<int64_t>& offsets,
               const std::vector<int64_t>& sizes, bool transposed, Files& files) {
  const std::vector<int64_t> tensor_stride = torch::ContiguousStride(shape);
  std::vector<int64_t> stride = torch::ContiguousStride(sizes);
  if (transposed) {
    const std::vector<int64_t> reversed(sizes.rbegin(), sizes.rend());
    const std::vector<int64_t> of_reversed = torch::ContiguousStride(reversed);
    stride.assign(of_reversed.rbegin(), of_reversed.rend());
  }
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  std::vector<int64_t> elements(static_cast<size_t>(count));
  for (int64_t number = 0; number < count; ++number) {
    int64_t rest = number, in_tensor = 0, in_file = 0;
    for (size_t i = sizes.size(); i-- > 0; rest /= sizes[i]) {
      in_tensor += (offsets[i] + rest % sizes[i]) * tensor_stride[i];
      in_file += rest % sizes[i] * stride[i];
    }
    elements[static_cast<size_t>(in_file)] = in_tensor;
  }
  const int input = static_cast<int>(files.chunks.size());
  files.chunks.push_back({.offsets = offsets, .sizes = sizes, .stride = stride, .input = input, .from = 64});
  files.elements.push_back(std::move(elements));
}

// Cuts a box into boxes at random places, down to `depth` cuts.
void CutBox(const std::vector<int64_t>& shape, std::vector<int64_t> offsets, std::vector<int64_t> sizes,
            int depth, std::mt19937& random, Files& files) {
  const size_t dimension = shape.empty() ? 0 : random() % shape.size();
  if (depth == 0 || shape.empty() || sizes[dimension] < 2) {
    return AppendBox(shape, offsets, sizes, random() % 4 == 0, files);
  }
  const int64_t at = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(sizes[dimension] - 1));
  std::vector<int64_t> first = sizes;
  first[dimension] = at;
  CutBox(shape, offsets, first, depth - 1, random, files);
  offsets[dimension] += at;
  sizes[dimension] -= at;
  CutBox(shape, offsets, sizes, depth - 1, random, files);
}

std::vector<int64_t> ElementsOf(const std::vector<SourceRange>& ranges, const Files& files) {
  std::vector<int64_t> elements;
  for (const SourceRange& range : ranges) {
    const std::vector<int64_t>& file = files.elements[static_cast<size_t>(range.input)];
    for (int64_t at = range.from - 64; at < range.from - 64 + range.size; at += kItem)
      elements.push_back(file[static_cast<size_t>(at / kItem)]);
  }
  return elements;
}

TEST(JoinChunksTest, TensorCutAtRandomPlacesIsJoinedInOrder) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> shape(random() % 5);
    for (int64_t& size : shape) size = 1 + random() % 6;
    Files files;
    CutBox(shape, std::vector<int64_t>(shape.size(), 0), shape, static_cast<int>(random() % 5), random,
           files);
    std::shuffle(files.chunks.begin(), files.chunks.end(), random);
    const absl::StatusOr<std::vector<SourceRange>> ranges = JoinChunks(shape, kItem, files.chunks);
    ASSERT_TRUE(ranges.ok()) << ranges.status() << " seed " << seed;
    const std::vector<int64_t> elements = ElementsOf(*ranges, files);
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    ASSERT_EQ(elements.size(), static_cast<size_t>(count)) << "seed " << seed;
    for (size_t i = 0; i < elements.size(); ++i)
      ASSERT_EQ(elements[i], static_cast<int64_t>(i)) << "seed " << seed;
  }
}

TEST(JoinChunksTest, RowsOfOneFileAreOneRange) {
  Files files;
  AppendBox({8, 3, 2}, {0, 0, 0}, {5, 3, 2}, false, files);
  AppendBox({8, 3, 2}, {5, 0, 0}, {3, 3, 2}, false, files);
  const absl::StatusOr<std::vector<SourceRange>> ranges = JoinChunks({8, 3, 2}, kItem, files.chunks);
  ASSERT_TRUE(ranges.ok()) << ranges.status();
  ASSERT_EQ(ranges->size(), 2U);
  EXPECT_EQ((*ranges)[0].size, 5 * 6 * kItem);
}

TEST(JoinChunksTest, TensorWithoutElementsNeedsNoChunk) {
  const absl::StatusOr<std::vector<SourceRange>> ranges = JoinChunks({0, 3}, kItem, {});
  ASSERT_TRUE(ranges.ok()) << ranges.status();
  EXPECT_TRUE(ranges->empty());
}

std::string ErrorOf(const std::vector<int64_t>& shape, const Files& files) {
  const absl::StatusOr<std::vector<SourceRange>> ranges = JoinChunks(shape, kItem, files.chunks);
  EXPECT_EQ(ReasonOf(ranges.status()), "CANNOT_CONVERT") << ranges.status();
  return std::string(ranges.status().message());
}

TEST(JoinChunksTest, MissingElementIsNamed) {
  Files files;
  AppendBox({4, 4}, {0, 0}, {4, 2}, false, files);
  AppendBox({4, 4}, {0, 2}, {3, 2}, false, files);
  EXPECT_EQ(ErrorOf({4, 4}, files), "no chunk has its element 14");
  EXPECT_EQ(ErrorOf({4, 4}, Files()), "no chunk has its element 0");
  Files same_twice;  // As many elements as the tensor has.
  for (int i = 0; i < 2; ++i) AppendBox({4}, {2}, {2}, false, same_twice);
  EXPECT_EQ(ErrorOf({4}, same_twice), "no chunk has its element 0");
}

TEST(JoinChunksTest, ElementInTwoChunksIsNamed) {
  Files files;
  AppendBox({4, 4}, {0, 0}, {3, 4}, false, files);
  AppendBox({4, 4}, {2, 0}, {2, 4}, false, files);
  EXPECT_EQ(ErrorOf({4, 4}, files), "two chunks have its element 8");
}

TEST(JoinChunksTest, ChunkBeyondTheTensorIsNamed) {
  Files files;
  AppendBox({4, 9}, {0, 0}, {4, 5}, false, files);
  EXPECT_EQ(ErrorOf({4, 4}, files), "its chunk [4, 5] at [0, 0] is not within its shape [4, 4]");
  files.chunks[0].sizes = {4};
  EXPECT_EQ(ErrorOf({4, 4}, files), "its chunk [4] at [0, 0] is not within its shape [4, 4]");
  files.chunks[0] = {.offsets = {-1, 0}, .sizes = {4, 4}, .stride = {4, 1}};
  EXPECT_EQ(ErrorOf({4, 4}, files), "its chunk [4, 4] at [-1, 0] is not within its shape [4, 4]");
}

TEST(JoinChunksTest, TensorOfTooManyRunsIsRefused) {
  const int64_t rows = static_cast<int64_t>(kMaxChunkRuns) / 2 + 1;
  Files files;
  for (const int64_t column : {0, 1}) {
    files.chunks.push_back(
        {.offsets = {0, column}, .sizes = {rows, 1}, .stride = {1, 1}, .input = 0, .from = 0});
  }
  EXPECT_EQ(
      ErrorOf({rows, 2}, files),
      "its chunks cut it into more than 2097152 runs of bytes, which ckptd would have to hold in memory");
}

}  // namespace
}  // namespace ckptd
