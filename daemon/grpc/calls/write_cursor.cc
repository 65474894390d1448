#include "daemon/grpc/calls/write_cursor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {

absl::Status WriteCursor::Append(std::string_view bytes) {
  if (bytes.size() > static_cast<uint64_t>(size_ - written_)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                     absl::StrCat(path_, ": ", written_, " + ", bytes.size(), " bytes do not fit into the ",
                                  size_, " bytes that were placed; ask for more with Extend"),
                     {{"path", path_}});
  }
  written_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const std::span<std::byte> room = runs_[run_].subspan(run_used_);
    const size_t count = std::min(room.size(), bytes.size());
    if (count > 0) std::memcpy(room.data(), bytes.data(), count);
    bytes.remove_prefix(count);
    run_used_ += count;
    if (run_used_ == runs_[run_].size()) {
      ++run_;
      run_used_ = 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace ckptd
