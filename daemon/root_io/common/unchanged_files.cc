#include "daemon/root_io/common/unchanged_files.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// A new file, or a second name of one that is durable already.
absl::Status SyncFile(FileSystem& fs, Handle dir, const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs, dir, path, OpenMode::kRead));
  return fs.Sync(file.get(), SyncMode::kData);
}

}  // namespace

UnchangedFiles UnchangedFiles::Find(const DiskCheckpointReader& base, const std::vector<FileImage>& files,
                                    int32_t chunk_bytes, const int32_t* stop) {
  UnchangedFiles found;
  if (base.manifest().summary.chunk_bytes() != chunk_bytes)
    return found;  // Its checksums are of other chunks.
  for (size_t i = 0; i < files.size(); ++i) {
    const FileImage& image = files[i];
    if (image.size < kLeastBytes) continue;
    auto [file, record] = base.OpenIfUnchanged(image, stop);
    if (!file) continue;
    WrittenFile written{
        image.path, image.size, {record->chunk_crc32c().begin(), record->chunk_crc32c().end()}};
    found.files_.emplace(i, Unchanged{std::move(file), std::move(written)});
  }
  return found;
}

absl::StatusOr<std::vector<FileImage>> UnchangedFiles::Share(FileSystem& fs, Handle dir,
                                                             std::vector<FileImage> files,
                                                             std::atomic<int64_t>* written_bytes) {
  std::vector<FileImage> others;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto unchanged = files_.find(i);
    // A file that cannot be shared is written. If the file system is full, writing it reports that.
    const bool shared =
        unchanged != files_.end() && fs.Share(unchanged->second.file.get(), dir, files[i].path).ok();
    if (!shared) {
      if (unchanged != files_.end()) files_.erase(unchanged);
      others.push_back(std::move(files[i]));
      continue;
    }
    unchanged->second.file.reset();
    CKPTD_RETURN_IF_ERROR(
        Annotate(SyncFile(fs, dir, files[i].path), absl::StrCat(files[i].path, ": syncing")));
    written_bytes->fetch_add(files[i].size, std::memory_order_relaxed);
  }
  return others;
}

std::vector<WrittenFile> UnchangedFiles::AllOf(std::vector<WrittenFile> written) && {
  if (files_.empty()) return written;
  std::vector<WrittenFile> all;
  auto next = written.begin();
  for (size_t i = 0; i < files_.size() + written.size(); ++i) {
    const auto unchanged = files_.find(i);
    all.push_back(unchanged == files_.end() ? std::move(*next++) : std::move(unchanged->second.record));
  }
  return all;
}

}  // namespace ckptd
