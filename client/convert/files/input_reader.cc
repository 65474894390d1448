#include "client/convert/files/input_reader.h"

#include "storage/base/status_macros.h"

namespace ckptd {

absl::Status InputReader::Read(const std::vector<std::string>& inputs, const SourceRange& range,
                               std::span<std::byte> into) {
  if (range.input != input_) {
    CKPTD_ASSIGN_OR_RETURN(file_,
                           OpenScoped(fs_, dir_, inputs[static_cast<size_t>(range.input)], OpenMode::kRead));
    input_ = range.input;
  }
  return ReadFully(fs_, file_.get(), range.from, into);
}

}  // namespace ckptd
