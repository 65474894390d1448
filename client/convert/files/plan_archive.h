// Plans a file of torch.save whose tensors' bytes come from ranges of other files.
#ifndef CKPTD_CLIENT_CONVERT_FILES_PLAN_ARCHIVE_H_
#define CKPTD_CLIENT_CONVERT_FILES_PLAN_ARCHIVE_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/files/stream_files.h"
#include "client/formats/torch/value.h"

namespace ckptd {

// A run of bytes of an input file.
struct SourceRange {
  int input;  // An index into the inputs of StreamFiles, or Piece::kLiteral.
  int64_t from;
  int64_t size;    // In bytes of the input.
  Cast cast = {};  // What the elements become on the way.
};
// The ranges that make up a storage of a new tree, in order. The rest of the storage is zeros.
using Contents = std::unordered_map<const torch::Storage*, std::vector<SourceRange>>;

// Appends the pieces of `ranges` to a file, one after the other from `offset` on.
void AppendPieces(const std::vector<SourceRange>& ranges, int64_t offset, std::vector<Piece>& pieces);

// Lays out `root` as the file `path`. Ranges of Piece::kLiteral are in `literals`. Fails as
// torch::LayOutArchive does, and names the file.
absl::StatusOr<PlannedFile> PlanArchive(const torch::Value& root, const Contents& contents,
                                        const std::string& path, std::string literals = "");

// Appends the archive of `root` to the end of a planned file, as files of PyTorch Distributed Checkpoint consist of
// archives. `name` is that of the folder inside the archive. Fails as torch::LayOutArchive does.
absl::Status AppendArchive(const torch::Value& root, const Contents& contents, const std::string& name,
                           PlannedFile& file);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_PLAN_ARCHIVE_H_
