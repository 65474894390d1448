#include "client/convert/tensors/tensor_list.h"

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/convert/dcp/dcp_metadata.h"
#include "client/convert/files/open_archive.h"
#include "client/convert/files/value_text.h"
#include "client/formats/safetensors/safetensors.h"
#include "client/formats/torch/value.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

constexpr std::array<std::string_view, 4> kArchiveSuffixes = {".pt", ".pth", ".bin", ".ckpt"};
constexpr std::string_view kDcpSuffix = ".distcp";
constexpr std::string_view kSafetensorsSuffix = ".safetensors";
constexpr std::string_view kZipMagic("PK\x03\x04", 4);

class Lister {
 public:
  Lister(FileSystem& fs, Handle top) : fs_(fs), top_(top) {}

  absl::StatusOr<TensorList> Run() {
    CKPTD_RETURN_IF_ERROR(Walk(top_, "", static_cast<int>(kMaxOpenLevels)));
    return std::move(list_);
  }

 private:
  absl::Status Walk(Handle dir, const std::string& prefix, int depth) {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs_.List(dir));
    for (const DirEntry& entry : entries) {
      const std::string path = prefix + entry.name;
      if (entry.type == FileType::kRegular) AddFile(dir, entry.name, path);
      if (entry.type != FileType::kDirectory || depth == 0 || entry.name.starts_with(kOurDirectory)) continue;
      CKPTD_ASSIGN_OR_RETURN(const ScopedHandle below,
                             OpenScoped(fs_, dir, entry.name, OpenMode::kDirectory));
      CKPTD_RETURN_IF_ERROR(Walk(below.get(), path + "/", depth - 1));
    }
    return absl::OkStatus();
  }

  void AddFile(Handle dir, const std::string& name, const std::string& path) {
    absl::Status read;
    if (name == kDcpMetadata) {
      read = AddDistributed(dir, path);
    } else if (name.ends_with(kSafetensorsSuffix)) {
      read = AddSafetensors(path);
    } else if (IsArchive(name, path)) {
      read = AddArchive(path);
    }
    if (!read.ok()) list_.unread.push_back(absl::StrCat(path, ": ", std::string(read.message())));
  }

  // Files of a distributed checkpoint are archives, too, and are listed by its .metadata.
  bool IsArchive(const std::string& name, const std::string& path) const {
    if (name.ends_with(kDcpSuffix)) return false;
    for (const std::string_view suffix : kArchiveSuffixes) {
      if (name.ends_with(suffix)) return true;
    }
    const absl::StatusOr<ScopedHandle> file = OpenScoped(fs_, top_, path, OpenMode::kRead);
    std::array<std::byte, kZipMagic.size()> magic;
    if (!file.ok() || !ReadFully(fs_, file->get(), 0, magic).ok()) return false;
    return std::string_view(reinterpret_cast<const char*>(magic.data()), magic.size()) == kZipMagic;
  }

  void Add(ListedTensor tensor) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    if (tensor.dtype) {
      tensor.bytes = elements * InfoOf(*tensor.dtype).item_bytes;
      list_.elements += elements;
      list_.bytes += tensor.bytes;
    }
    list_.tensors.push_back(std::move(tensor));
  }

  absl::Status AddDistributed(Handle dir, const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<DcpEntry> entries, ReadDcpMetadata(fs_, dir));
    const std::string folder = path.substr(0, path.size() - std::string_view(kDcpMetadata).size());
    for (const DcpEntry& entry : entries) {
      if (!entry.is_tensor) continue;
      ListedTensor tensor = {.name = entry.name, .dtype = entry.dtype, .shape = entry.shape};
      tensor.chunks = static_cast<int64_t>(entry.chunks.size());
      if (!entry.chunks.empty()) tensor.file = folder + entry.chunks.front().place.path;
      Add(std::move(tensor));
    }
    return absl::OkStatus();
  }

  absl::Status AddSafetensors(const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs_, top_, path, OpenMode::kRead));
    CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs_.Stat(file.get(), ""));
    CKPTD_ASSIGN_OR_RETURN(const safetensors::File opened,
                           safetensors::Open(FileSource(fs_, file.get(), path, 0, stat.size)));
    for (const safetensors::Tensor& tensor : opened.tensors)
      Add({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .file = path});
    return absl::OkStatus();
  }

  absl::Status AddArchive(const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(const torch::Archive archive, OpenArchiveAt(fs_, top_, path));
    AddValue(*archive.root, "", path);
    return absl::OkStatus();
  }

  // The unpickler has bounded the depth and the number of values.
  void AddValue(const torch::Value& value, const std::string& name, const std::string& path) {
    const auto below = [&](const std::string& step) {
      return name.empty() ? step : absl::StrCat(name, ".", step);
    };
    if (const auto* tensor = value.As<torch::Tensor>()) {
      Add({.name = name, .dtype = tensor->dtype, .shape = tensor->shape, .file = path});
    } else if (const auto* internal = value.As<torch::InternalTensorReference>()) {
      Add({.name = below(absl::StrCat("tensor_", internal->tid)), .shape = internal->shape, .file = path});
    } else if (const auto* reference = value.As<torch::TensorReference>()) {
      Add({.name = below(absl::StrCat("tensor_", reference->tid)), .file = path});
    } else if (const auto* dict = value.As<torch::Dict>()) {
      for (const auto& [key, item] : dict->entries()) {
        const auto* text = key->As<std::string>();
        AddValue(*item, below(text != nullptr ? *text : ValueText(*key)), path);
      }
    } else if (const std::vector<torch::ValueRef>* items = ItemsOf(value)) {
      for (size_t i = 0; i < items->size(); ++i) AddValue(*(*items)[i], below(absl::StrCat(i)), path);
    }
  }

  static const std::vector<torch::ValueRef>* ItemsOf(const torch::Value& value) {
    if (const auto* list = value.As<torch::List>()) return &list->items;
    if (const auto* tuple = value.As<torch::Tuple>()) return &tuple->items;
    return nullptr;
  }

  FileSystem& fs_;
  const Handle top_;
  TensorList list_;
};

}  // namespace

absl::StatusOr<TensorList> ListTensors(FileSystem& fs, Handle dir) { return Lister(fs, dir).Run(); }

}  // namespace ckptd
