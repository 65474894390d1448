#include "daemon/root_io/common/disk_checkpoint_reader.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/disk_file.h"
#include "storage/commit/checkpoint/unchanged_file.h"
#include "storage/commit/checkpoint/verify.h"

namespace ckptd {
namespace {

// Whether two manifests with the same summary list the same files.
bool SameFiles(const Manifest& a, const Manifest& b) {
  const auto& files = a.body.files();
  return std::equal(files.begin(), files.end(), b.body.files().begin(), b.body.files().end(),
                    [](const storage::v1::FileRecord& x, const storage::v1::FileRecord& y) {
                      return x.path() == y.path() && x.size_bytes() == y.size_bytes() &&
                             x.rank() == y.rank() &&
                             std::equal(x.chunk_crc32c().begin(), x.chunk_crc32c().end(),
                                        y.chunk_crc32c().begin(), y.chunk_crc32c().end());
                    });
}

int ReadThreads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 8); }

}  // namespace

std::shared_ptr<const Manifest> OpenManifests::Share(Manifest manifest) {
  std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const Manifest>& known = open_[manifest.summary.sequence()];
  const std::shared_ptr<const Manifest> open = known.lock();
  if (open != nullptr &&
      google::protobuf::util::MessageDifferencer::Equals(open->summary, manifest.summary) &&
      SameFiles(*open, manifest)) {
    return open;
  }
  auto fresh = std::make_shared<const Manifest>(std::move(manifest));
  known = fresh;
  return fresh;
}

absl::Status DiskCheckpointReader::Read(const std::string& path, int64_t offset, std::span<std::byte> into) {
  CKPTD_ASSIGN_OR_RETURN(const storage::v1::FileRecord* const file, Find(path));
  return ReadVerified(*fs_, dir_.get(), *file, manifest_->summary.chunk_bytes(), offset, into);
}

absl::Status DiskCheckpointReader::ReadWhole(const FileTarget& target, const int32_t* stop) const {
  CKPTD_ASSIGN_OR_RETURN(const storage::v1::FileRecord* const file, Find(target.path));
  return ReadFromDisk(*fs_, dir_.get(), *file, manifest_->summary.chunk_bytes(), 0, target.runs,
                      ReadThreads(), stop);
}

std::pair<ScopedHandle, const storage::v1::FileRecord*> DiskCheckpointReader::OpenIfUnchanged(
    const FileImage& image, const int32_t* stop) const {
  const absl::StatusOr<const storage::v1::FileRecord*> file = Find(image.path);
  if (!file.ok()) return {ScopedHandle(), nullptr};
  return {ckptd::OpenIfUnchanged(*fs_, dir_.get(), **file, manifest_->summary.chunk_bytes(), image,
                                 ReadThreads(), stop),
          *file};
}

absl::StatusOr<const storage::v1::FileRecord*> DiskCheckpointReader::Find(const std::string& path) const {
  const auto& files = manifest_->body.files();  // Ordered by path.
  const auto found =
      std::lower_bound(files.begin(), files.end(), path,
                       [](const auto& file, const std::string& name) { return file.path() < name; });
  if (found == files.end() || found->path() != path) {
    return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_FILE",
                     absl::StrCat("checkpoint ", manifest_->summary.tag(), " has no file ", path),
                     {{"tag", manifest_->summary.tag()}, {"path", path}});
  }
  return &*found;
}

}  // namespace ckptd
