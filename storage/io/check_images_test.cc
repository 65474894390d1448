#include "storage/io/check_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr int32_t kChunk = 1000;

// Two files in memory: one whose runs end within chunks, and an empty one.
class CheckImagesTest : public ::testing::Test {
 protected:
  CheckImagesTest() : bytes_(4096 * 2 + 500) {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i * 7 % 251);
    const std::span<const std::byte> all(bytes_);
    images_ = {{"a", 8692, {all.first(4096), all.subspan(4096, 4096), all.subspan(8192)}}, {"b", 0, {}}};
    records_.resize(2);
    records_[0].set_path("a");
    records_[0].set_size_bytes(8692);
    records_[1].set_path("b");
    for (size_t at = 0; at < bytes_.size(); at += kChunk)
      records_[0].add_chunk_crc32c(Crc32c(all.subspan(at, std::min<size_t>(kChunk, bytes_.size() - at))));
  }
  absl::Status Check(std::function<bool()> stop = [] { return false; }) {
    std::promise<absl::Status> answer;
    CheckImages(pool_.get(), parallel_, images_, records_, kChunk, std::move(stop),
                [&answer](const absl::Status& status) { answer.set_value(status); });
    return answer.get_future().get();
  }

  std::vector<std::byte> bytes_;
  std::vector<FileImage> images_;
  std::vector<storage::v1::FileRecord> records_;
  int parallel_ = 2;
  std::unique_ptr<ChecksumPool> pool_ = std::make_unique<ChecksumPool>(2);
};

TEST_F(CheckImagesTest, AcceptsUnchangedImages) { EXPECT_TRUE(Check().ok()) << Check(); }

TEST_F(CheckImagesTest, NamesTheChunkOfAChangedByte) {
  for (size_t at = 0; at < bytes_.size(); at += 61) {
    bytes_[at] ^= std::byte{1};
    const absl::Status status = Check();
    EXPECT_EQ(ReasonOf(status), "CORRUPT_FILE") << at;
    EXPECT_EQ(DetailsOf(status)["path"], "a");
    EXPECT_EQ(DetailsOf(status)["chunk"], std::to_string(at / kChunk));
    bytes_[at] ^= std::byte{1};
  }
}

TEST_F(CheckImagesTest, NamesOneOfTheChangedChunksHoweverManyAreCheckedAtATime) {
  for (parallel_ = 1; parallel_ <= 20; ++parallel_) {
    pool_ = std::make_unique<ChecksumPool>(parallel_);
    EXPECT_TRUE(Check().ok()) << parallel_;
    bytes_[3500] ^= std::byte{1};
    bytes_[4500] ^= std::byte{1};
    EXPECT_THAT(DetailsOf(Check())["chunk"], ::testing::AnyOf("3", "4")) << parallel_;
    bytes_[3500] ^= std::byte{1};
    EXPECT_EQ(DetailsOf(Check())["chunk"], "4") << parallel_;
    bytes_[4500] ^= std::byte{1};
  }
}

TEST_F(CheckImagesTest, KeepsAsManyChunksOnThePoolAsItMay) {
  pool_ = std::make_unique<ChecksumPool>(1);
  for (parallel_ = 1; parallel_ <= 5; ++parallel_) {
    std::latch all_are_queued(1);
    pool_->Submit([&] { all_are_queued.wait(); });
    int asked = 0, before = 0;  // Chunks that were begun; of them, those before the other work.
    std::promise<absl::Status> answer;
    CheckImages(
        pool_.get(), parallel_, images_, records_, kChunk,
        [&] {
          if (++asked == 1) pool_->Submit([&] { before = asked; });
          return false;
        },
        [&](const absl::Status& status) { answer.set_value(status); });
    all_are_queued.count_down();
    EXPECT_TRUE(answer.get_future().get().ok());
    EXPECT_EQ(before, parallel_);
  }
}

TEST_F(CheckImagesTest, StopsSoonWhenAsked) {
  int asked = 0;
  EXPECT_EQ(Check([&] { return ++asked == 3; }).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 3);
}

TEST_F(CheckImagesTest, OtherWorkRunsBetweenItsChunks) {
  pool_ = std::make_unique<ChecksumPool>(1);
  std::promise<absl::Status> answer;
  std::atomic<bool> other = false, before = false;
  bool submitted = false;
  CheckImages(
      pool_.get(), parallel_, images_, records_, kChunk,
      [&] {
        if (!std::exchange(submitted, true)) pool_->Submit([&] { other = true; });
        return false;
      },
      [&](const absl::Status& status) {
        before = other.load();
        answer.set_value(status);
      });
  EXPECT_TRUE(answer.get_future().get().ok());
  EXPECT_TRUE(before);
}

}  // namespace
}  // namespace ckptd
