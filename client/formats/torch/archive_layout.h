// Lays out a file for torch.load, without the tensors' bytes. The caller writes those, each storage at its
// offset, in any order.
//
//   CKPTD_ASSIGN_OR_RETURN(const ArchiveLayout layout, LayOutArchive(*root));
//   for (const ArchiveLayout::Range& range : layout.storages()) ... range.storage->bytes at range.offset
//   for (const ArchiveLayout::Piece& piece : layout.Pieces()) ... piece.bytes at piece.offset
//
// Storages and pieces together cover the file's size() exactly once. The file is a stored ZIP as torch 2.7
// and later write it, with a pickle of protocol 2. torch.load reads it like its own, also with weights_only
// and mmap (tests/format, with torch 2.13).
#ifndef CKPTD_CLIENT_FORMATS_TORCH_ARCHIVE_LAYOUT_H_
#define CKPTD_CLIENT_FORMATS_TORCH_ARCHIVE_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/value.h"

namespace ckptd::torch {

class ArchiveLayout {
 public:
  struct Range {
    StorageRef storage;
    int64_t offset;  // In the file to be written; a multiple of the alignment.
  };
  struct Piece {
    int64_t offset;
    std::string bytes;
  };

  int64_t size() const { return size_; }
  // Ordered by offset, including those without bytes.
  const std::vector<Range>& storages() const { return storages_; }
  // Everything but the storages' bytes. `crc32` has the ZIP checksum of each storage, in the order of
  // storages(). If it is empty the checksums are 0: torch never looks at them, but Python's zipfile and
  // `unzip -t` complain.
  std::vector<Piece> Pieces(std::span<const uint32_t> crc32 = {}) const;

 private:
  friend class ArchiveLayouter;

  int64_t size_ = 0;
  std::vector<Range> storages_;
  std::vector<Piece> pieces_;  // With checksums 0.
  // Where a storage's checksums go: the index of a piece, and the position in it.
  struct ChecksumPlace {
    size_t piece;
    size_t at;
  };
  std::vector<std::vector<ChecksumPlace>> checksum_places_;
};

struct LayoutOptions {
  std::string name = "archive";  // The folder in the ZIP; torch uses the file's stem.
  int64_t alignment = 64;        // Of each record's bytes in the file: a power of 2, 1 to 32768.
  // Write the records that torch has since 2.7: .format_version and .storage_alignment. No reader needs them.
  bool numbered_format = true;
  Limits limits = {};
};

// INVALID_ARGUMENT for what cannot be written: a cycle, a tensor that exceeds its storage, one storage with
// two dtypes (which torch refuses, too), an impossible name or alignment. RESOURCE_EXHAUSTED, reason
// ARCHIVE_TOO_LARGE, beyond the limits.
absl::StatusOr<ArchiveLayout> LayOutArchive(const Value& root, const LayoutOptions& options = {});

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_ARCHIVE_LAYOUT_H_
