#include "client/formats/byte_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

absl::Status ShortFile(int64_t offset, size_t bytes) {
  return MakeError(absl::StatusCode::kDataLoss, "SHORT_FILE",
                   absl::StrCat("it ends before the ", bytes, " bytes at ", offset));
}

}  // namespace

absl::StatusOr<DescriptorSource> DescriptorSource::Of(int fd, std::string name) {
  struct stat found;
  if (::fstat(fd, &found) != 0) return ErrnoError(errno, name);
  if (!S_ISREG(found.st_mode)) {
    return InvalidArgument(absl::StrCat(name, " is not a regular file"));
  }
  return DescriptorSource(fd, std::move(name), found.st_size);
}

absl::Status DescriptorSource::ReadAt(int64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t n = ::pread(fd_, into.data(), into.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, absl::StrCat("cannot read ", into.size(), " bytes at ", offset));
    if (n == 0) return ShortFile(offset, into.size());
    into = into.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return absl::OkStatus();
}

absl::Status MemorySource::ReadAt(int64_t offset, std::span<std::byte> into) const {
  if (offset < 0 || offset > size() || into.size() > static_cast<size_t>(size() - offset)) {
    return ShortFile(offset, into.size());
  }
  if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  return absl::OkStatus();
}

}  // namespace ckptd
