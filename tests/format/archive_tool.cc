// Prints what the readers of tensor files read from a file, and writes it again with the writers. The tests
// beside it compare both with torch and safetensors.
//
//   archive_tool show FILE.pt                       the object, as JSON
//   archive_tool rewrite FILE.pt NEW.pt [OPTION]    checksums | holes: no bytes of storages
//   archive_tool show-safetensors FILE
//   archive_tool rewrite-safetensors FILE NEW
//
// On an error it exits with 1 and prints `CODE REASON: message`.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/formats/byte_source.h"
#include "client/formats/data_type.h"
#include "client/formats/safetensors/safetensors.h"
#include "client/formats/torch/archive.h"
#include "client/formats/torch/archive_layout.h"
#include "client/formats/torch/value.h"
#include "storage/base/checksums/crc32.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

using nlohmann::json;

[[noreturn]] void Die(const absl::Status& status) {
  std::fprintf(stderr, "%s %s: %s\n", absl::StatusCodeToString(status.code()).c_str(),
               ReasonOf(status).c_str(), std::string(status.message()).c_str());
  std::exit(1);
}

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) Die(value.status());
  return *std::move(value);
}

class Shower {
 public:
  json Show(const torch::ValueRef& value) { return value != nullptr ? value->Visit(*this) : json(); }

  json operator()(const torch::None&) { return {"None"}; }
  json operator()(bool flag) { return {"bool", flag}; }
  json operator()(int64_t number) { return {"int", absl::StrCat(number)}; }
  json operator()(const torch::BigInt& number) { return {"bigint", absl::BytesToHexString(number.bytes)}; }
  json operator()(double number) { return {"float", absl::StrCat(std::bit_cast<uint64_t>(number))}; }
  json operator()(const std::string& text) { return {"str", absl::BytesToHexString(text)}; }
  json operator()(const torch::Bytes& bytes) { return {"bytes", absl::BytesToHexString(bytes.bytes)}; }
  json operator()(const torch::List& list) { return {"list", Items(list.items)}; }
  json operator()(const torch::Tuple& tuple) { return {"tuple", Items(tuple.items)}; }
  json operator()(const torch::Set& set) {
    std::vector<std::string> items;
    for (const torch::ValueRef& item : set.items) items.push_back(Show(item).dump());
    std::ranges::sort(items);
    return {set.frozen ? "frozenset" : "set", json(items)};
  }
  json operator()(const torch::Dict& dict) {
    if (!dict.ordered) return {"dict", Entries(dict.entries())};
    return {"OrderedDict", Entries(dict.entries()), Show(dict.attributes)};
  }
  json operator()(const torch::Size& size) { return {"Size", json(size.dimensions)}; }
  json operator()(DataType dtype) { return {"dtype", InfoOf(dtype).torch_name}; }
  json operator()(const torch::Tensor& tensor) {
    const json fields = {{"dtype", InfoOf(tensor.dtype).torch_name},
                         {"offset", tensor.offset},
                         {"shape", tensor.shape},
                         {"stride", tensor.stride},
                         {"requires_grad", tensor.requires_grad},
                         {"parameter", tensor.parameter},
                         {"storage", Index(tensor.storage)},
                         {"attributes", Show(tensor.attributes)},
                         {"bits", Show(tensor.math_bits)}};
    return {"tensor", fields};
  }
  json operator()(const torch::BareStorage& bare) {
    const std::string_view dtype = bare.dtype ? InfoOf(*bare.dtype).torch_name : "untyped";
    return {"storage", dtype, Index(bare.storage)};
  }
  json operator()(const torch::TensorReference& reference) { return {"TensorReference", reference.tid}; }
  json operator()(const torch::InternalTensorReference& reference) {
    return {"_InternalTensorReference", reference.tid, json(reference.shape),
            InfoOf(reference.dtype).torch_name, reference.expert_model_parallel};
  }
  json operator()(const torch::Global& global) { return {"global", global.module, global.name}; }
  json operator()(const torch::Object& object) {
    return {"object",
            absl::StrCat(object.callable.module, ".", object.callable.name),
            object.by_new,
            Show(object.arguments),
            Items(object.items),
            Entries(object.entries),
            Show(object.state)};
  }

  // The location of each storage, in the order of the indices that Index() assigned.
  json Storages() const {
    json all = json::array();
    for (const torch::StorageRef& storage : storages_) {
      all.push_back(
          {{"bytes", storage->bytes}, {"offset", storage->file_offset}, {"location", storage->location}});
    }
    return all;
  }

 private:
  json Items(const std::vector<torch::ValueRef>& items) {
    json all = json::array();
    for (const torch::ValueRef& item : items) all.push_back(Show(item));
    return all;
  }
  json Entries(const std::vector<std::pair<torch::ValueRef, torch::ValueRef>>& entries) {
    json all = json::array();
    for (const auto& [key, value] : entries) {
      json pair = json::array({Show(key)});
      pair.push_back(Show(value));
      all.push_back(std::move(pair));
    }
    return all;
  }
  size_t Index(const torch::StorageRef& storage) {
    const auto [place, is_new] = index_.emplace(storage.get(), storages_.size());
    if (is_new) storages_.push_back(storage);
    return place->second;
  }

  std::map<const torch::Storage*, size_t> index_;
  std::vector<torch::StorageRef> storages_;
};

class NewFile {
 public:
  NewFile(const char* path, int64_t size) : fd_(::open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (!fd_ || ::ftruncate(fd_.get(), size) != 0)
      Die(absl::InternalError(absl::StrCat("cannot create ", path)));
  }
  void Write(int64_t offset, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
      if (n <= 0) Die(absl::InternalError("a write failed"));
      bytes.remove_prefix(static_cast<size_t>(n));
      offset += n;
    }
  }

 private:
  UniqueFd fd_;
};

std::string Read(const ByteSource& source, int64_t offset, int64_t bytes) {
  std::string content(static_cast<size_t>(bytes), '\0');
  const absl::Status read =
      source.ReadAt(offset, std::as_writable_bytes(std::span(content.data(), content.size())));
  if (!read.ok()) Die(read);
  return content;
}

void Show(const ByteSource& source) {
  const torch::Archive archive = OrDie(torch::OpenArchive(source));
  Shower shower;
  json shown = {{"root", shower.Show(archive.root)}, {"name", archive.name}};
  shown["storages"] = shower.Storages();
  std::printf("%s\n", shown.dump().c_str());
}

void Rewrite(const ByteSource& source, const char* path, std::string_view option) {
  const torch::Archive archive = OrDie(torch::OpenArchive(source));
  const torch::ArchiveLayout layout = OrDie(torch::LayOutArchive(*archive.root));
  NewFile file(path, layout.size());
  std::vector<uint32_t> checksums;
  for (const torch::ArchiveLayout::Range& range : layout.storages()) {
    if (option == "holes") break;
    const std::string bytes = Read(source, range.storage->file_offset, range.storage->bytes);
    file.Write(range.offset, bytes);
    if (option == "checksums")
      checksums.push_back(Crc32(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  }
  for (const torch::ArchiveLayout::Piece& piece : layout.Pieces(checksums))
    file.Write(piece.offset, piece.bytes);
}

void ShowSafetensors(const ByteSource& source) {
  const safetensors::File file = OrDie(safetensors::Open(source));
  json tensors = json::array();
  for (const safetensors::Tensor& tensor : file.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", InfoOf(tensor.dtype).torch_name},
                       {"shape", tensor.shape},
                       {"offset", tensor.offset},
                       {"bytes", tensor.bytes}});
  }
  std::printf("%s\n", json({{"tensors", tensors}, {"metadata", file.metadata}}).dump().c_str());
}

void RewriteSafetensors(const ByteSource& source, const char* path) {
  const safetensors::File old = OrDie(safetensors::Open(source));
  std::map<std::string, int64_t> offsets;
  for (const safetensors::Tensor& tensor : old.tensors) offsets[tensor.name] = tensor.offset;
  const safetensors::Layout layout = OrDie(safetensors::LayOut(old));
  NewFile file(path, layout.size);
  file.Write(0, layout.header);
  for (const safetensors::Tensor& tensor : layout.tensors) {
    file.Write(tensor.offset, Read(source, offsets.at(tensor.name), tensor.bytes));
  }
}

int Run(std::span<char*> arguments) {
  const std::string_view command = arguments.size() > 2 ? arguments[1] : "";
  const bool rewrite = command == "rewrite" || command == "rewrite-safetensors";
  if ((command != "show" && command != "show-safetensors" && !rewrite) || (rewrite && arguments.size() < 4)) {
    std::fprintf(stderr, "usage: archive_tool show|rewrite[-safetensors] FILE [NEW [checksums|holes]]\n");
    return 2;
  }
  const UniqueFd fd(::open(arguments[2], O_RDONLY | O_CLOEXEC));
  const DescriptorSource source = OrDie(DescriptorSource::Of(fd.get(), arguments[2]));
  if (command == "show") Show(source);
  if (command == "rewrite") Rewrite(source, arguments[3], arguments.size() > 4 ? arguments[4] : "");
  if (command == "show-safetensors") ShowSafetensors(source);
  if (command == "rewrite-safetensors") RewriteSafetensors(source, arguments[3]);
  return 0;
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) { return ckptd::Run(std::span(argv, static_cast<size_t>(argc))); }
