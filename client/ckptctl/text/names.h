// Resolves what users write for a run or a checkpoint to the protocol's names.
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_NAMES_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_NAMES_H_

#include <string>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"

namespace ckptd::ctl {

// RUN is `runs/<id>`, or any path to a root's directory. The directory's device and inode identify the run: a
// client may name any path as its root. Only if this process cannot stat the path, it is compared with the
// paths that clients gave, and then exactly one run must match. NOT_FOUND, reason UNKNOWN_RUN, lists the
// known runs.
absl::StatusOr<v1::Run> FindRun(const v1::ListRunsResponse& runs, const std::string& run);

// Whether the run's root is the directory at `path`; false if the caller may not stat that. The path that a run has is
// no proof: its client may have named any path.
bool IsRootOf(const v1::Run& run, const std::string& path);

// NAME is `runs/<id>/checkpoints/<tag>`, or ROOT/TAG, or a tag alone if there is only one run. Returns
// `runs/<id>/checkpoints/<tag>`.
absl::StatusOr<std::string> CheckpointName(const v1::ListRunsResponse& runs, const std::string& name);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_NAMES_H_
