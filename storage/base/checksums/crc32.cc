#include "storage/base/checksums/crc32.h"

#include <isa-l/crc.h>

namespace ckptd {

uint32_t Crc32(std::span<const std::byte> bytes, uint32_t crc) {
  return crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace ckptd
