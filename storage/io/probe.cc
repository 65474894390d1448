// The probe makes these files in the scratch directory and removes them: `data`, `a`, `b`, `lock`. All but
// `data` are empty, so that a full disk can be probed: it may be full of what is about to be deleted.
#include "storage/io/probe.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kAlignment = 4096;
constexpr size_t kProbeBytes = 2 * kAlignment;
constexpr Duration kIoTimeout = std::chrono::seconds(60);
constexpr std::array kScratchFiles = {"data", "a", "b", "lock"};

using Buffer = std::shared_ptr<std::byte>;

Buffer AlignedBuffer(int fill) {
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kAlignment, kProbeBytes));
  std::memset(bytes, fill, kProbeBytes);
  return Buffer(bytes, [](std::byte* b) { std::free(b); });
}

// Removes the probe's files, also those of an earlier probe that was killed.
absl::Status Clear(FileSystem& fs, Handle scratch) {
  for (const char* name : kScratchFiles) {
    const absl::Status removed = fs.Remove(scratch, name, FileType::kRegular);
    if (!removed.ok() && ErrnoOf(removed) != ENOENT) {
      return Annotate(removed, "emptying the probe's directory");
    }
  }
  return absl::OkStatus();
}

absl::Status CreateEmpty(FileSystem& fs, Handle scratch, const char* name) {
  return OpenScoped(fs, scratch, name, OpenMode::kCreate).status();
}

absl::Status Unsuitable(const absl::Status& cause, const std::string& what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNSUITABLE",
                   absl::StrCat("this file system cannot hold checkpoints, because ", what, ": ",
                                std::string(cause.message()), "; choose another file system"));
}

// True if the file system lacks the operation. False if the operation failed.
bool IsUnsupported(const absl::Status& status) {
  const int error = ErrnoOf(status);
  return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS;
}

// Submits one operation and waits for its result. If none comes, the disk may still use `buffer`, so the
// queue keeps it.
absl::StatusOr<int64_t> RunOne(IoQueue& queue, const Buffer& buffer,
                               const std::function<void(IoDone)>& submit) {
  auto result = std::make_shared<std::optional<int64_t>>();
  submit([result, buffer](int64_t value) { *result = value; });
  const Instant deadline = SystemClock().Now() + kIoTimeout;
  while (!result->has_value()) {
    const Duration left = deadline - SystemClock().Now();
    if (left <= Duration::zero()) {
      return MakeError(
          absl::StatusCode::kDeadlineExceeded, "IO_ERROR",
          absl::StrCat("no answer from the disk within ", kIoTimeout / std::chrono::seconds(1), " s"));
    }
    queue.Poll(left);
  }
  if (**result < 0) return ErrnoError(static_cast<int>(-**result), "reading or writing the probe's file");
  return **result;
}

// Does what happens to a checkpoint's file: makes, allocates, writes and syncs it, opens it again, and
// compares what it reads.
absl::Status WriteAndReadBack(FileSystem& fs, Handle scratch, IoQueue& queue, bool direct) {
  const Buffer written = AlignedBuffer(0xc5);
  const Buffer read = AlignedBuffer(0);
  CKPTD_RETURN_IF_ERROR(Clear(fs, scratch));
  {
    CKPTD_ASSIGN_OR_RETURN(
        const ScopedHandle file,
        OpenScoped(fs, scratch, "data", direct ? OpenMode::kCreateDirect : OpenMode::kCreate));
    fs.Allocate(file.get(), kProbeBytes).IgnoreError();  // Probed separately.
    CKPTD_ASSIGN_OR_RETURN(const int64_t n, RunOne(queue, written, [&](IoDone done) {
                             queue.Write(file.get(), {written.get(), kProbeBytes}, 0, std::move(done));
                           }));
    if (n != kProbeBytes) return ErrnoError(EIO, absl::StrCat("writing ", kProbeBytes, " bytes wrote ", n));
    CKPTD_RETURN_IF_ERROR(
        RunOne(queue, written, [&](IoDone done) { queue.SyncData(file.get(), std::move(done)); }).status());
  }
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file,
                         OpenScoped(fs, scratch, "data", direct ? OpenMode::kReadDirect : OpenMode::kRead));
  CKPTD_ASSIGN_OR_RETURN(const int64_t n, RunOne(queue, read, [&](IoDone done) {
                           queue.Read(file.get(), {read.get(), kProbeBytes}, 0, std::move(done));
                         }));
  if (n != kProbeBytes || std::memcmp(written.get(), read.get(), kProbeBytes) != 0) {
    return ErrnoError(EIO, "the bytes that were read back differ from those written");
  }
  return absl::OkStatus();
}

absl::Status ProbeAllocate(FileSystem& fs, Handle scratch, ProbeResult& result) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs, scratch, "a", OpenMode::kCreate));
  const absl::Status allocated = fs.Allocate(file.get(), kProbeBytes);
  result.fallocate = allocated.ok() || ReasonOf(allocated) == "NO_SPACE";
  if (result.fallocate) return absl::OkStatus();
  if (!IsUnsupported(allocated)) return allocated;
  result.warnings.push_back("no fallocate: a full disk is only noticed while a checkpoint is written");
  return absl::OkStatus();
}

// Makes the files `a` and `b`, and leaves them.
absl::Status ProbeRename(FileSystem& fs, Handle scratch, ProbeResult& result) {
  CKPTD_RETURN_IF_ERROR(CreateEmpty(fs, scratch, "b"));
  CKPTD_ASSIGN_OR_RETURN(const FileStat a, fs.Stat(scratch, "a"));
  const absl::Status exchanged = fs.Rename(scratch, "a", scratch, "b", RenameMode::kExchange);
  if (exchanged.ok()) {
    CKPTD_ASSIGN_OR_RETURN(const FileStat b, fs.Stat(scratch, "b"));
    result.rename_exchange = a.inode == b.inode;
  } else if (!IsUnsupported(exchanged)) {
    return exchanged;
  }
  if (!result.rename_exchange) {
    result.warnings.push_back(
        "no rename with exchange: saving over an existing tag takes two renames and an intent record");
  }
  // EEXIST shows that the flag works. A file system that does not know it returns EINVAL.
  const absl::Status kept = fs.Rename(scratch, "a", scratch, "b", RenameMode::kNoReplace);
  result.rename_noreplace = ErrnoOf(kept) == EEXIST;
  if (!result.rename_noreplace && !kept.ok() && !IsUnsupported(kept)) return kept;
  return absl::OkStatus();
}

absl::Status ProbeDirectorySync(FileSystem& fs, Handle scratch, ProbeResult& result) {
  const absl::Status synced = fs.Sync(scratch, SyncMode::kAll);
  if (!synced.ok()) return Unsuitable(synced, "a directory cannot be synced");
  result.directory_sync = true;
  return absl::OkStatus();
}

absl::Status ProbeLock(FileSystem& fs, Handle scratch, ProbeResult& result) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle first, OpenScoped(fs, scratch, "lock", OpenMode::kLock));
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle second, OpenScoped(fs, scratch, "lock", OpenMode::kLock));
  const absl::Status locked = fs.Lock(first.get());
  if (!locked.ok()) return Unsuitable(locked, "a file cannot be locked");
  if (ReasonOf(fs.Lock(second.get())) != "LOCKED") {
    return Unsuitable(absl::UnknownError("a second lock of one file was granted"), "locks do not exclude");
  }
  result.locks = true;
  return absl::OkStatus();
}

// Decides direct_io and the back end. io_uring is used only with direct I/O, unless it was demanded: buffered
// writes to one file block one another in the kernel, at a thread each (a quarter of the disk's speed, at ten
// times the CPU).
absl::Status ProbeIo(FileSystem& fs, Handle scratch, IoBackend wanted, const IoQueueMakers& queues,
                     ProbeResult& result) {
  const auto decide = [&](const char* backend, std::string cause) {
    result.io_backend = backend;
    result.io_backend_cause = std::move(cause);
    return absl::OkStatus();
  };
  std::string no_uring = "the configuration asks for threads";
  if (wanted != IoBackend::kThreads) {
    absl::StatusOr<std::unique_ptr<IoQueue>> uring = queues.uring(1);
    if (uring.ok()) {
      const absl::Status works = WriteAndReadBack(fs, scratch, **uring, /*direct=*/true);
      if (works.ok() || ReasonOf(works) == "NO_SPACE") {
        result.direct_io = true;
        return decide("io_uring", works.ok()
                                      ? "an aligned direct write through io_uring was read back equal"
                                      : "io_uring is there; the disk is full, so no write could be tried");
      }
      no_uring = absl::StrCat("a direct write through io_uring failed: ", std::string(works.message()));
      if (wanted == IoBackend::kUring && WriteAndReadBack(fs, scratch, **uring, /*direct=*/false).ok()) {
        return decide("io_uring", absl::StrCat("the configuration asks for it, although ", no_uring));
      }
    } else {
      no_uring = std::string(uring.status().message());
    }
    if (wanted == IoBackend::kUring) {
      return MakeError(absl::StatusCode::kUnavailable, "IO_URING_UNAVAILABLE",
                       absl::StrCat("the configuration asks for io_uring, but ", no_uring));
    }
  }
  CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> threads, queues.threads(1));
  const absl::Status direct = WriteAndReadBack(fs, scratch, *threads, /*direct=*/true);
  result.direct_io = direct.ok() || ReasonOf(direct) == "NO_SPACE";
  if (!result.direct_io) CKPTD_RETURN_IF_ERROR(WriteAndReadBack(fs, scratch, *threads, /*direct=*/false));
  return decide("threads", no_uring);
}

absl::Status ProbeAll(FileSystem& fs, Handle scratch, IoBackend wanted, const IoQueueMakers& queues,
                      ProbeResult& result) {
  CKPTD_RETURN_IF_ERROR(Clear(fs, scratch));
  CKPTD_RETURN_IF_ERROR(ProbeDirectorySync(fs, scratch, result));
  CKPTD_RETURN_IF_ERROR(ProbeLock(fs, scratch, result));
  CKPTD_RETURN_IF_ERROR(ProbeAllocate(fs, scratch, result));
  CKPTD_RETURN_IF_ERROR(ProbeRename(fs, scratch, result));
  return ProbeIo(fs, scratch, wanted, queues, result);
}

}  // namespace

absl::StatusOr<ProbeResult> ProbeDirectory(FileSystem& fs, Handle scratch, IoBackend wanted,
                                           const IoQueueMakers& queues) {
  ProbeResult result;
  CKPTD_ASSIGN_OR_RETURN(const SpaceInfo space, fs.Space(scratch));
  result.file_system = space.type;
  result.free_bytes = space.free_bytes;
  result.total_bytes = space.total_bytes;
  if (space.type == "tmpfs" || space.type == "ramfs") {
    result.warnings.push_back(absl::StrCat(space.type, " is memory: nothing here survives a reboot"));
  }
  const absl::Status probed = ProbeAll(fs, scratch, wanted, queues, result);
  const absl::Status cleared = Clear(fs, scratch);
  if (!probed.ok()) return probed;
  if (!cleared.ok()) return cleared;
  if (!result.direct_io) {
    result.warnings.push_back("no direct I/O: writes go through the page cache, slower and at more CPU");
  }
  return result;
}

}  // namespace ckptd
