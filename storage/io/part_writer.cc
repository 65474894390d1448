// How a part is written. Everything runs on the I/O thread, except the checksums.
//
//   1. Files are opened in order, whenever one more write can be submitted; at most kMaxOpenFiles are open.
//   2. Each file is fallocated and then written chunk by chunk. A chunk that crosses the end of a run of
//      memory is several writes. The chunk's checksum is computed on the pool at the same time; both only
//      read the memory.
//   3. When its last write is complete, the file is cut to size and synced, while the next files are written.
//   4. A part is settled when nothing of it is in the queue: all files are synced, or something failed. It is
//      done when none of its checksums is under way, either.
#include "storage/io/part_writer.h"

#include <algorithm>
#include <cerrno>
#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// Direct I/O needs this for offsets, lengths and memory. No disk in use has larger blocks.
constexpr int64_t kAlignment = 4096;
// Over all parts. Enough that the syncs of small files share journal commits of the file system.
constexpr int kMaxOpenFiles = 64;

int64_t RoundUp(int64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

absl::Status FileError(const std::string& path, const absl::Status& status) {
  ErrorDetails details = DetailsOf(status);
  details["path"] = path;
  return MakeError(status.code(), ReasonOf(status), absl::StrCat(path, ": ", std::string(status.message())),
                   details);
}

absl::Status CheckImage(const FileImage& image) {
  int64_t size = 0;
  for (size_t i = 0; i < image.runs.size(); ++i) {
    const std::span<const std::byte> run = image.runs[i];
    const bool last = i + 1 == image.runs.size();
    const bool aligned = reinterpret_cast<uintptr_t>(run.data()) % kAlignment == 0;
    if (run.empty() || !aligned || (!last && run.size() % kAlignment != 0)) {
      return InvalidArgument(absl::StrCat("run ", i, " of ", image.path, " has ", run.size(), " bytes",
                                          aligned ? "" : " and does not start on a 4096 boundary",
                                          "; all but the last must be multiples of 4096"));
    }
    size += static_cast<int64_t>(run.size());
  }
  if (size == image.size) return absl::OkStatus();
  return InvalidArgument(
      absl::StrCat("the runs of ", image.path, " have ", size, " bytes together, not ", image.size));
}

// A part that is being written. Belongs to the I/O thread, except for what the checksums use.
struct Part {
  FileSystem* fs;
  Handle dir;
  const std::vector<FileImage> images;
  std::atomic<int64_t>* written_bytes;
  PartWriter::Done done;

  std::vector<WrittenFile> written;
  size_t next_file = 0;  // The next file to open.
  size_t synced_files = 0;
  int in_queue = 0;     // Writes and syncs in the queue.
  absl::Status status;  // The first failure.

  std::atomic<bool> failed = false;  // !status.ok(), for the checksums.
  // One hold for each checksum under way, and one for the I/O. Only the releaser of the last one may touch
  // the part.
  std::atomic<int> holds = 1;
};

// A file that is being written or synced.
struct OpenFile {
  OpenFile(Part* owner, size_t number, bool is_direct, int* open)
      : part(owner), index(number), direct(is_direct), count(open) {
    ++*count;
  }
  ~OpenFile() { Close(); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  const FileImage& image() const { return part->images[index]; }
  void Close() {
    handle.reset();
    if (count != nullptr) --*count;
    count = nullptr;
  }

  Part* const part;
  const size_t index;
  const bool direct;
  int* count;  // The number of open files. Null: this one is closed.
  ScopedHandle handle;
  int in_queue = 0;
  int64_t issued = 0;  // Bytes from the start whose writes have been submitted.
  size_t run = 0;      // The run that `issued` is in, and the bytes of it before `issued`.
  size_t run_offset = 0;
};

// One write. `size` may exceed the end of the file, up to a multiple of 4096.
struct Piece {
  const std::byte* data;
  int64_t size;
  int64_t offset;
};

}  // namespace

class PartWriter::Impl {
 public:
  Impl(IoThread* io, ChecksumPool* checksums, PartWriterOptions options)
      : io_(io), checksums_(checksums), options_(options) {}

  ~Impl() {
    MutexLock lock(mutex_);
    while (unfinished_ > 0) changed_.Wait(mutex_);
  }

  void Write(std::unique_ptr<Part> part) {
    {
      MutexLock lock(mutex_);
      ++unfinished_;
    }
    io_->Post([this, part = std::move(part)](IoQueue& queue) mutable {
      queue_ = &queue;
      Begin(std::move(part));
      Pump();
    });
  }

 private:
  using FilePtr = std::shared_ptr<OpenFile>;
  struct Writing {
    std::unique_ptr<Part> part;
    FilePtr file;  // The file whose writes are being submitted.
  };

  void Begin(std::unique_ptr<Part> part) {
    for (const FileImage& image : part->images) {
      const absl::Status good = CheckImage(image);
      if (!good.ok()) Fail(*part, good);
      const int64_t chunks = (image.size + options_.chunk_bytes - 1) / options_.chunk_bytes;
      part->written.push_back({image.path, image.size, std::vector<uint32_t>(static_cast<size_t>(chunks))});
    }
    parts_.push_back({std::move(part), nullptr});
  }

  // Fills the queue, oldest part first, and drops the parts that are settled.
  void Pump() {
    for (auto it = parts_.begin(); it != parts_.end();) {
      while (writes_in_queue_ < options_.depth && Advance(*it)) {
      }
      const Part& part = *it->part;
      const bool settled = part.in_queue == 0 && (part.failed || part.synced_files == part.images.size());
      if (!settled) {
        ++it;
        continue;
      }
      Part* const released = it->part.release();
      it = parts_.erase(it);
      if (LetGo(released)) Finish(std::unique_ptr<Part>(released));
    }
  }

  // Submits one write or opens the next file. False if nothing can be done now.
  bool Advance(Writing& writing) {
    Part& part = *writing.part;
    if (part.failed) {
      writing.file.reset();
      return false;
    }
    if (writing.file == nullptr) {
      if (part.next_file == part.images.size() || open_files_ >= kMaxOpenFiles) return false;
      auto file = std::make_shared<OpenFile>(&part, part.next_file++, options_.direct, &open_files_);
      const absl::Status opened = Open(*file);
      if (!opened.ok()) {
        Fail(part, FileError(file->image().path, opened));
      } else if (file->image().size == 0) {
        CutAndSync(std::move(file));
      } else {
        writing.file = std::move(file);
      }
      return true;
    }
    // Buffered writes to one file block one another in the kernel, and each costs a thread there.
    if (!writing.file->direct && writing.file->in_queue > 0) return false;
    StartChecksum(*writing.file);
    const Piece piece = NextPiece(*writing.file);
    const bool last = writing.file->issued == writing.file->image().size;
    SubmitWrite(last ? std::move(writing.file) : writing.file, piece);
    if (last) writing.file.reset();
    return true;
  }

  absl::Status Open(OpenFile& file) {
    FileSystem& fs = *file.part->fs;
    const FileImage& image = file.image();
    const bool direct = file.direct && image.size > 0;
    CKPTD_ASSIGN_OR_RETURN(file.handle, OpenScoped(fs, file.part->dir, image.path,
                                                   direct ? OpenMode::kCreateDirect : OpenMode::kCreate));
    if (image.size == 0) return absl::OkStatus();
    const absl::Status allocated = fs.Allocate(file.handle.get(), direct ? RoundUp(image.size) : image.size);
    const int error = ErrnoOf(allocated);
    // Some file systems cannot allocate (NFS before 4.2). Then the writes find out whether there is space.
    if (error == EOPNOTSUPP || error == ENOSYS) return absl::OkStatus();
    return allocated;
  }

  // Called at each write; starts a checksum at the start of a chunk.
  void StartChecksum(const OpenFile& file) {
    if (file.issued % options_.chunk_bytes != 0) return;
    Part* const part = file.part;
    part->holds.fetch_add(1, std::memory_order_relaxed);
    checksums_->Submit(
        [this, part, index = file.index, offset = file.issued, run = file.run, run_offset = file.run_offset] {
          if (!part->failed) Checksum(*part, index, offset, run, run_offset);
          if (LetGo(part)) {
            io_->Post([this, part](IoQueue&) { Finish(std::unique_ptr<Part>(part)); });
          }
        });
  }

  // Runs on the pool.
  void Checksum(Part& part, size_t index, int64_t offset, size_t run, size_t run_offset) const {
    const FileImage& image = part.images[index];
    auto left = static_cast<size_t>(std::min<int64_t>(options_.chunk_bytes, image.size - offset));
    uint32_t crc = 0;
    while (left > 0) {
      const std::span<const std::byte> rest = image.runs[run++].subspan(run_offset);
      const size_t size = std::min(left, rest.size());
      crc = Crc32c(rest.first(size), crc);
      left -= size;
      run_offset = 0;
    }
    part.written[index].chunk_crc32c[static_cast<size_t>(offset / options_.chunk_bytes)] = crc;
  }

  // The next write: up to the end of the chunk, of the run or of the file, whichever comes first.
  Piece NextPiece(OpenFile& file) const {
    const std::span<const std::byte> run = file.image().runs[file.run];
    const int64_t in_chunk = options_.chunk_bytes - file.issued % options_.chunk_bytes;
    const auto in_run = static_cast<int64_t>(run.size() - file.run_offset);
    Piece piece = {run.data() + file.run_offset, std::min(in_chunk, in_run), file.issued};
    file.issued += piece.size;
    file.run_offset += static_cast<size_t>(piece.size);
    if (file.run_offset == run.size()) {
      ++file.run;
      file.run_offset = 0;
    }
    if (file.direct) piece.size = RoundUp(piece.size);
    return piece;
  }

  void SubmitWrite(FilePtr file, const Piece& piece) {
    ++writes_in_queue_;
    ++file->in_queue;
    ++file->part->in_queue;
    const Handle handle = file->handle.get();
    queue_->Write(handle, {piece.data, static_cast<size_t>(piece.size)}, piece.offset,
                  [this, file = std::move(file), piece](int64_t result) {
                    --writes_in_queue_;
                    OnWritten(file, piece, result);
                    Pump();
                  });
  }

  void OnWritten(const FilePtr& file, const Piece& piece, int64_t result) {
    Part& part = *file->part;
    --file->in_queue;
    --part.in_queue;
    if (!part.failed) {
      const absl::Status good = CheckResult(*file, piece, result);
      if (!good.ok()) {
        Fail(part, FileError(file->image().path, good));
      } else {
        const int64_t end = std::min(piece.offset + result, file->image().size);
        part.written_bytes->fetch_add(end - piece.offset, std::memory_order_relaxed);
        if (result < piece.size) {
          SubmitWrite(file, {piece.data + result, piece.size - result, piece.offset + result});
        } else if (file->in_queue == 0 && file->issued == file->image().size) {
          CutAndSync(file);
        }
      }
    }
    if (part.failed && file->in_queue == 0) file->Close();
  }

  // OK if the write is complete, or short and can be continued where it ended, as far as direct I/O allows
  // it.
  static absl::Status CheckResult(const OpenFile& file, const Piece& piece, int64_t result) {
    const std::string what = absl::StrCat("writing ", piece.size, " bytes at byte ", piece.offset);
    if (result < 0) return ErrnoError(static_cast<int>(-result), what);
    const bool resumable = result > 0 && result < piece.size && (!file.direct || result % kAlignment == 0);
    if (result == piece.size || resumable) return absl::OkStatus();
    return ErrnoError(EIO, absl::StrCat(what, ": the kernel wrote only ", result, " bytes"));
  }

  void CutAndSync(FilePtr file) {
    Part& part = *file->part;
    const FileImage& image = file->image();
    if (file->direct && image.size % kAlignment != 0) {
      const absl::Status cut = part.fs->Truncate(file->handle.get(), image.size);
      if (!cut.ok()) return Fail(part, FileError(image.path, cut));
    }
    ++file->in_queue;
    ++part.in_queue;
    const Handle handle = file->handle.get();
    queue_->SyncData(handle, [this, file = std::move(file)](int64_t result) {
      OnSynced(*file, result);
      Pump();
    });
  }

  // Called once for each file. A failed sync is never repeated: a second one may succeed without the data.
  void OnSynced(OpenFile& file, int64_t result) {
    Part& part = *file.part;
    --file.in_queue;
    --part.in_queue;
    file.Close();
    if (result == 0) {
      ++part.synced_files;
    } else {
      Fail(part, FileError(file.image().path, ErrnoError(static_cast<int>(-result), "syncing")));
    }
  }

  static void Fail(Part& part, const absl::Status& status) {
    if (part.failed) return;
    part.status = status;
    part.failed = true;
  }

  // True for the last hold: the caller owns the part then. Otherwise it must not touch the part any more.
  static bool LetGo(Part* part) { return part->holds.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  void Finish(std::unique_ptr<Part> part) {
    if (part->status.ok()) {
      part->done(std::move(part->written));
    } else {
      part->done(part->status);
    }
    part.reset();
    // Posted, because callers further up the stack still use this object.
    io_->Post([this](IoQueue&) {
      MutexLock lock(mutex_);
      --unfinished_;
      changed_.SignalAll();
    });
  }

  IoThread* const io_;
  ChecksumPool* const checksums_;
  const PartWriterOptions options_;

  // Used on the I/O thread only.
  IoQueue* queue_ = nullptr;
  std::list<Writing> parts_;  // Not settled yet, oldest first.
  int writes_in_queue_ = 0;   // <= options_.depth
  int open_files_ = 0;        // <= kMaxOpenFiles

  Mutex mutex_;
  CondVar changed_;
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
};

PartWriter::PartWriter(IoThread* io, ChecksumPool* checksums, PartWriterOptions options)
    : impl_(std::make_unique<Impl>(io, checksums, options)) {}
PartWriter::~PartWriter() = default;

void PartWriter::Write(FileSystem* fs, Handle dir, std::vector<FileImage> files,
                       std::atomic<int64_t>* written_bytes, Done done) {
  impl_->Write(std::unique_ptr<Part>(new Part{.fs = fs,
                                              .dir = dir,
                                              .images = std::move(files),
                                              .written_bytes = written_bytes,
                                              .done = std::move(done),
                                              .written = {},
                                              .status = {}}));
}

}  // namespace ckptd
