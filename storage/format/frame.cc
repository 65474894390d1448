#include "storage/format/frame.h"

#include <cstddef>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr size_t kHeaderBytes = kMagicBytes + 3 * sizeof(uint32_t);

}  // namespace

std::string DigestOf(std::string_view bytes) {
  return absl::StrFormat("%08x-%d", Crc32cOf(bytes), bytes.size());
}

void AppendU32(std::string& to, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) to.push_back(static_cast<char>(value >> shift));
}

void AppendU64(std::string& to, uint64_t value) {
  AppendU32(to, static_cast<uint32_t>(value));
  AppendU32(to, static_cast<uint32_t>(value >> 32));
}

uint32_t LoadU32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = (value << 8) | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

uint64_t LoadU64(std::string_view bytes, size_t at) {
  return LoadU32(bytes, at) | static_cast<uint64_t>(LoadU32(bytes, at + 4)) << 32;
}

uint32_t Crc32cOf(std::string_view bytes) {
  return Crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

absl::Status NewerFormat(std::string_view what, uint32_t version) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "NEWER_FORMAT",
      absl::StrCat("this ", std::string(what), " has format version ", version,
                   ", but this program knows only version ", kFormatVersion, "; use a newer ckptd"));
}

std::string EncodeFrame(const FrameKind& kind, std::string_view message) {
  std::string bytes(kind.magic);
  AppendU32(bytes, kFormatVersion);
  AppendU32(bytes, static_cast<uint32_t>(message.size()));
  AppendU32(bytes, Crc32cOf(message));
  return bytes.append(message);
}

absl::StatusOr<std::string_view> DecodeFrame(const FrameKind& kind, std::string_view bytes) {
  const auto damaged = [&kind](const std::string& why) {
    return MakeError(absl::StatusCode::kDataLoss, kind.reason,
                     absl::StrCat("damaged ", std::string(kind.what), ": ", why));
  };
  if (bytes.size() < kHeaderBytes) return damaged(absl::StrCat("it has only ", bytes.size(), " bytes"));
  if (!bytes.starts_with(kind.magic))
    return damaged(absl::StrCat("it does not begin with ", std::string(kind.magic)));
  const uint32_t version = LoadU32(bytes, kMagicBytes);
  if (version == 0) return damaged("its format version is 0");
  if (version > kFormatVersion) return NewerFormat(kind.what, version);
  const std::string_view message = bytes.substr(kHeaderBytes);
  const uint32_t length = LoadU32(bytes, kMagicBytes + 4);
  if (length != message.size()) {
    return damaged(absl::StrCat("its length field says ", length, " bytes, but ", message.size(), " follow"));
  }
  if (LoadU32(bytes, kMagicBytes + 8) != Crc32cOf(message)) return damaged("its CRC32C is wrong");
  return message;
}

}  // namespace ckptd
