#include "client/convert/dcp/dcp_tensors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/dcp/join_chunks.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/open_archive.h"
#include "client/convert/files/value_text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// The tensor that is the archive's object. Its elements are as the entry says.
absl::StatusOr<const torch::Tensor*> ChunkTensor(const torch::Archive& archive, const DcpEntry& entry,
                                                 const DcpChunk& chunk) {
  const torch::Tensor* tensor = archive.root->As<torch::Tensor>();
  if (tensor == nullptr || tensor->dtype != entry.dtype || tensor->shape != chunk.sizes) {
    return CannotConvert(absl::StrCat("its chunk at ", ShapeText(chunk.offsets), " should be a tensor ",
                                      std::string(InfoOf(entry.dtype).torch_name), ShapeText(chunk.sizes),
                                      ", and ", chunk.place.path, " has ", ValueText(*archive.root), " at ",
                                      chunk.place.offset));
  }
  if (tensor->math_bits != nullptr) {
    return CannotConvert(
        absl::StrCat("its chunk at ", ShapeText(chunk.offsets),
                     " is a view that torch computes when it reads it (conjugated or negated)"));
  }
  return tensor;
}

}  // namespace

int DcpTensors::InputOf(const std::string& path) {
  const auto [known, is_new] = input_of_.emplace(path, static_cast<int>(inputs_.size()));
  if (is_new) inputs_.push_back(path);
  return known->second;
}

absl::StatusOr<torch::Archive> DcpTensors::Open(const DcpPlace& place) {
  const absl::StatusOr<ScopedHandle> file = OpenScoped(fs_, dir_, place.path, OpenMode::kRead);
  if (!file.ok()) return Annotate(file.status(), place.path);
  return OpenArchiveWithin(fs_, file->get(), absl::StrCat(place.path, " at ", place.offset), place.offset,
                           place.size);
}

absl::StatusOr<std::vector<SourceRange>> DcpTensors::Locate(const DcpEntry& tensor) {
  std::vector<ChunkSource> sources;
  for (const DcpChunk& chunk : tensor.chunks) {
    const absl::StatusOr<torch::Archive> archive = Open(chunk.place);
    if (!archive.ok()) return Annotate(archive.status(), tensor.name);
    const absl::StatusOr<const torch::Tensor*> found = ChunkTensor(*archive, tensor, chunk);
    if (!found.ok()) return Annotate(found.status(), tensor.name);
    sources.push_back({.offsets = chunk.offsets,
                       .sizes = chunk.sizes,
                       .stride = (*found)->stride,
                       .input = InputOf(chunk.place.path),
                       .from = (*found)->file_offset()});
  }
  absl::StatusOr<std::vector<SourceRange>> ranges =
      JoinChunks(tensor.shape, InfoOf(tensor.dtype).item_bytes, sources);
  if (!ranges.ok()) return Annotate(ranges.status(), tensor.name);
  return ranges;
}

absl::StatusOr<torch::ValueRef> DcpTensors::ReadValue(const DcpEntry& value, Contents& contents) {
  const absl::StatusOr<torch::Archive> archive = Open(value.value);
  if (!archive.ok()) return Annotate(archive.status(), value.name);
  const int input = InputOf(value.value.path);
  for (const torch::StorageRef& storage : archive->storages)
    contents[storage.get()] = {{.input = input, .from = storage->file_offset, .size = storage->bytes}};
  return archive->root;
}

}  // namespace ckptd
