// Where the bytes of a file are read from, by position: what a decoder needs that does not read a file whole.
#ifndef CKPTD_CLIENT_FORMATS_BYTE_SOURCE_H_
#define CKPTD_CLIENT_FORMATS_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

// Thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  // For messages.
  virtual int64_t size() const = 0;
  // All of `into`, or an error, which does not name the source: DATA_LOSS, reason SHORT_FILE, when the bytes
  // are not there.
  virtual absl::Status ReadAt(int64_t offset, std::span<std::byte> into) const = 0;
};

// An open file; the descriptor must outlive it. Reads block (pread).
class DescriptorSource : public ByteSource {
 public:
  static absl::StatusOr<DescriptorSource> Of(int fd, std::string name);
  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }
  absl::Status ReadAt(int64_t offset, std::span<std::byte> into) const override;

 private:
  DescriptorSource(int fd, std::string name, int64_t size) : fd_(fd), name_(std::move(name)), size_(size) {}

  int fd_;
  std::string name_;
  int64_t size_;  // When it was made.
};

// Bytes in memory, which must outlive it.
class MemorySource : public ByteSource {
 public:
  MemorySource(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status ReadAt(int64_t offset, std::span<std::byte> into) const override;

 private:
  std::string_view bytes_;
  std::string name_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_FORMATS_BYTE_SOURCE_H_
