#include "storage/base/memory/copy_loops.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <string>

namespace ckptd {
namespace {

std::string RandomBytes(size_t size) {
  std::minstd_rand random(1);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(CopyLoops, EachCopiesEverySizeToAnyAddressAndNothingElse) {
  const std::string from = RandomBytes(140'000);
  for (const CopyLoop& loop : CopyLoops()) {
    if (!loop.works_here()) continue;
    for (const size_t size :
         {0u, 1u, 63u, 127u, 128u, 255u, 257u, 4095u, 4096u, 4097u, 32'768u, 32'769u, 139'001u}) {
      for (const size_t at : {0u, 1u, 31u, 63u, 64u, 65u}) {
        std::string to(at + size + 100, '#'), expected = to;
        const size_t source = at * 7 % 61;
        expected.replace(at, size, from, source, size);
        loop.copy(to.data() + at, from.data() + source, size);
        ASSERT_EQ(to, expected) << loop.name << ": " << size << " bytes to " << at;
      }
    }
  }
}

TEST(CopyLoops, LastOneIsMemcpyAndWorksOnEveryProcessor) {
  EXPECT_STREQ(CopyLoops().back().name, "memcpy");
  EXPECT_TRUE(CopyLoops().back().works_here());
}

}  // namespace
}  // namespace ckptd
