// What an earlier daemon left in a root, finished or removed. Idempotent: cut off at any point and run again,
// it ends the same.
#ifndef CKPTD_STORAGE_COMMIT_LOCAL_RECOVERY_H_
#define CKPTD_STORAGE_COMMIT_LOCAL_RECOVERY_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/commit/local/layout.h"
#include "storage/commit/local/publish.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

// A re-save that was cut off between its two renames: rolled forward when the new directory is there, else
// back.
absl::Status RecoverSwap(const Layout& layout);

// Every in-flight directory of our node but `live` (those of saves under way in this process): published when
// it is complete and above what its tag holds, else moved to trash. By sequence. Fails, and leaves a
// directory as it is, when it cannot find out what is in it. Anything under inflight/ that does not have one
// of our names is left alone.
absl::StatusOr<std::vector<RecoveredSave>> RecoverInflight(const PublishContext& context,
                                                           const std::set<std::string>& live);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_LOCAL_RECOVERY_H_
