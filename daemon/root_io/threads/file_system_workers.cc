#include "daemon/root_io/threads/file_system_workers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/start_thread.h"
#include "storage/base/status_macros.h"

namespace ckptd {

FileSystemWorkers::FileSystemWorkers(std::string name, PartWriterOptions writer,
                                     std::shared_ptr<ChecksumPool> checksums, Clock* clock,
                                     IoQueueMakers queues)
    : name_(std::move(name)),
      checksums_(std::move(checksums)),
      clock_(clock),
      queues_(std::move(queues)),
      writer_options_(writer),
      progress_(clock) {}

FileSystemWorkers::~FileSystemWorkers() = default;

absl::StatusOr<std::shared_ptr<FileSystemWorkers>> FileSystemWorkers::Start(
    std::string name, PartWriterOptions writer, std::shared_ptr<ChecksumPool> checksums, Clock* clock,
    IoQueueMakers queues) {
  std::shared_ptr<FileSystemWorkers> workers(
      new FileSystemWorkers(std::move(name), writer, std::move(checksums), clock, std::move(queues)));
  // The thread shares ownership of what it uses: when the file system hangs, it outlives everything else.
  CKPTD_ASSIGN_OR_RETURN(workers->thread_,
                         StartThread(absl::StrCat("meta-", workers->name_), [workers] { workers->Run(); }));
  return workers;
}

void FileSystemWorkers::Post(bool urgent, Work work) {
  MutexLock lock(mutex_);
  if (closed_) return;
  (urgent ? urgent_ : idle_).push_back(std::move(work));
  changed_.SignalAll();
}

void FileSystemWorkers::PostUrgent(Work work) { Post(true, std::move(work)); }
void FileSystemWorkers::PostIdle(Work work) { Post(false, std::move(work)); }

void FileSystemWorkers::PostLater(Duration delay, Work work) {
  MutexLock lock(mutex_);
  if (closed_) return;
  later_.emplace(clock_->Now() + delay, std::move(work));
  changed_.SignalAll();
}

void FileSystemWorkers::TakeDue() {
  const auto due = later_.upper_bound(clock_->Now());
  for (auto work = later_.begin(); work != due; ++work) urgent_.push_back(std::move(work->second));
  later_.erase(later_.begin(), due);
}

void FileSystemWorkers::WaitForChange() {
  if (later_.empty()) return changed_.Wait(mutex_);
  changed_.WaitFor(mutex_, later_.begin()->first - clock_->Now());
}

// Waits for the next work; nullopt once the worker is to end.
std::optional<FileSystemWorkers::Work> FileSystemWorkers::Next() {
  MutexLock lock(mutex_);
  busy_since_.reset();
  for (TakeDue(); urgent_.empty() && idle_.empty() && !ending_; TakeDue()) WaitForChange();
  if (urgent_.empty() && ending_) {
    closed_ = true;
    busy_since_ = clock_->Now();  // Counts as pending until the thread has ended.
    return std::nullopt;
  }
  std::deque<Work>& queue = urgent_.empty() ? idle_ : urgent_;
  Work work = std::move(queue.front());
  queue.pop_front();
  busy_since_ = clock_->Now();
  return work;
}

void FileSystemWorkers::Run() {
  while (std::optional<Work> work = Next()) (*work)();
  writer_.reset();  // Waits for writes in flight.
  io_.reset();
  std::deque<Work> unused;
  {
    MutexLock lock(mutex_);
    unused.swap(idle_);
    for (auto& [due, work] : later_) unused.push_back(std::move(work));
    later_.clear();
  }
  unused.clear();  // Destroys roots that only this work still owns, outside the lock.
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.SignalAll();
}

void FileSystemWorkers::BeginEnd() {
  MutexLock lock(mutex_);
  ending_ = true;
  changed_.SignalAll();
}

bool FileSystemWorkers::ending() const {
  MutexLock lock(mutex_);
  return ending_;
}

bool FileSystemWorkers::WaitEnded(Instant deadline) {
  bool ended = false;
  {
    MutexLock lock(mutex_);
    for (Instant now = SystemClock().Now(); !ended_ && now < deadline; now = SystemClock().Now()) {
      changed_.WaitFor(mutex_, deadline - now);
    }
    ended = ended_;
  }
  if (!thread_.joinable()) return ended;
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return ended;
}

bool FileSystemWorkers::TryJoin() {
  {
    MutexLock lock(mutex_);
    if (!ended_) return false;
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

absl::Status FileSystemWorkers::StartIo(IoBackend wanted, ProbeResult& probe) {
  if (io_ == nullptr) {
    const int depth = writer_options_.depth;
    const std::string thread_name = absl::StrCat("io-", name_).substr(0, 15);
    backend_ = probe.io_backend;
    backend_cause_ = probe.io_backend_cause;
    const auto threads = [this, depth] { return queues_.threads(depth); };
    const auto uring = [this, depth] { return queues_.uring(std::max(16, 2 * depth)); };
    absl::StatusOr<std::unique_ptr<IoThread>> io = absl::UnavailableError("not tried");
    if (probe.io_backend == "io_uring") {
      io = IoThread::Start(thread_name, uring);
      if (!io.ok() && wanted == IoBackend::kUring) return io.status();
      if (!io.ok())
        backend_cause_ =
            absl::StrCat("io_uring worked in the probe, then failed: ", std::string(io.status().message()));
    }
    if (!io.ok()) {
      backend_ = "threads";
      io = IoThread::Start(thread_name, threads);
    }
    CKPTD_RETURN_IF_ERROR(io.status());
    io_ = *std::move(io);
    writer_options_.direct = writer_options_.direct && probe.direct_io;
    writer_ = std::make_unique<PartWriter>(io_.get(), checksums_.get(), writer_options_);
  }
  probe.io_backend = backend_;
  probe.io_backend_cause = backend_cause_;
  return absl::OkStatus();
}

void FileSystemWorkers::Write(FileSystem* fs, Handle dir, std::vector<FileImage> files,
                              std::shared_ptr<std::atomic<int64_t>> written_bytes, PartWriter::Done done) {
  const WriteProgress::Entry entry = progress_.Begin(written_bytes);
  writer_->Write(
      fs, dir, std::move(files), written_bytes.get(),
      [this, entry, done = std::move(done)](absl::StatusOr<std::vector<WrittenFile>> written) mutable {
        progress_.End(entry);
        done(std::move(written));
      });
}

std::optional<Instant> FileSystemWorkers::pending_since() const {
  std::optional<Instant> since;
  {
    MutexLock lock(mutex_);
    since = busy_since_;
  }
  const std::optional<Instant> stuck = progress_.StuckSince();
  if (stuck && (!since || *stuck < *since)) since = stuck;
  return since;
}

}  // namespace ckptd
