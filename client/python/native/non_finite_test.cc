#include "client/python/native/non_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace ckptd {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
uint64_t CountIn(FloatFormat format, const std::vector<T>& numbers) {
  return CountNonFinite(format, numbers.data(), numbers.size() * sizeof(T));
}

template <typename T>
uint64_t InfiniteIn(FloatFormat format, const std::vector<T>& numbers) {
  return CountInfinite(format, numbers.data(), numbers.size() * sizeof(T));
}

TEST(CountNonFinite, CountsNanAndBothInfinitiesAndNoFiniteNumber) {
  const std::vector<float> finite = {
      0.0f, -0.0f, 1e-45f, -1e-45f, std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()};
  EXPECT_EQ(CountIn(FloatFormat::kFloat32, finite), 0u);
  EXPECT_EQ(CountIn<float>(FloatFormat::kFloat32, {kNan, -kNan, kInfinity, -kInfinity, 1}), 4u);
  EXPECT_EQ(InfiniteIn<float>(FloatFormat::kFloat32, {kNan, -kNan, kInfinity, -kInfinity, 1}), 2u);
  EXPECT_EQ(InfiniteIn<double>(FloatFormat::kFloat64, {kNan, -kInfinity, 1e308, -0.0}), 1u);
  EXPECT_EQ(CountIn<double>(FloatFormat::kFloat64, {kNan, -kInfinity, 1e308, -0.0}), 2u);
}

// Of every bit pattern of the narrow formats, compared with their definitions.
TEST(CountNonFinite, KnowsEveryPatternOfTheNarrowFormats) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const std::vector<uint16_t> one = {static_cast<uint16_t>(bits)};
    const uint32_t as_float32 = bits << 16;  // A bfloat16 is the upper half of a float32.
    float value;
    memcpy(&value, &as_float32, sizeof(value));
    EXPECT_EQ(CountIn(FloatFormat::kBFloat16, one), std::isfinite(value) ? 0u : 1u) << bits;
    EXPECT_EQ(InfiniteIn(FloatFormat::kBFloat16, one), std::isinf(value) ? 1u : 0u) << bits;
    EXPECT_EQ(CountIn(FloatFormat::kFloat16, one), (bits >> 10 & 31) == 31 ? 1u : 0u) << bits;
    EXPECT_EQ(InfiniteIn(FloatFormat::kFloat16, one), (bits & 0x7fff) == 31 << 10 ? 1u : 0u) << bits;
  }
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const std::vector<uint8_t> one = {static_cast<uint8_t>(bits)};
    EXPECT_EQ(CountIn(FloatFormat::kFloat8E4M3Fn, one), bits == 0x7f || bits == 0xff ? 1u : 0u) << bits;
    EXPECT_EQ(CountIn(FloatFormat::kFloat8E5M2, one), (bits >> 2 & 31) == 31 ? 1u : 0u) << bits;
    EXPECT_EQ(InfiniteIn(FloatFormat::kFloat8E5M2, one), (bits & 0x7f) == 31 << 2 ? 1u : 0u) << bits;
    EXPECT_EQ(CountIn(FloatFormat::kFloat8FnUz, one), bits == 0x80 ? 1u : 0u) << bits;
    EXPECT_EQ(InfiniteIn(FloatFormat::kFloat8E4M3Fn, one) + InfiniteIn(FloatFormat::kFloat8FnUz, one), 0u);
  }
}

TEST(CountNonFinite, CountsMoreThanANarrowNumberCanHold) {
  EXPECT_EQ(CountIn(FloatFormat::kFloat8E5M2, std::vector<uint8_t>(100'000, 0x7f)), 100'000u);
  EXPECT_EQ(CountIn(FloatFormat::kFloat16, std::vector<uint16_t>(200'001, 0x7c00)), 200'001u);
}

TEST(CountNonFinite, TakesAnyAddressAndLength) {
  std::vector<char> bytes(1000);
  for (size_t at = 0; at < 9; ++at) {
    for (size_t count : {0u, 1u, 7u, 31u, 33u, 200u}) {
      std::vector<float> numbers(count, 1.0f);
      if (count > 0) {
        numbers.back() = kNan;
        memcpy(bytes.data() + at, numbers.data(), count * 4);
      }
      EXPECT_EQ(CountNonFinite(FloatFormat::kFloat32, bytes.data() + at, count * 4 + 3), count > 0 ? 1u : 0u);
    }
  }
}

TEST(CountNonFinite, CountsNothingInOtherBytes) {
  EXPECT_EQ(CountIn(FloatFormat::kNone, std::vector<uint8_t>(1000, 0xff)), 0u);
}

}  // namespace
}  // namespace ckptd
