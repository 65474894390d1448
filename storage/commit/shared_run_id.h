// The id of the run in a root that several nodes share: the same for all nodes, for as long as the root
// exists. The argument is at the top of shared_run_id.cc.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_RUN_ID_H_
#define CKPTD_STORAGE_COMMIT_SHARED_RUN_ID_H_

#include <string>

#include "absl/status/statusor.h"
#include "storage/commit/shared_layout.h"

namespace ckptd {

// 32 lower-case hex digits, durable on return. The first daemon that asks makes it; several may ask at once.
// LOOK_AGAIN if another node has made it, and this one does not see it yet. FAILED_PRECONDITION, reason
// ROOT_UNREADABLE, if something else has its place.
absl::StatusOr<std::string> SharedRunId(const SharedLayout& layout);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_RUN_ID_H_
