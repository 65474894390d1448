// The manifest. The first byte selects the format of the rest: 0 is a file; otherwise the length of a
// summary, the summary and a body, around which the target puts the head, because a fuzzer cannot guess a
// CRC32C.
#include "storage/format/frame.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd {
namespace {

constexpr size_t kSummaryAt = 36;

std::string WithHead(std::string_view summary, std::string_view body) {
  summary = summary.substr(0, kManifestHeadBytes - kSummaryAt);
  std::string bytes = "CKPTDMAN";
  AppendU32(bytes, kFormatVersion);
  AppendU32(bytes, static_cast<uint32_t>(summary.size()));
  AppendU32(bytes, Crc32cOf(summary));
  AppendU32(bytes, Crc32cOf(body));
  AppendU64(bytes, body.size());
  AppendU32(bytes, Crc32cOf(bytes));
  bytes.append(summary);
  bytes.resize(kManifestHeadBytes);
  return bytes.append(body);
}

void Decode(std::string_view bytes) {
  const absl::StatusOr<storage::v1::ManifestSummary> head = DecodeManifestHead(bytes);
  const absl::StatusOr<Manifest> manifest = DecodeManifest(bytes);
  if (!manifest.ok()) {
    FUZZ_CHECK(!manifest.status().message().empty());
    return;
  }
  // Listing reads the head alone, so it must agree with the whole manifest.
  FUZZ_CHECK(head.ok() && head->SerializeAsString().size() == manifest->summary.SerializeAsString().size());
  FUZZ_CHECK(head->tag() == manifest->summary.tag() && head->sequence() == manifest->summary.sequence());
  const absl::StatusOr<int64_t> size = ManifestSize(bytes.substr(0, kManifestHeadBytes));
  FUZZ_CHECK(size.ok() && *size == static_cast<int64_t>(bytes.size()));
  // What a restore relies on.
  FUZZ_CHECK(CheckTag(manifest->summary.tag()).ok() && manifest->summary.chunk_bytes() > 0);
  int64_t sum = 0;
  for (const storage::v1::FileRecord& file : manifest->body.files()) {
    FUZZ_CHECK(CheckFilePath(file.path()).ok() && file.size_bytes() >= 0);
    sum += file.size_bytes();
    const int64_t chunk = manifest->summary.chunk_bytes();
    FUZZ_CHECK(file.chunk_crc32c_size() == file.size_bytes() / chunk + (file.size_bytes() % chunk != 0));
  }
  FUZZ_CHECK(sum == manifest->summary.size_bytes());
  // An accepted manifest can be written, and always as the same bytes.
  const absl::StatusOr<std::string> written = EncodeManifest(*manifest);
  FUZZ_CHECK(written.ok());
  const absl::StatusOr<Manifest> again = DecodeManifest(*written);
  FUZZ_CHECK(again.ok());
  const absl::StatusOr<std::string> twice = EncodeManifest(*again);
  FUZZ_CHECK(twice.ok() && *twice == *written);
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::FuzzInput input(data, size);
  if (input.Byte() == 0) {
    ckptd::Decode(input.Rest());
  } else {
    const std::string_view summary = input.Chunk();
    ckptd::Decode(ckptd::WithHead(summary, input.Rest()));
  }
  return 0;
}
