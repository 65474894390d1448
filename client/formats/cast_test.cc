#include "client/formats/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace ckptd {
namespace {

template <typename To, typename From>
To CastOne(DataType from_type, From from, DataType to_type) {
  To to{};
  CastElements({from_type, to_type}, reinterpret_cast<const std::byte*>(&from),
               reinterpret_cast<std::byte*>(&to), 1);
  return to;
}

uint16_t ToHalf(float value) { return CastOne<uint16_t>(DataType::kFloat32, value, DataType::kFloat16); }
uint16_t ToBrain(float value) { return CastOne<uint16_t>(DataType::kFloat32, value, DataType::kBFloat16); }

TEST(CastTest, Float16RoundsToNearestEven) {
  EXPECT_EQ(ToHalf(1.0F), 0x3C00);
  EXPECT_EQ(ToHalf(1.0F + 0x1p-11F), 0x3C00);  // Halfway: to even.
  EXPECT_EQ(ToHalf(1.0F + 3 * 0x1p-11F), 0x3C02);
  EXPECT_EQ(ToHalf(65504.0F), 0x7BFF);
  EXPECT_EQ(ToHalf(65520.0F), 0x7C00);
  EXPECT_EQ(ToHalf(1e30F), 0x7C00);
  EXPECT_EQ(ToHalf(0x1p-24F), 0x0001);
  EXPECT_EQ(ToHalf(-0x1p-25F), 0x8000);  // Halfway: to even.
  EXPECT_EQ(ToHalf(std::numeric_limits<float>::infinity()), 0x7C00);
  EXPECT_EQ(ToHalf(std::nanf("")) & 0x7E00, 0x7E00);
}

TEST(CastTest, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(ToBrain(1.0F), 0x3F80);
  EXPECT_EQ(ToBrain(std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(ToBrain(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(ToBrain(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(ToBrain(std::nanf("")), 0x7FC0);
}

TEST(CastTest, EveryHalfAndBrainFloatSurvivesTheWayThroughFloat32) {
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
      const auto wide = CastOne<float>(type, static_cast<uint16_t>(bits), DataType::kFloat32);
      if (std::isnan(wide)) continue;
      EXPECT_EQ(CastOne<uint16_t>(DataType::kFloat32, wide, type), bits);
    }
  }
}

TEST(CastTest, SizesFollowTheTypes) {
  const Cast cast = {DataType::kFloat32, DataType::kBFloat16};
  EXPECT_EQ(cast.OutputBytes(40), 20);
  EXPECT_EQ(cast.InputBytes(20), 40);
  EXPECT_TRUE(Cast().is_copy());
  EXPECT_EQ(Cast().OutputBytes(7), 7);
  EXPECT_TRUE(CanCast(cast));
  EXPECT_FALSE(CanCast({DataType::kFloat8E4M3Fn, DataType::kFloat32}));
  EXPECT_FALSE(CanCast({DataType::kFloat32, DataType::kInt64}));
}

TEST(CastTest, ConvertsIntegersAndBool) {
  EXPECT_EQ(CastOne<float>(DataType::kInt64, int64_t{-7}, DataType::kFloat32), -7.0F);
  EXPECT_EQ(CastOne<float>(DataType::kInt16, int16_t{300}, DataType::kFloat32), 300.0F);
  EXPECT_EQ(CastOne<float>(DataType::kInt8, int8_t{-1}, DataType::kFloat32), -1.0F);
  EXPECT_EQ(CastOne<float>(DataType::kUInt8, uint8_t{255}, DataType::kFloat32), 255.0F);
  EXPECT_EQ(CastOne<uint16_t>(DataType::kBool, true, DataType::kBFloat16), 0x3F80);
}

TEST(CastTest, ConvertsUnalignedDoubles) {
  std::vector<std::byte> bytes(17);
  const double value = 1.0 / 3;
  std::memcpy(bytes.data() + 1, &value, sizeof(value));
  float narrow = 0;
  CastElements({DataType::kFloat64, DataType::kFloat32}, bytes.data() + 1,
               reinterpret_cast<std::byte*>(&narrow), 1);
  EXPECT_EQ(narrow, static_cast<float>(1.0 / 3));
}

}  // namespace
}  // namespace ckptd
