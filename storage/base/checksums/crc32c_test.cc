#include "storage/base/checksums/crc32c.h"

#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace ckptd {
namespace {

uint32_t Crc(std::string_view bytes, uint32_t crc = 0) {
  return Crc32c(std::as_bytes(std::span(bytes)), crc);
}

// One bit at a time, straight from the definition: reflected polynomial 0x1EDC6F41.
uint32_t SlowCrc(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

// RFC 3720, appendix B.4.
TEST(Crc32cTest, KnownVectors) {
  EXPECT_EQ(Crc(""), 0u);
  EXPECT_EQ(Crc("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending.push_back(static_cast<char>(i));
  EXPECT_EQ(Crc(ascending), 0x46dd794eu);
}

TEST(Crc32cTest, EveryLengthAndAlignmentMatchesTheDefinition) {
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes.push_back(static_cast<char>(i * 31 + i / 7));
  for (size_t begin = 0; begin < 17; ++begin) {
    for (const size_t size : {1, 7, 8, 63, 64, 65, 511, 1024, 4095, 4096, 4097}) {
      const std::string_view piece = std::string_view(bytes).substr(begin, size);
      EXPECT_EQ(Crc(piece), SlowCrc(piece)) << begin << " " << size;
    }
  }
}

TEST(Crc32cTest, ContinuesOverPieces) {
  const std::string bytes = "a checkpoint is more than one run of bytes";
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    EXPECT_EQ(Crc(bytes.substr(cut), Crc(bytes.substr(0, cut))), Crc(bytes)) << cut;
  }
}

}  // namespace
}  // namespace ckptd
