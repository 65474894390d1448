#include "client/formats/byte_source.h"

#include <fcntl.h>

#include <array>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

std::string Text(const std::array<std::byte, 4>& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void ReadsWhatIsThereAndNothingElse(const ByteSource& source) {
  EXPECT_EQ(source.size(), 10);
  std::array<std::byte, 4> bytes;
  ASSERT_TRUE(source.ReadAt(6, bytes).ok());
  EXPECT_EQ(Text(bytes), "6789");
  EXPECT_TRUE(source.ReadAt(10, {}).ok());
  for (const int64_t offset : {int64_t{7}, int64_t{10}, int64_t{1} << 40}) {
    const absl::Status status = source.ReadAt(offset, bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << offset;
    EXPECT_EQ(ReasonOf(status), "SHORT_FILE");
  }
}

TEST(ByteSourceTest, ReadsMemory) {
  const MemorySource source("0123456789", "memory");
  ReadsWhatIsThereAndNothingElse(source);
  std::array<std::byte, 4> bytes;
  EXPECT_FALSE(source.ReadAt(-1, bytes).ok());
}

TEST(ByteSourceTest, ReadsAFile) {
  const TempDir dir;
  const std::string path = dir.path() + "/f";
  std::ofstream(path) << "0123456789";
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const absl::StatusOr<DescriptorSource> source = DescriptorSource::Of(fd.get(), path);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->name(), path);
  ReadsWhatIsThereAndNothingElse(*source);
}

TEST(ByteSourceTest, RefusesADirectory) {
  const TempDir dir;
  EXPECT_EQ(DescriptorSource::Of(dir.fd(), "d").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(DescriptorSource::Of(-1, "nothing").ok());
}

}  // namespace
}  // namespace ckptd
