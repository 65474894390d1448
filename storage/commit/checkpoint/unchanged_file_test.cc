#include "storage/commit/checkpoint/unchanged_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>
#include <span>
#include <string>

#include "storage/commit/checkpoint/verify.h"
#include "storage/fs/posix_file_system.h"
#include "storage/io/check_images.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/file_images.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

constexpr int32_t kChunkBytes = 8192;
constexpr int64_t kSize = 3 * kChunkBytes + 100;

class UnchangedFileTest : public ::testing::Test {
 protected:
  UnchangedFileTest() : fs_(*MakePosixFileSystem()), faulty_(fs_.get()) {
    images_.Add("file", kSize, 1);
    record_.set_path("file");
    record_.set_size_bytes(kSize);
    for (int64_t offset = 0; offset < kSize; offset += kChunkBytes)
      record_.add_chunk_crc32c(CrcOf(image(), offset, std::min<int64_t>(kChunkBytes, kSize - offset)));
    Write(images_.Bytes("file"));
  }
  const FileImage& image() const { return images_.files()[0]; }
  void Write(const std::string& bytes) {
    std::ofstream(dir_.path() + "/file", std::ios::binary | std::ios::trunc) << bytes;
  }
  bool IsUnchanged(const FileImage& image) {
    const ScopedHandle file =
        OpenIfUnchanged(faulty_, dir_.fd(), record_, kChunkBytes, image, /*threads=*/2, &stop_);
    return static_cast<bool>(file);
  }

  TempDir dir_;
  std::unique_ptr<FileSystem> fs_;
  FaultyFileSystem faulty_;
  Images images_;
  storage::v1::FileRecord record_;
  int32_t stop_ = 0;
};

TEST_F(UnchangedFileTest, OpensAFileWithTheSameBytes) {
  const ScopedHandle file = OpenIfUnchanged(*fs_, dir_.fd(), record_, kChunkBytes, image(), 2, nullptr);
  ASSERT_TRUE(file);
  std::string bytes(kSize, '\0');
  ASSERT_TRUE(ReadFully(*fs_, file.get(), 0, std::as_writable_bytes(std::span(bytes))).ok());
  EXPECT_EQ(bytes, images_.Bytes("file"));
}

// Memory comes in segments: the runs of an image end anywhere in the pieces that are read.
TEST_F(UnchangedFileTest, ComparesAnImageOfSeveralRuns) {
  FileImage split = image();
  const std::span<const std::byte> whole = split.runs[0];
  split.runs = {whole.first(4096), whole.subspan(4096, 12288), whole.subspan(16384)};
  EXPECT_TRUE(IsUnchanged(split));
}

TEST_F(UnchangedFileTest, ReadsNothingOfAFileWhoseChecksumsDiffer) {
  Images other;
  other.Add("file", kSize, 2);
  EXPECT_FALSE(IsUnchanged(other.files()[0]));
  EXPECT_EQ(faulty_.Count(FsOp::kOpen), 0);
}

TEST_F(UnchangedFileTest, SeesAFileOfAnotherSize) {
  Images longer;
  longer.Add("file", kSize + 1, 1);
  EXPECT_FALSE(IsUnchanged(longer.files()[0]));
}

// The record says what was saved; what the disk has now may be something else.
TEST_F(UnchangedFileTest, SeesDamageOnTheDisk) {
  std::string bytes = images_.Bytes("file");
  bytes[2 * kChunkBytes + 5] ^= 1;
  Write(bytes);
  EXPECT_FALSE(IsUnchanged(image()));
}

TEST_F(UnchangedFileTest, SeesAFileThatIsShorterThanItsRecord) {
  Write(images_.Bytes("file").substr(0, kSize - 1));
  EXPECT_FALSE(IsUnchanged(image()));
}

// CRC32C is linear: to add its polynomial, bit by bit, to a message leaves the message's CRC as it was.
std::string AddPolynomial(std::string bytes) {
  const auto flip = [&](int bit) {
    bytes[static_cast<size_t>(bit / 8)] ^= static_cast<char>(1 << (bit % 8));
  };
  flip(0);
  for (int i = 0; i < 32; ++i) {
    if ((0x1EDC6F41u >> (31 - i)) & 1) flip(i + 1);
  }
  return bytes;
}

TEST_F(UnchangedFileTest, ComparesBytesAndNotChecksumsAlone) {
  const std::string other = AddPolynomial(images_.Bytes("file"));
  ASSERT_NE(other, images_.Bytes("file"));
  Write(other);
  std::string read(kSize, '\0');
  ASSERT_TRUE(
      ReadVerified(*fs_, dir_.fd(), record_, kChunkBytes, 0, std::as_writable_bytes(std::span(read))).ok())
      << "the checksums are equal";
  EXPECT_FALSE(IsUnchanged(image()));
}

TEST_F(UnchangedFileTest, SeesAFileThatIsReplacedWhileItIsRead) {
  int looks = 0;  // The first one is at the open file, the second one at what has its name after it was read.
  faulty_.SetHook([&](const FsCall& call) {
    if (call.op != FsOp::kStat || ++looks != 2) return;
    const std::string path = dir_.path() + "/file";
    ASSERT_EQ(std::rename(path.c_str(), (path + ".old").c_str()), 0);
    Write(images_.Bytes("file"));
  });
  EXPECT_FALSE(IsUnchanged(image()));
  EXPECT_EQ(looks, 2);
}

TEST_F(UnchangedFileTest, TakesAFileThatCannotBeReadForChanged) {
  for (const FsOp op : {FsOp::kOpen, FsOp::kStat}) {
    faulty_.Fail({.op = op, .error = EIO});
    EXPECT_FALSE(IsUnchanged(image())) << FsOpName(op);
    faulty_.ClearFaults();
  }
  EXPECT_EQ(faulty_.open_handles(), 0);
}

TEST_F(UnchangedFileTest, EndsWhenItIsStopped) {
  stop_ = 1;
  EXPECT_FALSE(IsUnchanged(image()));
}

}  // namespace
}  // namespace ckptd
