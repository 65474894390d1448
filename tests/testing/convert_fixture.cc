#include "tests/testing/convert_fixture.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/formats/byte_source.h"
#include "client/formats/torch/archive.h"
#include "client/formats/torch/archive_layout.h"
#include "gtest/gtest.h"
#include "storage/base/checksums/crc32c.h"

namespace ckptd {
namespace {

using torch::Dict;
using torch::ValueRef;
using Files = std::map<std::string, std::string>;

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return count;
}

std::string FullBytes(const std::string& name, const std::vector<int64_t>& shape) {
  const uint32_t seed = Crc32c(std::as_bytes(std::span(name)));
  std::string bytes(static_cast<size_t>(Elements(shape) * 4), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(1 + (seed + i * 7 + i / 251) % 255);
  return bytes;
}

std::string GroupName(int tp, int pp) { return absl::StrFormat("tp_rank_%02d_pp_rank_%02d.pt", tp, pp); }
std::string FileName(bool full, int dp, int tp, int pp) {
  return (full ? std::string("full_") : absl::StrFormat("dp_rank_%02d_", dp)) + GroupName(tp, pp);
}
std::string TensorName(int tp, int pp, int64_t id, const std::string& state) {
  return absl::StrCat(tp, "/", pp, "/", id, "/", state);
}

ValueRef ShardTensor(const std::string& name, std::vector<int64_t> shape, int index, int count,
                     StorageBytes& bytes) {
  std::string shard = ShardBytes(name, shape, index, count);
  shape[0] = (shape[0] + count - 1) / count;
  torch::Tensor tensor = torch::NewTensor(DataType::kFloat32, shape);
  bytes[tensor.storage.get()] = std::move(shard);
  return torch::Make(std::move(tensor));
}

// The state of one rank as ZeRO-1 has it. For a full state, count is 1.
Dict MakeState(const TestTag& tag, int index, int count, int tp, int pp, StorageBytes& bytes) {
  Dict base, shapes, masters;
  torch::List ids;
  for (const auto& [id, shape] : tag.shapes) {
    torch::List list;
    for (const int64_t n : shape) list.items.push_back(torch::MakeInt(n));
    shapes.Set(id, torch::Make(std::move(list)));
    ids.items.push_back(torch::MakeInt(id));
    if (tag.master_weights)
      masters.Set(id, ShardTensor(TensorName(tp, pp, id, "master"), shape, index, count, bytes));
    if (std::find(tag.frozen.begin(), tag.frozen.end(), id) != tag.frozen.end()) continue;
    Dict states;
    states.Set("step", TestTensor("step", {}, bytes));
    for (const std::string name : {"exp_avg", "exp_avg_sq"})
      states.Set(name, ShardTensor(TensorName(tp, pp, id, name), shape, index, count, bytes));
    base.Set(id, torch::Make(std::move(states)));
  }
  Dict group;
  group.Set("lr", TestTensor("lr", {}, bytes));
  group.Set("weight_decay", torch::Make<double>(0.1));
  group.Set("params", torch::Make(std::move(ids)));
  torch::List groups;
  groups.items.push_back(torch::Make(std::move(group)));
  Dict state;
  state.Set("state", torch::Make(Dict()));
  state.Set("param_groups", torch::Make(std::move(groups)));
  state.Set("base_state", torch::Make(std::move(base)));
  state.Set("shape_info", torch::Make(std::move(shapes)));
  if (tag.master_weights) state.Set("sharded_master_weights", torch::Make(std::move(masters)));
  return state;
}

// Moves tensors out as xser does: inside a list, upstream leaves a reference of another class.
ValueRef TakeOut(const ValueRef& value, bool in_list, const std::string& path, const StorageBytes& bytes,
                 int64_t* tid, Dict* info, Files* files) {
  if (const auto* tensor = value->As<torch::Tensor>()) {
    const int64_t number = (*tid)++;
    (*files)[absl::StrCat(path, ".tensors/tensor_", number, ".pt")] = ArchiveBytes(*value, bytes);
    if (in_list)
      return torch::Make(torch::InternalTensorReference{number, tensor->shape, tensor->dtype, false});
    Dict fields;
    fields.Set("dtype", torch::Make<DataType>(tensor->dtype));
    fields.Set("shape", torch::Make(torch::Size{tensor->shape}));
    fields.Set("expert_model_parallel", torch::Make<bool>(false));
    info->Set(number, torch::Make(std::move(fields)));
    return torch::Make(torch::TensorReference{number});
  }
  if (const auto* dict = value->As<Dict>()) {
    Dict copy = *dict;
    for (size_t i = 0; i < copy.size(); ++i)
      copy.Replace(i, TakeOut(dict->entries()[i].second, in_list, path, bytes, tid, info, files));
    return torch::Make(std::move(copy));
  }
  if (const auto* list = value->As<torch::List>()) {
    torch::List copy;
    for (const ValueRef& item : list->items)
      copy.items.push_back(TakeOut(item, true, path, bytes, tid, info, files));
    return torch::Make(std::move(copy));
  }
  return value;
}

struct Opened {
  torch::Archive archive;
  const std::string* file;
};

std::string BytesOf(const Opened& opened, const torch::Tensor& tensor) {
  return opened.file->substr(static_cast<size_t>(tensor.file_offset()),
                             static_cast<size_t>(tensor.elements() * InfoOf(tensor.dtype).item_bytes));
}

// Reads and checks a tree that a conversion wrote.
class Checker {
 public:
  Checker(const Files& files, const TestTag& tag) : files_(files), tag_(tag) {}

  std::string Check(bool full, int count) {
    for (int pp = 0; pp < tag_.pp; ++pp) {
      for (int tp = 0; tp < tag_.tp; ++tp) {
        for (int index = 0; index < count; ++index) {
          file_ = "optim/" + FileName(full, index, tp, pp);
          CheckState(index, count, tp, pp);
          if (!wrong_.empty()) return wrong_;
        }
      }
    }
    if (files_.contains("done") == full) return "the marker `done`";
    if (files_.contains("checkpoint") == full) return "the marker `checkpoint`";
    if (files_.contains("model/dp_rank_00_tp_rank_00_pp_rank_00.pt") != tag_.markers) return "the model";
    return wrong_;
  }

 private:
  void Expect(bool good, const std::string& what) {
    if (!good && wrong_.empty()) wrong_ = absl::StrCat(file_, ": ", what);
  }

  std::optional<Opened> Open(const std::string& path) {
    const auto file = files_.find(path);
    if (file == files_.end()) {
      Expect(false, path + " is missing");
      return std::nullopt;
    }
    absl::StatusOr<torch::Archive> archive = torch::OpenArchive(MemorySource(file->second, path));
    Expect(archive.ok(), archive.status().ToString());
    if (!archive.ok()) return std::nullopt;
    return Opened{*std::move(archive), &file->second};
  }

  void CheckTensor(const Opened& in, const ValueRef& value, const std::string& what,
                   const std::string& expected, const std::vector<int64_t>& shape) {
    Expect(value != nullptr, what + " is missing");
    if (value == nullptr) return;
    const Opened* opened = &in;
    const auto* tensor = value->As<torch::Tensor>();
    std::optional<Opened> own;
    if (const auto* reference = value->As<torch::TensorReference>()) {
      own = Open(absl::StrCat(file_, ".tensors/tensor_", reference->tid, ".pt"));
      if (!own) return;
      opened = &*own;
      tensor = own->archive.root->As<torch::Tensor>();
      references_ += 1;
    }
    Expect(tensor != nullptr, what + " is not a tensor");
    if (tensor == nullptr) return;
    Expect(tensor->shape == shape, what + " has another shape");
    Expect(BytesOf(*opened, *tensor) == expected, what + " has different bytes");
    Expect(tensor->storage->bytes == static_cast<int64_t>(expected.size()),
           what + " has a storage larger than the tensor");
  }

  void CheckState(int index, int count, int tp, int pp) {
    const std::optional<Opened> opened = Open(file_);
    if (!opened) return;
    references_ = 0;
    const Dict* state = opened->archive.root->As<Dict>();
    const Dict* base = state->Find("base_state")->As<Dict>();
    const Dict* shapes = state->Find("shape_info")->As<Dict>();
    Expect(shapes->size() == tag_.shapes.size(), "shape_info");
    Expect(base->size() == tag_.shapes.size() - tag_.frozen.size(), "the number of states");
    for (const auto& entry : tag_.shapes) {
      const int64_t id = entry.first;
      const std::vector<int64_t>& shape = entry.second;
      std::vector<int64_t> cut = shape;
      cut[0] = (shape[0] + count - 1) / count;
      const auto expect = [&](const ValueRef& value, const std::string& name) {
        CheckTensor(*opened, value, absl::StrCat(id, " ", name),
                    ShardBytes(TensorName(tp, pp, id, name), shape, index, count), cut);
      };
      if (tag_.master_weights) expect(state->Find("sharded_master_weights")->As<Dict>()->Find(id), "master");
      if (base->Find(id) == nullptr) continue;
      const Dict* states = base->Find(id)->As<Dict>();
      expect(states->Find("exp_avg"), "exp_avg");
      expect(states->Find("exp_avg_sq"), "exp_avg_sq");
      CheckTensor(*opened, states->Find("step"), "step", FullBytes("step", {}), {});
    }
    const Dict* group = state->Find("param_groups")->As<torch::List>()->items[0]->As<Dict>();
    CheckTensor(*opened, group->Find("lr"), "lr", FullBytes("lr", {}), {});
    Expect(*group->Find("weight_decay")->As<double>() == 0.1, "weight_decay");
    if (!tag_.xser) return;
    Expect(group->Find("lr")->As<torch::Tensor>() != nullptr, "a reference inside a list");
    const std::optional<Opened> info = Open(file_ + ".info.pt");
    if (info) Expect(info->archive.root->As<Dict>()->size() == static_cast<size_t>(references_), ".info.pt");
  }

  const Files& files_;
  const TestTag& tag_;
  std::string file_;
  std::string wrong_;
  int references_ = 0;
};

void ReadInto(FileSystem& fs, Handle dir, const std::string& above, Files& files) {
  absl::StatusOr<std::vector<DirEntry>> entries = fs.List(dir);
  ASSERT_TRUE(entries.ok()) << entries.status();
  for (const DirEntry& entry : *entries) {
    const std::string path = above + entry.name;
    if (entry.type == FileType::kDirectory) {
      const ScopedHandle child = *OpenScoped(fs, dir, entry.name, OpenMode::kDirectory);
      files[path + "/"] = "";
      ReadInto(fs, child.get(), path + "/", files);
    } else {
      files[path] = ReadSmallFile(fs, dir, entry.name, 64 << 20).value_or("unreadable");
    }
  }
}

}  // namespace

std::string ArchiveBytes(const torch::Value& root, const StorageBytes& bytes, const std::string& name) {
  const absl::StatusOr<torch::ArchiveLayout> layout = torch::LayOutArchive(root, {.name = name});
  EXPECT_TRUE(layout.ok()) << layout.status();
  std::string file(static_cast<size_t>(layout->size()), '\0');
  for (const auto& piece : layout->Pieces())
    file.replace(static_cast<size_t>(piece.offset), piece.bytes.size(), piece.bytes);
  for (const auto& range : layout->storages()) {
    const std::string& content = bytes.at(range.storage.get());
    file.replace(static_cast<size_t>(range.offset), content.size(), content);
  }
  return file;
}

ValueRef TestTensor(const std::string& name, std::vector<int64_t> shape, StorageBytes& bytes) {
  torch::Tensor tensor = torch::NewTensor(DataType::kFloat32, shape);
  bytes[tensor.storage.get()] = FullBytes(name, shape);
  return torch::Make(std::move(tensor));
}

std::string ShardBytes(const std::string& name, const std::vector<int64_t>& shape, int index, int count) {
  std::string bytes = FullBytes(name, shape);
  const auto rows = static_cast<size_t>((shape[0] + count - 1) / count);
  const size_t row = bytes.size() / static_cast<size_t>(shape[0]);
  bytes.resize(rows * row * static_cast<size_t>(count));  // Zeros.
  return bytes.substr(rows * row * static_cast<size_t>(index), rows * row);
}

Files MakeTag(const TestTag& tag) {
  Files files;
  const int count = tag.full ? 1 : tag.dp;
  for (int pp = 0; pp < tag.pp; ++pp) {
    for (int tp = 0; tp < tag.tp; ++tp) {
      for (int dp = 0; dp < count; ++dp) {
        StorageBytes bytes;
        Dict state = MakeState(tag, dp, count, tp, pp, bytes);
        if (tag.change) tag.change(dp, state, bytes);
        ValueRef root = torch::Make(std::move(state));
        const std::string path = "optim/" + FileName(tag.full, dp, tp, pp);
        if (tag.xser) {
          int64_t tid = 0;
          Dict info;
          root = TakeOut(root, false, path, bytes, &tid, &info, &files);
          files[path + ".info.pt"] = ArchiveBytes(*torch::Make(std::move(info)), {});
        }
        files[path] = ArchiveBytes(*root, bytes, "state");
      }
    }
  }
  if (tag.markers) {
    files["checkpoint"] = files["done"] = "1";
    files["model/dp_rank_00_tp_rank_00_pp_rank_00.pt"] = FullBytes("model", {3000});
    files["model/deep/dp.tensors/tensor_0.pt"] = FullBytes("deep", {7});
    files["scheduler.pt"] = "a scheduler";
    files["user_content.pt"] = "";
  }
  return files;
}

void PutTag(FileSystem& fs, Handle dir, const Files& files) {
  for (const auto& [path, content] : files) {
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos) {
      ASSERT_TRUE(MakeDirsDurably(fs, dir, path.substr(0, slash)).ok());
    }
    const absl::Status written = WriteNewFile(fs, dir, path, content);
    ASSERT_TRUE(written.ok()) << path << ": " << written;
  }
}

Files ReadTree(FileSystem& fs, Handle dir) {
  Files files;
  ReadInto(fs, dir, "", files);
  return files;
}

std::string WrongWith(const Files& files, const TestTag& tag, bool full, int count) {
  std::string wrong = Checker(files, tag).Check(full, count);
  if (!wrong.empty() || !tag.markers) return wrong;
  for (const auto& [path, content] : MakeTag(tag)) {
    if (path.starts_with("optim/") || path == "done" || path == "checkpoint") continue;
    const auto carried = files.find(path);
    if (carried == files.end() || carried->second != content) return path + " was not carried over";
  }
  return "";
}

}  // namespace ckptd
