#include "client/cpp/residents.h"

#include <utility>

#include "client/cpp/copy.h"

namespace ckptd::client {
namespace {

constexpr int64_t kSlowestCheck = 100'000'000;  // Bytes a second that the daemon checks at least.

}  // namespace

// Asks the daemon, which checks the bytes of the rank that has the file before it answers.
Residents::File* Residents::Find(const std::string& path) {
  if (auto known = files_.find(path); known != files_.end()) return &known->second;
  v1::LocateFilesRequest request;
  request.set_lease(lease_);
  request.set_path(path);
  const auto located =
      session_->rpc().LocateFiles(request, kCallTimeout + std::chrono::seconds(size_ / kSlowestCheck));
  if (located.ok()) {
    for (const v1::ResidentPart& found : located->parts()) {
      auto& part = parts_.emplace_back(std::make_unique<Part>());
      part->wanted.assign(found.segments().begin(), found.segments().end());
      for (const v1::FilePlacement& file : found.placements())
        files_[file.path()] = {part.get(), file.offset()};
    }
  }
  return &files_.try_emplace(path, File{nullptr, 0}).first->second;  // Else it is read from the disk.
}

bool Residents::Map(Part& part) {
  if (!part.segments.empty()) return true;
  std::vector<int64_t> ids;
  for (const v1::Segment& segment : part.wanted) ids.push_back(segment.id());
  auto received = session_->handoff().FetchSegments(ids, kCallTimeout, /*read_only=*/true);
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

bool Residents::Read(const std::string& path, int64_t offset, std::span<std::byte> into, int threads) {
  const File* const file = Find(path);
  if (file->part == nullptr || !Map(*file->part)) return false;
  const auto from = Locate(file->part->segments, file->offset + offset, static_cast<int64_t>(into.size()));
  if (!from.ok()) return false;
  const std::vector<std::span<const std::byte>> pieces(from->begin(), from->end());
  std::vector<CopyStep> steps;
  PlanCopy(pieces, std::span(&into, 1), &steps);
  RunCopy(steps, threads);
  return session_->alive();
}

}  // namespace ckptd::client
