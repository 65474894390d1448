#include "client/formats/torch/archive_layout.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/formats/text.h"
#include "client/formats/torch/pickler.h"
#include "client/formats/torch/zip_format.h"
#include "storage/base/checksums/crc32.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::torch {
namespace {

constexpr int64_t kMaxAlignment = 32768;         // The padding's length is in a field of 16 bits.
constexpr size_t kMaxNameBytes = 255;            // The limit of a file's name.
constexpr int64_t kMaxBytes = int64_t{1} << 62;  // Of the archive; no file system holds more.
constexpr std::string_view kSerializationId =
    "0000000000000000000000000000000000000000";  // Any 40 digits: torch logs it.
constexpr size_t kChecksumInDescriptor = 4;
constexpr size_t kChecksumInEntry = 16;

uint32_t ChecksumOf(std::string_view bytes) {
  return Crc32(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

void Append(std::string& to, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

// The ZIP64 fields, for values of `size` and `stored` (the stored size) and `offset` that do not fit
// elsewhere.
std::string Zip64(uint64_t size, uint64_t stored, uint64_t offset) {
  std::string fields;
  if (size >= kMost32) Append(fields, size, 8), Append(fields, stored, 8);
  if (offset >= kMost32) Append(fields, offset, 8);
  std::string field;
  if (fields.empty()) return field;
  Append(field, kZip64Field, 2);
  Append(field, fields.size(), 2);
  return field + fields;
}

}  // namespace

// Writes byte for byte what torch's library writes, except for checksums and the serialization id.
class ArchiveLayouter {
 public:
  explicit ArchiveLayouter(const LayoutOptions& options) : options_(options) {}

  ArchiveLayout Run(Pickled pickled) {
    Small("data.pkl", pickled.bytes);
    if (options_.numbered_format) {
      Small(".format_version", "1");
      Small(".storage_alignment", absl::StrCat(options_.alignment));
    }
    Small("byteorder", "little");
    layout_.checksum_places_.resize(pickled.storages.size());
    for (size_t i = 0; i < pickled.storages.size(); ++i) Hole(i, std::move(pickled.storages[i]));
    Small("version", "3\n");
    Small(".data/serialization_id", kSerializationId);
    End();
    return std::move(layout_);
  }

 private:
  struct Record {
    std::string name;
    uint64_t offset = 0;
    uint64_t size = 0;
    uint32_t checksum = 0;
    int64_t storage = -1;  // The index of its storage; -1: none.
  };

  uint64_t At() const { return piece_at_ + piece_.size(); }

  void Small(std::string_view name, std::string_view content) {
    Begin(name, content.size(), ChecksumOf(content), -1);
    piece_.append(content);
    Describe();
  }

  void Hole(size_t index, StorageRef storage) {
    const int64_t bytes = storage->bytes;
    Begin(absl::StrCat("data/", index), static_cast<uint64_t>(bytes), 0, static_cast<int64_t>(index));
    layout_.storages_.push_back({std::move(storage), static_cast<int64_t>(At())});
    if (bytes > 0) {
      FinishPiece(static_cast<uint64_t>(bytes));
      layout_.checksum_places_[index].push_back(
          {layout_.pieces_.size(), piece_.size() + kChecksumInDescriptor});
    }
    Describe();
  }

  // Writes the header before a record's bytes, padded so that they are aligned.
  void Begin(std::string_view name, uint64_t size, uint32_t checksum, int64_t storage) {
    Record record{absl::StrCat(options_.name, "/", std::string(name)), At(), size, checksum, storage};
    // The stored size in this header is always 0, as torch's library writes it.
    std::string extra = Zip64(size, 0, record.offset);
    const auto alignment = static_cast<uint64_t>(options_.alignment);
    const uint64_t unpadded = record.offset + kLocalBytes + record.name.size() + extra.size() + 4;
    const uint64_t padding = (alignment - unpadded % alignment) % alignment;
    extra.append("FB");
    Append(extra, padding, 2);
    extra.append(padding, 'Z');
    Append(piece_, kLocalSignature, 4);
    Append(piece_, 0, 2);
    Append(piece_, Flags(record), 2);
    piece_.append(18, '\0');  // Method, time, checksum and sizes.
    Append(piece_, record.name.size(), 2);
    Append(piece_, extra.size(), 2);
    piece_.append(record.name);
    piece_.append(extra);
    records_.push_back(std::move(record));
  }

  // Writes what follows a record's bytes, if it has any.
  void Describe() {
    const Record& record = records_.back();
    if (record.size == 0) return;
    const bool large = record.size >= kMost32 || record.offset >= kMost32;
    Append(piece_, kDescriptorSignature, 4);
    Append(piece_, record.checksum, 4);
    Append(piece_, record.size, large ? 8 : 4);
    Append(piece_, record.size, large ? 8 : 4);
  }

  static uint64_t Flags(const Record& record) { return kUtf8Flag | (record.size > 0 ? kDescriptorFlag : 0); }

  // Ends a piece. The next one begins `gap` bytes further on.
  void FinishPiece(uint64_t gap) {
    const uint64_t end = At();
    layout_.pieces_.push_back({static_cast<int64_t>(piece_at_), std::exchange(piece_, {})});
    piece_at_ = end + gap;
  }

  void Entry(const Record& record) {
    const std::string extra = Zip64(record.size, record.size, record.offset);
    if (record.storage >= 0 && record.size > 0) {
      layout_.checksum_places_[static_cast<size_t>(record.storage)].push_back(
          {layout_.pieces_.size(), piece_.size() + kChecksumInEntry});
    }
    Append(piece_, kCentralSignature, 4);
    Append(piece_, 0, 4);
    Append(piece_, Flags(record), 2);
    Append(piece_, 0, 6);  // Method and time.
    Append(piece_, record.checksum, 4);
    Append(piece_, std::min(record.size, kMost32), 4);
    Append(piece_, std::min(record.size, kMost32), 4);
    Append(piece_, record.name.size(), 2);
    Append(piece_, extra.size(), 2);
    piece_.append(10, '\0');  // Comment, disk and attributes.
    Append(piece_, std::min(record.offset, kMost32), 4);
    piece_.append(record.name);
    piece_.append(extra);
  }

  void End() {
    const uint64_t begin = At(), count = records_.size();
    for (const Record& record : records_) Entry(record);
    const uint64_t end = At(), bytes = end - begin;
    Append(piece_, kEnd64Signature, 4);
    Append(piece_, kEnd64Bytes - 12, 8);
    Append(piece_, 0x31e, 2);  // Versions, as torch's library has them.
    Append(piece_, 0x2d, 2);
    piece_.append(8, '\0');  // Disks.
    for (const uint64_t value : {count, count, bytes, begin}) Append(piece_, value, 8);
    Append(piece_, kLocator64Signature, 4);
    Append(piece_, 0, 4);
    Append(piece_, end, 8);
    Append(piece_, 1, 4);
    Append(piece_, kEndSignature, 4);
    Append(piece_, 0, 4);
    for (const uint64_t value : {count, count}) Append(piece_, std::min(value, kMost16), 2);
    for (const uint64_t value : {bytes, begin}) Append(piece_, std::min(value, kMost32), 4);
    Append(piece_, 0, 2);
    layout_.size_ = static_cast<int64_t>(At());
    FinishPiece(0);
  }

  const LayoutOptions& options_;
  ArchiveLayout layout_;
  uint64_t piece_at_ = 0;  // The offset of the current piece in the file.
  std::string piece_;
  std::vector<Record> records_;
};

std::vector<ArchiveLayout::Piece> ArchiveLayout::Pieces(std::span<const uint32_t> crc32) const {
  std::vector<Piece> pieces = pieces_;
  for (size_t i = 0; i < crc32.size() && i < checksum_places_.size(); ++i) {
    for (const ChecksumPlace& place : checksum_places_[i]) {
      for (size_t byte = 0; byte < sizeof(uint32_t); ++byte) {
        pieces[place.piece].bytes[place.at + byte] = static_cast<char>(crc32[i] >> (8 * byte));
      }
    }
  }
  return pieces;
}

absl::StatusOr<ArchiveLayout> LayOutArchive(const Value& root, const LayoutOptions& options) {
  const bool good_name = !options.name.empty() && options.name.size() <= kMaxNameBytes &&
                         IsPythonText(options.name) && options.name.find('/') == std::string::npos &&
                         options.name.find('\0') == std::string::npos;
  if (!good_name) return InvalidArgument("an archive's name is 1 to 255 bytes of UTF-8 without / and NUL");
  if (options.alignment < 1 || options.alignment > kMaxAlignment ||
      !std::has_single_bit(static_cast<uint64_t>(options.alignment))) {
    return InvalidArgument(absl::StrCat("an alignment of ", options.alignment,
                                        "; it must be a power of 2, 1 to ", kMaxAlignment));
  }
  CKPTD_ASSIGN_OR_RETURN(Pickled pickled, Pickle(root, options.limits));
  int64_t bytes = 0;
  for (const StorageRef& storage : pickled.storages) {
    if (storage->bytes < 0 || storage->bytes > kMaxBytes - bytes)
      return InvalidArgument("storages of more than 2^62 bytes");
    bytes += storage->bytes;
  }
  return ArchiveLayouter(options).Run(std::move(pickled));
}

}  // namespace ckptd::torch
