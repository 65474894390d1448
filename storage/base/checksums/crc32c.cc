#include "storage/base/checksums/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace ckptd {

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  // ISA-L takes the length as an int, and leaves both inversions to its caller.
  constexpr size_t kMost = size_t{1} << 30;
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kMost);
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(n), state);
    bytes = bytes.subspan(n);
  }
  return ~state;
}

}  // namespace ckptd
