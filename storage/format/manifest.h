// Encodes and decodes the manifest and the part record: the messages of proto/ckptd/storage/v1 in their
// frames. docs/storage_format.md has the layout and a worked example.
//
// A manifest is a head of 4096 bytes and a body. Head: "CKPTDMAN", u32 format version, u32 summary length,
// u32 CRC32C of the summary, u32 CRC32C of the body, u64 body length (all little-endian), u32 CRC32C of the
// 32 bytes before it, the summary, zeros. Body: ManifestBody. Encoding is deterministic: equal manifests have
// equal bytes.
//
// A part record is "CKPTDPRT", u32 format version, u32 length, u32 CRC32C of the message, the message.
//
// Decoders accept any bytes without crashing. Damage is DATA_LOSS, reason CORRUPT_MANIFEST or
// CORRUPT_PART_RECORD, and the message says what is wrong. FAILED_PRECONDITION, reason NEWER_FORMAT, if this
// program does not know the version.
#ifndef CKPTD_STORAGE_FORMAT_MANIFEST_H_
#define CKPTD_STORAGE_FORMAT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"

namespace ckptd {

inline constexpr int64_t kManifestHeadBytes = 4096;
// A manifest beyond one of these limits is damaged: no ckptd writes it, and reading it would take too much
// memory.
inline constexpr int64_t kMaxManifestBytes = int64_t{128} << 20;
inline constexpr int kMaxManifestFiles = 1'000'000;
inline constexpr int32_t kMaxChunkBytes = 64 << 20;

struct Manifest {
  storage::v1::ManifestSummary summary;
  storage::v1::ManifestBody body;
};

// INVALID_ARGUMENT, reason METRICS_TOO_LARGE, if the summary does not fit into the head.
absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest);
absl::StatusOr<storage::v1::ManifestSummary> DecodeManifestHead(std::string_view head);
// The size in bytes of the whole file, from its head. A manifest of another size is damaged.
absl::StatusOr<int64_t> ManifestSize(std::string_view head);
// Also checks the body against the summary: counts, sizes, chunk tables and paths, with no path twice.
absl::StatusOr<Manifest> DecodeManifest(std::string_view bytes);

// The record of one node's part of a save of several nodes: "CKPTDNPR", and then as a part record. Each of
// its files is of one of its ranks.
std::string EncodeNodePartRecord(const storage::v1::NodePartRecord& record);
absl::StatusOr<storage::v1::NodePartRecord> DecodeNodePartRecord(std::string_view bytes);

std::string EncodePartRecord(const storage::v1::PartRecord& record);
absl::StatusOr<storage::v1::PartRecord> DecodePartRecord(std::string_view bytes);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FORMAT_MANIFEST_H_
