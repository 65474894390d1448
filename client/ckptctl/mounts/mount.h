// Which file system a folder is on, as the kernel mounted it.
#ifndef CKPTD_CLIENT_CKPTCTL_MOUNTS_MOUNT_H_
#define CKPTD_CLIENT_CKPTCTL_MOUNTS_MOUNT_H_

#include <string>

namespace ckptd::ctl {

struct Mount {
  std::string type;     // "nfs4", "fuse.glusterfs"
  std::string source;   // "server:/export"
  std::string options;  // Of the mount and of the file system, joined by commas.
};

// The mount that holds `path`, an absolute path without links. `table` is in the format of
// /proc/self/mountinfo. All empty: there is none.
Mount FindMount(const std::string& table, const std::string& path);
Mount MountOf(const std::string& path);

// The options that say for how long names, attributes and data are cached; empty: none is named.
std::string CachingOptions(const Mount& mount);

// Whether only processes of one machine can have this file system.
bool IsLocal(const Mount& mount);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_MOUNTS_MOUNT_H_
