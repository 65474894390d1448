// A directory that is made beside the place where it is to be, and appears there in one step or not at all.
//
//   <parent>/.ckptd-convert.<name>        while it is being filled
//   <parent>/.ckptd-convert-lock.<name>   held (flock) by who fills it
//   <parent>/<name>                       afterwards
//
// What a process that died has left is removed by the next one that works in the same parent directory; that
// of one that lives is left alone.
#ifndef CKPTD_CLIENT_CONVERT_STAGING_H_
#define CKPTD_CLIENT_CONVERT_STAGING_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// OK when `name` is free, or an empty directory. FAILED_PRECONDITION, reason OUTPUT_NOT_EMPTY.
absl::Status CheckFree(FileSystem& fs, Handle parent, const std::string& name);

class Staging {
 public:
  // Makes the directory, empty. `parent` must outlive it. `removed` gets the names of left-overs that were
  // removed. FAILED_PRECONDITION, reason LOCKED: somebody else is writing the same place; as CheckFree.
  static absl::StatusOr<Staging> Make(FileSystem& fs, Handle parent, const std::string& name,
                                      std::vector<std::string>* removed);
  Staging(Staging&&) noexcept = default;
  Staging& operator=(Staging&&) = delete;
  ~Staging();  // Removes what was not published.

  Handle dir() const { return dir_.get(); }
  // Everything beneath is durable already. UNKNOWN, reason INDETERMINATE: it is there, and a power cut may
  // take it away again.
  absl::Status Publish();

 private:
  Staging(FileSystem* fs, Handle parent, std::string name)
      : fs_(fs), parent_(parent), name_(std::move(name)) {}

  FileSystem* fs_;
  Handle parent_;
  std::string name_;
  ScopedHandle lock_;
  ScopedHandle dir_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_STAGING_H_
