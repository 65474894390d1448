#include "client/convert/deepspeed/state/slice_ranges.h"

#include <algorithm>

#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int64_t kReadAtOnce = 1 << 20;

void Join(const SourceRange& piece, std::vector<SourceRange>& to) {
  if (!to.empty() && to.back().input == piece.input && to.back().from + to.back().size == piece.from) {
    to.back().size += piece.size;
  } else {
    to.push_back(piece);
  }
}

}  // namespace

void SliceCutter::Append(int64_t offset, int64_t size, std::vector<SourceRange>& to) {
  if (offset < begin_) index_ = 0, begin_ = 0;
  while (size > 0) {
    const SourceRange& range = ranges_[index_];
    if (offset >= begin_ + range.size) {
      begin_ += range.size;
      ++index_;
      continue;
    }
    const int64_t now = std::min(size, begin_ + range.size - offset);
    Join({range.input, range.from + (offset - begin_), now}, to);
    offset += now;
    size -= now;
  }
}

absl::Status ReadSlice(const std::vector<SourceRange>& ranges, int64_t offset, int64_t size,
                       const ReadRange& read, std::vector<std::byte>& into) {
  std::vector<SourceRange> parts;
  SliceCutter(ranges).Append(offset, size, parts);
  into.resize(static_cast<size_t>(size));
  std::span<std::byte> rest(into);
  for (const SourceRange& part : parts) {
    const auto now = static_cast<size_t>(part.size);
    CKPTD_RETURN_IF_ERROR(read(part, rest.first(now)));
    rest = rest.subspan(now);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SameBytes(const SlicePart& one, const SlicePart& other, int64_t size,
                               const ReadRange& read) {
  std::vector<std::byte> first, second;
  for (int64_t at = 0; at < size; at += kReadAtOnce) {
    const int64_t now = std::min(kReadAtOnce, size - at);
    CKPTD_RETURN_IF_ERROR(ReadSlice(one.ranges, one.offset + at, now, read, first));
    CKPTD_RETURN_IF_ERROR(ReadSlice(other.ranges, other.offset + at, now, read, second));
    if (first != second) return false;
  }
  return true;
}

}  // namespace ckptd
