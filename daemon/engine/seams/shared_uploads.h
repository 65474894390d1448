// Seam: what a run that several nodes share uploads, as they all know it. Real: NodesRun (daemon/cluster); fake:
// tests/testing/fake_shared_uploads.h.
//
// Called on the engine's thread, where callbacks run, too, after the call has returned.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_SHARED_UPLOADS_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_SHARED_UPLOADS_H_

#include <cstdint>
#include <functional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"

namespace ckptd {

class SharedUploads {
 public:
  struct Known {
    // As the coordinator has written it last, when it had counted the checkpoints up to this sequence.
    storage::v1::UploadRecord record;
    int64_t counted_through = 0;
    // What the newest launch uploads, with the fields of an UploadPolicy; no URL: nothing. An attempt's commits
    // come after it: the ledger answers Join with that.
    storage::v1::UploadRecord policy;
    int64_t attempt = 0;  // Of that launch; 0: none has joined.
  };

  virtual ~SharedUploads() = default;

  // What this node has heard last; others may have changed it since.
  virtual Known Shown() const = 0;
  // Rises when Shown() changes. Cheap.
  virtual int64_t version() const = 0;
  // What is known now.
  virtual void Read(absl::AnyInvocable<void(absl::StatusOr<Known>)> read) = 0;
  // By the coordinator, one call after the other. OK: the next coordinator goes on with it. A coordinator that is
  // none any more writes nothing.
  virtual void Write(const storage::v1::UploadRecord& record, int64_t counted_through,
                     absl::AnyInvocable<void(absl::Status)> written) = 0;
  // Thread-safe: whether this node still coordinates, as it does now. Once it is false, it stays so: at the latest
  // when another node may coordinate.
  virtual std::function<bool()> StillCoordinates() const = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_SHARED_UPLOADS_H_
