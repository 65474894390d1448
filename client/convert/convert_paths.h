// Resolves the paths of a conversion, and checks that the output is not inside the input: by symbolic links,
// bind mounts, or one within the other.
#ifndef CKPTD_CLIENT_CONVERT_CONVERT_PATHS_H_
#define CKPTD_CLIENT_CONVERT_CONVERT_PATHS_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace ckptd {

struct ConvertPaths {
  std::string input;   // Absolute, without symbolic links.
  std::string parent;  // The output's parent directory, likewise. It exists.
  std::string name;    // The output's name in `parent`.
};

// NOT_FOUND, reason ENOENT, if the input or the output's parent does not exist. FAILED_PRECONDITION, reason
// OUTPUT_IS_INPUT, if the output is the input or inside it. INVALID_ARGUMENT if a path is empty or the output
// has no name.
absl::StatusOr<ConvertPaths> ResolveConvertPaths(const std::string& input, const std::string& output);

// Where an input that is one file is.
struct ConvertFile {
  std::string
      directory;  // Absolute. The committed checkpoint of ckptd that has the file, else the file's directory.
  std::string name;           // Relative to `directory`.
  bool is_committed = false;  // `directory` is a checkpoint.
};

// Resolves the paths of a conversion of one file. The output is not in the checkpoint that has the file. Errors as of
// ResolveConvertPaths.
absl::StatusOr<std::pair<ConvertFile, ConvertPaths>> ResolveConvertFile(const std::string& input,
                                                                        const std::string& output);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_CONVERT_PATHS_H_
