#include "client/formats/torch/archive.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/formats/torch/unpickler.h"
#include "client/formats/torch/zip_directory.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::torch {
namespace {

constexpr int kNewestVersion = 10;        // Of the archive's layout; torch 2.13 reads up to this one, too.
constexpr int64_t kMaxSmallBytes = 4096;  // For a record that holds a word or a number.

absl::Status Damaged(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_ARCHIVE", why);
}

absl::Status Unsupported(const std::string& what) {
  return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_ARCHIVE", what);
}

// The records in the archive's folder, by their names there.
class Records {
 public:
  explicit Records(const ByteSource& source) : source_(source) {}

  absl::Status Read(const Limits& limits) {
    CKPTD_ASSIGN_OR_RETURN(std::vector<ZipRecord> records, ReadZipDirectory(source_, limits.directory_bytes));
    if (records.empty()) return Damaged("it is an empty ZIP archive");
    folder_ = records.front().name.substr(0, records.front().name.find('/'));
    const std::string prefix = folder_ + "/";
    for (ZipRecord& record : records) {  // Records elsewhere are ignored, as by torch.
      if (record.name.starts_with(prefix))
        records_.emplace(record.name.substr(prefix.size()), std::move(record));
    }
    return absl::OkStatus();
  }

  const std::string& folder() const { return folder_; }
  const ZipRecord* Find(const std::string& name) const {
    const auto found = records_.find(name);
    return found != records_.end() ? &found->second : nullptr;
  }
  // The content of a record, or `otherwise` if it does not exist.
  absl::StatusOr<std::string> Content(const std::string& name, int64_t most,
                                      std::string_view otherwise) const {
    const ZipRecord* record = Find(name);
    if (record == nullptr) return std::string(otherwise);
    if (record->size > most) {
      return MakeError(absl::StatusCode::kResourceExhausted, "ARCHIVE_TOO_LARGE",
                       absl::StrCat(name, " has ", record->size, " bytes; the limit is ", most));
    }
    std::string content(static_cast<size_t>(record->size), '\0');
    CKPTD_RETURN_IF_ERROR(
        source_.ReadAt(record->offset, std::as_writable_bytes(std::span(content.data(), content.size()))));
    return content;
  }

 private:
  const ByteSource& source_;
  std::string folder_;
  std::map<std::string, ZipRecord> records_;
};

// torch before 1.6 wrote concatenated pickles. They begin with the protocol's opcode, or with a tar header.
absl::Status CheckZip(const ByteSource& source) {
  std::array<char, 4> begin{};
  if (source.size() < static_cast<int64_t>(begin.size())) {
    return Damaged(absl::StrCat("it has only ", source.size(), " bytes"));
  }
  CKPTD_RETURN_IF_ERROR(source.ReadAt(0, std::as_writable_bytes(std::span(begin))));
  if (begin[0] == 'P' && begin[1] == 'K') return absl::OkStatus();
  if (static_cast<uint8_t>(begin[0]) == 0x80 && begin[1] > 0 && begin[1] <= 5) {
    return Unsupported(
        "it is a bare pickle, as torch before 1.6 wrote them: load it with torch and save it again, or, if "
        "it is no "
        "file of torch's, do not");
  }
  return Damaged("it is not a ZIP archive: torch.save did not write it, or wrote only part of it");
}

absl::Status CheckVersion(std::string_view text) {
  int version = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || version < 1) {
    return Damaged(
        absl::StrCat("its version is \"", absl::CHexEscape(std::string(text.substr(0, 100))), "\""));
  }
  if (version <= kNewestVersion) return absl::OkStatus();
  return Unsupported(absl::StrCat("its version is ", version, "; ckptd reads up to ", kNewestVersion));
}

absl::Status CheckRecords(const Records& records) {
  if (records.Find("constants.pkl") != nullptr)
    return Unsupported("it is TorchScript (torch.jit.save), not torch.save");
  if (records.Find("data.pkl") == nullptr) return Damaged("it has no data.pkl");
  // Files of torch before 2.1 have no byteorder.
  CKPTD_ASSIGN_OR_RETURN(const std::string order, records.Content("byteorder", kMaxSmallBytes, "little"));
  if (order == "big") return Unsupported("it is of a big-endian machine");
  if (order != "little") return Damaged("its byteorder is neither little nor big");
  CKPTD_ASSIGN_OR_RETURN(const std::string version, records.Content("version", kMaxSmallBytes, "3"));
  return CheckVersion(version);
}

absl::StatusOr<Archive> Open(const ByteSource& source, const Limits& limits) {
  CKPTD_RETURN_IF_ERROR(CheckZip(source));
  Records records(source);
  CKPTD_RETURN_IF_ERROR(records.Read(limits));
  CKPTD_RETURN_IF_ERROR(CheckRecords(records));
  CKPTD_ASSIGN_OR_RETURN(const std::string pickle, records.Content("data.pkl", limits.pickle_bytes, ""));
  const FindStorage find = [&](const std::string& key) -> std::optional<StoragePlace> {
    const ZipRecord* record = records.Find("data/" + key);
    return record != nullptr ? std::optional(StoragePlace{record->offset, record->size}) : std::nullopt;
  };
  CKPTD_ASSIGN_OR_RETURN(Unpickled unpickled, Unpickle(pickle, find, limits));
  return Archive{std::move(unpickled.root), std::move(unpickled.storages), records.folder()};
}

}  // namespace

absl::StatusOr<Archive> OpenArchive(const ByteSource& source, const Limits& limits) {
  absl::StatusOr<Archive> archive = Open(source, limits);
  return archive.ok() ? std::move(archive) : Annotate(archive.status(), source.name());
}

}  // namespace ckptd::torch
