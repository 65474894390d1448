// CRC32C (Castagnoli), by ISA-L at memory speed.
#ifndef CKPTD_STORAGE_BASE_CHECKSUMS_CRC32C_H_
#define CKPTD_STORAGE_BASE_CHECKSUMS_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckptd {

// Continues `crc`, which is 0 at the start: Crc32c(b, Crc32c(a)) is the CRC of a followed by b.
// Crc32c("123456789") == 0xe3069283.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_CHECKSUMS_CRC32C_H_
