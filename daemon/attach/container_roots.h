// Which roots a peer of another namespace may name by path: those beneath the directories of
// SecurityConfig::container_roots.
#ifndef CKPTD_DAEMON_ATTACH_CONTAINER_ROOTS_H_
#define CKPTD_DAEMON_ATTACH_CONTAINER_ROOTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// The one of `allowed` that `path` is, or lies beneath; nothing when none is, or when `path` has an empty
// component, "." or "..".
std::optional<std::string> ContainerRootOf(const std::vector<std::string>& allowed, const std::string& path);

// Opens `path`, which ContainerRootOf found beneath `base`, with the user's rights. Below `base` no symbolic
// link is followed: a container may write there. Blocks. Errors are those of OpenRootDirectory.
absl::StatusOr<Handle> OpenDirectoryBeneath(const std::string& base, const std::string& path,
                                            const FileUser& user);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_CONTAINER_ROOTS_H_
