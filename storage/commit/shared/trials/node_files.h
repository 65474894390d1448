// What the trials of a shared folder do with its files, so that a test can replace one property by a wrong
// one.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_TRIALS_NODE_FILES_H_
#define CKPTD_STORAGE_COMMIT_SHARED_TRIALS_NODE_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// The files beneath an open folder, as this node sees them. All errors have their errno (ErrnoOf).
class NodeFiles {
 public:
  // `fs` and `folder` must outlive it.
  NodeFiles(FileSystem* fs, Handle folder) : fs_(*fs), folder_(folder) {}
  virtual ~NodeFiles() = default;

  virtual absl::Status MakeDir(const std::string& path);
  // Writes a new file and syncs it.
  virtual absl::Status Write(const std::string& path, const std::string& bytes);
  // Overwrites the bytes of a file that is there, lets it grow, and syncs it.
  virtual absl::Status Overwrite(const std::string& path, const std::string& bytes);
  virtual absl::Status Rename(const std::string& from, const std::string& to);
  virtual absl::StatusOr<std::string> Read(const std::string& path);
  virtual absl::StatusOr<int64_t> Size(const std::string& path);
  // With an empty path, that of the folder itself.
  virtual absl::StatusOr<uint64_t> Inode(const std::string& path);
  // Has the client of a network file system ask its server for a directory, of which it may keep names, and which names
  // are missing, for half a minute. So do the daemons. Best effort.
  virtual void AskForNames(const std::string& directory);
  virtual std::vector<std::string> List(const std::string& path);
  virtual absl::StatusOr<ScopedHandle> OpenDir(const std::string& path);
  virtual absl::StatusOr<std::string> ReadIn(const ScopedHandle& directory, const std::string& name);
  // A file, or a directory of the folder with all that is in it. Best effort.
  virtual void RemoveAll(const std::string& path);
  virtual void RemoveEmptyDir(const std::string& path);  // Best effort.

 protected:
  FileSystem& fs_;
  const Handle folder_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_TRIALS_NODE_FILES_H_
