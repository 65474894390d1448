#include "daemon/memory/page_filler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "storage/base/memory/huge_pages.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kSize = 256 * kMiB;

// A kernel that keeps account of 2 MiB ranges, and whose clock advances by what each of them costs.
class FakeKernel {
 public:
  PageCalls calls() {
    return {.populate = [this](std::byte* data, int64_t size) { return Populate(data, size); },
            .make_huge = [this](std::byte* data, int64_t size) { return MakeHuge(data, size); },
            .advise = [this](std::byte* data, int64_t size,
                             bool huge) { ForEach(data, size, [&](int64_t at) { advice_[at] = huge; }); },
            .now_ns = [this] { return now_; }};
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(kHugePageBytes); }  // Nobody reads or writes there.

  int64_t small() const { return Count("small"); }
  int64_t huge() const { return Count("huge"); }
  int64_t advised() const {
    return kHugePageBytes *
           std::count_if(advice_.begin(), advice_.end(), [](const auto& at) { return at.second; });
  }

  int64_t small_cost = 100, huge_cost = 100;  // Nanoseconds for 2 MiB.
  int huge_error = 0, populate_error = 0;
  int64_t huge_left = kSize;  // Bytes for which there are huge pages.
  std::function<void()> populated = [] {};

 private:
  template <typename Work>
  void ForEach(std::byte* data, int64_t size, Work work) {
    for (int64_t at = data - this->data(); size > 0; size -= kHugePageBytes, at += kHugePageBytes) work(at);
  }
  int Populate(std::byte* data, int64_t size) {
    const std::lock_guard lock(mutex_);
    ForEach(data, size, [&](int64_t at) {
      if (pages_.try_emplace(at, "small").second) now_ += small_cost;
    });
    populated();
    return populate_error;
  }
  int MakeHuge(std::byte* data, int64_t size) {
    const std::lock_guard lock(mutex_);
    int error = 0;
    ForEach(data, size, [&](int64_t at) {
      now_ += huge_cost;
      if ((huge_left -= kHugePageBytes) < 0) {
        error = huge_error;
      } else {
        pages_[at] = "huge";
      }
    });
    return error;
  }
  int64_t Count(const std::string& kind) const {
    return kHugePageBytes *
           std::count_if(pages_.begin(), pages_.end(), [&](const auto& at) { return at.second == kind; });
  }

  std::mutex mutex_;
  int64_t now_ = 0;
  std::map<int64_t, std::string> pages_;
  std::map<int64_t, bool> advice_;
};

class PageFillerTest : public ::testing::Test {
 protected:
  int Fill(bool huge = true) { return filler_.Fill(kernel_.data(), kSize, huge, stop_); }

  FakeKernel kernel_;
  PageFiller filler_{kernel_.calls()};
  std::atomic<bool> stop_{false};
};

TEST_F(PageFillerTest, PutsEverythingOnHugePagesThatCostLittleMore) {
  kernel_.huge_cost = 390;
  EXPECT_EQ(Fill(), 0);
  EXPECT_EQ(kernel_.huge(), kSize);
  EXPECT_EQ(kernel_.advised(), kSize);
}

TEST_F(PageFillerTest, UsesSmallPagesForTheRestWhenHugeOnesCostMuchMore) {
  kernel_.huge_cost = 410;
  EXPECT_EQ(Fill(), 0);
  EXPECT_EQ(kernel_.huge(), 64 * kMiB) << "the first step shows what they cost";
  EXPECT_EQ(kernel_.small(), kSize - 64 * kMiB);
  EXPECT_EQ(kernel_.advised(), 0) << "a page fault must not make huge pages either";
}

TEST_F(PageFillerTest, TriesHugePagesAgainForTheNextSegment) {
  kernel_.huge_cost = 410;
  EXPECT_EQ(Fill(), 0);
  kernel_.huge_cost = 100;
  kernel_.huge_left = kSize;
  EXPECT_EQ(Fill(), 0);
  EXPECT_EQ(kernel_.huge(), kSize);
}

TEST_F(PageFillerTest, UsesSmallPagesForWhatCannotBeHuge) {
  kernel_.huge_left = 100 * kMiB;
  kernel_.huge_error = ENOMEM;
  EXPECT_EQ(Fill(), 0);
  EXPECT_EQ(kernel_.huge(), 100 * kMiB);
  EXPECT_EQ(kernel_.small(), kSize - 100 * kMiB);
}

TEST_F(PageFillerTest, MakesNoHugePagesUnlessAsked) {
  EXPECT_EQ(Fill(/*huge=*/false), 0);
  EXPECT_EQ(kernel_.small(), kSize);
  EXPECT_EQ(kernel_.advised(), 0);
}

TEST_F(PageFillerTest, ReportsThatTheMemoryIsMissing) {
  kernel_.populate_error = ENOMEM;
  EXPECT_EQ(Fill(), ENOMEM);
  EXPECT_EQ(Fill(/*huge=*/false), ENOMEM);
}

TEST_F(PageFillerTest, EndsSoonAfterItIsStopped) {
  kernel_.populated = [this] { stop_ = true; };
  EXPECT_EQ(Fill(/*huge=*/false), ECANCELED);
  EXPECT_EQ(kernel_.small(), 64 * kMiB);
}

// Of the mapping that contains `data`: bytes of this field of smaps.
int64_t MappingField(const std::byte* data, const std::string& field) {
  std::ifstream smaps("/proc/self/smaps");
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t first = 0, last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2)
      ours = first <= reinterpret_cast<uintptr_t>(data) && reinterpret_cast<uintptr_t>(data) < last;
    if (ours && line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) << 10;
  }
  return -1;
}

// A memfd, mapped at an address that is aligned to a huge page.
class KernelPagesTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 8 * kMiB;

  KernelPagesTest() : fd_(memfd_create("test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_.get(), kBytes), 0);
    void* const range = mmap(nullptr, kBytes + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto aligned =
        (reinterpret_cast<uintptr_t>(range) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    data_ = static_cast<std::byte*>(mmap(reinterpret_cast<void*>(aligned), kBytes, PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_FIXED, fd_.get(), 0));
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~KernelPagesTest() override { munmap(data_, kBytes); }

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::atomic<bool> stop_{false};
};

TEST_F(KernelPagesTest, EveryPageIsPresentAndZeroOnWhateverPages) {
  for (const bool huge : {false, true}) {
    EXPECT_EQ(PageFiller().Fill(data_, kBytes, huge, stop_), 0);
    EXPECT_EQ(MappingField(data_, "Rss"), kBytes);
    EXPECT_EQ(std::count(data_, data_ + kBytes, std::byte{}), kBytes);
  }
}

TEST_F(KernelPagesTest, PagesAreHugeWhereTheKernelMakesThemOnRequest) {
  if (const int error = MakePagesHuge(data_, kHugePageBytes); error != 0)
    GTEST_SKIP() << "this kernel makes no huge pages on request: " << strerror(error);
  ASSERT_EQ(KernelPageCalls().make_huge(data_, kBytes), 0);
  EXPECT_EQ(MappingField(data_, "ShmemPmdMapped"), kBytes);
  EXPECT_EQ(std::count(data_, data_ + kBytes, std::byte{}), kBytes);
}

TEST_F(KernelPagesTest, MakingPagesHugeKeepsTheirBytes) {
  const PageCalls kernel = KernelPageCalls();
  ASSERT_EQ(kernel.populate(data_, kBytes), 0);
  for (int64_t at = 0; at < kBytes; at += 4096) data_[at] = static_cast<std::byte>(at >> 12);
  (void)kernel.make_huge(data_, kBytes);
  for (int64_t at = 0; at < kBytes; at += 4096) ASSERT_EQ(data_[at], static_cast<std::byte>(at >> 12)) << at;
}

}  // namespace
}  // namespace ckptd
