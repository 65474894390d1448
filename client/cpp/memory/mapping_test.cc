#include "client/cpp/memory/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd::client {
namespace {

constexpr int64_t kSegment = 2 << 20;

UniqueFd Memory(int64_t size) {
  UniqueFd fd(memfd_create("mapping_test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), size), 0);
  return fd;
}

TEST(Mapping, SharesWritesWithTheOtherSide) {
  UniqueFd fd = Memory(kSegment);
  const int daemon_side = dup(fd.get());
  auto mapping = Mapping::Map(std::move(fd), kSegment, /*huge=*/true);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  (*mapping)->bytes()[kSegment - 1] = std::byte{42};
  char last = 0;
  ASSERT_EQ(pread(daemon_side, &last, 1, kSegment - 1), 1);
  EXPECT_EQ(last, 42);
  close(daemon_side);
}

TEST(Mapping, RefusesMemoryShorterThanAnnounced) {
  EXPECT_FALSE(Mapping::Map(Memory(kSegment / 2), kSegment, false).ok());
  EXPECT_FALSE(Mapping::Map(Memory(kSegment), 0, false).ok());
}

TEST(Mapping, IsNotInheritedByAForkedChild) {
  auto mapping = Mapping::Map(Memory(kSegment), kSegment, false);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  std::byte* data = (*mapping)->bytes().data();
  const pid_t child = fork();
  if (child == 0) {
    unsigned char resident;
    _exit(mincore(data, 4096, &resident) == 0 ? 1 : 0);  // ENOMEM: nothing is mapped there.
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Mapping, KnowsThePagesThatTheOtherSideHasFreed) {
  UniqueFd fd = Memory(kSegment);
  const UniqueFd daemon_side(dup(fd.get()));
  auto mapping = Mapping::Map(std::move(fd), kSegment, /*huge=*/false);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  const std::span<std::byte> bytes = (*mapping)->bytes();
  std::memset(bytes.data(), 42, bytes.size());
  EXPECT_TRUE(ArePresent(bytes));
  ASSERT_EQ(fallocate(daemon_side.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kSegment - 4096, 4096),
            0);
  EXPECT_FALSE(ArePresent(bytes));
  EXPECT_FALSE(ArePresent(bytes.last(1)));
  EXPECT_TRUE(ArePresent(bytes.first(bytes.size() - 4096)));
  EXPECT_TRUE(ArePresent({}));
}

TEST(Mapping, KnowsWhichPartItWasLentForLast) {
  auto mapping = Mapping::Map(Memory(kSegment), kSegment, false);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  (*mapping)->LendTo(7);
  (*mapping)->LendTo(8);
  EXPECT_EQ((*mapping)->borrower(), 8);
}

// Makes two segments, each filled with its number.
std::vector<SegmentFile> TwoSegments() {
  std::vector<SegmentFile> segments;
  for (int i : {1, 2}) {
    segments.push_back({Memory(kSegment), kSegment});
    const std::vector<char> bytes(kSegment, static_cast<char>(i));
    EXPECT_EQ(pwrite(segments.back().fd.get(), bytes.data(), bytes.size(), 0), kSegment);
  }
  return segments;
}

TEST(PrivateMapping, LaysSegmentsOutInOrderAndKeepsWritesPrivate) {
  std::vector<SegmentFile> segments = TwoSegments();
  const UniqueFd daemon_side(dup(segments[1].fd.get()));
  auto mapping = PrivateMapping::Map(segments);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  segments.clear();  // The mapping needs the descriptors no more.
  const std::span<std::byte> bytes = (*mapping)->bytes();
  ASSERT_EQ(std::ssize(bytes), 2 * kSegment);
  EXPECT_EQ(bytes[kSegment - 1], std::byte{1});
  EXPECT_EQ(bytes[kSegment], std::byte{2});
  bytes[kSegment] = std::byte{42};
  char first = 0;
  ASSERT_EQ(pread(daemon_side.get(), &first, 1, 0), 1);
  EXPECT_EQ(first, 2);
  EXPECT_EQ(bytes[kSegment], std::byte{42});
}

TEST(PrivateMapping, AcceptsReadOnlyDescriptors) {
  std::vector<SegmentFile> segments = TwoSegments();
  for (SegmentFile& segment : segments) {
    const std::string path = "/proc/self/fd/" + std::to_string(segment.fd.get());
    segment.fd = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  auto mapping = PrivateMapping::Map(segments);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  (*mapping)->bytes()[0] = std::byte{42};
  EXPECT_EQ((*mapping)->bytes()[1], std::byte{1});
}

TEST(PrivateMapping, IsInheritedByAForkedChild) {
  auto mapping = PrivateMapping::Map(TwoSegments());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  const std::span<std::byte> bytes = (*mapping)->bytes();
  const pid_t child = fork();
  if (child == 0) {
    const bool there = bytes[kSegment] == std::byte{2};
    bytes[kSegment] = std::byte{42};
    _exit(there ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(bytes[kSegment], std::byte{2});
}

TEST(PrivateMapping, RefusesMemoryShorterThanAnnounced) {
  std::vector<SegmentFile> segments = TwoSegments();
  segments[1].size = 2 * kSegment;
  EXPECT_EQ(PrivateMapping::Map(segments).status().code(), absl::StatusCode::kInternal);
  segments[1].size = 0;
  EXPECT_FALSE(PrivateMapping::Map(segments).ok());
}

// All reserved huge pages may be in use. Then Map must fail, rather than the first write be a SIGBUS.
TEST(PrivateMapping, RefusesHugePagesThatCouldNotBeWritten) {
  std::vector<SegmentFile> segments;
  segments.push_back({UniqueFd(memfd_create("mapping_test", MFD_CLOEXEC | MFD_HUGETLB)), kSegment});
  if (!segments[0].fd) GTEST_SKIP() << "this kernel has no huge pages";
  ASSERT_EQ(ftruncate(segments[0].fd.get(), kSegment), 0);
  auto mapping = PrivateMapping::Map(segments);
  if (!mapping.ok()) {
    EXPECT_EQ(ReasonOf(mapping.status()), "ENOMEM") << mapping.status();
    return;
  }
  std::memset((*mapping)->bytes().data(), 42, kSegment);
}

TEST(Locate, FindsAFileThatCrossesSegments) {
  Segments segments;
  for (int i = 0; i < 3; ++i) segments.push_back(*Mapping::Map(Memory(kSegment), kSegment, false));
  auto spans = Locate(segments, kSegment - 4096, kSegment + 5000);
  ASSERT_TRUE(spans.ok()) << spans.status();
  ASSERT_EQ(spans->size(), 3u);
  EXPECT_EQ((*spans)[0].data(), segments[0]->bytes().data() + kSegment - 4096);
  EXPECT_EQ((*spans)[0].size(), 4096u);
  EXPECT_EQ((*spans)[1].size(), static_cast<size_t>(kSegment));
  EXPECT_EQ((*spans)[2].data(), segments[2]->bytes().data());
  EXPECT_EQ((*spans)[2].size(), 904u);
  EXPECT_TRUE(Locate(segments, kSegment, 0)->empty());
}

TEST(Locate, RefusesBytesBeyondTheSegments) {
  Segments segments = {*Mapping::Map(Memory(kSegment), kSegment, false)};
  EXPECT_EQ(Locate(segments, kSegment - 1, 2).status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace ckptd::client
