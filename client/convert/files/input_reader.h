// Reads ranges of a conversion's inputs, one after the other.
#ifndef CKPTD_CLIENT_CONVERT_FILES_INPUT_READER_H_
#define CKPTD_CLIENT_CONVERT_FILES_INPUT_READER_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/convert/files/plan_archive.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Keeps the file that was read last open. One thread at a time.
class InputReader {
 public:
  InputReader(FileSystem& fs, Handle dir) : fs_(fs), dir_(dir) {}
  // Fills `into` with the bytes of `range`. Precondition: into.size() == range.size.
  absl::Status Read(const std::vector<std::string>& inputs, const SourceRange& range,
                    std::span<std::byte> into);

 private:
  FileSystem& fs_;
  const Handle dir_;
  int input_ = -1;
  ScopedHandle file_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_INPUT_READER_H_
