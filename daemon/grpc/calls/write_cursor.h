// Copies a stream of bytes into the runs of memory where a placed file lies.
#ifndef CKPTD_DAEMON_GRPC_CALLS_WRITE_CURSOR_H_
#define CKPTD_DAEMON_GRPC_CALLS_WRITE_CURSOR_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

// Not thread-safe.
class WriteCursor {
 public:
  WriteCursor() = default;
  // At most `size` bytes may be written. `runs` hold at least as many.
  WriteCursor(std::string path, int64_t size, std::vector<std::span<std::byte>> runs)
      : path_(std::move(path)), size_(size), runs_(std::move(runs)) {}

  // INVALID_ARGUMENT, reason INVALID_ARGUMENT, when the file would grow beyond its placed size; copies
  // nothing then.
  absl::Status Append(std::string_view bytes);
  int64_t written() const { return written_; }

 private:
  std::string path_;
  int64_t size_ = 0;
  std::vector<std::span<std::byte>> runs_;
  int64_t written_ = 0;
  size_t run_ = 0;       // The run that the next byte goes to,
  size_t run_used_ = 0;  // and how many bytes of it are written.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_CALLS_WRITE_CURSOR_H_
