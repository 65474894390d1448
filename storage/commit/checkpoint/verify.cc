#include "storage/commit/checkpoint/verify.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;
using storage::v1::NodePartRecord;
using storage::v1::PartRecord;

constexpr int64_t kBufferBytes = int64_t{8} << 20;
constexpr char kNodeRecordPrefix[] = "node.";  // Of NodePartRecordName.
constexpr int64_t kMaxNodeRecordBytes = int64_t{1} << 30;
constexpr int kTries = 3;  // For a checkpoint that is saved again while it is read.

struct Chunk {
  int64_t offset;
  int64_t size;
};

Chunk ChunkOf(const FileRecord& file, int64_t index, int32_t chunk_bytes) {
  const int64_t offset = index * chunk_bytes;
  return {offset, std::min<int64_t>(chunk_bytes, file.size_bytes() - offset)};
}

std::string CrcFault(const Chunk& chunk, int64_t index, uint32_t expected, uint32_t found) {
  return absl::StrFormat("chunk %d (bytes %d to %d): CRC32C is 0x%08x, the manifest has 0x%08x", index,
                         chunk.offset, chunk.offset + chunk.size - 1, found, expected);
}

// The CRC32C of a chunk, which is read through `buffer`.
absl::StatusOr<uint32_t> ChunkCrc(FileSystem& fs, Handle file, const Chunk& chunk,
                                  std::span<std::byte> buffer) {
  uint32_t crc = 0;
  for (int64_t done = 0; done < chunk.size;) {
    const auto piece = buffer.first(std::min<size_t>(buffer.size(), static_cast<size_t>(chunk.size - done)));
    CKPTD_RETURN_IF_ERROR(ReadFully(fs, file, chunk.offset + done, piece));
    crc = Crc32c(piece, crc);
    done += static_cast<int64_t>(piece.size());
  }
  return crc;
}

// Checks one checkpoint and collects the problems.
class Verifier {
 public:
  // `progress` may be null. If it returns false, the Verifier stops.
  Verifier(FileSystem& fs, Handle dir, VerifyReport& report, const std::function<bool(int64_t)>& progress)
      : fs_(fs),
        dir_(dir),
        report_(report),
        progress_(progress),
        buffer_(static_cast<size_t>(kBufferBytes)) {}

  void Run() {
    if (!CheckManifest()) return;
    CheckRecords();
    CheckFiles();
  }

  // Compares the files with the manifest in the report.
  void CheckFiles() {
    for (const FileRecord& file : report_.manifest.body.files()) {
      if (!stopped_) CheckFile(file);
    }
  }
  bool stopped() const { return stopped_; }

 private:
  void Problem(std::string path, int64_t chunk, std::string_view message) {
    report_.problems.push_back({std::move(path), chunk, std::string(message)});
  }

  bool CheckManifest() {
    const std::string path = OurPath("", std::string(kManifestName));
    absl::StatusOr<Manifest> manifest = ReadWholeManifest(fs_, dir_, "");
    if (!manifest.ok()) {
      Problem(path, -1,
              IsMissing(manifest.status())
                  ? "there is no manifest: ckptd did not write or did not commit this"
                  : std::string(manifest.status().message()));
      return false;
    }
    report_.manifest = *std::move(manifest);
    if (report_.manifest.summary.tag() != report_.tag) {
      Problem(path, -1,
              absl::StrCat("the manifest is of tag ", report_.manifest.summary.tag(),
                           ": this directory was renamed or copied"));
    }
    return true;
  }

  // Beside the manifest are the records of all ranks, or, in a checkpoint of several nodes, those of nodes.
  void CheckRecords() {
    const std::vector<std::string> of_nodes = NodeRecords();
    if (!of_nodes.empty()) return CheckNodeRecords(of_nodes);
    for (int rank = 0; rank < report_.manifest.summary.world_size(); ++rank) {
      if (!CheckPartRecord(rank)) return;
    }
  }

  // Empty also if they cannot be listed: then the ranks' records are missed.
  std::vector<std::string> NodeRecords() {
    const absl::StatusOr<ScopedHandle> ours =
        OpenScoped(fs_, dir_, std::string(kOurDirectory), OpenMode::kDirectory);
    if (!ours.ok()) return {};
    const absl::StatusOr<std::vector<DirEntry>> entries = fs_.List(ours->get());
    std::vector<std::string> names;
    for (const DirEntry& entry : entries.ok() ? *entries : std::vector<DirEntry>()) {
      if (absl::StartsWith(entry.name, kNodeRecordPrefix)) names.push_back(entry.name);
    }
    return names;
  }

  // Checks that for each rank with files a node's record says the same of them as the manifest. A node may
  // have further records, of daemons that have not finished.
  void CheckNodeRecords(const std::vector<std::string>& names) {
    std::set<int> missing;
    for (const FileRecord& file : report_.manifest.body.files()) missing.insert(file.rank());
    std::vector<VerifyProblem> unfit;
    for (const std::string& name : names) {
      const std::string path = OurPath("", name);
      const absl::StatusOr<NodePartRecord> record = ReadNodeRecord(path);
      const std::string why = record.ok() ? DifferenceTo(*record) : std::string(record.status().message());
      if (!why.empty()) unfit.push_back({path, -1, why});
      if (!why.empty()) continue;
      for (const int rank : record->ranks()) missing.erase(rank);
    }
    if (missing.empty()) return;
    for (VerifyProblem& problem : unfit) Problem(std::move(problem.path), -1, problem.message);
    if (unfit.empty())
      Problem(std::string(kOurDirectory), -1,
              absl::StrCat("no record of a node has the files of rank ", *missing.begin()));
  }

  absl::StatusOr<NodePartRecord> ReadNodeRecord(const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(const std::string bytes, ReadSmallFile(fs_, dir_, path, kMaxNodeRecordBytes));
    return DecodeNodePartRecord(bytes);
  }

  // Between the record and the manifest; empty: none.
  std::string DifferenceTo(const NodePartRecord& record) const {
    if (record.checkpoint().sequence() != report_.manifest.summary.sequence()) {
      return absl::StrCat("the record is of sequence ", record.checkpoint().sequence(), ", the manifest of ",
                          report_.manifest.summary.sequence());
    }
    std::set<std::string> files;
    for (const int rank : record.ranks()) files.merge(FilesOf(rank));
    if (AsSet(record.files()) == files) return "";
    return "the record and the manifest do not say the same of the files of this node's ranks";
  }

  // Checks that the part record says the same of this rank's files as the manifest. False if the other ranks
  // need not be checked.
  bool CheckPartRecord(int rank) {
    const std::string path = OurPath("", PartRecordName(rank));
    const absl::StatusOr<PartRecord> record = ReadPartRecord(fs_, dir_, rank);
    if (!record.ok()) {
      Problem(path, -1,
              IsMissing(record.status()) ? "the part record is not there"
                                         : std::string(record.status().message()));
      return ++bad_records_ < kMaxBadRecords;
    }
    if (record->sequence() != report_.manifest.summary.sequence()) {
      Problem(path, -1,
              absl::StrCat("the part record is of sequence ", record->sequence(), ", the manifest of ",
                           report_.manifest.summary.sequence()));
      return ++bad_records_ < kMaxBadRecords;
    }
    if (AsSet(record->files()) != FilesOf(rank)) {
      Problem(path, -1, "the part record and the manifest do not say the same of this rank's files");
    }
    return true;
  }

  // Collects what is said of a file. The rank is that of the part, so it is not compared.
  static void Insert(FileRecord file, std::set<std::string>& said) {
    file.clear_rank();
    said.insert(file.SerializeAsString());
  }
  static std::set<std::string> AsSet(const google::protobuf::RepeatedPtrField<FileRecord>& files) {
    std::set<std::string> said;
    for (const FileRecord& file : files) Insert(file, said);
    return said;
  }
  std::set<std::string> FilesOf(int rank) const {
    std::set<std::string> said;
    for (const FileRecord& file : report_.manifest.body.files()) {
      if (file.rank() == rank) Insert(file, said);
    }
    return said;
  }

  void CheckFile(const FileRecord& record) {
    const absl::StatusOr<ScopedHandle> file = OpenScoped(fs_, dir_, record.path(), OpenMode::kRead);
    if (!file.ok()) {
      Problem(record.path(), -1,
              IsMissing(file.status()) ? "the file is not there" : std::string(file.status().message()));
      return;
    }
    const absl::StatusOr<FileStat> stat = fs_.Stat(file->get(), "");
    if (!stat.ok()) return Problem(record.path(), -1, std::string(stat.status().message()));
    if (stat->size != record.size_bytes()) {
      Problem(record.path(), -1,
              absl::StrCat("the file has ", stat->size, " bytes, the manifest says ", record.size_bytes()));
    }
    for (int index = 0; !stopped_ && index < record.chunk_crc32c_size(); ++index) {
      const Chunk chunk = ChunkOf(record, index, report_.manifest.summary.chunk_bytes());
      if (chunk.offset + chunk.size > stat->size) return;  // Cut off; the size was reported already.
      CheckChunk(record, file->get(), index, chunk);
    }
  }

  void CheckChunk(const FileRecord& record, Handle file, int index, const Chunk& chunk) {
    const absl::StatusOr<uint32_t> crc = ChunkCrc(fs_, file, chunk, buffer_);
    if (!crc.ok()) {
      Problem(record.path(), index,
              absl::StrCat("chunk ", index, " cannot be read: ", std::string(crc.status().message())));
    } else if (*crc != record.chunk_crc32c(index)) {
      Problem(record.path(), index, CrcFault(chunk, index, record.chunk_crc32c(index), *crc));
    } else {
      report_.verified_bytes += chunk.size;
      stopped_ = progress_ != nullptr && !progress_(report_.verified_bytes);
    }
  }

  static constexpr int kMaxBadRecords = 100;  // The world size may be large and all records missing.

  FileSystem& fs_;
  const Handle dir_;
  VerifyReport& report_;
  const std::function<bool(int64_t)>& progress_;
  std::vector<std::byte> buffer_;
  int bad_records_ = 0;
  bool stopped_ = false;
};

absl::Status CorruptFile(const FileRecord& record, int64_t index, const Chunk& chunk, uint32_t expected,
                         uint32_t found) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE",
                   absl::StrCat(record.path(), ": ", CrcFault(chunk, index, expected, found)),
                   {{"path", record.path()},
                    {"chunk", absl::StrCat(index)},
                    {"expected", absl::StrFormat("0x%08x", expected)},
                    {"found", absl::StrFormat("0x%08x", found)}});
}

// True if `tag` still names the directory behind `dir`, or if that cannot be found out.
bool IsStillAt(FileSystem& fs, Handle root, const std::string& tag, Handle dir) {
  const absl::StatusOr<FileStat> read = fs.Stat(dir, "");
  const absl::StatusOr<FileStat> named = fs.Stat(root, tag);
  if (IsMissing(named.status())) return false;
  return !read.ok() || !named.ok() || (read->device == named->device && read->inode == named->inode);
}

}  // namespace

absl::StatusOr<VerifyReport> VerifyCheckpoint(FileSystem& fs, Handle root, const std::string& tag,
                                              const std::function<void(int64_t bytes)>& progress) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  const std::function<bool(int64_t)> go_on = [&](int64_t bytes) {
    if (progress != nullptr) progress(bytes);
    return true;
  };
  // Retention and re-saves may go on: problems of a directory count only if it still has that name
  // afterwards.
  for (int tries = 0; tries < kTries; ++tries) {
    VerifyReport report;
    report.tag = tag;
    const absl::StatusOr<ScopedHandle> dir = OpenScoped(fs, root, tag, OpenMode::kDirectory);
    if (IsMissing(dir.status())) {
      return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                       absl::StrCat("there is no ", tag, " in this root"), {{"tag", tag}});
    }
    if (!dir.ok()) {
      report.problems.push_back({"", -1, std::string(dir.status().message())});
      return report;
    }
    Verifier(fs, dir->get(), report, go_on).Run();
    if (report.problems.empty()) return report;
    if (!IsStillAt(fs, root, tag, dir->get())) continue;
    // Of several nodes, a removal happens at the tag. It takes the manifest away before the files.
    const std::string manifest = OurPath("", std::string(kManifestName));
    const bool was_whole = report.manifest.summary.sequence() != 0;
    if (!was_whole || !IsMissing(fs.Stat(dir->get(), manifest).status())) return report;
    return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                     absl::StrCat(tag, " was removed while it was being verified"), {{"tag", tag}});
  }
  return MakeError(absl::StatusCode::kAborted, "CHECKPOINT_REPLACED",
                   absl::StrCat(tag, " was saved again each of the ", kTries, " times that it was read; ",
                                "verify it when it is not being saved"),
                   {{"tag", tag}});
}

absl::StatusOr<VerifyReport> VerifyFiles(FileSystem& fs, Handle dir,
                                         const std::function<bool(int64_t total, int64_t bytes)>& progress) {
  VerifyReport report;
  absl::StatusOr<Manifest> manifest = ReadWholeManifest(fs, dir, "");
  if (IsMissing(manifest.status())) {
    return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_MANIFEST",
                     "there is no .ckptd/manifest: this is no committed checkpoint",
                     {{"path", OurPath("", std::string(kManifestName))}});
  }
  if (!manifest.ok()) return manifest.status();
  report.manifest = *std::move(manifest);
  report.tag = report.manifest.summary.tag();
  const int64_t total = report.manifest.summary.size_bytes();
  const std::function<bool(int64_t)> go_on = [&](int64_t bytes) { return progress(total, bytes); };
  go_on(0);
  Verifier verifier(fs, dir, report, go_on);
  verifier.CheckFiles();
  if (verifier.stopped())
    return MakeError(absl::StatusCode::kAborted, "INTERRUPTED",
                     "the verification was stopped before its end");
  return report;
}

absl::StatusOr<RootListing> ListRoot(FileSystem& fs, Handle root) {
  CKPTD_ASSIGN_OR_RETURN(RootScan scan, ScanRoot(fs, root));
  RootListing listing;
  listing.damaged = std::move(scan.damaged);
  for (auto place = scan.checkpoints.rbegin(); place != scan.checkpoints.rend(); ++place) {
    listing.checkpoints.push_back(std::move(place->second));
  }
  return listing;
}

absl::Status ReadVerified(FileSystem& fs, Handle checkpoint_dir, const FileRecord& record,
                          int32_t chunk_bytes, int64_t offset, std::span<std::byte> into) {
  const int64_t size = static_cast<int64_t>(into.size());
  if (chunk_bytes < 1 || offset < 0 || offset > record.size_bytes() || size > record.size_bytes() - offset) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                     absl::StrCat(record.path(), " has ", record.size_bytes(), " bytes; ", size, " from ",
                                  offset, " on are not all there"),
                     {{"path", record.path()}});
  }
  if (size == 0) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file,
                         OpenScoped(fs, checkpoint_dir, record.path(), OpenMode::kRead));
  std::vector<std::byte> whole;  // A chunk of which only a part is requested.
  for (int64_t index = offset / chunk_bytes; index * chunk_bytes < offset + size; ++index) {
    const Chunk chunk = ChunkOf(record, index, chunk_bytes);
    const int64_t from = std::max(offset, chunk.offset);
    const int64_t to = std::min(offset + size, chunk.offset + chunk.size);
    const auto wanted = into.subspan(static_cast<size_t>(from - offset), static_cast<size_t>(to - from));
    const bool partly = to - from < chunk.size;
    if (partly) whole.resize(static_cast<size_t>(chunk.size));
    const std::span<std::byte> bytes = partly ? std::span(whole) : wanted;
    if (absl::Status read = ReadFully(fs, file.get(), chunk.offset, bytes); !read.ok()) {
      return Annotate(read, record.path());
    }
    const uint32_t expected =
        index < record.chunk_crc32c_size() ? record.chunk_crc32c(static_cast<int>(index)) : 0;
    const uint32_t found = Crc32c(bytes);
    if (index >= record.chunk_crc32c_size() || found != expected) {
      return CorruptFile(record, index, chunk, expected, found);
    }
    if (partly) std::copy_n(whole.begin() + (from - chunk.offset), to - from, wanted.begin());
  }
  return absl::OkStatus();
}

}  // namespace ckptd
