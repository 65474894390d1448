// Decides which roots a peer of another mount namespace may name by path: those beneath a directory of
// SecurityConfig::container_roots.
#ifndef CKPTD_DAEMON_ATTACH_CONTAINER_ROOTS_H_
#define CKPTD_DAEMON_ATTACH_CONTAINER_ROOTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// Returns the directory of `allowed` that `path` equals or lies beneath. nullopt if there is none, or if
// `path` has an empty component, "." or "..".
std::optional<std::string> ContainerRootOf(const std::vector<std::string>& allowed, const std::string& path);

// Opens `path`, which ContainerRootOf found beneath `base`, with the rights of `user`. Follows no symbolic
// link below `base`, because a container may write there. Blocks. Fails as OpenRootDirectory does.
absl::StatusOr<Handle> OpenDirectoryBeneath(const std::string& base, const std::string& path,
                                            const FileUser& user);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_CONTAINER_ROOTS_H_
