// LocalRootIo on a bucket: BucketRootStore behind threads.
//
// Parts go from memory to the bucket without a disk. A bucket has no trash, no pointer files and nothing to
// adopt. A root has its own metadata worker, queries and scrubber, as a file system has; parts of all roots
// are sent by the threads of `senders`. No call waits longer for the server than the store's time limit.
#ifndef CKPTD_DAEMON_ROOT_IO_BUCKET_BUCKET_ROOT_IO_H_
#define CKPTD_DAEMON_ROOT_IO_BUCKET_BUCKET_ROOT_IO_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "daemon/engine/seams/local_root_io.h"
#include "daemon/root_io/threads/root_threads.h"
#include "storage/object/s3_store.h"

namespace ckptd {

struct BucketRoot {
  std::string url;         // s3://BUCKET/PREFIX; it was checked.
  uid_t uid = 0;           // Who attached it first: the run's owner here, whoever has saved there before.
  std::string owner;       // As BucketRootOptions::owner.
  int parallel_parts = 4;  // Of one rank's part.
  OpenBucket open = &OpenS3;
};

// Runs work that blocks, on threads that outlive the RootIo. Thread-safe.
using RunBlocking = std::function<void(absl::AnyInvocable<void()>)>;

std::unique_ptr<LocalRootIo> MakeBucketRootIo(RootThreads threads, RunBlocking senders, BucketRoot root);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_BUCKET_BUCKET_ROOT_IO_H_
