// Writes the files of one part: fallocates them, writes large direct writes with many in flight, computes the
// CRC32C of every chunk, cuts the files to size, and calls fdatasync. This is step 2 of "The commit, step by
// step" in docs/design.md.
//
// Rules: each completion's result is compared with the request; a short write is continued where it ended;
// any error fails the part; a failed sync is never repeated on that file.
#ifndef CKPTD_STORAGE_IO_PART_WRITER_H_
#define CKPTD_STORAGE_IO_PART_WRITER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "storage/fs/file_system.h"
#include "storage/io/io_queue.h"

namespace ckptd {

// A file image in memory: runs of bytes that follow one another in the file. Each run starts on a 4096-byte
// boundary in memory. All runs but the last have a multiple of 4096 bytes. The last is readable up to the
// next multiple, so that its tail can be written with padding.
struct FileImage {
  std::string path;
  int64_t size = 0;
  std::vector<std::span<const std::byte>> runs;
};

struct WrittenFile {
  std::string path;
  int64_t size = 0;
  std::vector<uint32_t> chunk_crc32c;  // One for each chunk.
};

// Threads that compute checksums, shared by all roots.
class ChecksumPool {
 public:
  explicit ChecksumPool(int threads);
  ~ChecksumPool();                               // Runs what is queued, then ends.
  void Submit(absl::AnyInvocable<void()> work);  // Thread-safe.

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The I/O thread of one file system. It owns a queue and runs what is posted to it.
class IoThread {
 public:
  // Returns when the queue was made or could not be made.
  static absl::StatusOr<std::unique_ptr<IoThread>> Start(std::string name, IoQueueFactory factory);
  ~IoThread();  // Waits for the I/O in flight.
  void Post(
      absl::AnyInvocable<void(IoQueue&)> work);  // Runs `work` on the I/O thread, in order. Thread-safe.

 private:
  IoThread();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct PartWriterOptions {
  int32_t chunk_bytes = 8 << 20;  // A multiple of 4096.
  // Writes in flight, over all parts of this file system. 8 keep a disk busy, 16 also on a machine whose
  // cores are busy.
  int depth = 16;
  bool direct = true;  // Write with O_DIRECT. False if the probe found that it does not work.
};

// Shares `depth` writes in flight among all parts. The oldest part that has something to write goes first.
// Thread-safe.
//
// Files are created, allocated, cut and closed on the I/O thread, one at a time, while other writes are in
// flight. At most 64 files are open at once: a part may have any number of files, and is never opened as a
// whole.
class PartWriter {
 public:
  PartWriter(IoThread* io, ChecksumPool* checksums, PartWriterOptions options);
  ~PartWriter();  // Waits until every `done` has run.

  using Done = absl::AnyInvocable<void(absl::StatusOr<std::vector<WrittenFile>>)>;
  // Creates, allocates, writes, cuts and syncs each file, and computes its checksums. Does not block. `fs` is
  // the file system of this part's user. `dir` is the checkpoint's in-flight directory; the files' parent
  // directories exist. Adds to `written_bytes` as writes complete; on success it has grown by the sizes of
  // all files. Calls `done` once, on the I/O thread, when neither I/O nor a checksum refers to the images any
  // more, also after an error. An error names the file in its detail "path". On success the files are
  // durable; their names are not until the caller has synced the directories.
  void Write(FileSystem* fs, Handle dir, std::vector<FileImage> files, std::atomic<int64_t>* written_bytes,
             Done done);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_IO_PART_WRITER_H_
