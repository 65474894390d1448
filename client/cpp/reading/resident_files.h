// Reads and maps a checkpoint's files from the resident copy in the daemon's memory, without the disk.
#ifndef CKPTD_CLIENT_CPP_READING_RESIDENT_FILES_H_
#define CKPTD_CLIENT_CPP_READING_RESIDENT_FILES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/memory/mapping.h"
#include "client/cpp/session/handoff.h"
#include "client/cpp/session/session.h"
#include "storage/commit/checkpoint/disk_file.h"

namespace ckptd::client {

// The resident files of one open checkpoint. The daemon keeps the memory until the lease ends. One thread at
// a time.
class ResidentFiles {
 public:
  // `size`: of the whole checkpoint, in bytes; it bounds how long the daemon may take to check the bytes.
  ResidentFiles(std::shared_ptr<Session> session, std::string lease, int64_t size)
      : session_(std::move(session)), lease_(std::move(lease)), size_(size) {}

  // Copies pieces of a file, which lie within it. False if the bytes cannot be had from memory, or if the
  // daemon has ended meanwhile: its successor may have reused the memory, so the copied bytes must not be
  // used.
  bool Read(const std::string& path, std::span<const FilePiece> pieces, int threads, bool background);
  // Maps the first `size` bytes of a file, privately. The memory stays as long as the result. Null if that is
  // not possible.
  std::shared_ptr<std::byte> Map(const std::string& path, int64_t size);

 private:
  struct Part {
    std::vector<v1::Segment> wanted;
    Segments segments;                     // Mapped when they are first needed.
    std::optional<bool> may_map;           // Unset: the daemon was not asked yet.
    std::weak_ptr<PrivateMapping> mapped;  // Owned by the results of Map.
  };
  struct File {
    Part* part;      // Null: not in memory.
    int64_t offset;  // In the part, in bytes.
  };
  File* Find(const std::string& path);
  absl::StatusOr<v1::LocateFilesResponse> Locate(const std::string& path, bool map);
  absl::StatusOr<std::vector<ReceivedSegment>> Fetch(const Part& part);
  bool MapForCopying(Part& part);

  const std::shared_ptr<Session> session_;
  const std::string lease_;
  const int64_t size_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::map<std::string, File> files_;  // Every file that the daemon was asked about.
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_READING_RESIDENT_FILES_H_
