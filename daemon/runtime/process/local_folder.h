// `ckptd --local DIR`: a daemon for one user in a terminal. Its socket and its state are in a folder that no
// other user may write to.
#ifndef CKPTD_DAEMON_RUNTIME_PROCESS_LOCAL_FOLDER_H_
#define CKPTD_DAEMON_RUNTIME_PROCESS_LOCAL_FOLDER_H_

#include <string>

#include "absl/status/status.h"

namespace ckptd {

// The configuration, a text proto, without the paths. As ckptd.LocalDaemon of the Python package writes it.
inline constexpr char kLocalConfig[] =
    "socket_mode: \"0600\"\n"
    "pool { bytes: 1073741824 idle_seconds: 3600 }\n"
    "metrics { port: -1 }\n";

// Makes the folder `path`, an absolute path, with its parents. PERMISSION_DENIED, reason WRONG_UID: `path`
// is there and is not a directory, or another user owns it or may write to it.
absl::Status MakeLocalFolder(const std::string& path);

// The lines for the terminal: a shell command that makes jobs use the daemon, and how the daemon ends.
std::string LocalGreeting(const std::string& socket_path);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_PROCESS_LOCAL_FOLDER_H_
