// The frame around every small record that ckptd writes: part record, run record, pins, damage marks, swap
// intent.
//
// 8 bytes magic, u32 format version (1), u32 length of the message, u32 CRC32C of the message (all
// little-endian), then the message, and nothing behind it. So an empty, torn or damaged file is never taken
// for an empty record.
#ifndef CKPTD_STORAGE_FORMAT_FRAME_H_
#define CKPTD_STORAGE_FORMAT_FRAME_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckptd {

inline constexpr uint32_t kFormatVersion = 1;

// One kind of record.
struct FrameKind {
  std::string_view magic;   // 8 bytes.
  std::string_view what;    // For messages: "part record".
  std::string_view reason;  // The reason of the error for a damaged record.
};

inline constexpr FrameKind kPartRecordFrame{"CKPTDPRT", "part record", "CORRUPT_PART_RECORD"};
inline constexpr FrameKind kNodePartRecordFrame{"CKPTDNPR", "record of a node's part", "CORRUPT_PART_RECORD"};
inline constexpr FrameKind kRunRecordFrame{"CKPTDRUN", "run record", "ROOT_UNREADABLE"};
inline constexpr FrameKind kSharedRunRecordFrame{"CKPTDSRR", "record of a shared run", "ROOT_UNREADABLE"};
inline constexpr FrameKind kPinRecordFrame{"CKPTDPIN", "pin record", "ROOT_UNREADABLE"};
inline constexpr FrameKind kDamageRecordFrame{"CKPTDDMG", "damage record", "ROOT_UNREADABLE"};
inline constexpr FrameKind kSwapIntentFrame{"CKPTDSWP", "swap intent", "ROOT_UNREADABLE"};

std::string EncodeFrame(const FrameKind& kind, std::string_view message);

// The message in the frame, as a view of `bytes`. DATA_LOSS with the kind's reason if the frame is damaged.
// FAILED_PRECONDITION, reason NEWER_FORMAT, if this program does not know the version.
absl::StatusOr<std::string_view> DecodeFrame(const FrameKind& kind, std::string_view bytes);

// Tells a record from any other one of its kind and place: "<CRC32C in 8 hex digits>-<size>" of the file's
// bytes. It finds what is stale, cut off or damaged; it is no protection from who may write the file.
std::string DigestOf(std::string_view bytes);

// Little-endian numbers, as in all of ckptd's formats.
void AppendU32(std::string& to, uint32_t value);
void AppendU64(std::string& to, uint64_t value);
// Precondition: `at` + 4 (or 8) bytes exist.
uint32_t LoadU32(std::string_view bytes, size_t at);
uint64_t LoadU64(std::string_view bytes, size_t at);

uint32_t Crc32cOf(std::string_view bytes);

// The error for a version that this program does not know: FAILED_PRECONDITION, reason NEWER_FORMAT.
absl::Status NewerFormat(std::string_view what, uint32_t version);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FORMAT_FRAME_H_
