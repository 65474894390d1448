// The folders that all nodes share (`cluster.shared_folders`): what is wrong with them, and which roots are
// theirs.
#ifndef CKPTD_DAEMON_CONFIG_SHARED_FOLDERS_H_
#define CKPTD_DAEMON_CONFIG_SHARED_FOLDERS_H_

#include <google/protobuf/repeated_ptr_field.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

using SharedFolders = google::protobuf::RepeatedPtrField<std::string>;

// Returns a message for each folder that is wrong: the value, and what to write. Reads no file.
std::vector<std::string> CheckSharedFolders(const SharedFolders& folders);

// The one of the folders that `path` is, or is beneath; empty if there is none, or `path` is empty. Both are
// absolute and without symbolic links, because they are compared as text: asking the file system would wait for
// one that hangs.
std::string SharedFolderOf(const SharedFolders& folders, const std::string& path);
inline bool IsInSharedFolder(const SharedFolders& folders, const std::string& path) {
  return !SharedFolderOf(folders, path).empty();
}

// OK if the folder is a directory at this very path. INVALID_ARGUMENT with what to do if it is not there,
// is no directory, or has symbolic links in its path: then no root is ever found beneath it. Blocks on its
// file system.
absl::Status LookAtSharedFolder(const std::string& folder);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CONFIG_SHARED_FOLDERS_H_
