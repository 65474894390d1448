#include "client/convert/dcp/dcp_metadata.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/files/convert_error.h"
#include "client/convert/files/value_text.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/pickler.h"
#include "client/formats/torch/unpickler.h"
#include "client/formats/torch/value.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr char kModule[] = "torch.distributed.checkpoint.metadata";
constexpr char kFilesystemModule[] = "torch.distributed.checkpoint.filesystem";
constexpr char kVersion[] = "1.0.0";        // Of the format, as torch 2.13 writes it.
constexpr int64_t kContiguousFormat = 0;    // _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
constexpr int64_t kMaxFileBytes = 1 << 30;  // A tensor in one chunk takes about 150 bytes.
constexpr int64_t kMaxTensorBytes = int64_t{1} << 60;

// Every entry takes some 40 values. Strings and depth are bounded by the size of the file.
constexpr torch::Limits kLimits = {
    .pickle_bytes = kMaxFileBytes, .objects = 100'000'000, .memo_entries = 100'000'000};

absl::Status Corrupt(std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_ARCHIVE", why);
}

// (name, offsets of a chunk); no offsets for a value.
using PlaceKey = std::pair<std::string, std::optional<std::vector<int64_t>>>;

// Takes the objects of a Metadata apart. A field that is missing or of another type is an error.
class Reader {
 public:
  absl::StatusOr<std::vector<DcpEntry>> Run(const torch::Value& root) {
    CKPTD_ASSIGN_OR_RETURN(const torch::Dict* metadata, FieldsOf(root, "Metadata"));
    CKPTD_RETURN_IF_ERROR(ReadPlaces(*metadata));
    CKPTD_RETURN_IF_ERROR(ReadPaths(*metadata));
    CKPTD_ASSIGN_OR_RETURN(const torch::Dict* entries, DictOf(*metadata, "state_dict_metadata"));
    std::vector<DcpEntry> result;
    for (const auto& [key, value] : entries->entries()) {
      const auto* name = key->As<std::string>();
      if (name == nullptr)
        return Corrupt(absl::StrCat("an entry named by a ", std::string(torch::KindOf(*key))));
      CKPTD_ASSIGN_OR_RETURN(DcpEntry entry, ReadEntry(*name, *value));
      result.push_back(std::move(entry));
    }
    return result;
  }

 private:
  // The attributes of an object of class `name`, which is a dataclass.
  static absl::StatusOr<const torch::Dict*> FieldsOf(const torch::Value& value, std::string_view name) {
    const auto* object = value.As<torch::Object>();
    if (object == nullptr || object->callable.name != name) {
      return Corrupt(absl::StrCat(ValueText(value), " where a ", std::string(name), " belongs"));
    }
    const torch::Dict* fields = object->state != nullptr ? object->state->As<torch::Dict>() : nullptr;
    if (fields == nullptr) return Corrupt(absl::StrCat("a ", std::string(name), " without fields"));
    return fields;
  }

  template <typename T>
  static absl::StatusOr<const T*> FieldAs(const torch::Dict& fields, std::string_view name) {
    const torch::ValueRef value = fields.Find(name);
    const T* field = value != nullptr ? value->As<T>() : nullptr;
    if (field == nullptr) {
      return Corrupt(absl::StrCat("the field ", std::string(name), " is ",
                                  value == nullptr ? "missing" : ValueText(*value)));
    }
    return field;
  }
  static absl::StatusOr<const torch::Dict*> DictOf(const torch::Dict& fields, std::string_view name) {
    return FieldAs<torch::Dict>(fields, name);
  }

  // A torch.Size; nullopt if it is None, or missing, which is the same for a field with that default.
  static absl::StatusOr<std::optional<std::vector<int64_t>>> SizeOf(const torch::Dict& fields,
                                                                    std::string_view name) {
    const torch::ValueRef value = fields.Find(name);
    if (value == nullptr || value->As<torch::None>() != nullptr) return std::nullopt;
    CKPTD_ASSIGN_OR_RETURN(const torch::Size* size, FieldAs<torch::Size>(fields, name));
    for (const int64_t dimension : size->dimensions) {
      if (dimension < 0)
        return Corrupt(absl::StrCat("the field ", std::string(name), " is ", ValueText(*value)));
    }
    return size->dimensions;
  }
  static absl::StatusOr<std::vector<int64_t>> Dimensions(const torch::Dict& fields, std::string_view name) {
    CKPTD_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> size, SizeOf(fields, name));
    if (!size) return Corrupt(absl::StrCat("the field ", std::string(name), " is missing"));
    return *size;
  }

  absl::Status ReadPlaces(const torch::Dict& metadata) {
    CKPTD_ASSIGN_OR_RETURN(const torch::Dict* places, DictOf(metadata, "storage_data"));
    for (const auto& [key, value] : places->entries()) {
      CKPTD_ASSIGN_OR_RETURN(const torch::Dict* index, FieldsOf(*key, "MetadataIndex"));
      CKPTD_ASSIGN_OR_RETURN(const std::string* name, FieldAs<std::string>(*index, "fqn"));
      CKPTD_ASSIGN_OR_RETURN(std::optional<std::vector<int64_t>> offset, SizeOf(*index, "offset"));
      CKPTD_ASSIGN_OR_RETURN(DcpPlace place, ReadPlace(*name, *value));
      if (!places_.emplace(PlaceKey(*name, std::move(offset)), std::move(place)).second)
        return Corrupt(absl::StrCat("a chunk of ", *name, " is in two places"));
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<DcpPlace> ReadPlace(const std::string& name, const torch::Value& value) {
    CKPTD_ASSIGN_OR_RETURN(const torch::Dict* info, FieldsOf(value, "_StorageInfo"));
    const torch::ValueRef transforms = info->Find("transform_descriptors");
    const torch::List* list = transforms != nullptr ? transforms->As<torch::List>() : nullptr;
    if (transforms != nullptr && transforms->As<torch::None>() == nullptr &&
        (list == nullptr || !list->items.empty())) {
      return CannotConvert(absl::StrCat(
          name, " was transformed when it was saved (transform_descriptors: ", ValueText(*transforms),
          "), by compression for example, which ckptd cannot undo; load it with torch, "
          "and save it without extensions"));
    }
    CKPTD_ASSIGN_OR_RETURN(const std::string* path, FieldAs<std::string>(*info, "relative_path"));
    CKPTD_ASSIGN_OR_RETURN(const int64_t* offset, FieldAs<int64_t>(*info, "offset"));
    CKPTD_ASSIGN_OR_RETURN(const int64_t* length, FieldAs<int64_t>(*info, "length"));
    if (path->empty() || *offset < 0 || *length < 0 || *offset > INT64_MAX - *length) {
      return Corrupt(absl::StrCat(name, " is at ", *offset, " with ", *length, " bytes in \"", *path, "\""));
    }
    return DcpPlace{*path, *offset, *length};
  }

  absl::Status ReadPaths(const torch::Dict& metadata) {
    const torch::ValueRef data = metadata.Find("planner_data");
    // Another planner than torch's may have left no paths, or something else.
    const torch::Dict* paths = data != nullptr ? data->As<torch::Dict>() : nullptr;
    if (paths == nullptr) return absl::OkStatus();
    for (const auto& [key, value] : paths->entries()) {
      const auto* name = key->As<std::string>();
      const torch::Tuple* tuple = value->As<torch::Tuple>();
      if (name == nullptr || tuple == nullptr || tuple->items.empty()) {
        return Corrupt(absl::StrCat("the path of ", ValueText(*key), " is ", ValueText(*value)));
      }
      std::vector<DcpStep>& path = paths_[*name];
      for (const torch::ValueRef& item : tuple->items) {
        const auto* text = item->As<std::string>();
        const auto* index = item->As<int64_t>();
        if (text != nullptr) {
          path.emplace_back(*text);
        } else if (index != nullptr && *index >= 0) {
          path.emplace_back(*index);
        } else {
          return Corrupt(absl::StrCat("the path of ", *name, " has the step ", ValueText(*item)));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<DcpEntry> ReadEntry(const std::string& name, const torch::Value& value) {
    DcpEntry entry;
    entry.name = name;
    const auto path = paths_.find(name);
    entry.path = path != paths_.end() ? path->second : std::vector<DcpStep>{name};
    const auto* object = value.As<torch::Object>();
    if (object != nullptr && object->callable.name == "BytesStorageMetadata") {
      CKPTD_ASSIGN_OR_RETURN(entry.value, PlaceOf({name, std::nullopt}));
      return entry;
    }
    CKPTD_ASSIGN_OR_RETURN(const torch::Dict* fields, FieldsOf(value, "TensorStorageMetadata"));
    entry.is_tensor = true;
    CKPTD_RETURN_IF_ERROR(ReadProperties(*fields, entry));
    CKPTD_ASSIGN_OR_RETURN(entry.shape, Dimensions(*fields, "size"));
    CKPTD_RETURN_IF_ERROR(CheckShape(entry));
    CKPTD_ASSIGN_OR_RETURN(const torch::List* chunks, FieldAs<torch::List>(*fields, "chunks"));
    for (const torch::ValueRef& item : chunks->items) {
      CKPTD_ASSIGN_OR_RETURN(const torch::Dict* chunk, FieldsOf(*item, "ChunkStorageMetadata"));
      DcpChunk& read = entry.chunks.emplace_back();
      CKPTD_ASSIGN_OR_RETURN(read.offsets, Dimensions(*chunk, "offsets"));
      CKPTD_ASSIGN_OR_RETURN(read.sizes, Dimensions(*chunk, "sizes"));
      CKPTD_ASSIGN_OR_RETURN(read.place, PlaceOf({name, read.offsets}));
    }
    return entry;
  }

  // TensorProperties has a state of its own: (dtype, layout, requires_grad, memory format, pinned).
  static absl::Status ReadProperties(const torch::Dict& fields, DcpEntry& entry) {
    CKPTD_ASSIGN_OR_RETURN(const torch::Object* properties, FieldAs<torch::Object>(fields, "properties"));
    const torch::Tuple* state =
        properties->state != nullptr ? properties->state->As<torch::Tuple>() : nullptr;
    const DataType* dtype =
        state != nullptr && state->items.size() >= 3 ? state->items[0]->As<DataType>() : nullptr;
    if (dtype == nullptr) return Corrupt(absl::StrCat(entry.name, " has no dtype"));
    const bool* requires_grad = state->items[2]->As<bool>();
    entry.dtype = *dtype;
    entry.requires_grad = requires_grad != nullptr && *requires_grad;
    return absl::OkStatus();
  }

  // Later steps multiply sizes without a check.
  static absl::Status CheckShape(const DcpEntry& entry) {
    int64_t left = kMaxTensorBytes / InfoOf(entry.dtype).item_bytes;
    for (const int64_t size : entry.shape) left /= std::max<int64_t>(size, 1);
    if (left > 0) return absl::OkStatus();
    return Corrupt(absl::StrCat(entry.name, " has the shape ", ShapeText(entry.shape)));
  }

  absl::StatusOr<DcpPlace> PlaceOf(const PlaceKey& key) const {
    const auto found = places_.find(key);
    if (found != places_.end()) return found->second;
    return Corrupt(absl::StrCat("it does not say in which file ", key.first,
                                key.second ? absl::StrCat("'s chunk at ", ShapeText(*key.second)) : "",
                                " is"));
  }

  std::map<PlaceKey, DcpPlace> places_;
  std::map<std::string, std::vector<DcpStep>> paths_;
};

torch::ValueRef NewObject(std::string_view module, std::string_view name, torch::ValueRef state) {
  torch::Object object;
  object.callable = {std::string(module), std::string(name)};
  object.by_new = true;
  object.arguments = torch::Make(torch::Tuple());
  object.state = std::move(state);
  return torch::Make(std::move(object));
}

torch::ValueRef Called(std::string_view module, std::string_view name, torch::ValueRef argument) {
  torch::Object object;
  object.callable = {std::string(module), std::string(name)};
  object.arguments = torch::Make(torch::Tuple{{std::move(argument)}});
  return torch::Make(std::move(object));
}

torch::ValueRef MakeSize(const std::vector<int64_t>& dimensions) {
  return torch::Make(torch::Size{dimensions});
}

// Builds the objects of a Metadata.
class Builder {
 public:
  torch::ValueRef Run(const std::vector<DcpEntry>& entries) {
    for (const DcpEntry& entry : entries) Add(entry);
    torch::Dict metadata;
    metadata.Set("state_dict_metadata", torch::Make(std::move(entries_)));
    metadata.Set("planner_data", torch::Make(std::move(paths_)));
    metadata.Set("storage_data", torch::Make(std::move(places_)));
    metadata.Set("storage_meta", none_);
    metadata.Set("version", torch::MakeString(kVersion));
    return NewObject(kModule, "Metadata", torch::Make(std::move(metadata)));
  }

 private:
  void Add(const DcpEntry& entry) {
    torch::Tuple path;
    for (const DcpStep& step : entry.path) {
      const auto* key = std::get_if<std::string>(&step);
      path.items.push_back(key != nullptr ? torch::MakeString(*key)
                                          : torch::MakeInt(std::get<int64_t>(step)));
    }
    paths_.Set(entry.name, torch::Make(std::move(path)));
    if (!entry.is_tensor) {
      entries_.Set(entry.name, NewObject(kModule, "BytesStorageMetadata", nullptr));
      return AddPlace(entry.name, nullptr, none_, entry.value);
    }
    torch::List chunks;
    for (size_t i = 0; i < entry.chunks.size(); ++i) {
      const DcpChunk& chunk = entry.chunks[i];
      torch::Dict fields;
      fields.Set("offsets", MakeSize(chunk.offsets));
      fields.Set("sizes", MakeSize(chunk.sizes));
      chunks.items.push_back(NewObject(kModule, "ChunkStorageMetadata", torch::Make(std::move(fields))));
      AddPlace(entry.name, MakeSize(chunk.offsets), torch::MakeInt(static_cast<int64_t>(i)), chunk.place);
    }
    torch::Dict fields;
    fields.Set("properties", Properties(entry));
    fields.Set("size", MakeSize(entry.shape));
    fields.Set("chunks", torch::Make(std::move(chunks)));
    entries_.Set(entry.name, NewObject(kModule, "TensorStorageMetadata", torch::Make(std::move(fields))));
  }

  torch::ValueRef Properties(const DcpEntry& entry) const {
    torch::Tuple state{
        {torch::Make(entry.dtype), layout_, torch::Make(entry.requires_grad), format_, torch::Make(false)}};
    return NewObject(kModule, "TensorProperties", torch::Make(std::move(state)));
  }

  // `offset` is null for a value.
  void AddPlace(const std::string& name, torch::ValueRef offset, torch::ValueRef index,
                const DcpPlace& place) {
    torch::Dict key;
    key.Set("fqn", torch::MakeString(name));
    if (offset != nullptr) key.Set("offset", std::move(offset));
    key.Set("index", std::move(index));
    torch::Dict info;
    info.Set("relative_path", torch::MakeString(place.path));
    info.Set("offset", torch::MakeInt(place.offset));
    info.Set("length", torch::MakeInt(place.size));
    info.Set("transform_descriptors", none_);
    // An object is a key that equals itself alone, so this never fails.
    places_
        .Set(NewObject(kModule, "MetadataIndex", torch::Make(std::move(key))),
             NewObject(kFilesystemModule, "_StorageInfo", torch::Make(std::move(info))))
        .IgnoreError();
  }

  const torch::ValueRef none_ = torch::Make(torch::None());
  const torch::ValueRef layout_ =
      Called("torch.serialization", "_get_layout", torch::MakeString("torch.strided"));
  const torch::ValueRef format_ = Called(kModule, "_MEM_FORMAT_ENCODING", torch::MakeInt(kContiguousFormat));
  torch::Dict entries_, paths_, places_;
};

}  // namespace

absl::StatusOr<std::vector<DcpEntry>> ReadDcpMetadata(FileSystem& fs, Handle dir) {
  const absl::StatusOr<std::string> bytes = ReadSmallFile(fs, dir, kDcpMetadata, kMaxFileBytes);
  if (absl::IsNotFound(bytes.status())) {
    return CannotConvert(
        "there is no .metadata: this is no checkpoint of PyTorch Distributed Checkpoint, or its save has not "
        "ended");
  }
  if (!bytes.ok()) return Annotate(bytes.status(), kDcpMetadata);
  const auto no_storage = [](const std::string&) -> std::optional<torch::StoragePlace> {
    return std::nullopt;
  };
  absl::StatusOr<torch::Unpickled> unpickled = torch::Unpickle(*bytes, no_storage, kLimits);
  if (!unpickled.ok()) return Annotate(unpickled.status(), kDcpMetadata);
  absl::StatusOr<std::vector<DcpEntry>> entries = Reader().Run(*unpickled->root);
  if (!entries.ok()) return Annotate(entries.status(), kDcpMetadata);
  return entries;
}

absl::StatusOr<std::string> WriteDcpMetadata(const std::vector<DcpEntry>& entries) {
  CKPTD_ASSIGN_OR_RETURN(torch::Pickled pickled, torch::Pickle(*Builder().Run(entries), kLimits));
  return std::move(pickled.bytes);
}

}  // namespace ckptd
