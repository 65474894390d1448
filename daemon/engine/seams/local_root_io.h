// Seam: the file system of a root whose run is of one node. Threads as root_io.h.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_LOCAL_ROOT_IO_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_LOCAL_ROOT_IO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/seams/coordinator_io.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

class LocalRootIo : public RootIo, public CoordinatorIo {
 public:
  // Before the WriteParts of the save. `manifest_bytes`: the room that its manifest may need.
  virtual void CreateInflight(InflightId64 id, std::string tag, int64_t sequence, int64_t manifest_bytes,
                              Callback<absl::Status> done) = 0;
  // After the WriteParts of all ranks.
  virtual void Publish(InflightId64 id, storage::v1::ManifestSummary summary,
                       std::vector<storage::v1::PartRecord> parts, Callback<PublishResult> done) = 0;
  // Durable when it calls back.
  virtual void SaveRunRecord(storage::v1::RunRecord record, Callback<absl::Status> done) = 0;

  // Why this root cannot be of several nodes, whatever the configuration says, and what can be done; empty: it could.
  virtual std::string why_one_node() const { return ""; }
  // Whether a daemon elsewhere has taken the root over: from then on every change fails (ROOT_TAKEN_OVER).
  virtual bool is_taken_over() const { return false; }
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_LOCAL_ROOT_IO_H_
