#include "client/cpp/mapping.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace ckptd::client {
namespace {

constexpr int64_t kSegment = 2 << 20;

UniqueFd Memory(int64_t size) {
  UniqueFd fd(memfd_create("mapping_test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), size), 0);
  return fd;
}

TEST(Mapping, WritesWhatTheOtherSideSees) {
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

TEST(Mapping, RefusesMemoryThatIsShorterThanAnnounced) {
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

TEST(Locate, AFileMayCrossSegments) {
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

TEST(Locate, RefusesWhatIsBeyondTheSegments) {
  Segments segments = {*Mapping::Map(Memory(kSegment), kSegment, false)};
  EXPECT_EQ(Locate(segments, kSegment - 1, 2).status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace ckptd::client
