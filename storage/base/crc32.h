// CRC-32 as ZIP has it: for the checksums inside archives alone. ckptd's own is CRC32C (crc32c.h).
#ifndef CKPTD_STORAGE_BASE_CRC32_H_
#define CKPTD_STORAGE_BASE_CRC32_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckptd {

// `crc` is the CRC-32 of the bytes before these; 0 when there are none.
uint32_t Crc32(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_CRC32_H_
