// Seam: what a run that several nodes share uploads, as they all know it. Real: NodesRun (daemon/cluster); fake:
// tests/testing/fake_shared_uploads.h.
//
// Called on the engine's thread, where callbacks run, too, after the call has returned.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_SHARED_UPLOADS_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_SHARED_UPLOADS_H_

#include <cstdint>
#include <functional>
#include <string>

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
  // By the coordinator, one call after the other. OK: the next coordinator goes on with it, and the sequences of
  // saves that begin from now on are above `sequences_above`. A coordinator that is none any more writes nothing.
  virtual void Write(const storage::v1::UploadRecord& record, int64_t counted_through,
                     int64_t sequences_above, absl::AnyInvocable<void(absl::Status)> written) = 0;

  // Ranks of this node resume in this attempt, and their run has a bucket.
  struct Restore {
    int64_t attempt = 0;
    std::string url;
    std::string run_id;  // Empty: not known.
  };
  // The newest checkpoint of the root; sequence 0: there is none.
  struct Newest {
    std::string tag;
    int64_t sequence = 0;
  };
  // On any node: the coordinator brings what is newer in the bucket into the root (Hooks::restore_requested of the
  // authority). Answers when it has, as late as that is; with its error, which names its node; with
  // LEDGER_UNAVAILABLE if no node coordinates the run, or if this node has lost its registration. The next scan of
  // this node shows the checkpoint that the answer names.
  virtual void BringBack(const Restore& restore,
                         absl::AnyInvocable<void(absl::StatusOr<Newest>)> brought) = 0;
  // The term for which this node has made its directory in the root; 0: it does not coordinate, or has not yet.
  virtual int64_t Term() const = 0;
  // Thread-safe: whether this node still coordinates, as it does now. Once it is false, it stays so: at the latest
  // when another node may coordinate.
  virtual std::function<bool()> StillCoordinates() const = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_SHARED_UPLOADS_H_
