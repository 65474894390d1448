// BucketUploads copies checkpoints from disk to buckets, on threads of its own with idle priority, and back,
// on two other threads, because ranks wait for that.
//
// Two uploads run at a time in the whole daemon, each with `parallel_parts` parts in memory. A server that
// does not answer holds up one of them for the time limit of a request (storage/object/s3_store.h).
#ifndef CKPTD_DAEMON_UPLOAD_BUCKET_UPLOADS_H_
#define CKPTD_DAEMON_UPLOAD_BUCKET_UPLOADS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "daemon/base/worker_pool.h"
#include "daemon/engine/seams/upload_io.h"
#include "daemon/upload/upload_rate.h"
#include "daemon/upload/upload_rights.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/posix_file_system.h"
#include "storage/object/s3_store.h"

namespace ckptd {

class BucketUploads {
 public:
  struct Options {
    UploadRights rights;
    int64_t bytes_per_second = 0;  // 0: no limit.
    int parallel_parts = 4;
    std::function<void(absl::AnyInvocable<void()>)> post;  // Runs work on the engine's thread. Thread-safe.
    OpenBucket open_store = &OpenS3;
  };
  explicit BucketUploads(Options options);
  // Cancels what is under way, and waits until the threads have noticed: a few seconds, unless a file system
  // hangs.
  ~BucketUploads();

  // Whether this user may write to the URL, as CheckUpload says.
  absl::Status CheckRights(uid_t uid, const std::string& url) const;

  // `directory`: of the root, possibly open with O_PATH. Its files are read with the rights of `user`. The
  // UploadIo must not outlive this.
  std::unique_ptr<UploadIo> ForRoot(UniqueFd directory, FileUser user);

 private:
  class Io;
  struct Shared;

  const std::shared_ptr<Shared> shared_;
  WorkerPool threads_;
  WorkerPool fetches_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_UPLOAD_BUCKET_UPLOADS_H_
