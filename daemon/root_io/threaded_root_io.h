// RootIo on real file systems: RootStore and PartWriter behind threads, which all roots of one file system
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
#include "daemon/engine/root_io.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"
#include "storage/fs/file_system.h"
#include "storage/fs/posix_file_system.h"
#include "storage/io/part_writer.h"
#include "storage/io/probe.h"

namespace ckptd {

class FileSystemWorkers;

struct ThreadedRootIoOptions {
  std::string node = "local";
  IoBackend backend = IoBackend::kAuto;
  PartWriterOptions writer;  // `direct` is what the probe finds, unless it is false here.
  int checksum_threads = 1;
  IoQueueMakers queues = {};  // Of the back ends that are probed and used.
};

// Makes RootIos, and owns their threads. Used on the engine's thread, but for Close, which comes when that
// has ended or is about to.
class ThreadedRootIoFactory {
 public:
  using Post =
      std::function<void(absl::AnyInvocable<void()>)>;  // Runs it on the engine's thread; thread-safe.

  ThreadedRootIoFactory(ThreadedRootIoOptions options, Clock* clock, Post post);
  ~ThreadedRootIoFactory();  // Close(5 s).

  // An error where the threads of its file system cannot be had.
  //
  // `root`: a directory, possibly open with O_PATH; Open() opens it anew, as `user`, for only the metadata
  // worker may wait for its file system.
  absl::StatusOr<std::unique_ptr<RootIo>> Make(UniqueFd root, std::optional<FileUser> user);

  // The same in a file system that is not the kernel's (in tests). `open` is called on the metadata worker,
  // each time that Open() is; roots of one `device` share their threads.
  struct RootDirectory {
    std::shared_ptr<FileSystem> fs;
    ScopedHandle handle;
  };
  using OpenRootDirectory = absl::AnyInvocable<absl::StatusOr<RootDirectory>()>;
  absl::StatusOr<std::unique_ptr<RootIo>> Make(const std::string& device, OpenRootDirectory open);

  // No callback runs any more; operations that were asked for end, then their threads. Returns the names
  // (major:minor) of the file systems that did not answer within `patience`: their threads are left behind,
  // and go on to use the images that they were writing. So then the process must leave by _exit, with its
  // segments still mapped.
  std::vector<std::string> Close(Duration patience);

 private:
  class Gate;
  class Io;

  absl::StatusOr<std::shared_ptr<FileSystemWorkers>> WorkersOf(const std::string& name);
  void DropUnused();

  const ThreadedRootIoOptions options_;
  Clock* const clock_;
  const std::shared_ptr<Gate> gate_;
  const std::shared_ptr<ChecksumPool> checksums_;
  std::map<std::string, std::shared_ptr<FileSystemWorkers>>
      workers_;  // By device, "8:1"; "ask-8:1" answers questions, "scrub-8:1" reads back.
  std::map<std::string, std::weak_ptr<char>> devices_;      // In use by a RootIo.
  std::vector<std::shared_ptr<FileSystemWorkers>> ending_;  // Their last RootIo is gone.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_THREADED_ROOT_IO_H_
