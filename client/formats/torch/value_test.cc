#include "client/formats/torch/value.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/formats/data_type.h"
#include "gtest/gtest.h"

namespace ckptd::torch {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

TEST(DictTest, KeepsTheOrderAndTheLastValueOfAKey) {
  Dict dict;
  for (int64_t i = 0; i < 100; ++i) dict.Set(i, MakeInt(i * i));
  dict.Set("7", MakeString("text"));
  dict.Set(3, MakeInt(-1));
  EXPECT_EQ(dict.size(), 101u);
  EXPECT_EQ(*dict.entries()[3].second->As<int64_t>(), -1);
  EXPECT_EQ(*dict.Find(99)->As<int64_t>(), 99 * 99);
  EXPECT_EQ(*dict.Find("7")->As<std::string>(), "text");
  EXPECT_EQ(dict.Find("8"), nullptr);
  EXPECT_EQ(dict.Find(100), nullptr);
}

TEST(DictTest, ComparesKeysAsPythonDoes) {
  Dict dict;
  dict.Set(1, MakeInt(0));
  ASSERT_TRUE(dict.Set(Make(true), MakeInt(1)).ok());
  ASSERT_TRUE(dict.Set(Make(1.0), MakeInt(2)).ok());
  EXPECT_EQ(dict.size(), 1u);
  EXPECT_EQ(*dict.Find(1)->As<int64_t>(), 2);
  ASSERT_TRUE(dict.Set(Make(1.5), MakeInt(3)).ok());
  dict.Set("1", MakeInt(4));
  ASSERT_TRUE(dict.Set(Make(Bytes{"1"}), MakeInt(5)).ok());
  ASSERT_TRUE(dict.Set(Make(None()), MakeInt(6)).ok());
  ASSERT_TRUE(dict.Set(Make(Tuple{{MakeInt(2), MakeInt(3)}}), MakeInt(7)).ok());
  EXPECT_EQ(dict.size(), 6u);
  ASSERT_TRUE(dict.Set(Make(Size{{2, 3}}), MakeInt(8)).ok());  // A torch.Size is a tuple.
  EXPECT_EQ(dict.size(), 6u);
  EXPECT_EQ(*dict.Find(*Make(Tuple{{MakeInt(2), MakeInt(3)}}))->As<int64_t>(), 8);
}

TEST(DictTest, DistinguishesTuplesOfDifferentParts) {
  Dict dict;
  ASSERT_TRUE(dict.Set(Make(Tuple{{MakeString("ab"), MakeString("c")}}), MakeInt(0)).ok());
  ASSERT_TRUE(dict.Set(Make(Tuple{{MakeString("a"), MakeString("bc")}}), MakeInt(1)).ok());
  ASSERT_TRUE(dict.Set(Make(Tuple{{Make(Tuple{{MakeString("ab")}}), MakeString("c")}}), MakeInt(2)).ok());
  EXPECT_EQ(dict.size(), 3u);
}

TEST(DictTest, RefusesKeysThatPythonCannotHash) {
  Dict dict;
  for (const ValueRef& key : {Make(List()), Make(Dict()), Make(Set()), Make(Tuple{{Make(List())}})}) {
    EXPECT_EQ(dict.Set(key, MakeInt(0)).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(dict.empty());
}

TEST(DictTest, CopyIsIndependent) {
  Dict dict;
  for (int64_t i = 0; i < 20; ++i) dict.Set(i, MakeInt(i));
  Dict copy = dict;
  copy.Set(20, MakeInt(20));
  copy.Replace(0, MakeInt(100));
  EXPECT_EQ(dict.size(), 20u);
  EXPECT_EQ(*dict.Find(int64_t{0})->As<int64_t>(), 0);
  EXPECT_EQ(*copy.Find(int64_t{0})->As<int64_t>(), 100);
  EXPECT_EQ(*copy.Find(20)->As<int64_t>(), 20);
  EXPECT_EQ(copy.Find(5), dict.Find(5));  // Values are shared.
}

Tensor Strided(int64_t storage_bytes, int64_t offset, std::vector<int64_t> shape,
               std::vector<int64_t> stride) {
  Tensor tensor;
  tensor.storage = std::make_shared<Storage>();
  tensor.storage->bytes = storage_bytes;
  tensor.offset = offset;
  tensor.shape = std::move(shape);
  tensor.stride = std::move(stride);
  return tensor;
}

TEST(TensorTest, MayReachTheEndOfItsStorageOnly) {
  EXPECT_TRUE(CheckTensor(Strided(24, 0, {2, 3}, {3, 1})).ok());
  EXPECT_TRUE(CheckTensor(Strided(24, 0, {3, 2}, {1, 3})).ok());
  EXPECT_TRUE(CheckTensor(Strided(24, 5, {}, {})).ok());
  EXPECT_TRUE(CheckTensor(Strided(4, 0, {1000000}, {0})).ok());  // Expanded.
  EXPECT_FALSE(CheckTensor(Strided(23, 0, {2, 3}, {3, 1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(24, 1, {2, 3}, {3, 1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(24, 0, {2, 3}, {4, 1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(24, 6, {}, {})).ok());
  EXPECT_FALSE(CheckTensor(Strided(0, 0, {}, {})).ok());
}

TEST(TensorTest, EmptyTensorReachesNothing) {
  EXPECT_TRUE(CheckTensor(Strided(0, 0, {0}, {1})).ok());
  EXPECT_TRUE(CheckTensor(Strided(0, 100, {2, 0, 3}, {3, 3, 1})).ok());
  EXPECT_EQ(Strided(0, 100, {2, 0, 3}, {3, 3, 1}).elements(), 0);
}

TEST(TensorTest, RefusesNumbersBeyond63Bits) {
  EXPECT_FALSE(CheckTensor(Strided(kMost, kMost, {2}, {1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(kMost, 0, {kMost, kMost}, {0, 0})).ok());
  EXPECT_FALSE(CheckTensor(Strided(kMost, 0, {2, 2}, {kMost, kMost})).ok());
  EXPECT_FALSE(CheckTensor(Strided(kMost, 0, {kMost / 4 + 2}, {1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(kMost, kMost / 4 + 1, {1}, {1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(kMost, 0, {int64_t{1} << 33, int64_t{1} << 33, 0}, {0, 0, 0})).ok());
}

TEST(TensorTest, RefusesNegativeNumbers) {
  EXPECT_FALSE(CheckTensor(Strided(24, -1, {2}, {1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(24, 0, {-1}, {1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(24, 4, {2}, {-1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(-1, 0, {0}, {1})).ok());
  EXPECT_FALSE(CheckTensor(Strided(24, 0, {2, 2}, {1})).ok());
  Tensor without = Strided(4, 0, {1}, {1});
  without.storage = nullptr;
  EXPECT_FALSE(CheckTensor(without).ok());
}

TEST(TensorTest, IsContiguousIfElementsAreInOrder) {
  EXPECT_TRUE(Strided(24, 0, {2, 3}, {3, 1}).is_contiguous());
  EXPECT_TRUE(Strided(24, 0, {2, 1, 3}, {3, 77, 1}).is_contiguous());
  EXPECT_TRUE(Strided(24, 0, {}, {}).is_contiguous());
  EXPECT_TRUE(Strided(24, 0, {0, 3}, {9, 9}).is_contiguous());
  EXPECT_FALSE(Strided(24, 0, {3, 2}, {1, 3}).is_contiguous());
  EXPECT_FALSE(Strided(24, 0, {2, 2}, {3, 1}).is_contiguous());
  EXPECT_FALSE(Strided(24, 0, {4}, {0}).is_contiguous());
}

TEST(TensorTest, NewTensorFillsItsStorage) {
  const Tensor tensor = NewTensor(DataType::kBFloat16, {2, 3, 4});
  EXPECT_EQ(tensor.storage->bytes, 48);
  EXPECT_EQ(tensor.stride, (std::vector<int64_t>{12, 4, 1}));
  EXPECT_TRUE(CheckTensor(tensor).ok());
  EXPECT_EQ(NewTensor(DataType::kInt64, {}).storage->bytes, 8);
  EXPECT_EQ(NewTensor(DataType::kInt64, {3, 0}).storage->bytes, 0);
}

}  // namespace
}  // namespace ckptd::torch
