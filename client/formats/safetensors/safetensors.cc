#include "client/formats/safetensors/safetensors.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/formats/text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::safetensors {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // The format's own limit.
constexpr int64_t kHeaderAlignment = 8;
constexpr int64_t kMaxBytes = int64_t{1} << 62;  // Of all tensors together; no file system holds more.
constexpr std::string_view kMetadataName = "__metadata__";

absl::Status Damaged(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_ARCHIVE", why);
}

absl::Status Unsupported(const std::string& what) {
  return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_ARCHIVE", what);
}

absl::Status TooLarge(uint64_t bytes) {
  return MakeError(absl::StatusCode::kResourceExhausted, "ARCHIVE_TOO_LARGE",
                   absl::StrCat("a header of ", bytes, " bytes; the format allows ", kMaxHeaderBytes));
}

std::string Shown(std::string_view name) {
  return absl::StrCat("\"", absl::CHexEscape(std::string(name.substr(0, 100))), "\"");
}

// The number of the format's elements in one of torch's: for F4 the format counts numbers, and torch pairs.
int64_t Packed(DataType dtype) { return dtype == DataType::kFloat4E2M1FnX2 ? 2 : 1; }

// The product of the shape and the item's size. nullopt beyond 63 bits, or if a dimension is negative.
std::optional<int64_t> BytesOf(DataType dtype, const std::vector<int64_t>& shape) {
  if (std::ranges::any_of(shape, [](int64_t dimension) { return dimension < 0; })) return std::nullopt;
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  int64_t bytes = InfoOf(dtype).item_bytes;
  for (const int64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return bytes;
}

// One entry of the header, as written there.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Receives the header's JSON while it is parsed, and stops at the first thing that is out of place. So
// nothing unexpected is stored, however deep or long it is.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;

  bool null() override { return Refuse("null"); }
  bool boolean(bool) override { return Refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return Refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Refuse("a fraction, or a number that is too large");
  }
  bool binary(binary_t&) override { return Refuse("bytes"); }
  bool number_unsigned(number_unsigned_t number) override {
    if (place_ != Place::kNumbers) return Refuse("a number");
    numbers_->push_back(number);
    return true;
  }
  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      if (!metadata.emplace(key_, std::move(text)).second) return Refuse("a key that occurs twice");
      return true;
    }
    if (place_ != Place::kEntry || key_ != "dtype") return Refuse("a string");
    if (entries.back().dtype) return Refuse("a second dtype");
    entries.back().dtype = std::move(text);
    return true;
  }
  bool key(string_t& name) override {
    if (place_ == Place::kTop && !names_.insert(name).second) return Refuse("a name that occurs twice");
    key_ = std::move(name);
    return true;
  }
  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kOutside:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        if (key_ == kMetadataName) {
          place_ = Place::kMetadata;
        } else {
          place_ = Place::kEntry;
          entries.push_back({key_, std::nullopt, std::nullopt, std::nullopt});
        }
        return true;
      case Place::kMetadata:
      case Place::kEntry:
      case Place::kNumbers:
        break;
    }
    return Refuse("an object");
  }
  bool end_object() override {
    place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::kEntry || (key_ != "shape" && key_ != "data_offsets")) return Refuse("a list");
    std::optional<std::vector<uint64_t>>& list =
        key_ == "shape" ? entries.back().shape : entries.back().offsets;
    if (list) return Refuse("a second list");
    numbers_ = &list.emplace();
    place_ = Place::kNumbers;
    return true;
  }
  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    error = absl::StrCat("its header is not valid JSON from byte ", at, " on");
    return false;
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kEntry, kNumbers };

  bool Refuse(std::string_view what) {
    error = absl::StrCat("its header has ", std::string(what), " where none belongs",
                         key_.empty() ? "" : absl::StrCat(", at ", Shown(key_)));
    return false;
  }

  Place place_ = Place::kOutside;
  std::string key_;
  std::vector<uint64_t>* numbers_ = nullptr;  // The current list of the last entry.
  std::set<std::string> names_;
};

// `data_begin` is where the tensors begin in the file; `data_bytes` is the number of their bytes.
absl::StatusOr<Tensor> TensorOf(Entry entry, int64_t data_begin, int64_t data_bytes) {
  const std::string shown = Shown(entry.name);
  if (!entry.dtype || !entry.shape || !entry.offsets || entry.offsets->size() != 2) {
    return Damaged(absl::StrCat("tensor ", shown, " lacks its dtype, shape or two data_offsets"));
  }
  const std::optional<DataType> dtype = DataTypeOfSafetensorsName(*entry.dtype);
  if (!dtype) return Unsupported(absl::StrCat("tensor ", shown, " is of dtype ", Shown(*entry.dtype)));
  Tensor tensor;
  tensor.name = std::move(entry.name);
  tensor.dtype = *dtype;
  for (const uint64_t dimension : *entry.shape) {
    tensor.shape.push_back(static_cast<int64_t>(dimension));  // Values beyond 63 bits become negative.
  }
  if (const int64_t packed = Packed(*dtype); packed != 1) {
    if (tensor.shape.empty() || tensor.shape.back() % packed != 0) {
      return Unsupported(
          absl::StrCat("tensor ", shown, " has packed numbers that do not fill its last byte"));
    }
    tensor.shape.back() /= packed;
  }
  const std::optional<int64_t> bytes = BytesOf(*dtype, tensor.shape);
  if (!bytes) return Damaged(absl::StrCat("the shape of tensor ", shown, " has more than 2^63 bytes"));
  const uint64_t begin = entry.offsets->at(0), end = entry.offsets->at(1);
  if (begin > end || end > static_cast<uint64_t>(data_bytes) ||
      end - begin != static_cast<uint64_t>(*bytes)) {
    return Damaged(absl::StrCat("tensor ", shown, " of ", *bytes, " bytes claims to be at ", begin, " to ",
                                end, " of ", data_bytes));
  }
  tensor.offset = data_begin + static_cast<int64_t>(begin);
  tensor.bytes = *bytes;
  return tensor;
}

// Checks that the tensors cover the data exactly: without gaps and overlaps.
absl::Status CheckCover(const std::vector<Tensor>& tensors, int64_t begin, int64_t end) {
  int64_t at = begin;
  for (const Tensor& tensor : tensors) {
    if (tensor.offset != at) {
      return Damaged(absl::StrCat("tensor ", Shown(tensor.name), " begins at byte ", tensor.offset,
                                  ", and what is before it ends at ", at));
    }
    at += tensor.bytes;
  }
  if (at == end) return absl::OkStatus();
  return Damaged(absl::StrCat("its tensors end at byte ", at, ", and the file at ", end));
}

absl::StatusOr<File> Read(const ByteSource& source) {
  if (source.size() < kLengthBytes) return Damaged(absl::StrCat("it has only ", source.size(), " bytes"));
  std::array<uint8_t, kLengthBytes> length{};
  CKPTD_RETURN_IF_ERROR(source.ReadAt(0, std::as_writable_bytes(std::span(length))));
  uint64_t header_bytes = 0;
  for (size_t i = length.size(); i-- > 0;) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > static_cast<uint64_t>(source.size() - kLengthBytes)) {
    return Damaged(
        absl::StrCat("it claims a header of ", header_bytes, " bytes; the file has ", source.size()));
  }
  if (header_bytes > kMaxHeaderBytes) return TooLarge(header_bytes);
  std::string header(header_bytes, '\0');
  CKPTD_RETURN_IF_ERROR(
      source.ReadAt(kLengthBytes, std::as_writable_bytes(std::span(header.data(), header.size()))));
  if (!header.starts_with('{')) return Damaged("its header does not begin with {");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, &reader)) return Damaged(reader.error);

  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  File file{{}, std::move(reader.metadata)};
  for (Entry& entry : reader.entries) {
    CKPTD_ASSIGN_OR_RETURN(Tensor tensor, TensorOf(std::move(entry), data_begin, source.size() - data_begin));
    file.tensors.push_back(std::move(tensor));
  }
  // Where several tensors begin at one offset, empty ones come first.
  std::ranges::stable_sort(file.tensors, {},
                           [](const Tensor& tensor) { return std::pair(tensor.offset, tensor.bytes); });
  CKPTD_RETURN_IF_ERROR(CheckCover(file.tensors, data_begin, source.size()));
  return file;
}

std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }  // Precondition: UTF-8.

absl::Status Check(const File& file) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : file.tensors) {
    if (!IsUtf8(tensor.name) || tensor.name == kMetadataName) {
      return InvalidArgument(absl::StrCat("a tensor cannot have the name ", Shown(tensor.name)));
    }
    if (!names.insert(tensor.name).second)
      return InvalidArgument(absl::StrCat("two tensors have the name ", Shown(tensor.name)));
    if (InfoOf(tensor.dtype).safetensors_name.empty()) {
      return InvalidArgument(absl::StrCat("tensor ", Shown(tensor.name), ": safetensors has no ",
                                          std::string(InfoOf(tensor.dtype).torch_name)));
    }
    if (tensor.shape.empty() && Packed(tensor.dtype) != 1) {
      return InvalidArgument(
          absl::StrCat("tensor ", Shown(tensor.name), " of packed numbers has no dimension"));
    }
    const bool huge =
        std::ranges::any_of(tensor.shape, [](int64_t dimension) { return dimension > kMaxBytes; });
    if (huge || !BytesOf(tensor.dtype, tensor.shape)) {
      return InvalidArgument(absl::StrCat("the shape of tensor ", Shown(tensor.name),
                                          " has a negative dimension or more than 2^63 bytes"));
    }
  }
  for (const auto& [key, value] : file.metadata) {
    if (!IsUtf8(key) || !IsUtf8(value))
      return InvalidArgument(absl::StrCat("metadata ", Shown(key), " is not UTF-8"));
  }
  return absl::OkStatus();
}

// The header's entry of a tensor, whose bytes begin at `begin` of the data.
std::string EntryOf(const Tensor& tensor, int64_t begin) {
  std::string entry = absl::StrCat(Quoted(tensor.name), ":{\"dtype\":\"",
                                   std::string(InfoOf(tensor.dtype).safetensors_name), "\",\"shape\":[");
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const bool last = i + 1 == tensor.shape.size();
    absl::StrAppend(&entry, i > 0 ? "," : "", tensor.shape[i] * (last ? Packed(tensor.dtype) : 1));
  }
  absl::StrAppend(&entry, "],\"data_offsets\":[", begin, ",", begin + tensor.bytes, "]}");
  return entry;
}

}  // namespace

absl::StatusOr<File> Open(const ByteSource& source) {
  absl::StatusOr<File> file = Read(source);
  if (!file.ok()) return Annotate(file.status(), source.name());
  return file;
}

absl::StatusOr<Layout> LayOut(File file) {
  CKPTD_RETURN_IF_ERROR(Check(file));
  Layout layout;
  layout.tensors = std::move(file.tensors);
  std::ranges::sort(layout.tensors, {}, [](const Tensor& tensor) {
    return std::pair(-InfoOf(tensor.dtype).item_bytes, std::string_view(tensor.name));
  });
  std::string json;
  const auto add = [&json](const std::string& entry) {
    absl::StrAppend(&json, json.empty() ? "{" : ",", entry);
  };
  if (!file.metadata.empty()) {
    std::string pairs;
    for (const auto& [key, value] : file.metadata) {
      absl::StrAppend(&pairs, pairs.empty() ? "" : ",", Quoted(key), ":", Quoted(value));
    }
    add(absl::StrCat("\"", std::string(kMetadataName), "\":{", pairs, "}"));
  }
  int64_t at = 0;
  for (Tensor& tensor : layout.tensors) {
    tensor.bytes = *BytesOf(tensor.dtype, tensor.shape);
    if (tensor.bytes > kMaxBytes - at) return InvalidArgument("tensors of more than 2^62 bytes");
    tensor.offset = at;
    add(EntryOf(tensor, at));
    at += tensor.bytes;
  }
  absl::StrAppend(&json, json.empty() ? "{}" : "}");
  json.append(static_cast<size_t>((kHeaderAlignment - static_cast<int64_t>(json.size()) % kHeaderAlignment) %
                                  kHeaderAlignment),
              ' ');
  if (json.size() > kMaxHeaderBytes) return TooLarge(json.size());
  for (int64_t i = 0; i < kLengthBytes; ++i)
    layout.header.push_back(static_cast<char>(json.size() >> (8 * i)));
  layout.header += json;
  for (Tensor& tensor : layout.tensors) tensor.offset += static_cast<int64_t>(layout.header.size());
  layout.size = static_cast<int64_t>(layout.header.size()) + at;
  return layout;
}

}  // namespace ckptd::safetensors
