#include "daemon/root_io/bucket/bucket_checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {

using storage::v1::FileRecord;

namespace {

// The memory of [offset, offset + size) if it is in one run; else empty.
std::span<std::byte> OneRun(const std::vector<std::span<std::byte>>& runs, int64_t offset, int64_t size) {
  for (const std::span<std::byte> run : runs) {
    const auto length = static_cast<int64_t>(run.size());
    if (offset < length) {
      if (offset + size > length) return {};
      return run.subspan(static_cast<size_t>(offset), static_cast<size_t>(size));
    }
    offset -= length;
  }
  return {};
}

void CopyInto(const std::vector<std::span<std::byte>>& runs, int64_t offset,
              std::span<const std::byte> bytes) {
  for (const std::span<std::byte> run : runs) {
    const auto length = static_cast<int64_t>(run.size());
    if (offset >= length) {
      offset -= length;
      continue;
    }
    const size_t count = std::min(run.size() - static_cast<size_t>(offset), bytes.size());
    std::memcpy(run.data() + offset, bytes.data(), count);
    bytes = bytes.subspan(count);
    offset = 0;
    if (bytes.empty()) return;
  }
}

}  // namespace

BucketCheckpointReader::BucketCheckpointReader(std::shared_ptr<ObjectStore> store, BucketKeys keys,
                                               TransferOptions transfer,
                                               std::shared_ptr<const Manifest> manifest,
                                               std::shared_ptr<OpenReaders> readers)
    : store_(std::move(store)),
      keys_(std::move(keys)),
      transfer_(std::move(transfer)),
      manifest_(std::move(manifest)),
      readers_(std::move(readers)) {
  readers_->Add(manifest_->summary.sequence());
}

BucketCheckpointReader::~BucketCheckpointReader() { readers_->Remove(manifest_->summary.sequence()); }

absl::StatusOr<const FileRecord*> BucketCheckpointReader::Find(const std::string& path) const {
  const auto& files = manifest_->body.files();  // Ordered by path.
  const auto found =
      std::lower_bound(files.begin(), files.end(), path,
                       [](const auto& file, const std::string& name) { return file.path() < name; });
  if (found != files.end() && found->path() == path) return &*found;
  return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_FILE",
                   absl::StrCat("checkpoint ", manifest_->summary.tag(), " has no file ", path),
                   {{"tag", manifest_->summary.tag()}, {"path", path}});
}

absl::Status BucketCheckpointReader::Read(const std::string& path, int64_t offset,
                                          std::span<std::byte> into) {
  CKPTD_ASSIGN_OR_RETURN(const FileRecord* const file, Find(path));
  const auto size = static_cast<int64_t>(into.size());
  if (offset < 0 || offset + size > file->size_bytes())
    return InvalidArgument(absl::StrCat(path, " has ", file->size_bytes(), " bytes"));
  const int64_t chunk = manifest_->summary.chunk_bytes();
  for (int64_t at = offset; at < offset + size;) {
    const int64_t begin = at / chunk * chunk, end = std::min(begin + chunk, file->size_bytes());
    const int64_t count = std::min(end, offset + size) - at;
    const auto wanted = into.subspan(static_cast<size_t>(at - offset), static_cast<size_t>(count));
    if (count == end - begin) {
      CKPTD_RETURN_IF_ERROR(ReadChunks(*file, begin, wanted));
    } else {
      const auto read_part = [&](std::span<std::byte> whole) -> absl::Status {
        CKPTD_RETURN_IF_ERROR(ReadChunks(*file, begin, whole));
        std::memcpy(wanted.data(), whole.data() + (at - begin), wanted.size());
        return absl::OkStatus();
      };
      CKPTD_RETURN_IF_ERROR(buffers_.With(end - begin, read_part));
    }
    at += count;
  }
  return absl::OkStatus();
}

absl::Status BucketCheckpointReader::ReadWhole(const std::vector<FileTarget>& files) {
  std::vector<FilePart> parts;
  std::vector<const FileRecord*> records;
  for (size_t i = 0; i < files.size(); ++i) {
    CKPTD_ASSIGN_OR_RETURN(const FileRecord* const record, Find(files[i].path));
    records.push_back(record);
    if (record->size_bytes() == 0) continue;
    const std::vector<FilePart> of_file =
        PartsOf(i, record->size_bytes(), manifest_->summary.chunk_bytes(), transfer_);
    parts.insert(parts.end(), of_file.begin(), of_file.end());
  }
  return RunParallel(transfer_.threads, parts.size(), [&](size_t i) -> absl::Status {
    const FilePart& part = parts[i];
    const auto& runs = files[part.file].runs;
    const std::span<std::byte> there = OneRun(runs, part.offset, part.size);
    if (!there.empty()) return ReadChunks(*records[part.file], part.offset, there);
    return buffers_.With(part.size, [&](std::span<std::byte> buffer) -> absl::Status {
      CKPTD_RETURN_IF_ERROR(ReadChunks(*records[part.file], part.offset, buffer));
      CopyInto(runs, part.offset, buffer);
      return absl::OkStatus();
    });
  });
}

absl::Status BucketCheckpointReader::ReadChunks(const FileRecord& file, int64_t offset,
                                                std::span<std::byte> into) {
  const absl::Status got = GetChecked(*store_, keys_.Checkpoint(manifest_->summary.tag()) + file.path(), file,
                                      manifest_->summary.chunk_bytes(), offset, into);
  const std::string reason = ReasonOf(got);
  const bool is_another = ProvesDamage(got) || reason == "NO_OBJECT" || reason == "SHORT_OBJECT";
  return is_another ? Explain(got, file) : got;
}

// A removal takes the manifest away before the files.
absl::Status BucketCheckpointReader::Explain(const absl::Status& found, const FileRecord& file) const {
  const std::string& tag = manifest_->summary.tag();
  const absl::StatusOr<std::string> text = GetManifestText(*store_, keys_.Manifest(tag));
  const bool is_gone = ReasonOf(text.status()) == "NO_OBJECT";
  if (!text.ok() && !is_gone) return text.status();
  const absl::StatusOr<Manifest> now = is_gone ? absl::NotFoundError("") : DecodeManifest(*text);
  if (!now.ok() || now->summary.sequence() != manifest_->summary.sequence()) {
    return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                     absl::StrCat("the checkpoint ", tag, " was removed while it was being read"),
                     {{"tag", tag}});
  }
  if (ProvesDamage(found)) return found;
  return MakeError(absl::StatusCode::kDataLoss, "SHORT_FILE",
                   absl::StrCat(file.path(), " of ", tag, ": ", std::string(found.message())),
                   {{"tag", tag}, {"path", file.path()}});
}

}  // namespace ckptd
