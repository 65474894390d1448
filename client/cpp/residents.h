// Files of a checkpoint that are in the daemon's memory still: read from there, without the disk.
#ifndef CKPTD_CLIENT_CPP_RESIDENTS_H_
#define CKPTD_CLIENT_CPP_RESIDENTS_H_

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
#include "client/cpp/handoff.h"
#include "client/cpp/mapping.h"
#include "client/cpp/session.h"
#include "storage/commit/disk_file.h"

namespace ckptd::client {

// Of one open checkpoint. The memory stays until its lease ends.
class Residents {
 public:
  // `size`: of the checkpoint.
  Residents(std::shared_ptr<Session> session, std::string lease, int64_t size)
      : session_(std::move(session)), lease_(std::move(lease)), size_(size) {}

  // Copies pieces of a file, which are within it. False: the bytes are not to be had from memory, or the
  // daemon ended meanwhile, and its successor may have given the memory back.
  bool Read(const std::string& path, std::span<const FilePiece> pieces, int threads, bool background);
  // The first `size` bytes of a file, all of it, in memory that is nobody's copy and stays with the result.
  // Null: they are not to be had like that.
  std::shared_ptr<std::byte> Map(const std::string& path, int64_t size);

 private:
  struct Part {
    std::vector<v1::Segment> wanted;
    Segments segments;                     // Mapped when they are first needed.
    std::optional<bool> may_map;           // Unset: not asked for yet.
    std::weak_ptr<PrivateMapping> mapped;  // For as long as somebody has it.
  };
  struct File {
    Part* part;
    int64_t offset;  // Into the part.
  };
  File* Find(const std::string& path);
  absl::StatusOr<v1::LocateFilesResponse> Locate(const std::string& path, bool map);
  absl::StatusOr<std::vector<ReceivedSegment>> Fetch(const Part& part);
  bool MapToCopy(Part& part);

  const std::shared_ptr<Session> session_;
  const std::string lease_;
  const int64_t size_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::map<std::string, File> files_;  // That the daemon was asked for; of a null part: not in memory.
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_RESIDENTS_H_
