// Lays out a file that torch.load reads, without the tensors' bytes: those are written by the caller, each
// storage at its offset, from wherever they are and in any order.
//
//   CKPTD_ASSIGN_OR_RETURN(const ArchiveLayout layout, LayOutArchive(*root));
//   for (const ArchiveLayout::Range& range : layout.storages()) ... range.storage->bytes at range.offset
//   for (const ArchiveLayout::Piece& piece : layout.Pieces()) ... piece.bytes at piece.offset
//
// Storages and pieces cover the file's size() exactly once. What is written is a stored ZIP as torch 2.7 and
// later write it, with a pickle of protocol 2. torch.load reads it as it reads its own, with weights_only and
// mmap too (tests/format, with torch 2.13).
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
    int64_t offset;  // In the file that is written: a multiple of the alignment.
  };
  struct Piece {
    int64_t offset;
    std::string bytes;
  };

  int64_t size() const { return size_; }
  // In the order of their offsets; those of no bytes too.
  const std::vector<Range>& storages() const { return storages_; }
  // All that is not a storage's bytes. `crc32` has the ZIP checksum of each storage, in the order of
  // storages(); or is empty: then they are 0, which torch does not mind (it never looks), and Python's
  // zipfile and unzip -t do.
  std::vector<Piece> Pieces(std::span<const uint32_t> crc32 = {}) const;

 private:
  friend class ArchiveLayouter;

  int64_t size_ = 0;
  std::vector<Range> storages_;
  std::vector<Piece> pieces_;  // Of the checksums 0.
  // Where the checksums of a storage go: an index of a piece, and the place in it.
  struct ChecksumPlace {
    size_t piece;
    size_t at;
  };
  std::vector<std::vector<ChecksumPlace>> checksum_places_;
};

struct LayoutOptions {
  std::string name = "archive";  // The folder within the ZIP; torch takes the file's stem.
  int64_t alignment = 64;        // Of each record's bytes in the file: a power of 2, 1 to 32768.
  // With the records that torch has from 2.7 on, .format_version and .storage_alignment. No reader needs
  // them.
  bool numbered_format = true;
  Limits limits = {};
};

// INVALID_ARGUMENT, reason INVALID_ARGUMENT, for what cannot be written: a cycle, a tensor that leaves its
// storage, one storage under two dtypes (torch refuses that, too), a name or alignment that cannot be.
// RESOURCE_EXHAUSTED, reason ARCHIVE_TOO_LARGE, beyond the limits.
absl::StatusOr<ArchiveLayout> LayOutArchive(const Value& root, const LayoutOptions& options = {});

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_ARCHIVE_LAYOUT_H_
