#include "client/ckptctl/convert/describe_tensors.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/commands/disk_root.h"
#include "client/ckptctl/text/names.h"
#include "client/ckptctl/text/text.h"
#include "client/convert/files/value_text.h"
#include "client/convert/tensors/tensor_list.h"
#include "client/cpp/session/rpc.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

constexpr char kLatest[] = "latest";

struct Place {
  std::string root;  // A path or a URL.
  std::string tag;   // A directory in it.
};

absl::StatusOr<Place> PlaceOnDisk(std::string name) {
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  const size_t slash = name.rfind('/');
  Place place = {slash == 0 ? "/" : name.substr(0, slash), name.substr(slash + 1)};
  if (place.tag != kLatest) return place;
  CKPTD_ASSIGN_OR_RETURN(const DiskRoot root, ReadDiskRoot(place.root));
  CKPTD_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, DescribeOnDisk(root, kLatest));
  place.tag = checkpoint.tag();
  return place;
}

absl::StatusOr<Place> PlaceByDaemon(const Context& context, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(const v1::ListRunsResponse runs, rpc->ListRuns(CallTimeout(context)));
  v1::GetCheckpointRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_name(), CheckpointName(runs, name));
  CKPTD_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, rpc->GetCheckpoint(request, CallTimeout(context)));
  for (const v1::Run& run : runs.runs()) {
    if (run.name() == checkpoint.run()) return Place{run.path(), checkpoint.tag()};
  }
  return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_RUN", absl::StrCat(checkpoint.run(), " is gone"));
}

std::string TypeText(const ListedTensor& tensor) {
  return tensor.dtype ? std::string(InfoOf(*tensor.dtype).torch_name) : "in a file of its own";
}

void PrintText(const Context& context, const std::string& path, const TensorList& list) {
  Table table({"NAME", "DTYPE", "SHAPE", "SIZE", "FILE"});
  for (const ListedTensor& tensor : list.tensors) {
    const std::string more =
        tensor.chunks > 1 ? absl::StrCat(" and ", tensor.chunks - 1, " more chunks") : "";
    table.Add({Printable(tensor.name), TypeText(tensor), tensor.dtype ? ShapeText(tensor.shape) : "",
               tensor.dtype ? HumanBytes(tensor.bytes) : "", Printable(tensor.file) + more});
  }
  std::ostream& out = *context.out;
  out << Printable(path) << "  (" << Plural(static_cast<int64_t>(list.tensors.size()), "tensor") << ", "
      << Plural(list.elements, "element") << ", " << HumanBytes(list.bytes) << ")\n";
  if (!table.empty()) out << table.ToString();
  for (const std::string& file : list.unread) out << "cannot be read: " << Printable(file) << "\n";
}

void PrintJson(const Context& context, const std::string& path, const TensorList& list) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const ListedTensor& tensor : list.tensors) {
    nlohmann::json one = {{"name", tensor.name}, {"file", tensor.file}, {"chunks", tensor.chunks}};
    one["dtype"] =
        tensor.dtype ? nlohmann::json(std::string(InfoOf(*tensor.dtype).torch_name)) : nlohmann::json();
    one["shape"] = tensor.shape;
    one["bytes"] = tensor.bytes;
    tensors.push_back(std::move(one));
  }
  const nlohmann::json all = {{"path", path},
                              {"tensors", std::move(tensors)},
                              {"elements", list.elements},
                              {"bytes", list.bytes},
                              {"unread", list.unread}};
  *context.out << all.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) << "\n";
}

}  // namespace

absl::StatusOr<ExitCode> DescribeTensors(const Context& context, const std::string& name) {
  const bool is_path = name.find('/') != std::string::npos && !name.starts_with("runs/");
  CKPTD_ASSIGN_OR_RETURN(const Place place, is_path ? PlaceOnDisk(name) : PlaceByDaemon(context, name));
  CKPTD_ASSIGN_OR_RETURN(const OpenRoot root, OpenAnyRoot(place.root));
  const absl::StatusOr<ScopedHandle> dir =
      OpenScoped(*root.fs, root.handle.get(), place.tag, OpenMode::kDirectory);
  if (!dir.ok()) return Annotate(dir.status(), absl::StrCat(root.path, "/", place.tag));
  CKPTD_ASSIGN_OR_RETURN(const TensorList list, ListTensors(*root.fs, dir->get()));
  (context.json ? PrintJson : PrintText)(context, absl::StrCat(root.path, "/", place.tag), list);
  return list.unread.empty() ? kOk : kNotSo;
}

}  // namespace ckptd::ctl
