#include "storage/format/manifest.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/format/frame.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestBody;
using storage::v1::ManifestSummary;
using storage::v1::NodePartRecord;
using storage::v1::PartRecord;

constexpr std::string_view kMagic = "CKPTDMAN";
constexpr size_t kVersionAt = 8;
constexpr size_t kSummaryLengthAt = 12;
constexpr size_t kSummaryCrcAt = 16;
constexpr size_t kBodyCrcAt = 20;
constexpr size_t kBodyLengthAt = 24;
constexpr size_t kHeadCrcAt = 32;
constexpr size_t kSummaryAt = 36;
constexpr size_t kMaxSummaryBytes = kManifestHeadBytes - kSummaryAt;
constexpr uint32_t kFilesTag = ManifestBody::kFilesFieldNumber << 3 | 2;  // Length-delimited.

absl::Status Corrupt(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_MANIFEST", absl::StrCat("damaged manifest: ", why));
}

// Serializes maps in the order of their keys, so that equal messages have equal bytes.
std::string Serialize(const google::protobuf::MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

bool Parse(google::protobuf::MessageLite& message, std::string_view bytes) {
  return bytes.size() <= static_cast<size_t>(std::numeric_limits<int>::max()) &&
         message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

// The number of files in a serialized ManifestBody; -1 if it is not one.
int64_t CountFiles(std::string_view body) {
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(body.data()),
                                                static_cast<int>(body.size()));
  int64_t files = 0;
  while (true) {
    const uint32_t tag = stream.ReadTag();
    if (tag == 0) return stream.ConsumedEntireMessage() ? files : -1;
    if (!google::protobuf::internal::WireFormatLite::SkipField(&stream, tag)) return -1;
    files += tag == kFilesTag ? 1 : 0;
  }
}

// What is wrong with the record of a file; nullopt if nothing is.
std::optional<std::string> FileFault(const FileRecord& file, int32_t chunk_bytes) {
  if (const absl::Status path = CheckFilePath(file.path()); !path.ok()) return std::string(path.message());
  if (file.size_bytes() < 0) return absl::StrCat(file.path(), " has size ", file.size_bytes());
  const int64_t chunks = file.size_bytes() / chunk_bytes + (file.size_bytes() % chunk_bytes != 0);
  if (file.chunk_crc32c_size() != chunks) {
    return absl::StrCat(file.path(), " has ", file.size_bytes(), " bytes in chunks of ", chunk_bytes, ", so ",
                        chunks, " checksums, but its record has ", file.chunk_crc32c_size());
  }
  return std::nullopt;
}

std::optional<std::string> SummaryFault(const ManifestSummary& summary) {
  if (const absl::Status tag = CheckTag(summary.tag()); !tag.ok()) return std::string(tag.message());
  if (summary.sequence() < 1) return absl::StrCat("sequence ", summary.sequence());
  const int64_t least = summary.adopted_from().empty() ? 1 : 0;  // Adopted: no attempt.
  if (summary.attempt() < least) return absl::StrCat("attempt ", summary.attempt());
  if (summary.ordinal() < least) return absl::StrCat("ordinal ", summary.ordinal());
  if (summary.world_size() < 1) return absl::StrCat("world size ", summary.world_size());
  if (summary.chunk_bytes() < 1 || summary.chunk_bytes() > kMaxChunkBytes) {
    return absl::StrCat("chunks of ", summary.chunk_bytes(), " bytes; they have 1 to ", kMaxChunkBytes);
  }
  if (summary.size_bytes() < 0) return absl::StrCat("size ", summary.size_bytes());
  if (summary.file_count() < 0 || summary.file_count() > kMaxManifestFiles) {
    return absl::StrCat("file count ", summary.file_count(), "; it is in [0, ", kMaxManifestFiles, "]");
  }
  for (const auto& pointer : summary.pointers()) {  // They name files that will be written in the root.
    if (const absl::Status name = CheckPointerName(pointer.first); !name.ok())
      return std::string(name.message());
  }
  return std::nullopt;
}

// Why summary and body do not belong together. Paths are ordered, so equal ones are neighbours. No disk can
// hold a path that is also the directory of another one.
std::optional<std::string> BodyFault(const ManifestSummary& summary, const ManifestBody& body) {
  if (body.files_size() != summary.file_count()) {
    return absl::StrCat("the summary says ", summary.file_count(), " files, and ", body.files_size(),
                        " are there");
  }
  int64_t bytes_left = summary.size_bytes();
  std::unordered_set<std::string_view> paths;
  std::string_view previous;
  for (const FileRecord& file : body.files()) {
    if (std::optional<std::string> fault = FileFault(file, summary.chunk_bytes())) return fault;
    if (file.rank() < 0 || file.rank() >= summary.world_size()) {
      return absl::StrCat(file.path(), " is of rank ", file.rank(), ", and the world size is ",
                          summary.world_size());
    }
    if (file.path() == previous) return absl::StrCat(file.path(), " is there twice");
    if (file.path() < previous) return absl::StrCat(file.path(), " is not in the order of paths");
    for (const std::string& parent : ParentDirectories(file.path())) {
      if (paths.contains(parent))
        return absl::StrCat(parent, " is a file and the directory of ", file.path());
    }
    if (file.size_bytes() > bytes_left) return std::string("its files are larger than the summary says");
    bytes_left -= file.size_bytes();
    previous = file.path();
    paths.insert(previous);
  }
  if (bytes_left != 0) return std::string("its files are smaller than the summary says");
  return std::nullopt;
}

// Checks the fixed part of a head against its own CRC. After that every number in it can be trusted.
absl::Status CheckHead(std::string_view head) {
  if (head.size() < static_cast<size_t>(kManifestHeadBytes)) {
    return Corrupt(absl::StrCat("it has only ", head.size(), " bytes"));
  }
  if (!head.starts_with(kMagic)) return Corrupt(absl::StrCat("it does not begin with ", std::string(kMagic)));
  if (LoadU32(head, kHeadCrcAt) != Crc32cOf(head.substr(0, kHeadCrcAt)))
    return Corrupt("the CRC32C of its head is wrong");
  const uint32_t version = LoadU32(head, kVersionAt);
  if (version > kFormatVersion) return NewerFormat("manifest", version);
  if (version == 0) return Corrupt("its format version is 0");
  if (LoadU32(head, kSummaryLengthAt) > kMaxSummaryBytes)
    return Corrupt("its summary is larger than the head");
  if (LoadU64(head, kBodyLengthAt) > static_cast<uint64_t>(kMaxManifestBytes - kManifestHeadBytes)) {
    return Corrupt(absl::StrCat("its body is larger than ", kMaxManifestBytes, " bytes"));
  }
  return absl::OkStatus();
}

// What is wrong with the ranks and files of a node's record; nullopt if nothing is.
std::optional<std::string> NodePartFault(const NodePartRecord& record) {
  if (const absl::Status node = CheckTag(record.node()); !node.ok()) return std::string(node.message());
  int last = -1;
  for (const int rank : record.ranks()) {
    if (rank <= last || rank >= record.checkpoint().world_size()) {
      return absl::StrCat("rank ", rank, " after ", last, ", of world size ",
                          record.checkpoint().world_size());
    }
    last = rank;
  }
  for (const FileRecord& file : record.files()) {
    if (std::optional<std::string> fault = FileFault(file, record.checkpoint().chunk_bytes())) return fault;
    if (!std::binary_search(record.ranks().begin(), record.ranks().end(), file.rank()))
      return absl::StrCat(file.path(), " is of rank ", file.rank(), ", which is not of this node");
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest) {
  const auto invalid = [](const std::string& why) {
    return InvalidArgument(absl::StrCat("not a manifest: ", why));
  };
  if (std::optional<std::string> fault = SummaryFault(manifest.summary)) return invalid(*fault);
  if (std::optional<std::string> fault = BodyFault(manifest.summary, manifest.body)) return invalid(*fault);
  const std::string summary = Serialize(manifest.summary);
  const std::string body = Serialize(manifest.body);
  if (summary.size() > kMaxSummaryBytes) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "METRICS_TOO_LARGE",
        absl::StrCat("the summary of ", manifest.summary.tag(), " takes ", summary.size(), " bytes; at most ",
                     kMaxSummaryBytes, " fit: save fewer metrics (there are ",
                     manifest.summary.metrics_size(), "), or with shorter names, or fewer pointers"),
        {{"tag", manifest.summary.tag()}});
  }
  if (body.size() > static_cast<size_t>(kMaxManifestBytes - kManifestHeadBytes)) {
    return invalid(absl::StrCat("the list of its files takes ", body.size(), " bytes; at most ",
                                kMaxManifestBytes, " fit: save fewer files"));
  }
  std::string bytes(kMagic);
  AppendU32(bytes, kFormatVersion);
  AppendU32(bytes, static_cast<uint32_t>(summary.size()));
  AppendU32(bytes, Crc32cOf(summary));
  AppendU32(bytes, Crc32cOf(body));
  AppendU64(bytes, body.size());
  AppendU32(bytes, Crc32cOf(bytes));
  bytes += summary;
  bytes.resize(kManifestHeadBytes, '\0');
  return bytes + body;
}

absl::StatusOr<ManifestSummary> DecodeManifestHead(std::string_view head) {
  CKPTD_RETURN_IF_ERROR(CheckHead(head));
  head = head.substr(0, kManifestHeadBytes);
  const std::string_view bytes = head.substr(kSummaryAt, LoadU32(head, kSummaryLengthAt));
  if (LoadU32(head, kSummaryCrcAt) != Crc32cOf(bytes)) return Corrupt("the CRC32C of its summary is wrong");
  if (head.substr(kSummaryAt + bytes.size()).find_first_not_of('\0') != std::string_view::npos) {
    return Corrupt("its head does not end in zeros");
  }
  ManifestSummary summary;
  if (!Parse(summary, bytes)) return Corrupt("its summary is not a ManifestSummary");
  if (summary.format_version() > static_cast<int32_t>(kFormatVersion)) {
    return NewerFormat("manifest", static_cast<uint32_t>(summary.format_version()));
  }
  if (std::optional<std::string> fault = SummaryFault(summary)) return Corrupt(*fault);
  return summary;
}

absl::StatusOr<int64_t> ManifestSize(std::string_view head) {
  CKPTD_RETURN_IF_ERROR(CheckHead(head));
  return kManifestHeadBytes + static_cast<int64_t>(LoadU64(head, kBodyLengthAt));
}

absl::StatusOr<Manifest> DecodeManifest(std::string_view bytes) {
  Manifest manifest;
  CKPTD_ASSIGN_OR_RETURN(manifest.summary, DecodeManifestHead(bytes));
  CKPTD_ASSIGN_OR_RETURN(const int64_t size, ManifestSize(bytes));
  if (static_cast<int64_t>(bytes.size()) != size) {
    return Corrupt(absl::StrCat("it has ", bytes.size(), " bytes, but its head says ", size));
  }
  const std::string_view body = bytes.substr(kManifestHeadBytes);
  if (LoadU32(bytes, kBodyCrcAt) != Crc32cOf(body)) return Corrupt("the CRC32C of its body is wrong");
  // Before parsing: an empty record takes 2 bytes here and a hundred in memory.
  const int64_t files = CountFiles(body);
  if (files < 0) return Corrupt("its body is not a ManifestBody");
  if (files != manifest.summary.file_count()) {
    return Corrupt(absl::StrCat("the summary says ", manifest.summary.file_count(), " files, and ", files,
                                " are there"));
  }
  if (!Parse(manifest.body, body)) return Corrupt("its body is not a ManifestBody");
  if (std::optional<std::string> fault = BodyFault(manifest.summary, manifest.body)) return Corrupt(*fault);
  return manifest;
}

std::string EncodePartRecord(const PartRecord& record) {
  return EncodeFrame(kPartRecordFrame, Serialize(record));
}

absl::StatusOr<PartRecord> DecodePartRecord(std::string_view bytes) {
  const auto damaged = [](const std::string& why) {
    return MakeError(absl::StatusCode::kDataLoss, kPartRecordFrame.reason,
                     absl::StrCat("damaged part record: ", why));
  };
  CKPTD_ASSIGN_OR_RETURN(const std::string_view message, DecodeFrame(kPartRecordFrame, bytes));
  PartRecord record;
  if (!Parse(record, message)) return damaged("it is not a PartRecord");
  if (record.format_version() > static_cast<int32_t>(kFormatVersion)) {
    return NewerFormat("part record", static_cast<uint32_t>(record.format_version()));
  }
  if (record.sequence() < 1) return damaged(absl::StrCat("sequence ", record.sequence()));
  if (record.chunk_bytes() < 1) return damaged(absl::StrCat("chunks of ", record.chunk_bytes(), " bytes"));
  if (std::optional<std::string> fault = SummaryFault(record.checkpoint())) return damaged(*fault);
  if (record.rank() < 0 || record.rank() >= record.checkpoint().world_size()) {
    return damaged(absl::StrCat("rank ", record.rank(), " of world size ", record.checkpoint().world_size()));
  }
  for (const FileRecord& file : record.files()) {
    if (std::optional<std::string> fault = FileFault(file, record.chunk_bytes())) return damaged(*fault);
  }
  return record;
}

std::string EncodeNodePartRecord(const NodePartRecord& record) {
  return EncodeFrame(kNodePartRecordFrame, Serialize(record));
}

absl::StatusOr<NodePartRecord> DecodeNodePartRecord(std::string_view bytes) {
  const FrameKind& kind = kNodePartRecordFrame;
  const auto damaged = [&](const std::string& why) {
    return MakeError(absl::StatusCode::kDataLoss, kind.reason,
                     absl::StrCat("damaged ", std::string(kind.what), ": ", why));
  };
  CKPTD_ASSIGN_OR_RETURN(const std::string_view message, DecodeFrame(kind, bytes));
  NodePartRecord record;
  if (!Parse(record, message)) return damaged("it is not a NodePartRecord");
  if (record.format_version() > static_cast<int32_t>(kFormatVersion)) {
    return NewerFormat(kind.what, static_cast<uint32_t>(record.format_version()));
  }
  if (std::optional<std::string> fault = SummaryFault(record.checkpoint())) return damaged(*fault);
  if (std::optional<std::string> fault = NodePartFault(record)) return damaged(*fault);
  return record;
}

}  // namespace ckptd
