// Emptying the trash of a root, step by step, between the threads of its file system.
#ifndef CKPTD_DAEMON_ROOT_IO_LOCAL_EMPTY_TRASH_H_
#define CKPTD_DAEMON_ROOT_IO_LOCAL_EMPTY_TRASH_H_

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "daemon/root_io/local/threaded_root.h"
#include "daemon/root_io/threads/file_system_workers.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

// Removes one directory from trash after the other, until only those are left that `terms` leave, and
// checkpoints that have open readers. `workers`: the metadata worker, which only chooses the directories.
// `remover`: the worker that removes them, which may take a second for each GiB, so that commits and opens
// need not wait for it. `answer` runs on one of the two; never, if the root is abandoned meanwhile.
void EmptyTrashOf(std::shared_ptr<ThreadedRoot> root, std::shared_ptr<FileSystemWorkers> workers,
                  std::shared_ptr<FileSystemWorkers> remover, TrashTerms terms,
                  absl::AnyInvocable<void(absl::StatusOr<TrashLeft>)> answer);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_LOCAL_EMPTY_TRASH_H_
