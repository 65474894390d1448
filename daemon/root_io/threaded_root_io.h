// RootIo on real file systems: RootStore and PartWriter behind threads that all roots of one file system
// share.
#ifndef CKPTD_DAEMON_ROOT_IO_THREADED_ROOT_IO_H_
#define CKPTD_DAEMON_ROOT_IO_THREADED_ROOT_IO_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "daemon/base/worker_pool.h"
#include "daemon/engine/seams/local_root_io.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "daemon/root_io/bucket/bucket_root_io.h"
#include "daemon/root_io/common/opened_root.h"
#include "daemon/root_io/shared/shared_disk_root_io.h"
#include "daemon/root_io/threads/file_system_workers.h"
#include "daemon/root_io/threads/root_threads.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/file_system.h"
#include "storage/fs/posix_file_system.h"
#include "storage/io/part_writer.h"
#include "storage/io/probe.h"

namespace ckptd {

// Makes RootIos and owns their threads. Used on the engine's thread, except for Close, which the owner calls
// when that thread has ended or is about to.
class ThreadedRootIoFactory {
 public:
  using Post = EngineGate::Post;  // Runs work on the engine's thread; thread-safe.
  using RootDirectory = ckptd::RootDirectory;

  ThreadedRootIoFactory(ThreadedRootIoOptions options, Clock* clock, Post post);
  ~ThreadedRootIoFactory();  // Close(5 s).

  // `root`: a directory, possibly open with O_PATH. Open() opens it anew, as `user`, on the metadata worker,
  // because only that thread may wait for the file system. Fails if a thread cannot be started.
  absl::StatusOr<std::unique_ptr<LocalRootIo>> Make(UniqueFd root, std::optional<FileUser> user);

  // The same on a file system of a test. `open` is called on the metadata worker at each Open(). Roots of one
  // `device` share their threads.
  absl::StatusOr<std::unique_ptr<LocalRootIo>> Make(const std::string& device, RootOpener open);

  // For a root that several nodes share. Takes no lock: the nodes agree through etcd.
  absl::StatusOr<std::unique_ptr<SharedFilesIo>> MakeShared(UniqueFd root, std::optional<FileUser> user,
                                                            SharedRootIdentity identity);
  absl::StatusOr<std::unique_ptr<SharedFilesIo>> MakeShared(const std::string& device, RootOpener open,
                                                            SharedRootIdentity identity);

  // In a bucket.
  absl::StatusOr<std::unique_ptr<LocalRootIo>> MakeBucket(BucketRoot root);

  // Stops all callbacks, lets queued operations end, then ends the threads. Returns the names (major:minor)
  // of the file systems that did not answer within `timeout`. Their threads are abandoned and go on using the
  // images that they were writing: the process must then end by _exit, with its segments still mapped.
  std::vector<std::string> Close(Duration timeout);

 private:
  class Io;

  absl::StatusOr<RootThreads> ThreadsOf(const std::string& device);
  absl::StatusOr<std::shared_ptr<FileSystemWorkers>> WorkersOf(const std::string& name);
  void DropUnused();

  const ThreadedRootIoOptions options_;
  Clock* const clock_;
  const std::shared_ptr<EngineGate> gate_;
  const std::shared_ptr<ChecksumPool> checksums_;  // Of what is written.
  const std::shared_ptr<ChecksumPool> checks_;     // Of resident copies.
  // By device, "8:1", or by the URL of a root in a bucket. "ask-8:1" answers queries, "scrub-8:1" reads back and
  // removes, "try-8:1" tries it with other nodes.
  std::map<std::string, std::shared_ptr<FileSystemWorkers>> workers_;
  std::map<std::string, std::weak_ptr<char>> devices_;  // In use by a RootIo.
  // Threads whose last RootIo is gone, not joined yet.
  std::vector<std::shared_ptr<FileSystemWorkers>> ending_;
  std::unique_ptr<WorkerPool> senders_;  // To buckets. Null until a root is in one.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_THREADED_ROOT_IO_H_
