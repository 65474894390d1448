#include "tests/testing/torch_archive_fixture.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/formats/data_type.h"
#include "storage/base/checksums/crc32.h"

namespace ckptd::torch {
namespace {

std::string Quoted(const std::string& text) { return absl::StrCat("'", absl::CHexEscape(text), "'"); }

std::string Joined(const std::vector<ValueRef>& items) {
  std::string joined;
  for (const ValueRef& item : items) absl::StrAppend(&joined, joined.empty() ? "" : ", ", Describe(*item));
  return joined;
}

std::string Joined(const std::vector<std::pair<ValueRef, ValueRef>>& entries) {
  std::string joined;
  for (const auto& [key, value] : entries) {
    absl::StrAppend(&joined, joined.empty() ? "" : ", ", Describe(*key), ": ", Describe(*value));
  }
  return joined;
}

std::string Joined(const std::vector<int64_t>& numbers) {
  std::string joined;
  for (const int64_t number : numbers) absl::StrAppend(&joined, joined.empty() ? "" : ", ", number);
  return joined;
}

std::string Nullable(const char* name, const ValueRef& value) {
  return value != nullptr ? absl::StrCat(" ", name, "=", Describe(*value)) : "";
}

std::string NameOf(DataType dtype) { return std::string(InfoOf(dtype).torch_name); }

struct Describer {
  std::string operator()(const None&) const { return "None"; }
  std::string operator()(bool flag) const { return flag ? "True" : "False"; }
  std::string operator()(int64_t number) const { return absl::StrCat(number); }
  std::string operator()(const BigInt& number) const {
    return absl::StrCat("int:", absl::BytesToHexString(number.bytes));
  }
  std::string operator()(double number) const { return absl::StrCat("float:", number); }
  std::string operator()(const std::string& text) const { return Quoted(text); }
  std::string operator()(const Bytes& bytes) const { return absl::StrCat("b", Quoted(bytes.bytes)); }
  std::string operator()(const List& list) const { return absl::StrCat("[", Joined(list.items), "]"); }
  std::string operator()(const Tuple& tuple) const { return absl::StrCat("(", Joined(tuple.items), ")"); }
  std::string operator()(const Set& set) const {
    return absl::StrCat(set.frozen ? "frozenset" : "set", "{", Joined(set.items), "}");
  }
  std::string operator()(const Dict& dict) const {
    return absl::StrCat(dict.ordered ? "OrderedDict" : "", "{", Joined(dict.entries()),
                        Nullable("attributes", dict.attributes), "}");
  }
  std::string operator()(const Size& size) const {
    return absl::StrCat("Size(", Joined(size.dimensions), ")");
  }
  std::string operator()(DataType dtype) const { return "torch." + NameOf(dtype); }
  std::string operator()(const Tensor& tensor) const {
    return absl::StrCat(tensor.parameter ? "parameter(" : "tensor(", NameOf(tensor.dtype), " [",
                        Joined(tensor.shape), "] by [", Joined(tensor.stride), "] at ", tensor.offset, " of ",
                        tensor.storage->bytes, " on ", tensor.storage->location,
                        tensor.requires_grad ? " requires_grad" : "", Nullable("bits", tensor.math_bits),
                        Nullable("attributes", tensor.attributes), ")");
  }
  std::string operator()(const BareStorage& bare) const {
    return absl::StrCat("storage(", bare.dtype ? NameOf(*bare.dtype) : "untyped", " ", bare.storage->bytes,
                        ")");
  }
  std::string operator()(const TensorReference& reference) const {
    return absl::StrCat("TensorReference(", reference.tid, ")");
  }
  std::string operator()(const InternalTensorReference& reference) const {
    return absl::StrCat("_InternalTensorReference(", reference.tid, ", [", Joined(reference.shape), "], ",
                        NameOf(reference.dtype), reference.expert_model_parallel ? ", expert" : "", ")");
  }
  std::string operator()(const Global& global) const {
    return absl::StrCat("<", global.module, ".", global.name, ">");
  }
  std::string operator()(const Object& object) const {
    return absl::StrCat(
        object.callable.module, ".", object.callable.name, object.by_new ? ".__new__" : "",
        Describe(*object.arguments), object.items.empty() ? "" : "[" + Joined(object.items) + "]",
        object.entries.empty() ? "" : "{" + Joined(object.entries) + "}", Nullable("state", object.state));
  }
};

}  // namespace

std::string Describe(const Value& value) { return value.Visit(Describer()); }

std::string PatternOf(size_t storage, size_t bytes) {
  std::string pattern(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<char>(storage * 37 + i * 11 + 1);
  return pattern;
}

std::string FileOf(const ArchiveLayout& layout) {
  std::string file(static_cast<size_t>(layout.size()), '\xee');
  std::vector<uint32_t> checksums;
  for (size_t i = 0; i < layout.storages().size(); ++i) {
    const ArchiveLayout::Range& range = layout.storages()[i];
    const std::string bytes = PatternOf(i, static_cast<size_t>(range.storage->bytes));
    file.replace(static_cast<size_t>(range.offset), bytes.size(), bytes);
    checksums.push_back(Crc32(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  }
  for (const ArchiveLayout::Piece& piece : layout.Pieces(checksums)) {
    file.replace(static_cast<size_t>(piece.offset), piece.bytes.size(), piece.bytes);
  }
  return file;
}

absl::StatusOr<std::string> FileOf(const Value& root, const LayoutOptions& options) {
  absl::StatusOr<ArchiveLayout> layout = LayOutArchive(root, options);
  if (!layout.ok()) return layout.status();
  return FileOf(*layout);
}

}  // namespace ckptd::torch
