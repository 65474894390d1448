// Constants of the ZIP format (PKWARE's APPNOTE.TXT 6.3), for the reader and the writer.
#ifndef CKPTD_CLIENT_FORMATS_TORCH_ZIP_FORMAT_H_
#define CKPTD_CLIENT_FORMATS_TORCH_ZIP_FORMAT_H_

#include <cstddef>
#include <cstdint>

namespace ckptd::torch {

inline constexpr uint32_t kLocalSignature = 0x04034b50;
inline constexpr uint32_t kDescriptorSignature = 0x08074b50;
inline constexpr uint32_t kCentralSignature = 0x02014b50;
inline constexpr uint32_t kEndSignature = 0x06054b50;
inline constexpr uint32_t kEnd64Signature = 0x06064b50;
inline constexpr uint32_t kLocator64Signature = 0x07064b50;

// The sizes of the fixed parts.
inline constexpr size_t kLocalBytes = 30;
inline constexpr size_t kCentralBytes = 46;
inline constexpr size_t kEndBytes = 22;
inline constexpr size_t kEnd64Bytes = 56;
inline constexpr size_t kLocator64Bytes = 20;

inline constexpr uint16_t kEncryptedFlags = 1 << 0 | 1 << 6 | 1 << 13;
inline constexpr uint16_t kDescriptorFlag = 1 << 3;  // Sizes and checksum follow the data.
inline constexpr uint16_t kUtf8Flag = 1 << 11;

inline constexpr uint16_t kZip64Field = 1;
// In a field of 16 or 32 bits these say that the value is in the ZIP64 field.
inline constexpr uint64_t kMost16 = 0xffff;
inline constexpr uint64_t kMost32 = 0xffffffff;

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_ZIP_FORMAT_H_
