// Shared by all fuzz targets: the entry point, a check that is active in every build, and a reader that
// splits an input into fields.
//
// A target is linked twice: with libFuzzer (tools/check fuzz), and with replay.cc, which runs the corpus in
// the ordinary build. Its checks are the same in both.
#ifndef CKPTD_TESTS_FUZZ_FUZZ_H_
#define CKPTD_TESTS_FUZZ_FUZZ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

// Returns 0. Aborts if the code breaks a promise for these bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#define FUZZ_CHECK(condition)                                                            \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

namespace ckptd {

// Splits an input of any length into fields: past the end, every field is zero or empty.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }
  uint8_t Byte() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  // Reads a length of two bytes (little-endian), and that many bytes or as many as are left.
  std::string_view Chunk() {
    const size_t low = Byte();
    const size_t length = low | static_cast<size_t>(Byte()) << 8;
    const std::string_view chunk = left_.substr(0, length);
    left_.remove_prefix(chunk.size());
    return chunk;
  }
  std::string_view Rest() const { return left_; }

 private:
  std::string_view left_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_FUZZ_FUZZ_H_
