// Checks a conversion's input directory before the conversion reads it: a committed checkpoint of ckptd is
// compared with its manifest. Only reads.
#ifndef CKPTD_CLIENT_CONVERT_INPUT_CHECK_H_
#define CKPTD_CLIENT_CONVERT_INPUT_CHECK_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct InputCheck {
  bool committed = false;      // False: another program wrote it, and it has no checksums.
  int64_t verified_bytes = 0;  // Compared with the manifest's checksums.
};

// Compares the set of files and every chunk with the manifest. Calls `progress` with the bytes
// of all files and those verified so far; if it returns false, the result is ABORTED, reason INTERRUPTED.
// Other errors:
//   DATA_LOSS, CORRUPT_MANIFEST              the manifest is damaged, or `.ckptd` has none
//   DATA_LOSS, CORRUPT_FILE                  a file is missing, or its size or a checksum differs; details:
//   path FAILED_PRECONDITION, MIXED_CHECKPOINT    there is a .pt file that the manifest does not name: it is
//   of another
//                                            save; details: path
absl::StatusOr<InputCheck> CheckInput(FileSystem& fs, Handle in,
                                      const std::function<bool(int64_t total, int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_INPUT_CHECK_H_
