// A .pt file. What is accepted lies within the file, and can be written and opened again.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/byte_source.h"
#include "client/formats/torch/archive.h"
#include "client/formats/torch/archive_layout.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/value.h"
#include "storage/base/errors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/torch_archive_fixture.h"

namespace ckptd::torch {
namespace {

constexpr Limits kLimits = {.directory_bytes = 1 << 16,
                            .pickle_bytes = 1 << 16,
                            .depth = 20,
                            .objects = 5000,
                            .memo_entries = 500,
                            .string_bytes = 1 << 16};

void Check(std::string_view bytes) {
  const absl::StatusOr<Archive> archive = OpenArchive(MemorySource(bytes, "input"), kLimits);
  if (!archive.ok()) {
    FUZZ_CHECK(!ReasonOf(archive.status()).empty() && archive.status().message().substr(0, 5) == "input");
    return;
  }
  int64_t sum = 0;
  for (const StorageRef& storage : archive->storages) {
    FUZZ_CHECK(storage->file_offset >= 0 && storage->bytes >= 0);
    FUZZ_CHECK(storage->file_offset <= static_cast<int64_t>(bytes.size()) - storage->bytes);
    sum += storage->bytes;
  }
  FUZZ_CHECK(sum <= static_cast<int64_t>(bytes.size()));  // Storages share no byte.
  const absl::StatusOr<ArchiveLayout> layout = LayOutArchive(*archive->root);
  if (!layout.ok()) return;
  const std::string written = FileOf(*layout);
  const absl::StatusOr<Archive> again = OpenArchive(MemorySource(written, "again"));
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(Describe(*again->root) == Describe(*archive->root));
}

}  // namespace
}  // namespace ckptd::torch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::torch::Check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
