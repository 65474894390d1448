#include "client/convert/files/plan_archive.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "client/formats/torch/archive_layout.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// The name of the folder inside the archive, as torch.save chooses it: the file's name without its last
// extension.
std::string NameInside(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.substr(0, name.rfind('.'));
}

// `start`: of the archive in the file.
void AppendLiteral(const torch::ArchiveLayout::Piece& literal, int64_t start, PlannedFile& file) {
  if (literal.bytes.empty()) return;
  file.pieces.push_back({.offset = start + literal.offset,
                         .size = static_cast<int64_t>(literal.bytes.size()),
                         .input = Piece::kLiteral,
                         .from = static_cast<int64_t>(file.literals.size())});
  file.literals += literal.bytes;
}

}  // namespace

void AppendPieces(const std::vector<SourceRange>& ranges, int64_t offset, std::vector<Piece>& pieces) {
  for (const SourceRange& source : ranges) {
    if (source.size == 0) continue;
    const int64_t size = source.cast.OutputBytes(source.size);
    pieces.push_back(
        {.offset = offset, .size = size, .input = source.input, .from = source.from, .cast = source.cast});
    offset += size;
  }
}

absl::StatusOr<PlannedFile> PlanArchive(const torch::Value& root, const Contents& contents,
                                        const std::string& path, std::string literals) {
  PlannedFile file = {.path = path, .size = 0, .literals = std::move(literals), .pieces = {}};
  if (const absl::Status appended = AppendArchive(root, contents, NameInside(path), file); !appended.ok())
    return Annotate(appended, path);
  return file;
}

absl::Status AppendArchive(const torch::Value& root, const Contents& contents, const std::string& name,
                           PlannedFile& file) {
  CKPTD_ASSIGN_OR_RETURN(const torch::ArchiveLayout layout, torch::LayOutArchive(root, {.name = name}));
  const auto first = static_cast<ptrdiff_t>(file.pieces.size());
  for (const torch::ArchiveLayout::Piece& piece : layout.Pieces()) AppendLiteral(piece, file.size, file);
  for (const torch::ArchiveLayout::Range& range : layout.storages())
    AppendPieces(contents.at(range.storage.get()), file.size + range.offset, file.pieces);
  std::sort(file.pieces.begin() + first, file.pieces.end(),
            [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
  file.size += layout.size();
  return absl::OkStatus();
}

}  // namespace ckptd
