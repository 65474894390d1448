#include "daemon/engine/admission/file_placer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/part_layout.h"
#include "daemon/engine/run/run.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/format/manifest.h"

namespace ckptd {
namespace {

// A file with a longer name counts as one more for each so many bytes.
constexpr int64_t kNameOfOneFile = 256;

absl::Status ClaimedTwice(const Save& save, int rank, int other, const std::string& path) {
  const auto [low, high] = std::minmax(rank, other);
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kFileConflict,
                   absl::StrCat("ranks ", low, " and ", high, " both claim the file ", path,
                                "; one file name belongs to one rank"),
                   {{"tag", save.key.tag}, {"path", path}, {"ranks", JoinRanks({low, high})}});
}

absl::Status PlacedWithOtherSize(const Save& save, const v1::FileSpec& file, int64_t before) {
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kSaveConflict,
                   absl::StrCat("file ", file.path(), " was placed with ", before, " bytes, now it has ",
                                file.size_bytes()),
                   {{"tag", save.key.tag}});
}

absl::Status ManifestTooLarge(const Save& save) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kLimitExceeded,
                   absl::StrCat("the checkpoint ", save.key.tag,
                                " has more files or chunks than a manifest "
                                "may list: ",
                                kMaxManifestFiles, " files, ", kMaxManifestBytes,
                                " bytes; save fewer files, with shorter names, or raise io.chunk_bytes"),
                   {{"tag", save.key.tag}});
}

// `limit` with the tag and the rank in its details.
absl::Status ForPart(const absl::Status& limit, const Save& save, const Part& part) {
  ErrorDetails details = DetailsOf(limit);
  details["tag"] = save.key.tag;
  details["ranks"] = absl::StrCat(part.rank);
  return MakeError(limit.code(), ReasonOf(limit), std::string(limit.message()), details);
}

}  // namespace

// Called before the file gets its place. The daemon keeps some 700 bytes for a file until the save has ended,
// and the manifest has to list it.
absl::Status FilePlacer::Count(Save* save, const Part& part, size_t files, const std::string& path,
                               int64_t size) {
  const uid_t uid = save->run->uid;
  if (static_cast<int64_t>(files) >= limits_.files_per_part) {
    const absl::Status limit =
        LimitExceeded(absl::StrCat("the part of rank ", part.rank, " of ", save->key.tag), "files",
                      limits_.files_per_part, "files_per_part");
    return ForPart(limit, *save, part);
  }
  const int64_t count = 1 + static_cast<int64_t>(path.size()) / kNameOfOneFile;
  int64_t& in_flight = files_in_flight_[uid];
  if (in_flight + count > limits_.files_per_uid) {
    const absl::Status limit =
        UidLimitExceeded(uid, "files in saves that are in flight", limits_.files_per_uid, "files_per_uid");
    return ForPart(limit, *save, part);
  }
  const int64_t chunks = size / chunk_bytes_ + 1;
  const int64_t listed = save->list_bytes + static_cast<int64_t>(path.size()) + 40 + 4 * chunks;
  if (listed > kMaxManifestBytes - kManifestHeadBytes ||
      save->claims.size() >= static_cast<size_t>(kMaxManifestFiles)) {
    return ManifestTooLarge(*save);
  }
  in_flight += count;
  save->counted_files += count;
  save->list_bytes = listed;
  return absl::OkStatus();
}

absl::Status FilePlacer::PlaceOne(Save* save, Part& part, const v1::FileSpec& file) {
  if (const auto claim = save->claims.Find(file.path())) {
    const PlacedFile* placed = claim->rank == part.rank ? part.placed->Find(file.path()) : nullptr;
    if (placed == nullptr) return ClaimedTwice(*save, part.rank, claim->rank, claim->path);
    if (placed->size == file.size_bytes()) return absl::OkStatus();  // A retry.
    return PlacedWithOtherSize(*save, file, placed->size);
  }
  CKPTD_RETURN_IF_ERROR(Count(save, part, part.placed->size(), file.path(), file.size_bytes()));
  const PlacedFile& placed = part.placed->Add(file.path(), file.size_bytes(), part.end);
  part.end += RoundUp(file.size_bytes());
  save->claims.Add(placed.path, part.rank);
  return absl::OkStatus();
}

absl::Status FilePlacer::Place(Save* save, Part& part, const Files& files) {
  save->claims.Reserve(static_cast<size_t>(files.size()));
  for (const v1::FileSpec& file : files) CKPTD_RETURN_IF_ERROR(PlaceOne(save, part, file));
  return absl::OkStatus();
}

absl::Status FilePlacer::PlaceAs(Save* save, Part& part, std::shared_ptr<FilePlaces> places) {
  part.placed = std::move(places);
  save->claims.Reserve(part.placed->size());
  size_t number = 0;
  for (const PlacedFile& file : part.placed->files()) {
    if (const auto claim = save->claims.Find(file.path))
      return ClaimedTwice(*save, part.rank, claim->rank, claim->path);
    CKPTD_RETURN_IF_ERROR(Count(save, part, number++, file.path, file.size));
    save->claims.Add(file.path, part.rank);
    part.end = file.offset + RoundUp(file.size);
  }
  return absl::OkStatus();
}

void FilePlacer::Forget(const Save& save) {
  const uid_t uid = save.run->uid;
  if (int64_t& files = files_in_flight_[uid]; (files -= save.counted_files) == 0) files_in_flight_.erase(uid);
}

}  // namespace ckptd
