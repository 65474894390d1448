#include "storage/format/frame.h"

#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

TEST(FrameTest, DecodesWhatWasEncoded) {
  const std::string bytes = EncodeFrame(kRunRecordFrame, "hello");
  const absl::StatusOr<std::string_view> message = DecodeFrame(kRunRecordFrame, bytes);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(*message, "hello");
}

TEST(FrameTest, HasTheDocumentedBytes) {
  // docs/storage_format.md: magic, version, length, CRC32C ("123456789" has the well-known 0xe3069283),
  // message.
  EXPECT_EQ(EncodeFrame(kPartRecordFrame, "123456789"), std::string("CKPTDPRT"
                                                                    "\x01\0\0\0"
                                                                    "\x09\0\0\0"
                                                                    "\x83\x92\x06\xe3"
                                                                    "123456789",
                                                                    29));
}

TEST(FrameTest, RefusesAnEmptyFile) {
  const absl::Status status = DecodeFrame(kPinRecordFrame, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(status), "ROOT_UNREADABLE");
  EXPECT_TRUE(DecodeFrame(kPinRecordFrame, EncodeFrame(kPinRecordFrame, "")).ok());
}

TEST(FrameTest, FindsEveryFlippedBitAndEveryCut) {
  const std::string bytes = EncodeFrame(kRunRecordFrame, "some message");
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(DecodeFrame(kRunRecordFrame, bytes.substr(0, i)).ok()) << "cut at " << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      EXPECT_FALSE(DecodeFrame(kRunRecordFrame, flipped).ok()) << "byte " << i << " bit " << bit;
    }
  }
  EXPECT_FALSE(DecodeFrame(kRunRecordFrame, bytes + "x").ok());
  EXPECT_FALSE(DecodeFrame(kPinRecordFrame, bytes).ok()) << "another kind";
}

TEST(FrameTest, NamesANewerVersion) {
  std::string bytes = EncodeFrame(kRunRecordFrame, "m");
  bytes[8] = 2;
  const absl::Status status = DecodeFrame(kRunRecordFrame, bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "NEWER_FORMAT");
}

TEST(DigestTest, IsTheCrc32cAndTheSize) {
  EXPECT_EQ(DigestOf("123456789"), "e3069283-9");
  EXPECT_EQ(DigestOf(""), "00000000-0");
  EXPECT_NE(DigestOf(std::string("\0", 1)), DigestOf(std::string("\0\0", 2)));
}

}  // namespace
}  // namespace ckptd
