#include "daemon/root_io/common/opened_root.h"

#include <utility>

#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {

absl::Status RootNotOpen() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNREADABLE", "the root is not open");
}

absl::Status OpenedRoot::OpenDirectory() {
  dir.reset();  // Left by an attempt that failed.
  CKPTD_ASSIGN_OR_RETURN(RootDirectory opened, open_directory());
  fs = std::move(opened.fs);
  dir = std::move(opened.handle);
  return absl::OkStatus();
}

}  // namespace ckptd
