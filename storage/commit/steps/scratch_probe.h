// Probes a root's file system in a scratch directory of a node, which is removed again.
#ifndef CKPTD_STORAGE_COMMIT_STEPS_SCRATCH_PROBE_H_
#define CKPTD_STORAGE_COMMIT_STEPS_SCRATCH_PROBE_H_

#include <string>

#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"
#include "storage/io/probe.h"

namespace ckptd {

// Makes `dir`/`name`, which no other daemon uses, and first removes what a daemon that died while probing has
// left there. Errors as ProbeDirectory; FAILED_PRECONDITION, reason ROOT_UNSUITABLE, if there is more than
// such a daemon leaves. `path`: of the scratch directory, for messages.
absl::StatusOr<ProbeResult> ProbeInScratch(FileSystem& fs, Handle dir, const std::string& name,
                                           const std::string& path, IoBackend wanted,
                                           const IoQueueMakers& queues);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_STEPS_SCRATCH_PROBE_H_
