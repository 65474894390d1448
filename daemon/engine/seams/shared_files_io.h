// Seam: the file system of a root that several nodes share, for one of them. Beside what RootIo asks for, and
// what the coordinator asks for, each node writes one part of a save: the files of its ranks, and one record
// of them.
//
// Threads as root_io.h. What another node changes meanwhile is looked at again, for a bounded time, before an
// answer says that something is damaged or missing.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_SHARED_FILES_IO_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_SHARED_FILES_IO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/shared_root_io.h"
#include "storage/commit/shared/trials/try_nodes.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

// Discard ends a part, whatever its OpenPart, WritePart or FinishPart said: the coordinator moves the directory
// away.
class SharedFilesIo : public RootIo, public SharedRootIo {
 public:
  // Which run's root this says that it is, and which directory it is.
  struct RunOfRoot {
    std::string id;      // That a file of the root holds.
    uint64_t inode = 0;  // Of the directory; the same on all nodes.
    uint32_t uid = 0;    // Its owner.
  };
  // The id is durable: the first node to open the root makes it. After Open.
  virtual void RunId(Callback<absl::StatusOr<RunOfRoot>> done) = 0;
  // Makes this node's part of the save whose directory the coordinator has made.
  virtual void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence,
                        const std::string& inflight, Callback<absl::Status> done) = 0;
  // Writes the record of this node's part, durably, after WritePart of all its ranks. Answers with its
  // digest.
  virtual void FinishPart(InflightId64 id, std::vector<storage::v1::PartRecord> parts,
                          Callback<absl::StatusOr<std::string>> done) = 0;
  // Once the ledger has called it COMMITTED. NOT_FOUND, reason NO_CHECKPOINT, if it has been removed since.
  virtual void LoadCheckpoint(const std::string& tag, int64_t sequence,
                              Callback<absl::StatusOr<LoadedCheckpoint>> done) = 0;
  // As ckptd::TryNodes, on a thread that nothing else waits for.
  virtual void TryNodes(NodesToTry trying, Callback<absl::StatusOr<NodesTried>> done) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_SHARED_FILES_IO_H_
