// Reads the bytes of a file by position, for decoders that do not read files whole.
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
  // Fills `into`, or fails: DATA_LOSS, reason SHORT_FILE, if the source ends before. The error does not name
  // the source.
  virtual absl::Status ReadAt(int64_t offset, std::span<std::byte> into) const = 0;
};

// An open file. The descriptor must outlive it. Reads block (pread).
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
  int64_t size_;  // At construction.
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
