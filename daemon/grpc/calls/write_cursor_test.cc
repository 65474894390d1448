#include "daemon/grpc/calls/write_cursor.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

TEST(WriteCursor, WritesAcrossRunsInOrder) {
  std::array<std::byte, 12> memory{};
  const std::span<std::byte> all(memory);
  // The runs are in the order of the file, not of their addresses.
  WriteCursor cursor("f", 9, {all.subspan(8, 4), all.subspan(4, 0), all.subspan(0, 4), all.subspan(4, 4)});
  EXPECT_TRUE(cursor.Append("ab").ok());
  EXPECT_TRUE(cursor.Append("").ok());
  EXPECT_TRUE(cursor.Append("cdefghi").ok());
  EXPECT_EQ(cursor.written(), 9);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(memory.data()), 12),
            std::string("efghi\0\0\0abcd", 12));
}

TEST(WriteCursor, RefusesAWriteBeyondThePlacedSizeWhole) {
  std::array<std::byte, 8> memory{};
  WriteCursor cursor("model.pt", 4, {std::span<std::byte>(memory)});
  EXPECT_TRUE(cursor.Append("abc").ok());
  const absl::Status refused = cursor.Append("de");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailsOf(refused).at("path"), "model.pt");
  EXPECT_EQ(memory[3], std::byte{0});
  EXPECT_TRUE(cursor.Append("d").ok());
  EXPECT_EQ(cursor.written(), 4);
}

TEST(WriteCursor, RefusesBytesForAnEmptyFile) {
  WriteCursor cursor("empty", 0, {});
  EXPECT_TRUE(cursor.Append("").ok());
  EXPECT_FALSE(cursor.Append("x").ok());
}

}  // namespace
}  // namespace ckptd
