// The id of the run in a root that several nodes share: the same for all nodes, for as long as the root
// exists. The argument is at the top of shared_run_id.cc.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_RUN_ID_H_
#define CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_RUN_ID_H_

#include <string>

#include "absl/status/statusor.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// 32 lower-case hex digits, durable on return. The first daemon that asks makes it; several may ask at once.
// LOOK_AGAIN if another node has made it, and this one does not see it yet. FAILED_PRECONDITION, reason
// ROOT_UNREADABLE, if something else has its place.
absl::StatusOr<std::string> SharedRunId(const SharedLayout& layout);

// Writes this id again, after <root>/.ckptd was removed; several daemons may do that at once.
// FAILED_PRECONDITION, reason ROOT_CHANGED, if another id is there by now.
absl::Status RestoreSharedRunId(const SharedLayout& layout, const std::string& id);

// Gives the root of a copy another id, so that it is the root of a run of its own. No daemon may have it
// open. FAILED_PRECONDITION, reason ROOT_UNREADABLE, if it is not the root of a run of several nodes.
struct RenewedRunId {
  std::string before, after;
};
absl::StatusOr<RenewedRunId> RenewSharedRunId(FileSystem* fs, Handle root);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_RUN_ID_H_
