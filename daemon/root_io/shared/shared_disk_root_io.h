// SharedFilesIo on a real file system: SharedRootStore and PartWriter behind the threads of the file system.
#ifndef CKPTD_DAEMON_ROOT_IO_SHARED_SHARED_DISK_ROOT_IO_H_
#define CKPTD_DAEMON_ROOT_IO_SHARED_SHARED_DISK_ROOT_IO_H_

#include <memory>

#include "daemon/engine/seams/shared_files_io.h"
#include "daemon/root_io/common/opened_root.h"
#include "daemon/root_io/shared/shared_root_identity.h"
#include "daemon/root_io/threads/root_threads.h"

namespace ckptd {

// Used by ThreadedRootIoFactory.
std::unique_ptr<SharedFilesIo> MakeSharedDiskRootIo(RootThreads threads, RootOpener open,
                                                    SharedRootIdentity identity);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_SHARED_SHARED_DISK_ROOT_IO_H_
