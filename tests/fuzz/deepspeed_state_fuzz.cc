// The data.pkl of a state that DeepSpeed has saved: of a model, of an optimizer, and the descriptions of
// experts and of affine maps in them. What the converters accept keeps the promises that they make to each
// other.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/deepspeed/shards/expert_layers.h"
#include "client/convert/deepspeed/state/affine_map.h"
#include "client/convert/deepspeed/state/ds_moments.h"
#include "client/convert/deepspeed/state/ds_state.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/unpickler.h"
#include "client/formats/torch/value.h"
#include "storage/base/errors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/torch_archive_fixture.h"

namespace ckptd {
namespace {

constexpr torch::Limits kLimits = {
    .pickle_bytes = 1 << 16, .depth = 20, .objects = 2000, .memo_entries = 500, .string_bytes = 1 << 12};
constexpr int64_t kStorageBytes = 64;
constexpr int kStorages = 16;
constexpr char kFile[] = "state.pt";
constexpr int64_t kMostElements = 1 << 16;

void CheckError(const absl::Status& status) {
  FUZZ_CHECK(status.ok() || (!ReasonOf(status).empty() && !status.message().empty()));
}

std::optional<torch::StoragePlace> Find(const std::string& key) {
  for (int i = 0; i < kStorages; ++i) {
    if (key == std::to_string(i)) return torch::StoragePlace{i * kStorageBytes, kStorageBytes};
  }
  return std::nullopt;
}

// Null: more than kMostElements.
std::optional<int64_t> ElementsOf(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    FUZZ_CHECK(size >= 0);
    if (size == 0) return 0;
    if (elements > kMostElements / size) return std::nullopt;
    elements *= size;
  }
  return elements;
}

// Merges slices as the map describes them: what it accepts has every element once.
void CheckMap(const torch::ValueRef& value) {
  const absl::StatusOr<AffineMap> map = ParseAffineMap(value);
  if (!map.ok()) return CheckError(map.status());
  const std::optional<int64_t> whole = ElementsOf(map->shape);
  if (!whole) return;
  std::vector<TpSlice> slices;
  for (size_t rank = 0; rank < map->slices.size(); ++rank) {
    const std::optional<int64_t> elements = ElementsOf(map->slices[rank].shape);
    if (!elements) return;
    slices.push_back({map->slices[rank].shape, {{static_cast<int>(rank), 0, *elements * 4}}});
  }
  const absl::StatusOr<std::vector<SourceRange>> merged =
      MergeByMap(*map, slices, DataType::kFloat32, [](const SourceRange&, std::span<std::byte> into) {
        std::memset(into.data(), 0, into.size());
        return absl::OkStatus();
      });
  if (!merged.ok()) return CheckError(merged.status());
  int64_t bytes = 0;
  for (const SourceRange& range : *merged) bytes += range.size;
  FUZZ_CHECK(bytes == *whole * 4);
}

void CheckExperts(const torch::Dict& root) {
  for (const bool stage3 : {false, true}) {
    absl::StatusOr<ExpertLayers> layers = ExpertLayers::Parse(root, stage3);
    if (!layers.ok()) {
      CheckError(layers.status());
      continue;
    }
    const ExpertLayers same = *layers;
    FUZZ_CHECK(layers->Merge(same).ok());
    FUZZ_CHECK(layers->params().size() == same.params().size());
    if (!layers->empty()) FUZZ_CHECK(layers->ShortDescription() != nullptr);
    for (const auto& [name, param] : layers->params()) {
      for (size_t rank = 0; rank < std::min<size_t>(param.ranks(), 4); ++rank) {
        const int64_t experts = static_cast<int64_t>(param.of_rank[rank].size());
        for (const std::vector<int64_t>& shape : {std::vector<int64_t>{experts, 3}, {}, {experts + 1}}) {
          CheckError(param.RuleFor(shape, rank).status());
        }
      }
    }
  }
}

void CheckState(const torch::Value& root) {
  const absl::StatusOr<std::string> file = torch::FileOf(root);
  if (!file.ok()) return;  // As in pickle_fuzz: it cannot be written.
  CrashDisk disk;
  disk.Plant(kFile, *file);
  CheckError(LoadDsModelState(disk, disk.root(), kFile).status());
  CheckError(LoadDsOptimState(disk, disk.root(), kFile, 0).status());
  for (const int dp : {1, 3}) CheckError(LoadDsMoments(disk, disk.root(), kFile, 0, dp).status());
}

void Check(std::string_view pickle) {
  const absl::StatusOr<torch::Unpickled> read = torch::Unpickle(pickle, Find, kLimits);
  if (!read.ok()) return;
  CheckMap(read->root);
  if (const auto* root = read->root->As<torch::Dict>(); root != nullptr) CheckExperts(*root);
  CheckState(*read->root);
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::Check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
