#include "storage/base/checksums/crc32.h"

#include <cstddef>
#include <span>
#include <string_view>

#include "gtest/gtest.h"

namespace ckptd {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crc32Test, HasTheCheckValueOfTheStandard) { EXPECT_EQ(Crc32(BytesOf("123456789")), 0xcbf43926u); }

TEST(Crc32Test, IsZeroForNoBytes) { EXPECT_EQ(Crc32({}), 0u); }

TEST(Crc32Test, ContinuesOverPieces) {
  EXPECT_EQ(Crc32(BytesOf("6789"), Crc32(BytesOf("12345"))), Crc32(BytesOf("123456789")));
}

}  // namespace
}  // namespace ckptd
