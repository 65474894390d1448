#include "daemon/engine/admission/part_grants.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

template <typename Response>
void AddSegments(const Part& part, Response& response) {
  for (const SegmentRef& segment : part.segments) {
    v1::Segment& granted = *response.add_segments();
    granted.set_id(segment.id);
    granted.set_size_bytes(segment.size);
  }
}

template <typename Response>
void AddPlacements(const std::vector<const PlacedFile*>& files, Response& response) {
  response.mutable_placements()->Reserve(static_cast<int>(files.size()));
  for (const PlacedFile* file : files) {
    v1::FilePlacement& placement = *response.add_placements();
    placement.set_path(file->path);
    placement.set_size_bytes(file->size);
    placement.set_offset(file->offset);
  }
}

// The files that Begin has listed or named.
std::vector<const PlacedFile*> AskedFiles(const Part& part) {
  if (part.layout == 0 || !part.asked.empty()) return part.asked;
  std::vector<const PlacedFile*> all;
  for (const PlacedFile& file : part.placed->files()) all.push_back(&file);
  return all;
}

}  // namespace

std::vector<const PlacedFile*> FindAsked(const Part& part, const FilePlacer::Files& files) {
  std::vector<const PlacedFile*> asked;
  asked.reserve(static_cast<size_t>(files.size()));
  for (int i = 0; i < files.size(); ++i)
    asked.push_back(part.placed->Find(files.Get(i).path(), static_cast<size_t>(i)));
  return asked;
}

PartGrants::PartGrants(SegmentPool* pool, const SaveTable* saves, const ExpectedSizes* sizes,
                       const MemoryShares* shares, DiskRoom* disk, FilePlacer* placer, Fail fail)
    : pool_(pool),
      saves_(saves),
      sizes_(sizes),
      shares_(shares),
      disk_(disk),
      placer_(placer),
      fail_(std::move(fail)) {}

void PartGrants::OnAdmitted(Save* save) {
  for (auto& [rank, part] : save->parts) {
    if (!part.begun || save->phase() != SavePhase::kAdmitted) continue;
    // While other nodes had no room, ranks may have begun with other sizes than were expected and reserved.
    OnBegun(save, part);
  }
}

void PartGrants::OnBegun(Save* save, Part& part) {
  if (absl::Status fits = FitReservation(save, part); !fits.ok()) return fail_(save, fits);
  Draw(save, part);
}

absl::Status PartGrants::FitReservation(Save* save, Part& part) {
  if (absl::Status disk = disk_->Grow(save, part.rank); !disk.ok()) return disk;
  const int needed = pool_->SegmentsFor(part.growing ? sizes_->PartBytes(*save, part.rank) : part.end);
  if (needed > part.reserved) return GrowReservation(save, part, needed);
  if (needed < part.reserved && !part.growing) {
    pool_->Shrink(save->reservation, part.reserved_for, part.reserved - needed);
    part.reserved = needed;
  }
  return absl::OkStatus();
}

absl::Status PartGrants::GrowReservation(Save* save, Part& part, int needed) {
  absl::Status grown = shares_->CheckGrowth(*save, needed - part.reserved);
  if (grown.ok())
    grown = pool_->Grow(save->reservation, SegmentDemand{part.reserved_for, needed - part.reserved});
  if (!grown.ok()) {
    return MakeError(grown.code(), ReasonOf(grown),
                     absl::StrCat("rank ", part.rank, " needs ", needed, " segments, ", part.reserved,
                                  " were reserved for it: ", std::string(grown.message())),
                     {{"tag", save->key.tag}, {"ranks", absl::StrCat(part.rank)}});
  }
  part.reserved = needed;
  return absl::OkStatus();
}

int PartGrants::Wanted(const Part& part) const {
  const int placed = pool_->SegmentsFor(part.end);
  return part.growing ? std::max(placed, part.reserved) : placed;
}

void PartGrants::Draw(Save* save, Part& part) {
  if (part.drawing) return;
  const int missing = Wanted(part) - static_cast<int>(part.segments.size());
  if (missing <= 0) {
    AnswerBegins(save, part);
    return AnswerExtends(part);
  }
  part.drawing = true;
  pool_->Draw(save->reservation, part.reserved_for, part.session, missing,
              [this, id = save->id, rank = part.rank](absl::StatusOr<std::vector<SegmentRef>> segments) {
                OnDrawn(id, rank, std::move(segments));
              });
}

void PartGrants::OnDrawn(int64_t save_id, int rank, absl::StatusOr<std::vector<SegmentRef>> segments) {
  Save* save = saves_->Find(save_id);
  if (save == nullptr) return;
  Part& part = save->parts.at(rank);
  part.drawing = false;
  if (save->phase() != SavePhase::kAdmitted) return;
  if (!segments.ok()) return fail_(save, Annotate(segments.status(), absl::StrCat("memory for rank ", rank)));
  part.segments.insert(part.segments.end(), segments->begin(), segments->end());
  Draw(save, part);
}

v1::BeginResponse PartGrants::GrantOf(const Save& save, const Part& part, bool names_layout) {
  v1::BeginResponse response;
  response.set_sequence(save.sequence);
  response.set_level(v1::OPEN);
  AddSegments(part, response);
  response.set_layout(part.layout);
  if (!names_layout) AddPlacements(AskedFiles(part), response);
  for (SegmentId id : pool_->TakeRetired(part.session)) response.add_retired_segments(id);
  return response;
}

void PartGrants::AnswerBegins(Save* save, Part& part) {
  if (save->phase() != SavePhase::kAdmitted && !save->sealed()) return;
  if (Wanted(part) > static_cast<int>(part.segments.size())) return;
  part.granted = true;
  for (BeginReply& waiting : std::exchange(part.begin_replies, {}))
    waiting.reply(GrantOf(*save, part, waiting.names_layout));
}

void PartGrants::AnswerExtends(Part& part) {
  for (auto& [request, reply] : std::exchange(part.extend_replies, {})) {
    v1::ExtendResponse response;
    AddSegments(part, response);
    AddPlacements(FindAsked(part, request.files()), response);
    reply(std::move(response));
  }
}

void PartGrants::Extend(Save* save, Part& part, const v1::ExtendRequest& request,
                        Reply<v1::ExtendResponse> reply) {
  part.extend_replies.emplace_back(request, std::move(reply));
  absl::Status fits = placer_->Place(save, part, request.files());
  if (fits.ok()) fits = FitReservation(save, part);
  if (!fits.ok()) return fail_(save, fits);
  Draw(save, part);
}

absl::Status PartGrants::PlaceUnasked(Save* save, Part& part, const v1::SealRequest& request) {
  if (!part.growing) return absl::OkStatus();
  FilePlacer::Files unasked;
  for (int i = 0; i < request.files_size(); ++i) {
    const v1::FileSpec& file = request.files(i);
    if (part.placed->Find(file.path(), static_cast<size_t>(i)) == nullptr) *unasked.Add() = file;
  }
  if (unasked.empty()) return absl::OkStatus();
  absl::Status fits = placer_->Place(save, part, unasked);
  if (fits.ok()) fits = disk_->Grow(save, part.rank);
  if (fits.ok() && pool_->SegmentsFor(part.end) > static_cast<int>(part.segments.size())) {
    fits = InvalidArgument(absl::StrCat("the files of rank ", part.rank, " end at ", part.end,
                                        ", beyond the memory that it was given; call Extend for them"));
  }
  if (!fits.ok()) fail_(save, fits);
  return fits;
}

}  // namespace ckptd
