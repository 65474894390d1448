// Seam: what the engine asks of the node that coordinates a run, to change which checkpoints its root has. A
// local root does it at once (local_root_io.h); for a run of several nodes see daemon/cluster/nodes_root_io.h.
//
// Threads as root_io.h.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_COORDINATOR_IO_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_COORDINATOR_IO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/commit/checkpoint/foreign.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

class CoordinatorIo {
 public:
  virtual ~CoordinatorIo() = default;

  // Takes a checkpoint away from its tag, durably.
  virtual void Evict(std::string tag, int64_t sequence, Callback<absl::Status> done) = 0;
  // Empties trash at low priority until nothing is left but what `terms` leave, and checkpoints that a
  // reader has open. On the thread of ReadBack: no other call but those there waits for it.
  virtual void EmptyTrash(TrashTerms terms, Callback<absl::StatusOr<TrashLeft>> done) = 0;
  // As RootStore::ListTrash and Undelete.
  virtual void ListTrash(Callback<absl::StatusOr<std::vector<TrashedCheckpoint>>> done) = 0;
  virtual void Undelete(std::string tag, int64_t sequence, Callback<absl::StatusOr<Undeleted>> done) = 0;
  // Makes it ours, as RootStore::Adopt.
  virtual void Adopt(ForeignSurvey survey, storage::v1::ManifestSummary summary,
                     Callback<PublishResult> done) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_COORDINATOR_IO_H_
