// The `.metadata` of a checkpoint of PyTorch Distributed Checkpoint. What the reader accepts, it reads again from what
// the writer makes of it; and converting it, with its files missing, ends with an error that says something.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/dcp/dcp_metadata.h"
#include "client/convert/dcp/dcp_to_torch.h"
#include "client/convert/dcp/join_chunks.h"
#include "client/convert/files/plan_archive.h"
#include "client/formats/torch/value.h"
#include "storage/base/errors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/crash_disk.h"

namespace ckptd {
namespace {

constexpr size_t kMaxBytes = 1 << 16;

void CheckError(const absl::Status& status) {
  FUZZ_CHECK(status.ok() || (!ReasonOf(status).empty() && !status.message().empty()));
}

absl::StatusOr<std::vector<DcpEntry>> Read(std::string_view bytes) {
  CrashDisk disk;
  disk.Plant(kDcpMetadata, std::string(bytes));
  return ReadDcpMetadata(disk, disk.root());
}

// Joins chunks as if each were in a file of its own: what is accepted has every element once.
void CheckChunks(const DcpEntry& entry) {
  std::vector<ChunkSource> sources;
  for (const DcpChunk& chunk : entry.chunks) {
    sources.push_back({.offsets = chunk.offsets,
                       .sizes = chunk.sizes,
                       .stride = torch::ContiguousStride(chunk.sizes),
                       .input = static_cast<int>(sources.size()),
                       .from = 0});
  }
  const absl::StatusOr<std::vector<SourceRange>> ranges = JoinChunks(entry.shape, 1, sources);
  if (!ranges.ok()) return CheckError(ranges.status());
  int64_t elements = 1, bytes = 0;
  for (const int64_t size : entry.shape) elements *= size;
  for (const SourceRange& range : *ranges) bytes += range.size;
  FUZZ_CHECK(bytes == elements);
}

void Check(std::string_view bytes) {
  if (bytes.size() > kMaxBytes) return;
  const absl::StatusOr<std::vector<DcpEntry>> entries = Read(bytes);
  if (!entries.ok()) return CheckError(entries.status());
  for (const DcpEntry& entry : *entries) {
    FUZZ_CHECK(!entry.path.empty());
    if (entry.is_tensor) CheckChunks(entry);
  }
  const absl::StatusOr<std::string> written = WriteDcpMetadata(*entries);
  if (!written.ok()) return CheckError(written.status());
  const absl::StatusOr<std::vector<DcpEntry>> again = Read(*written);
  FUZZ_CHECK(again.ok() && again->size() == entries->size());
  for (size_t i = 0; i < entries->size(); ++i) {
    FUZZ_CHECK((*again)[i].name == (*entries)[i].name && (*again)[i].path == (*entries)[i].path);
    FUZZ_CHECK((*again)[i].shape == (*entries)[i].shape);
    FUZZ_CHECK((*again)[i].chunks.size() == (*entries)[i].chunks.size());
  }
  CrashDisk disk;
  disk.Plant(kDcpMetadata, std::string(bytes));
  const auto progress = [](int64_t, int64_t) { return true; };
  CheckError(
      ConvertDcpToTorch(disk, disk.root(), disk.root(), "out.pt", {.dry_run = true}, progress).status());
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::Check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
