#include "storage/base/memory/streaming_copy.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <string>

namespace ckptd {
namespace {

TEST(StreamingCopy, CopiesEverySizeToAnyAddressAndNothingElse) {
  std::minstd_rand random(1);
  std::string from(70'000, '\0');
  for (char& byte : from) byte = static_cast<char>(random());
  for (const size_t size : {0u, 1u, 255u, 4095u, 4096u, 4097u, 5'000u, 32'768u, 65'536u, 69'000u}) {
    for (const size_t at : {0u, 1u, 31u, 63u, 64u, 65u}) {
      std::string to(at + size + 100, '#'), expected = to;
      const size_t source = at * 7 % 61;
      expected.replace(at, size, from, source, size);
      StreamingCopy(CopyWay::kIntoSegment, to.data() + at, from.data() + source, size);
      ASSERT_EQ(to, expected) << size << " bytes to " << at;
    }
  }
}

TEST(StreamingCopy, EachWayHasAFastestLoopOfItsOwn) {
  ASSERT_EQ(FastestCopyLoop(CopyWay::kFromReadBuffer), nullptr);
  const std::string from(size_t{64} << 20, 'x');
  std::string to(from.size(), '#');
  StreamingCopy(CopyWay::kOutOfSegment, to.data(), from.data(), from.size());
  EXPECT_TRUE(to == from);
  EXPECT_NE(FastestCopyLoop(CopyWay::kOutOfSegment), nullptr);
  EXPECT_EQ(FastestCopyLoop(CopyWay::kFromReadBuffer), nullptr);
}

}  // namespace
}  // namespace ckptd
