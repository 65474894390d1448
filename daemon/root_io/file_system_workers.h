// The threads that a file system has to itself, so that one that hangs stalls nobody else: a metadata worker,
// and an I/O thread with its queue, made when the first root has been probed.
#ifndef CKPTD_DAEMON_ROOT_IO_FILE_SYSTEM_WORKERS_H_
#define CKPTD_DAEMON_ROOT_IO_FILE_SYSTEM_WORKERS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/root_io/write_progress.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/fs/file_system.h"
#include "storage/io/part_writer.h"
#include "storage/io/probe.h"

namespace ckptd {

class FileSystemWorkers {
 public:
  using Work = absl::AnyInvocable<void()>;

  // `name` tells file systems apart in logs and in lists of threads: "8:1". `queues`: of the I/O thread. An
  // error when no thread can be had.
  static absl::StatusOr<std::shared_ptr<FileSystemWorkers>> Start(std::string name, PartWriterOptions writer,
                                                                  std::shared_ptr<ChecksumPool> checksums,
                                                                  Clock* clock, IoQueueMakers queues = {});
  ~FileSystemWorkers();

  // Runs it on the metadata worker: what is urgent in order, what is not while nothing else is waiting.
  // Thread-safe. After the end of the worker it is not run.
  void PostUrgent(Work work);
  void PostIdle(Work work);

  // ---- on the metadata worker

  // Makes the I/O thread as the first root's probe chose, and says in `probe` what there is: what a later
  // root of the same file system finds, too. Where io_uring worked when it was probed and cannot be had now,
  // threads take its place unless it is `wanted`.
  absl::Status StartIo(IoBackend wanted, ProbeResult& probe);
  // As PartWriter::Write; `done` runs on the I/O thread.
  void Write(FileSystem* fs, Handle dir, std::vector<FileImage> files,
             std::shared_ptr<std::atomic<int64_t>> written_bytes, PartWriter::Done done);

  // ---- on any thread

  // Since when the metadata worker has been at one operation, or writes have been under way of which none
  // made progress; the earlier of the two. nullopt when neither is.
  std::optional<Instant> pending_since() const;
  const std::string& name() const { return name_; }

  // What is urgent still runs, then the threads end. Wait says whether they had by `deadline` (of the steady
  // clock); when they had not, they are left to themselves, with all that they use: the file system hangs,
  // and a thread in the kernel cannot be ended.
  void BeginEnd();
  bool WaitEnded(Instant deadline);
  // Joins the thread if it has ended; does not wait. Whether it had. After BeginEnd.
  bool TryJoin();

 private:
  FileSystemWorkers(std::string name, PartWriterOptions writer, std::shared_ptr<ChecksumPool> checksums,
                    Clock* clock, IoQueueMakers queues);
  void Run();
  std::optional<Work> Next();
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
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool deaf_ ABSL_GUARDED_BY(mutex_) = false;  // Takes nothing more.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Instant> busy_since_ ABSL_GUARDED_BY(mutex_);

  // Of the metadata worker.
  PartWriterOptions writer_options_;
  std::string backend_;
  std::string backend_cause_;
  std::unique_ptr<IoThread> io_;
  std::unique_ptr<PartWriter> writer_;

  mutable WriteProgress progress_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_FILE_SYSTEM_WORKERS_H_
