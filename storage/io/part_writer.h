// Writes the files of one part: fallocated files, big direct writes at depth, CRC32C of every chunk beside
// them, cut to size, fdatasync. Design: docs/design.md, "The commit, step by step", step 2.
//
// The rules: every completion's result is compared with what was asked; a short write goes on where it ended;
// any error fails the part; a sync that failed is never repeated on that file.
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

// A file image in memory: runs of bytes that follow one another in the file. All runs but the last are
// multiples of 4096 bytes; every run starts on a 4096 boundary in memory, and is readable up to the next one
// (so that the odd tail can be written padded).
struct FileImage {
  std::string path;
  int64_t size = 0;
  std::vector<std::span<const std::byte>> runs;
};

struct WrittenFile {
  std::string path;
  int64_t size = 0;
  std::vector<uint32_t> chunk_crc32c;  // One for each chunk_bytes.
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

// One I/O thread for one file system: owns a queue, runs what is posted to it.
class IoThread {
 public:
  // Waits until the queue exists (or could not be made).
  static absl::StatusOr<std::unique_ptr<IoThread>> Start(std::string name, IoQueueFactory factory);
  ~IoThread();                                         // Waits for I/O in flight.
  void Post(absl::AnyInvocable<void(IoQueue&)> work);  // Thread-safe; runs on the I/O thread, in order.

 private:
  IoThread();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct PartWriterOptions {
  int32_t chunk_bytes = 8 << 20;  // A multiple of 4096.
  // Writes in flight, over all parts of this file system that are being written. 8 keep the disk busy; 16 do
  // so on a machine whose cores are busy, too.
  int depth = 16;
  bool direct = true;  // O_DIRECT; false where the probe said that it does not work.
};

// Shares `depth` writes in flight between all parts handed to it: the oldest part that has something to write
// goes first. Thread-safe.
//
// Creating, allocating, cutting and closing happen on the I/O thread, one file at a time while other writes
// are in flight, and no more than 64 files are open at once: a part may have any number of files, and is
// never opened as a whole.
class PartWriter {
 public:
  PartWriter(IoThread* io, ChecksumPool* checksums, PartWriterOptions options);
  ~PartWriter();  // Waits until every `done` has run.

  using Done = absl::AnyInvocable<void(absl::StatusOr<std::vector<WrittenFile>>)>;
  // Creates, allocates, writes, cuts and syncs each file, and computes its checksums. Never blocks. `fs` is
  // the one of this part's user. `dir` is the checkpoint's in-flight directory; directories above the files
  // exist already. `written_bytes` is added to as writes complete; on success it has grown by the sizes of
  // all files. `done` runs once, on the I/O thread, when neither I/O nor a checksum refers to the images any
  // more: after an error, too. An error names the file in its detail "path". The files are durable then;
  // their names are not until the directories are synced.
  void Write(FileSystem* fs, Handle dir, std::vector<FileImage> files, std::atomic<int64_t>* written_bytes,
             Done done);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_IO_PART_WRITER_H_
