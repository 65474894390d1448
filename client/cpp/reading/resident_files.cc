#include "client/cpp/reading/resident_files.h"

#include <utility>

#include "client/cpp/memory/copy.h"
#include "client/cpp/reading/background.h"

namespace ckptd::client {
namespace {

constexpr int64_t kMinCheckBytesPerSecond = 100'000'000;  // Bytes per second that the daemon checks at least.

}  // namespace

// The daemon answers once it has checked the resident bytes of the rank whose part holds the file.
absl::StatusOr<v1::LocateFilesResponse> ResidentFiles::Locate(const std::string& path, bool map) {
  v1::LocateFilesRequest request;
  request.set_lease(lease_);
  request.set_path(path);
  request.set_map(map);
  return session_->rpc().LocateFiles(request,
                                     kCallTimeout + std::chrono::seconds(size_ / kMinCheckBytesPerSecond));
}

ResidentFiles::File* ResidentFiles::Find(const std::string& path) {
  if (auto known = files_.find(path); known != files_.end()) return &known->second;
  const auto located = Locate(path, /*map=*/false);
  if (located.ok()) {
    for (const v1::ResidentPart& found : located->parts()) {
      auto& part = parts_.emplace_back(std::make_unique<Part>());
      part->wanted.assign(found.segments().begin(), found.segments().end());
      for (const v1::FilePlacement& file : found.placements())
        files_[file.path()] = {part.get(), file.offset()};
    }
  }
  // A file that is not in memory gets an entry without a part: it is read from disk.
  return &files_.try_emplace(path, File{nullptr, 0}).first->second;
}

absl::StatusOr<std::vector<ReceivedSegment>> ResidentFiles::Fetch(const Part& part) {
  std::vector<int64_t> ids;
  for (const v1::Segment& segment : part.wanted) ids.push_back(segment.id());
  return session_->handoff().FetchSegments(ids, kCallTimeout, /*read_only=*/true);
}

bool ResidentFiles::MapForCopying(Part& part) {
  if (!part.segments.empty()) return true;
  auto received = Fetch(part);
  if (!received.ok()) return false;
  Segments segments;
  for (ReceivedSegment& segment : *received) {
    auto mapping = Mapping::Map(std::move(segment.fd), segment.size, segment.huge, Access::kRead);
    if (!mapping.ok()) return false;
    segments.push_back(*std::move(mapping));
  }
  part.segments = std::move(segments);
  return true;
}

bool ResidentFiles::Read(const std::string& path, std::span<const FilePiece> pieces, int threads,
                         bool background) {
  const File* const file = Find(path);
  if (file->part == nullptr || !MapForCopying(*file->part)) return false;
  std::vector<CopyStep> steps;
  for (const FilePiece& piece : pieces) {
    const auto from =
        client::Locate(file->part->segments, file->offset + piece.offset, std::ssize(piece.into));
    if (!from.ok()) return false;
    const std::vector<std::span<const std::byte>> sources(from->begin(), from->end());
    PlanCopy(sources, std::span(&piece.into, 1), &steps);
  }
  RunInBackgroundIf(background, [&] { RunCopy(CopyWay::kOutOfSegment, steps, threads); });
  return session_->alive();
}

std::shared_ptr<std::byte> ResidentFiles::Map(const std::string& path, int64_t size) {
  const File* const file = Find(path);
  if (file->part == nullptr) return nullptr;
  Part& part = *file->part;
  std::shared_ptr<PrivateMapping> mapping = part.mapped.lock();
  if (mapping == nullptr) {
    if (!part.may_map) {
      const auto asked = Locate(path, /*map=*/true);
      part.may_map = asked.ok() && asked->may_map();
    }
    if (!*part.may_map) return nullptr;
    auto received = Fetch(part);
    if (!received.ok()) return nullptr;
    std::vector<SegmentFile> segments;
    for (ReceivedSegment& segment : *received) segments.push_back({std::move(segment.fd), segment.size});
    auto mapped = PrivateMapping::Map(segments);
    if (!mapped.ok()) return nullptr;
    mapping = *std::move(mapped);
    part.mapped = mapping;
  }
  const std::span<std::byte> bytes = mapping->bytes();
  if (file->offset > std::ssize(bytes) || size > std::ssize(bytes) - file->offset) return nullptr;
  return {mapping, bytes.data() + file->offset};
}

}  // namespace ckptd::client
