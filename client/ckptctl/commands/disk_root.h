// Reads what a root on this machine's disks or in a bucket holds, without a daemon. Only reads, also where a
// daemon serves the root: saves in flight and failures, which only a daemon knows, are not among it.
#ifndef CKPTD_CLIENT_CKPTCTL_COMMANDS_DISK_ROOT_H_
#define CKPTD_CLIENT_CKPTCTL_COMMANDS_DISK_ROOT_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "storage/fs/file_system.h"
#include "storage/object/bucket_url.h"
#include "storage/object/object_store.h"

namespace ckptd::ctl {

// A root on disk, or in a bucket (s3://BUCKET/PREFIX).
struct OpenRoot {
  std::unique_ptr<ObjectStore> store;  // Of a bucket.
  std::string prefix;                  // There.
  std::unique_ptr<FileSystem> fs;
  ScopedHandle handle;
  std::string path;  // On disk: without symbolic links.
};
absl::StatusOr<OpenRoot> OpenAnyRoot(const std::string& path);
// The store of the URL's bucket.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenBucket(const BucketUrl& url);

struct DiskRoot {
  std::string path;                         // As OpenRoot's.
  uid_t uid = 0;                            // The owner of the directory.
  v1::ListCheckpointsResponse checkpoints;  // Newest first, then unreadable ones, and foreign ones.
};

// `path` may also be a URL. A root is a directory with a .ckptd, or one that holds a checkpoint. NOT_FOUND,
// reason NO_CHECKPOINT, if the directory is none.
absl::StatusOr<DiskRoot> ReadDiskRoot(const std::string& path);

// The checkpoint `tag` with its files; the tag latest is the newest that is neither damaged nor suspect.
// NOT_FOUND, reason NO_CHECKPOINT, names the nearest tag. DATA_LOSS, reason CORRUPT_MANIFEST.
absl::StatusOr<v1::Checkpoint> DescribeOnDisk(const DiskRoot& root, const std::string& tag);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_COMMANDS_DISK_ROOT_H_
