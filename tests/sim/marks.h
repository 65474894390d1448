// The contents of files in a simulation: a few marks instead of bytes.
#ifndef CKPTD_TESTS_SIM_MARKS_H_
#define CKPTD_TESTS_SIM_MARKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace ckptd::sim {

using Contents = std::map<std::string, uint64_t>;  // Path -> digest of the bytes.

// What a simulated trainer writes into a file: eight bytes at the beginning, at each MiB, and at the end.
// This identifies the contents wherever the boundaries of segments fall.
using Marks = std::vector<uint64_t>;
size_t CountMarks(int64_t size);
void WriteMarks(const std::vector<std::span<std::byte>>& runs, const Marks& marks);
Marks ReadMarks(const std::vector<std::span<const std::byte>>& runs);
uint64_t Digest(const Marks& marks);
inline uint64_t Digest(const std::vector<std::span<const std::byte>>& runs) {
  return Digest(ReadMarks(runs));
}

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_MARKS_H_
