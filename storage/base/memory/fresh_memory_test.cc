#include "storage/base/memory/fresh_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace ckptd {
namespace {

constexpr size_t kSize = size_t{8} << 20;

class FreshMemoryTest : public testing::Test {
 protected:
  ~FreshMemoryTest() override { munmap(memory_, kSize); }

  uint64_t At(size_t offset) const { return reinterpret_cast<uint64_t>(memory_ + offset); }

  size_t ResidentPages() const {
    std::vector<unsigned char> pages(kSize / 4096);
    EXPECT_EQ(mincore(memory_, kSize, pages.data()), 0);
    size_t resident = 0;
    for (const unsigned char page : pages) resident += page & 1;
    return resident;
  }

  // Whether the mapping that holds an address asks for huge pages.
  static bool WantsHugePages(uint64_t address) {
    std::ifstream maps("/proc/self/smaps");
    bool here = false;
    for (std::string line; std::getline(maps, line);) {
      uint64_t begin = 0, end = 0;
      if (sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= address && address < end;
      if (here && line.starts_with("VmFlags:")) return line.find(" hg") != std::string::npos;
    }
    return false;
  }

  char* const memory_ = static_cast<char*>(
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
};

TEST_F(FreshMemoryTest, FaultsInThePagesOfUnalignedBytesAndChangesNone) {
  std::memset(memory_ + 4096, 'x', 4096);
  FaultIn(memory_ + 8000, 3 * 4096);
  EXPECT_EQ(ResidentPages(), 4u);  // Pages 1 to 4: page 1 was there.
  EXPECT_EQ(memory_[8000], 'x');
  EXPECT_EQ(memory_[8192], '\0');
  FaultIn(memory_, 0);
}

TEST_F(FreshMemoryTest, FaultsInAroundPagesThatAreThereAndKeepsTheirBytes) {
  const uint64_t address = At(0), length = kSize;
  AdviseHugePages(&address, &length, 1);
  constexpr size_t kApart = (size_t{1} << 20) + 12345;
  for (size_t at = 0; at < kSize; at += kApart) memory_[at] = 'x';
  FaultIn(memory_ + 1, kSize - 1);
  EXPECT_EQ(ResidentPages(), kSize / 4096);
  for (size_t at = 0; at < kSize; at += kApart) EXPECT_EQ(memory_[at], 'x') << at;
  EXPECT_EQ(memory_[1], '\0');
}

TEST_F(FreshMemoryTest, AdvisesBuffersSideBySideTogether) {
  const uint64_t addresses[] = {At(16), At((size_t{1} << 20) + 64), At(size_t{5} << 20)};
  const uint64_t lengths[] = {size_t{1} << 20, size_t{1} << 20, size_t{1} << 20};
  AdviseHugePages(addresses, lengths, 3);
  EXPECT_TRUE(WantsHugePages(At(0)));
  EXPECT_TRUE(WantsHugePages(At(size_t{2} << 20)));
  EXPECT_FALSE(WantsHugePages(At(size_t{4} << 20)));  // Between buffers.
  EXPECT_FALSE(WantsHugePages(At(size_t{5} << 20)));  // Too small for a huge page.
  EXPECT_EQ(ResidentPages(), 0u);
}

TEST_F(FreshMemoryTest, AdvisesNothingForNoBuffers) { AdviseHugePages(nullptr, nullptr, 0); }

}  // namespace
}  // namespace ckptd
