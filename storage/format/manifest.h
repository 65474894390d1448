// The manifest and the part record: frames around the messages of proto/ckptd/storage/v1. Layout, with a
// worked example: docs/storage_format.md.
//
// A manifest is a 4096-byte head and a body. Head: "CKPTDMAN", u32 format version, u32 summary length, u32
// CRC32C of the summary, u32 CRC32C of the body, u64 body length (all little-endian), u32 CRC32C of the 32
// bytes before it, the summary, zeros. Body: ManifestBody. The same manifest has always the same bytes.
//
// A part record is "CKPTDPRT", u32 format version, u32 length, u32 CRC32C of the message, the message.
//
// Decoders take any bytes, never crash, and say what is wrong: DATA_LOSS, reason CORRUPT_MANIFEST or
// CORRUPT_PART_RECORD; FAILED_PRECONDITION, reason NEWER_FORMAT for a version that this program does not
// know.
#ifndef CKPTD_STORAGE_FORMAT_MANIFEST_H_
#define CKPTD_STORAGE_FORMAT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"

namespace ckptd {

inline constexpr int64_t kManifestHeadBytes = 4096;
// A manifest beyond one of these is damaged: no ckptd has written it, and to read it would take too much
// memory.
inline constexpr int64_t kMaxManifestBytes = int64_t{128} << 20;
inline constexpr int kMaxManifestFiles = 1'000'000;
inline constexpr int32_t kMaxChunkBytes = 64 << 20;

struct Manifest {
  storage::v1::ManifestSummary summary;
  storage::v1::ManifestBody body;
};

// INVALID_ARGUMENT, reason METRICS_TOO_LARGE when the summary does not fit into the head.
absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest);
absl::StatusOr<storage::v1::ManifestSummary> DecodeManifestHead(std::string_view head);
// The size of the whole file that a head begins, in bytes: a manifest that is not of that size is damaged.
absl::StatusOr<int64_t> ManifestSize(std::string_view head);
// Also checks the body against the summary: counts, sizes, chunk tables, paths, no path twice.
absl::StatusOr<Manifest> DecodeManifest(std::string_view bytes);

std::string EncodePartRecord(const storage::v1::PartRecord& record);
absl::StatusOr<storage::v1::PartRecord> DecodePartRecord(std::string_view bytes);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FORMAT_MANIFEST_H_
