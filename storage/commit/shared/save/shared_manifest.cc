#include "storage/commit/shared/save/shared_manifest.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/save/shared_inflight.h"
#include "storage/commit/steps/commit_rules.h"
#include "storage/format/frame.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;
using storage::v1::NodePartRecord;
using Parts = std::vector<const NodePartRecord*>;

constexpr int64_t kMaxRecordBytes = int64_t{1} << 30;

absl::StatusOr<NodePartRecord> ReadNodePart(FileSystem& fs, Handle dir, const std::string& node,
                                            const std::string& digest) {
  CKPTD_RETURN_IF_ERROR(CheckTag(node));
  CKPTD_RETURN_IF_ERROR(CheckTag(digest));
  const std::string what = absl::StrCat("the record of node ", node, ", digest ", digest);
  const absl::StatusOr<std::string> bytes =
      ReadSmallFile(fs, dir, OurPath("", NodePartRecordName(node, digest)), kMaxRecordBytes);
  // A file whose size this node does not know yet ends too early.
  if (MayBeAnothersChange(bytes.status()) || ReasonOf(bytes.status()) == "SHORT_FILE")
    return LookAgain(what, bytes.status());
  if (!bytes.ok()) return Annotate(bytes.status(), what);
  if (DigestOf(*bytes) != digest) return LookAgain(what, absl::StrCat("its digest is ", DigestOf(*bytes)));
  absl::StatusOr<NodePartRecord> record = DecodeNodePartRecord(*bytes);
  if (!record.ok()) return Annotate(record.status(), what);
  return record;
}

absl::Status CheckIsOf(const NodePartRecord& record, const std::string& node, const SharedInflight& save) {
  const ManifestSummary& checkpoint = record.checkpoint();
  if (record.node() == node && checkpoint.tag() == save.tag && checkpoint.sequence() == save.sequence)
    return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kDataLoss, "CORRUPT_PART_RECORD",
      absl::StrCat("the record of node ", node, " in ", save.name, " says that it is of node ", record.node(),
                   " and of ", checkpoint.tag(), ", sequence ", checkpoint.sequence()));
}

// By their lowest ranks.
Parts Ordered(const std::vector<NodePartRecord>& parts) {
  Parts ordered;
  for (const NodePartRecord& part : parts) ordered.push_back(&part);
  std::sort(ordered.begin(), ordered.end(), [](const NodePartRecord* a, const NodePartRecord* b) {
    return std::lexicographical_compare(a->ranks().begin(), a->ranks().end(), b->ranks().begin(),
                                        b->ranks().end());
  });
  return ordered;
}

absl::Status CheckSameSave(const LedgerFacts& facts, const Parts& parts) {
  for (const NodePartRecord* part : parts) {
    const ManifestSummary &first = parts.front()->checkpoint(), &own = part->checkpoint();
    const bool same = own.tag() == facts.tag && own.sequence() == facts.sequence &&
                      own.attempt() == facts.attempt && own.ordinal() == facts.ordinal &&
                      own.world_size() == first.world_size() && own.run_id() == first.run_id();
    if (!same) {
      return InvalidArgument(absl::StrCat("the part of node ", part->node(), " is not of ", facts.tag,
                                          ", sequence ", facts.sequence));
    }
    if (own.chunk_bytes() != first.chunk_bytes()) {
      return InvalidArgument(absl::StrCat(
          "nodes ", parts.front()->node(), " and ", part->node(), " have written chunks of ",
          first.chunk_bytes(), " and ", own.chunk_bytes(), " bytes: give all nodes the same io.chunk_bytes"));
    }
  }
  return absl::OkStatus();
}

// Each rank that had something to save has one part. Others may have one; it is empty.
absl::Status CheckRanks(const LedgerFacts& facts, const Parts& parts) {
  std::set<int> ranks;
  for (const NodePartRecord* part : parts) {
    for (const int rank : part->ranks()) {
      if (!ranks.insert(rank).second) return InvalidArgument(absl::StrCat("rank ", rank, " has two parts"));
    }
  }
  std::vector<int> all = facts.ranks;
  if (all.empty()) {
    all.resize(static_cast<size_t>(parts.empty() ? 1 : parts.front()->checkpoint().world_size()));
    std::iota(all.begin(), all.end(), 0);
  }
  for (const int rank : all) {
    if (!ranks.contains(rank)) return InvalidArgument(absl::StrCat("rank ", rank, " has no part"));
  }
  return absl::OkStatus();
}

absl::Status FileConflict(const FileRecord& one, const FileRecord& other) {
  return MakeError(absl::StatusCode::kAlreadyExists, "FILE_CONFLICT",
                   absl::StrCat(other.path(), " of rank ", other.rank(), " and ", one.path(), " of rank ",
                                one.rank(), " have one place: put the rank into the name"),
                   {{"path", other.path()}, {"ranks", JoinRanks({one.rank(), other.rank()})}});
}

// By path, as the manifest has them.
absl::Status AddFiles(const Parts& parts, Manifest& manifest) {
  for (const NodePartRecord* part : parts) manifest.body.mutable_files()->MergeFrom(part->files());
  std::sort(manifest.body.mutable_files()->begin(), manifest.body.mutable_files()->end(),
            [](const FileRecord& a, const FileRecord& b) { return a.path() < b.path(); });
  std::map<std::string_view, const FileRecord*> seen;
  int64_t size_bytes = 0;
  for (const FileRecord& file : manifest.body.files()) {
    std::vector<std::string> taken = ParentDirectories(file.path());
    taken.push_back(file.path());
    for (const std::string& path : taken) {
      if (const auto other = seen.find(path); other != seen.end()) return FileConflict(*other->second, file);
    }
    seen[file.path()] = &file;
    size_bytes += file.size_bytes();
  }
  manifest.summary.set_size_bytes(size_bytes);
  manifest.summary.set_file_count(manifest.body.files_size());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<NodePartRecord>> ReadNodeParts(const SharedLayout& layout,
                                                          const SharedInflight& save,
                                                          const std::map<std::string, std::string>& digests) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, OpenSharedInflight(layout, save));
  std::vector<NodePartRecord> records;
  for (const auto& [node, digest] : digests) {
    CKPTD_ASSIGN_OR_RETURN(NodePartRecord record, ReadNodePart(*layout.fs, dir.get(), node, digest));
    CKPTD_RETURN_IF_ERROR(CheckIsOf(record, node, save));
    records.push_back(std::move(record));
  }
  return records;
}

absl::StatusOr<Manifest> BuildSharedManifest(const LedgerFacts& facts,
                                             const std::vector<NodePartRecord>& parts) {
  const Parts ordered = Ordered(parts);
  CKPTD_RETURN_IF_ERROR(CheckSameSave(facts, ordered));
  CKPTD_RETURN_IF_ERROR(CheckRanks(facts, ordered));
  Manifest manifest{ordered.front()->checkpoint(), {}};
  manifest.summary.set_format_version(kFormatVersion);
  CKPTD_RETURN_IF_ERROR(AddFiles(ordered, manifest));
  for (const NodePartRecord* part : ordered) MergePart(part->checkpoint(), manifest.summary);
  EndMerge(manifest.summary);
  SetTimes(facts.times, manifest.summary);
  InheritPointers(facts.inherited_pointers, manifest.summary);
  CKPTD_RETURN_IF_ERROR(EncodeManifest(manifest).status());
  return manifest;
}

}  // namespace ckptd
