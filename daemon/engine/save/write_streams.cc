#include "daemon/engine/save/write_streams.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/part_layout.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

absl::StatusOr<WriteTarget> WriteStreams::Open(Save* save, int rank, const std::string& path, Revoke revoke) {
  if (save->phase() == SavePhase::kFailing) return save->error;
  Part& part = save->PartOf(rank);
  const PlacedFile* const file = part.placed->Find(path);
  if (!part.granted || file == nullptr) {
    return MakeError(absl::StatusCode::kNotFound, reason::kUnknownFile,
                     absl::StrCat("file ", path, " has no place in the part of rank ", rank),
                     {{"path", path}});
  }
  if (part.sealed) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kSealed,
                     absl::StrCat("the part of rank ", rank, " is sealed and takes no more bytes"));
  }
  if (file->size > 0 && file->offset + file->size > MemoryBytes(part.segments)) {
    return MakeError(absl::StatusCode::kNotFound, reason::kUnknownFile,
                     absl::StrCat("file ", path, " of rank ", rank,
                                  " has no memory yet: wait for the answer of the Extend that names it"),
                     {{"path", path}});
  }
  WriteTarget target;
  target.id = next_id_++;
  target.size = file->size;
  target.runs = MemoryRuns(part.segments, file->offset, target.size);
  ++part.open_writes;
  streams_.emplace(target.id, Stream{save->id, rank, std::move(revoke)});
  return target;
}

void WriteStreams::Close(int64_t id) {
  const auto stream = streams_.find(id);
  if (stream == streams_.end()) return;
  if (Save* save = saves_->Find(stream->second.save)) --save->parts.at(stream->second.rank).open_writes;
  streams_.erase(stream);
}

void WriteStreams::RevokeAll(Save* save) {
  for (auto stream = streams_.begin(); stream != streams_.end();) {
    if (stream->second.save != save->id) {
      ++stream;
      continue;
    }
    --save->parts.at(stream->second.rank).open_writes;
    const Revoke revoke = std::move(stream->second.revoke);
    stream = streams_.erase(stream);
    revoke(save->error);
  }
}

}  // namespace ckptd
