// Seam: what the engine asks of the bucket to which a run's checkpoints are copied, and from which they come
// back. Real: BucketUploads (daemon/upload); fake: tests/testing/fake_upload_io.h.
//
// One for each root. Called on the engine's thread; every callback runs there, once, never inside the call,
// and never after the UploadIo is destroyed. A call takes as long as the server does.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_UPLOAD_IO_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_UPLOAD_IO_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"

namespace ckptd {

class UploadIo {
 public:
  struct InBucket {
    storage::v1::ManifestSummary summary;
    bool by_daemon = false;  // Not `ckptctl upload`.
  };
  struct Contents {
    std::vector<InBucket> checkpoints;  // Whole ones, in no order.
    std::vector<std::string> damaged;   // What is wrong with others, for people.
  };

  // Thread-safe. From false on, which is for good, the call sends no further request, and fails with CANCELLED:
  // another node of the run may go on with it. Null: it is never false.
  using MayGoOn = std::function<bool()>;

  virtual ~UploadIo() = default;

  // Whether the root's user may upload to this URL: INVALID_ARGUMENT if it is none; PERMISSION_DENIED, reason
  // UPLOAD_NOT_ALLOWED. Does not block.
  virtual absl::Status Check(const std::string& url) const = 0;
  // Copies this committed checkpoint from disk, and goes on where an earlier try has ended. `arrived` counts
  // its bytes in the bucket. Answers with the bytes that were sent. Errors are those of UploadCheckpoint
  // (storage/bucket/upload.h), of the store, and of Check.
  virtual void Upload(std::string url, storage::v1::UploadedCheckpoint checkpoint, MayGoOn may_go_on,
                      std::shared_ptr<std::atomic<int64_t>> arrived,
                      absl::AnyInvocable<void(absl::StatusOr<int64_t>)> done) = 0;
  // As RemoveUploaded (storage/bucket/remove.h); only what is unfinished of a checkpoint that was given up: its last
  // upload may have ended well without an answer.
  virtual void Remove(std::string url, storage::v1::UploadedCheckpoint checkpoint, MayGoOn may_go_on,
                      absl::AnyInvocable<void(absl::Status)> done) = 0;

  // What lies beneath the URL. Ranks wait for it: it gives up sooner than an upload.
  virtual void List(std::string url, absl::AnyInvocable<void(absl::StatusOr<Contents>)> done) = 0;
  // Of a root that several nodes share: the coordinator's term, in whose directory the checkpoint is put together,
  // and whether this node still coordinates. 0: a root of one node.
  struct Term {
    int64_t number = 0;
    MayGoOn may_go_on = nullptr;
  };
  // Brings a checkpoint into the root, whose next scan finds it. `arrived` counts its bytes. Errors are those
  // of FetchCheckpoint (storage/bucket/fetch.h), of the store, and of Check.
  virtual void Fetch(std::string url, std::string tag, Term term,
                     std::shared_ptr<std::atomic<int64_t>> arrived,
                     absl::AnyInvocable<void(absl::Status)> done) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_UPLOAD_IO_H_
