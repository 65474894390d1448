// CRC-32 as ZIP uses it, only for the checksums inside archives. ckptd's own checksums are CRC32C (crc32c.h).
#ifndef CKPTD_STORAGE_BASE_CHECKSUMS_CRC32_H_
#define CKPTD_STORAGE_BASE_CHECKSUMS_CRC32_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckptd {

// Continues `crc`, the CRC-32 of the bytes before these; 0 at the start.
uint32_t Crc32(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_CHECKSUMS_CRC32_H_
