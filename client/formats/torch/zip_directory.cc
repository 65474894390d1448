#include "client/formats/torch/zip_directory.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/formats/torch/zip_format.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::torch {
namespace {

constexpr size_t kMaxCommentBytes = 0xffff;

absl::Status Damaged(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_ARCHIVE", why);
}

absl::Status Unsupported(const std::string& what) {
  return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_ARCHIVE", what);
}

std::string Shown(std::string_view name) { return absl::CHexEscape(std::string(name.substr(0, 100))); }

// Reads consecutive little-endian fields. Precondition of each call: the bytes exist.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : left_(bytes) {}
  uint64_t Next(size_t bytes) {
    uint64_t number = 0;
    for (size_t i = bytes; i-- > 0;) number = number << 8 | static_cast<uint8_t>(left_[i]);
    left_.remove_prefix(bytes);
    return number;
  }
  void Skip(size_t bytes) { left_.remove_prefix(bytes); }

 private:
  std::string_view left_;
};

absl::StatusOr<std::string> Read(const ByteSource& source, int64_t offset, int64_t bytes) {
  std::string read(static_cast<size_t>(bytes), '\0');
  CKPTD_RETURN_IF_ERROR(source.ReadAt(offset, std::as_writable_bytes(std::span(read.data(), read.size()))));
  return read;
}

// What the records at the end of the file say about the directory.
struct Directory {
  uint64_t records = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  int64_t end = 0;  // Where the first of the end records begins, and the directory must end.
};

struct EndRecord {
  int64_t at = 0;
  uint64_t disk = 0, directory_disk = 0, records_here = 0, records = 0, bytes = 0, offset = 0;
};

absl::StatusOr<EndRecord> ReadEnd(const ByteSource& source) {
  const int64_t size = source.size();
  const auto least = static_cast<int64_t>(kEndBytes);
  if (size < least) return Damaged(absl::StrCat("it has only ", size, " bytes"));
  const int64_t tail_bytes = std::min(size, static_cast<int64_t>(kEndBytes + kMaxCommentBytes));
  CKPTD_ASSIGN_OR_RETURN(const std::string tail, Read(source, size - tail_bytes, tail_bytes));
  for (size_t at = tail.size() - kEndBytes + 1; at-- > 0;) {
    if (tail[at] != 'P') continue;
    Fields fields(std::string_view(tail).substr(at));
    if (fields.Next(4) != kEndSignature) continue;
    EndRecord end;
    end.at = size - tail_bytes + static_cast<int64_t>(at);
    end.disk = fields.Next(2);
    end.directory_disk = fields.Next(2);
    end.records_here = fields.Next(2);
    end.records = fields.Next(2);
    end.bytes = fields.Next(4);
    end.offset = fields.Next(4);
    if (fields.Next(2) == tail.size() - at - kEndBytes) return end;  // The comment fills the rest.
  }
  return Damaged("it has no ZIP directory at its end: it is truncated, or not a ZIP archive");
}

// The ZIP64 end record, if its locator is before the end record.
absl::StatusOr<std::optional<EndRecord>> ReadEnd64(const ByteSource& source, int64_t end_at) {
  const int64_t locator_at = end_at - static_cast<int64_t>(kLocator64Bytes);
  if (locator_at < 0) return std::nullopt;
  CKPTD_ASSIGN_OR_RETURN(const std::string locator, Read(source, locator_at, kLocator64Bytes));
  Fields located(locator);
  if (located.Next(4) != kLocator64Signature) return std::nullopt;
  const uint64_t disk = located.Next(4), at = located.Next(8), disks = located.Next(4);
  if (disk != 0 || disks > 1) return Unsupported("a ZIP archive of several disks");
  // It must be right before its locator, so that no made-up offset is ever followed.
  const int64_t expected = locator_at - static_cast<int64_t>(kEnd64Bytes);
  if (expected < 0 || at != static_cast<uint64_t>(expected)) {
    return Damaged(absl::StrCat("the ZIP64 locator places the end record at ", at,
                                ", which is not before the locator at ", locator_at));
  }
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes, Read(source, expected, kEnd64Bytes));
  Fields fields(bytes);
  EndRecord end;
  end.at = expected;
  if (fields.Next(4) != kEnd64Signature || fields.Next(8) != kEnd64Bytes - 12) {
    return Damaged("no ZIP64 end record where its locator places it");
  }
  fields.Skip(4);  // Versions.
  end.disk = fields.Next(4);
  end.directory_disk = fields.Next(4);
  end.records_here = fields.Next(8);
  end.records = fields.Next(8);
  end.bytes = fields.Next(8);
  end.offset = fields.Next(8);
  return end;
}

absl::StatusOr<Directory> FindDirectory(const ByteSource& source) {
  CKPTD_ASSIGN_OR_RETURN(const EndRecord end, ReadEnd(source));
  CKPTD_ASSIGN_OR_RETURN(const std::optional<EndRecord> end64, ReadEnd64(source, end.at));
  const EndRecord& whole = end64 ? *end64 : end;
  // The short record must say the same, or that the value does not fit.
  const auto agrees = [&](uint64_t small, uint64_t large, uint64_t most) {
    return small == large || (end64 && small == most);
  };
  if (!agrees(end.records, whole.records, kMost16) || !agrees(end.bytes, whole.bytes, kMost32) ||
      !agrees(end.offset, whole.offset, kMost32) || !agrees(end.records_here, whole.records_here, kMost16)) {
    return Damaged("its two end records do not agree");
  }
  if (whole.disk != 0 || whole.directory_disk != 0 || end.disk != 0 || end.directory_disk != 0 ||
      whole.records_here != whole.records) {
    return Unsupported("a ZIP archive of several disks");
  }
  return Directory{whole.records, whole.bytes, whole.offset, whole.at};
}

struct Entry {
  ZipRecord record;  // Its offset is that of the local header, until that has been read.
  int64_t end = 0;   // Of its bytes, once the local header has been read.
  uint64_t flags = 0;
};

// Reads from an extra field the ZIP64 values of those numbers that did not fit.
absl::Status ReadZip64(std::string_view extra, uint64_t& size, uint64_t& stored, uint64_t& offset,
                       uint64_t& disk) {
  if (size != kMost32 && stored != kMost32 && offset != kMost32 && disk != kMost16) return absl::OkStatus();
  while (extra.size() >= 4) {
    Fields head(extra);
    const uint64_t id = head.Next(2), bytes = head.Next(2);
    extra.remove_prefix(4);
    if (bytes > extra.size()) break;
    if (id != kZip64Field) {
      extra.remove_prefix(bytes);
      continue;
    }
    Fields fields(extra);
    uint64_t left = bytes;
    const auto take = [&](uint64_t& value, uint64_t unknown, size_t width) {
      if (value != unknown) return true;
      if (left < width) return false;
      left -= width;
      value = fields.Next(width);
      return true;
    };
    if (take(size, kMost32, 8) && take(stored, kMost32, 8) && take(offset, kMost32, 8) &&
        take(disk, kMost16, 4)) {
      return absl::OkStatus();
    }
    break;
  }
  return Damaged("its ZIP64 field is missing or too short");
}

// Removes one entry of the directory from the front of `left`.
absl::StatusOr<Entry> TakeEntry(std::string_view& left, int64_t directory_offset) {
  if (left.size() < kCentralBytes) return Damaged("the ZIP directory ends within an entry");
  Fields fields(left);
  if (fields.Next(4) != kCentralSignature)
    return Damaged("the ZIP directory has bytes that are not an entry");
  fields.Skip(4);  // Versions.
  Entry entry;
  entry.flags = fields.Next(2);
  const uint64_t method = fields.Next(2);
  fields.Skip(8);  // Time, checksum.
  uint64_t stored = fields.Next(4), size = fields.Next(4);
  const uint64_t name_bytes = fields.Next(2), extra_bytes = fields.Next(2), comment_bytes = fields.Next(2);
  uint64_t disk = fields.Next(2);
  fields.Skip(6);  // Attributes.
  uint64_t offset = fields.Next(4);
  left.remove_prefix(kCentralBytes);
  if (left.size() < name_bytes + extra_bytes + comment_bytes)
    return Damaged("the ZIP directory ends within an entry");
  entry.record.name = left.substr(0, name_bytes);
  const std::string shown = Shown(entry.record.name);
  if (const absl::Status read = ReadZip64(left.substr(name_bytes, extra_bytes), size, stored, offset, disk);
      !read.ok()) {
    return Annotate(read, absl::StrCat("record ", shown));
  }
  left.remove_prefix(name_bytes + extra_bytes + comment_bytes);
  if ((entry.flags & kEncryptedFlags) != 0)
    return Unsupported(absl::StrCat("record ", shown, " is encrypted"));
  if (method != 0)
    return Unsupported(absl::StrCat("record ", shown, " is compressed (method ", method,
                                    "), as torch.save never does, and torch.jit.save does"));
  if (disk != 0) return Unsupported("a ZIP archive of several disks");
  const auto most = static_cast<uint64_t>(directory_offset);
  if (size != stored || offset > most || size > most - offset) {
    return Damaged(absl::StrCat("record ", shown, " of ", size, " bytes (", stored, " stored) at ", offset,
                                " is not within the file before its directory at ", directory_offset));
  }
  entry.record.size = static_cast<int64_t>(size);
  entry.record.offset = static_cast<int64_t>(offset);
  return entry;
}

// Reads the header before a record's bytes, which must agree with the directory, and finds where the bytes
// begin.
absl::Status ReadLocal(const ByteSource& source, int64_t directory_offset, Entry& entry) {
  const std::string shown = Shown(entry.record.name);
  const auto bytes = static_cast<int64_t>(kLocalBytes + entry.record.name.size());
  if (bytes > directory_offset - entry.record.offset) {
    return Damaged(
        absl::StrCat("record ", shown, " at ", entry.record.offset, " has no room for its header"));
  }
  CKPTD_ASSIGN_OR_RETURN(const std::string header, Read(source, entry.record.offset, bytes));
  Fields fields(header);
  const bool begins = fields.Next(4) == kLocalSignature;
  fields.Skip(2);  // Version.
  const uint64_t flags = fields.Next(2), method = fields.Next(2);
  fields.Skip(8);  // Time, checksum.
  const uint64_t stored = fields.Next(4), size = fields.Next(4);
  const uint64_t name_bytes = fields.Next(2), extra_bytes = fields.Next(2);
  // With a descriptor torch writes 0 here. Otherwise it is the size, or says that ZIP64 has it.
  const auto agrees = [&](uint64_t here) {
    return here == static_cast<uint64_t>(entry.record.size) || here == kMost32 ||
           (here == 0 && (flags & kDescriptorFlag) != 0);
  };
  if (!begins || method != 0 || flags != entry.flags || !agrees(stored) || !agrees(size) ||
      name_bytes != entry.record.name.size() ||
      std::string_view(header).substr(kLocalBytes) != entry.record.name) {
    return Damaged(absl::StrCat("record ", shown, ": the header at ", entry.record.offset,
                                " differs from its directory entry"));
  }
  const int64_t begin = entry.record.offset + bytes + static_cast<int64_t>(extra_bytes);
  if (begin > directory_offset || entry.record.size > directory_offset - begin) {
    return Damaged(absl::StrCat("record ", shown, " reaches into the directory"));
  }
  entry.end = begin + entry.record.size;
  return absl::OkStatus();
}

absl::Status CheckApart(const std::vector<Entry>& entries) {
  std::vector<const Entry*> in_order;
  in_order.reserve(entries.size());
  for (const Entry& entry : entries) in_order.push_back(&entry);
  std::ranges::sort(in_order, {}, [](const Entry* entry) { return entry->record.offset; });
  for (size_t i = 1; i < in_order.size(); ++i) {
    if (in_order[i]->record.offset < in_order[i - 1]->end) {
      return Damaged(absl::StrCat("records ", Shown(in_order[i - 1]->record.name), " and ",
                                  Shown(in_order[i]->record.name), " overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ZipRecord>> ReadZipDirectory(const ByteSource& source, int64_t most_bytes) {
  CKPTD_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(source));
  const auto end = static_cast<uint64_t>(directory.end);
  if (directory.offset > end || directory.bytes != end - directory.offset) {
    return Damaged(absl::StrCat("its end record places the directory of ", directory.bytes, " bytes at ",
                                directory.offset, ", but it must end at ", end));
  }
  if (directory.records > directory.bytes / kCentralBytes) {
    return Damaged(
        absl::StrCat("its end record claims ", directory.records, " records in ", directory.bytes, " bytes"));
  }
  if (directory.bytes > static_cast<uint64_t>(most_bytes)) {
    return MakeError(absl::StatusCode::kResourceExhausted, "ARCHIVE_TOO_LARGE",
                     absl::StrCat("its directory has ", directory.bytes, " bytes; the limit is ", most_bytes,
                                  " directory_bytes"));
  }
  const auto offset = static_cast<int64_t>(directory.offset);
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes,
                         Read(source, offset, static_cast<int64_t>(directory.bytes)));
  std::string_view left = bytes;
  std::vector<Entry> entries;
  std::set<std::string> names;
  for (uint64_t i = 0; i < directory.records; ++i) {
    CKPTD_ASSIGN_OR_RETURN(Entry entry, TakeEntry(left, offset));
    if (!names.insert(absl::AsciiStrToLower(entry.record.name)).second) {
      return Damaged(absl::StrCat("record ", Shown(entry.record.name), " occurs twice"));
    }
    entries.push_back(std::move(entry));
  }
  if (!left.empty())
    return Damaged(absl::StrCat(left.size(), " bytes follow the last entry of its directory"));
  for (Entry& entry : entries) CKPTD_RETURN_IF_ERROR(ReadLocal(source, offset, entry));
  CKPTD_RETURN_IF_ERROR(CheckApart(entries));
  std::vector<ZipRecord> records;
  records.reserve(entries.size());
  for (Entry& entry : entries) {
    entry.record.offset = entry.end - entry.record.size;
    records.push_back(std::move(entry.record));
  }
  return records;
}

}  // namespace ckptd::torch
