// Sizes with units in the configuration.
#ifndef CKPTD_DAEMON_CONFIG_SIZES_H_
#define CKPTD_DAEMON_CONFIG_SIZES_H_

#include <string>

namespace ckptd {

// Replaces sizes such as `8GiB` (KiB, MiB, GiB, TiB) in a text proto by numbers of bytes. Leaves strings,
// comments and sizes beyond an int64 as they are, and every line in its place.
std::string ExpandSizes(const std::string& text);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CONFIG_SIZES_H_
