#include "storage/commit/checkpoint/checkpoint_dir.h"

#include <cerrno>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;
using storage::v1::PartRecord;

constexpr int64_t kMaxPartRecordBytes = int64_t{1} << 30;
constexpr int kCountedNames = 100'000;

absl::Status CorruptManifest(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_MANIFEST", absl::StrCat("damaged manifest: ", why));
}

// Reads exactly `size` bytes at `offset`. A file that ends before is a damaged manifest.
absl::StatusOr<std::string> ReadPiece(FileSystem& fs, Handle file, int64_t offset, int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  const absl::Status read = ReadFully(fs, file, offset, std::as_writable_bytes(std::span(bytes)));
  if (ReasonOf(read) == "SHORT_FILE") return CorruptManifest("the file ends too early");
  if (!read.ok()) return read;
  return bytes;
}

struct OpenManifest {
  ScopedHandle file;
  std::string head;
  int64_t size = 0;
};

absl::StatusOr<OpenManifest> OpenManifestFile(FileSystem& fs, Handle dir, const std::string& directory) {
  OpenManifest manifest;
  CKPTD_ASSIGN_OR_RETURN(
      manifest.file, OpenScoped(fs, dir, OurPath(directory, std::string(kManifestName)), OpenMode::kRead));
  CKPTD_ASSIGN_OR_RETURN(manifest.head, ReadPiece(fs, manifest.file.get(), 0, kManifestHeadBytes));
  CKPTD_ASSIGN_OR_RETURN(manifest.size, ManifestSize(manifest.head));
  CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs.Stat(manifest.file.get(), ""));
  if (stat.size != manifest.size) {
    return CorruptManifest(absl::StrCat("it has ", stat.size, " bytes, but its head says ", manifest.size));
  }
  return manifest;
}

}  // namespace

std::string OurPath(const std::string& directory, const std::string& name) {
  const std::string ours = absl::StrCat(std::string(kOurDirectory), "/", name);
  return directory.empty() ? ours : absl::StrCat(directory, "/", ours);
}

absl::StatusOr<ManifestSummary> ReadSummary(FileSystem& fs, Handle dir, const std::string& directory) {
  CKPTD_ASSIGN_OR_RETURN(const OpenManifest manifest, OpenManifestFile(fs, dir, directory));
  return DecodeManifestHead(manifest.head);
}

absl::StatusOr<Manifest> ReadWholeManifest(FileSystem& fs, Handle dir, const std::string& directory) {
  CKPTD_ASSIGN_OR_RETURN(const OpenManifest manifest, OpenManifestFile(fs, dir, directory));
  CKPTD_ASSIGN_OR_RETURN(const std::string body, ReadPiece(fs, manifest.file.get(), kManifestHeadBytes,
                                                           manifest.size - kManifestHeadBytes));
  return DecodeManifest(manifest.head + body);
}

absl::Status RemoveManifest(FileSystem& fs, Handle dir, const std::string& directory) {
  const std::string path = directory.empty() ? std::string(kOurDirectory)
                                             : absl::StrCat(directory, "/", std::string(kOurDirectory));
  const absl::StatusOr<ScopedHandle> ours = OpenScoped(fs, dir, path, OpenMode::kDirectory);
  if (IsMissing(ours.status()) || IsInTheWay(ours.status())) return absl::OkStatus();
  if (!ours.ok()) return ours.status();
  const absl::Status removed = fs.Remove(ours->get(), kManifestName, FileType::kRegular);
  if (IsMissing(removed) || IsInTheWay(removed)) return absl::OkStatus();
  if (!removed.ok()) return removed;
  return fs.Sync(ours->get(), SyncMode::kAll);
}

absl::StatusOr<PartRecord> ReadPartRecord(FileSystem& fs, Handle dir, int rank) {
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes,
                         ReadSmallFile(fs, dir, OurPath("", PartRecordName(rank)), kMaxPartRecordBytes));
  CKPTD_ASSIGN_OR_RETURN(PartRecord record, DecodePartRecord(bytes));
  if (record.rank() != rank) {
    return MakeError(
        absl::StatusCode::kDataLoss, "CORRUPT_PART_RECORD",
        absl::StrCat("the part record of rank ", rank, " says that it is of rank ", record.rank()));
  }
  return record;
}

absl::Status CheckFiles(FileSystem& fs, Handle dir,
                        const google::protobuf::RepeatedPtrField<FileRecord>& files) {
  for (const FileRecord& file : files) {
    const auto wrong = [&file](const std::string& why, const std::string& found) {
      return MakeError(
          absl::StatusCode::kDataLoss, "SHORT_FILE", absl::StrCat("file ", file.path(), " ", why),
          {{"path", file.path()}, {"expected", absl::StrCat(file.size_bytes(), " bytes")}, {"found", found}});
    };
    const absl::StatusOr<FileStat> stat = fs.Stat(dir, file.path());
    if (IsMissing(stat.status()) || IsInTheWay(stat.status())) return wrong("is not there", "no file");
    if (!stat.ok()) return stat.status();
    if (stat->type != FileType::kRegular) return wrong("is not a regular file", "no file");
    if (stat->size != file.size_bytes()) {
      return wrong(absl::StrCat("has ", stat->size, " bytes, but its record says ", file.size_bytes()),
                   absl::StrCat(stat->size, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TreeBytes(FileSystem& fs, Handle dir) {
  struct Level {
    ScopedHandle opened;  // Unset: the top of the tree, which belongs to the caller.
    Handle handle;
    std::vector<DirEntry> entries;
    size_t next = 0;
  };
  std::vector<Level> levels;
  CKPTD_ASSIGN_OR_RETURN(std::vector<DirEntry> top, fs.List(dir));
  levels.push_back({{}, dir, std::move(top)});
  int64_t bytes = 0;
  for (int names = 0; !levels.empty() && names < kCountedNames;) {
    Level& level = levels.back();
    if (level.next == level.entries.size()) {
      levels.pop_back();
      continue;
    }
    const DirEntry& entry = level.entries[level.next++];
    ++names;
    if (entry.type == FileType::kRegular) {
      CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs.Stat(level.handle, entry.name));
      bytes += stat.size;
    } else if (entry.type == FileType::kDirectory && levels.size() < kMaxOpenLevels) {
      CKPTD_ASSIGN_OR_RETURN(ScopedHandle child,
                             OpenScoped(fs, level.handle, entry.name, OpenMode::kDirectory));
      CKPTD_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, fs.List(child.get()));
      const Handle handle = child.get();
      levels.push_back({std::move(child), handle, std::move(entries)});
    }
  }
  return bytes;
}

bool IsMissing(const absl::Status& status) { return ErrnoOf(status) == ENOENT; }

bool IsInTheWay(const absl::Status& status) {
  const int error = ErrnoOf(status);
  return error == ENOTDIR || error == ELOOP || error == EISDIR;
}

}  // namespace ckptd
