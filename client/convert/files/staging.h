// A directory that is filled under a temporary name beside its final place, and appears there in one step or
// not at all.
//
//   <parent>/.ckptd-convert.<name>        while it is being filled
//   <parent>/.ckptd-convert-lock.<name>   locked (flock) by the process that fills it
//   <parent>/<name>                       afterwards
//
// The leftovers of a process that died are removed by the next one that works in the same parent directory.
// Those of a live process stay.
#ifndef CKPTD_CLIENT_CONVERT_FILES_STAGING_H_
#define CKPTD_CLIENT_CONVERT_FILES_STAGING_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// OK if `name` does not exist or is an empty directory. Otherwise FAILED_PRECONDITION, reason
// OUTPUT_NOT_EMPTY.
absl::Status CheckFree(FileSystem& fs, Handle parent, const std::string& name);

// OK if nothing has the name. Otherwise FAILED_PRECONDITION, reason OUTPUT_NOT_EMPTY.
absl::Status CheckFreeFile(FileSystem& fs, Handle parent, const std::string& name);

class Staging {
 public:
  // Makes the empty directory. `parent` must outlive the result. Adds the names of removed leftovers to
  // `removed`. FAILED_PRECONDITION, reason LOCKED, if another process is writing the same output; otherwise
  // as CheckFree.
  static absl::StatusOr<Staging> Make(FileSystem& fs, Handle parent, const std::string& name,
                                      std::vector<std::string>* removed);
  Staging(Staging&&) noexcept = default;
  Staging& operator=(Staging&&) = delete;
  ~Staging();  // Removes the directory unless it was published.

  Handle dir() const { return dir_.get(); }
  // Renames the directory to its place. The caller has synced everything beneath. UNKNOWN, reason
  // INDETERMINATE, if the directory is in place, but a power cut may undo that.
  absl::Status Publish();
  // Moves the file that has the output's name out of the directory to the output's place, which must be free, as by
  // CheckFreeFile. The caller has synced the file. INDETERMINATE as of Publish().
  absl::Status PublishFile();

 private:
  absl::Status SyncParent();

  Staging(FileSystem* fs, Handle parent, std::string name)
      : fs_(fs), parent_(parent), name_(std::move(name)) {}

  FileSystem* fs_;
  Handle parent_;
  std::string name_;
  ScopedHandle lock_;
  ScopedHandle dir_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_STAGING_H_
