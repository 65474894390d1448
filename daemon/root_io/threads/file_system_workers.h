// The threads of one file system, so that a file system that hangs does not stall the others: a metadata
// worker, and an I/O thread with its queue, started once the first root has been probed.
#ifndef CKPTD_DAEMON_ROOT_IO_THREADS_FILE_SYSTEM_WORKERS_H_
#define CKPTD_DAEMON_ROOT_IO_THREADS_FILE_SYSTEM_WORKERS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/root_io/threads/write_progress.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/fs/file_system.h"
#include "storage/io/part_writer.h"
#include "storage/io/probe.h"

namespace ckptd {

class FileSystemWorkers {
 public:
  using Work = absl::AnyInvocable<void()>;

  // `name` (such as "8:1") names the file system in logs and in lists of threads. `queues` makes the queue of
  // the I/O thread. Fails if the thread cannot be started.
  static absl::StatusOr<std::shared_ptr<FileSystemWorkers>> Start(std::string name, PartWriterOptions writer,
                                                                  std::shared_ptr<ChecksumPool> checksums,
                                                                  Clock* clock, IoQueueMakers queues = {});
  ~FileSystemWorkers();

  // Runs `work` on the metadata worker: urgent work in order, idle work only while no urgent work waits.
  // Thread-safe. Dropped once the worker has ended.
  void PostUrgent(Work work);
  void PostIdle(Work work);
  // As PostUrgent, after `delay`. Work that is not due yet when the worker is to end is dropped.
  void PostLater(Duration delay, Work work);

  // ---- call on the metadata worker

  // Starts the I/O thread with the back end that the first root's probe chose, and sets `probe` to what is in
  // use, also for later roots of the file system. If io_uring worked in the probe and fails now, threads
  // replace it unless io_uring is `wanted`.
  absl::Status StartIo(IoBackend wanted, ProbeResult& probe);
  // As PartWriter::Write; `done` runs on the I/O thread.
  void Write(FileSystem* fs, Handle dir, std::vector<FileImage> files,
             std::shared_ptr<std::atomic<int64_t>> written_bytes, PartWriter::Done done);

  // ---- call on any thread

  // Since when the metadata worker has been at one operation, or writes in flight have made no progress; the
  // earlier of the two. nullopt if neither.
  std::optional<Instant> pending_since() const;
  const std::string& name() const { return name_; }

  // BeginEnd lets queued urgent work run, then ends the threads. WaitEnded returns whether they had ended by
  // `deadline` (of the steady clock). If not, they are detached with all that they use: the file system
  // hangs, and a thread inside the kernel cannot be ended.
  void BeginEnd();
  // For work that waits for something: it is to give up.
  bool ending() const;
  bool WaitEnded(Instant deadline);
  // Joins the thread if it has ended, without waiting. Returns whether it had. Call it after BeginEnd.
  bool TryJoin();

 private:
  FileSystemWorkers(std::string name, PartWriterOptions writer, std::shared_ptr<ChecksumPool> checksums,
                    Clock* clock, IoQueueMakers queues);
  void Run();
  std::optional<Work> Next();
  void TakeDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);        // Moves due work to the urgent work.
  void WaitForChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // Or until work is due.
  void Post(bool urgent, Work work);

  const std::string name_;
  const std::shared_ptr<ChecksumPool> checksums_;
  Clock* const clock_;
  const IoQueueMakers queues_;
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Work> urgent_ ABSL_GUARDED_BY(mutex_);
  std::deque<Work> idle_ ABSL_GUARDED_BY(mutex_);
  std::multimap<Instant, Work> later_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // Post drops its work.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Instant> busy_since_ ABSL_GUARDED_BY(mutex_);

  // Used on the metadata worker only.
  PartWriterOptions writer_options_;
  std::string backend_;
  std::string backend_cause_;
  std::unique_ptr<IoThread> io_;
  std::unique_ptr<PartWriter> writer_;

  mutable WriteProgress progress_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_THREADS_FILE_SYSTEM_WORKERS_H_
