// PartGrants gives the ranks of an admitted save their memory, and answers Begin and Extend with it.
#ifndef CKPTD_DAEMON_ENGINE_ADMISSION_PART_GRANTS_H_
#define CKPTD_DAEMON_ENGINE_ADMISSION_PART_GRANTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/admission/disk_room.h"
#include "daemon/engine/admission/expected_sizes.h"
#include "daemon/engine/admission/file_placer.h"
#include "daemon/engine/admission/memory_shares.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/memory/segment_pool.h"

namespace ckptd {

// The files of a request that have been placed, in its order.
std::vector<const PlacedFile*> FindAsked(const Part& part, const FilePlacer::Files& files);

class PartGrants {
 public:
  using Fail = std::function<void(Save*, absl::Status)>;
  PartGrants(SegmentPool* pool, const SaveTable* saves, const ExpectedSizes* sizes,
             const MemoryShares* shares, DiskRoom* disk, FilePlacer* placer, Fail fail);

  // The save was admitted: every rank that has begun gets its memory.
  void OnAdmitted(Save* save);
  // A rank has begun a save that is admitted already.
  void OnBegun(Save* save, Part& part);
  // Answers the waiting Begins of the part if it has all its memory. A retry of Begin is answered this way.
  void AnswerBegins(Save* save, Part& part);
  // Places more files in a growing part; answers when it has memory for them. The part belongs to the
  // session.
  void Extend(Save* save, Part& part, const v1::ExtendRequest& request, Reply<v1::ExtendResponse> reply);
  // Places the files of a Seal that the rank has put into the memory of a growing part without an Extend. An
  // error has failed the save. The part was granted to the caller, and its files are valid.
  absl::Status PlaceUnasked(Save* save, Part& part, const v1::SealRequest& request);

 private:
  // The segments that the part is to have: a growing one gets all that is reserved for it at once.
  int Wanted(const Part& part) const;
  // Changes the reservation of the part to what its files need now.
  absl::Status FitReservation(Save* save, Part& part);
  absl::Status GrowReservation(Save* save, Part& part, int needed);
  // Draws the segments that the part lacks; answers its Begins and Extends when it lacks none.
  void Draw(Save* save, Part& part);
  void OnDrawn(int64_t save_id, int rank, absl::StatusOr<std::vector<SegmentRef>> segments);
  void AnswerExtends(Part& part);
  v1::BeginResponse GrantOf(const Save& save, const Part& part, bool names_layout);

  SegmentPool* const pool_;
  const SaveTable* const saves_;
  const ExpectedSizes* const sizes_;
  const MemoryShares* const shares_;
  DiskRoom* const disk_;
  FilePlacer* const placer_;
  const Fail fail_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ADMISSION_PART_GRANTS_H_
