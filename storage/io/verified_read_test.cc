// Tests what only shows below the Python package. The package calls the same code, and its tests cover
// pieces, faults and single bits.
#include "storage/io/verified_read.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "storage/base/checksums/crc32c.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

constexpr uint64_t kChunk = 1 << 20;

void InParallel(int shares, void (*work)(void*, int), void* context) {
  std::vector<std::thread> threads;
  for (int share = 0; share < shares; ++share) threads.emplace_back(work, context, share);
  for (std::thread& thread : threads) thread.join();
}

// A file of ten chunks and an odd tail, which is not in the page cache.
class VerifiedReadTest : public ::testing::Test {
 protected:
  VerifiedReadTest() : content_(10 * kChunk + 777) {
    std::mt19937_64 random(3);
    for (std::byte& byte : content_) byte = static_cast<std::byte>(random());
    fd_ = open((folder_.path() + "/file").c_str(), O_RDWR | O_CREAT, 0600);
    EXPECT_EQ(pwrite(fd_, content_.data(), content_.size(), 0), static_cast<ssize_t>(content_.size()));
    for (size_t at = 0; at < content_.size(); at += kChunk)
      expected_.push_back(Crc32c(std::span(content_).subspan(at, std::min(kChunk, content_.size() - at))));
    Forget();
  }
  ~VerifiedReadTest() override { close(fd_); }

  void Forget() {
    fsync(fd_);
    posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  }
  void Flip(size_t at) {
    const std::byte changed = content_[at] ^ std::byte{4};
    EXPECT_EQ(pwrite(fd_, &changed, 1, static_cast<off_t>(at)), 1);
    Forget();
  }
  ReadFault Read(uint64_t offset, std::vector<std::byte>& into, const int32_t* stop = nullptr) {
    const auto address = reinterpret_cast<uint64_t>(into.data());
    const uint64_t length = into.size();
    return ReadVerifiedChunks({.fd = fd_,
                               .file_size = content_.size(),
                               .chunk_bytes = kChunk,
                               .expected = expected_.data(),
                               .offsets = &offset,
                               .addresses = &address,
                               .lengths = &length,
                               .count = 1,
                               .threads = 2,
                               .done = &done_,
                               .stop = stop},
                              InParallel);
  }

  TempDir folder_;
  std::vector<std::byte> content_;
  std::vector<uint32_t> expected_;
  int fd_ = -1;
  uint64_t done_ = 0;
};

TEST_F(VerifiedReadTest, ReadsTheSameBytesCachedUncachedAndPartlyCached) {
  for (const size_t cached : {size_t{0}, content_.size(), 3 * kChunk + 4096 * 5, 2 * kChunk + 100}) {
    Forget();
    std::vector<std::byte> some(cached);
    EXPECT_EQ(pread(fd_, some.data(), cached, 0), static_cast<ssize_t>(cached));
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kChunk + 4095, 4 * kChunk}) {
      std::vector<std::byte> into(content_.size() - offset);
      EXPECT_EQ(Read(offset, into).error, 0);
      EXPECT_TRUE(std::equal(into.begin(), into.end(), content_.begin() + static_cast<ptrdiff_t>(offset)));
    }
  }
}

TEST_F(VerifiedReadTest, FindsAWrongBitInAnyChunk) {
  for (const size_t at : {size_t{0}, 5 * kChunk + 1, 10 * kChunk + 776}) {
    Flip(at);
    std::vector<std::byte> into(content_.size());
    const ReadFault fault = Read(0, into);
    EXPECT_EQ(fault.error, EBADMSG);
    EXPECT_EQ(fault.chunk, static_cast<int64_t>(at / kChunk));
    EXPECT_NE(fault.found, expected_[at / kChunk]);
    EXPECT_EQ(pwrite(fd_, &content_[at], 1, static_cast<off_t>(at)), 1);
  }
}

TEST_F(VerifiedReadTest, ReportsAFileThatEndsEarly) {
  for (const off_t size : {off_t{9} * kChunk + 8192, off_t{9} * kChunk + 5, off_t{9} * kChunk}) {
    ASSERT_EQ(ftruncate(fd_, size), 0);
    Forget();
    std::vector<std::byte> into(5 * kChunk);  // Up to the end of the partial chunk.
    const ReadFault fault = Read(5 * kChunk, into);
    EXPECT_EQ(fault.error, ENODATA) << size;
    EXPECT_EQ(fault.chunk, 9);
  }
}

TEST_F(VerifiedReadTest, CountsBytesAndStopsWhenAsked) {
  std::vector<std::byte> into(content_.size());
  EXPECT_EQ(Read(0, into).error, 0);
  EXPECT_EQ(done_, content_.size());
  const int32_t stop = 1;
  done_ = 0;
  EXPECT_EQ(Read(0, into, &stop).error, ECANCELED);
  EXPECT_EQ(done_, 0u);
}

TEST_F(VerifiedReadTest, ReadsOnlyTheChunksThatPiecesTouch) {
  Flip(2 * kChunk);
  Flip(9 * kChunk);
  std::vector<std::byte> into(6 * kChunk);
  EXPECT_EQ(Read(3 * kChunk, into).error, 0);
  EXPECT_EQ(done_, into.size());
}

}  // namespace
}  // namespace ckptd
