// Reads what a root on this machine's disks holds, without a daemon. Only reads, also where a daemon serves
// the root: saves in flight and failures, which only a daemon knows, are not among it.
#ifndef CKPTD_CLIENT_CKPTCTL_COMMANDS_DISK_ROOT_H_
#define CKPTD_CLIENT_CKPTCTL_COMMANDS_DISK_ROOT_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"

namespace ckptd::ctl {

struct DiskRoot {
  std::string path;                         // Without symbolic links.
  uid_t uid = 0;                            // The owner of the directory.
  v1::ListCheckpointsResponse checkpoints;  // Newest first, then unreadable ones, and foreign ones.
};

// A root is a directory with a .ckptd, or one that holds a checkpoint. NOT_FOUND, reason NO_CHECKPOINT, if the
// directory is none.
absl::StatusOr<DiskRoot> ReadDiskRoot(const std::string& path);

// The checkpoint `tag` with its files; the tag latest is the newest that is neither damaged nor suspect.
// NOT_FOUND, reason NO_CHECKPOINT, names the nearest tag. DATA_LOSS, reason CORRUPT_MANIFEST.
absl::StatusOr<v1::Checkpoint> DescribeOnDisk(const DiskRoot& root, const std::string& tag);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_COMMANDS_DISK_ROOT_H_
