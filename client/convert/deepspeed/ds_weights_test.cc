// The weights of checkpoints whose experts are spread over two data-parallel ranks. tests/deepspeed compares
// whole conversions with DeepSpeed's own.
#include "client/convert/deepspeed/ds_weights.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/formats/torch/value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/convert_fixture.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using torch::ValueRef;
using Fields = std::vector<std::pair<std::string, ValueRef>>;
using Numbers = std::vector<float>;
using Shape = std::vector<int64_t>;

constexpr char kLayer[] = "moe.deepspeed_moe.experts.deepspeed_experts.";
std::string ExpertName(int number) { return absl::StrCat(kLayer, number, ".weight"); }

ValueRef DictOf(const Fields& fields) {
  torch::Dict dict;
  for (const auto& [key, value] : fields) dict.Set(key, value);
  return torch::Make(std::move(dict));
}

ValueRef ListOf(std::vector<ValueRef> items) { return torch::Make(torch::List{std::move(items)}); }

ValueRef TensorOf(const Numbers& numbers, StorageBytes& bytes, DataType dtype = DataType::kFloat32) {
  const size_t size = numbers.size() * sizeof(float);
  const auto elements = static_cast<int64_t>(size) / InfoOf(dtype).item_bytes;
  torch::Tensor tensor = torch::NewTensor(dtype, {elements});
  std::string& into = bytes[tensor.storage.get()];
  into.resize(size);
  if (size > 0) memcpy(into.data(), numbers.data(), size);
  return torch::Make(std::move(tensor));
}

// What a rank has of one parameter.
struct RankPart {
  std::string name;
  Numbers numbers;
  DataType dtype = DataType::kFloat32;
};

// Where a parameter is in the flat tensor of its group: here each group has one.
ValueRef SliceOf(const RankPart& part) {
  torch::Object slice;
  slice.callable = {"deepspeed.utils.tensor_fragment", "fragment_address"};
  slice.by_new = true;
  slice.arguments = torch::Make(torch::Tuple());
  const auto elements = static_cast<int64_t>(part.numbers.size() * sizeof(float));
  slice.state = DictOf(
      {{"numel", torch::MakeInt(elements / InfoOf(part.dtype).item_bytes)}, {"start", torch::MakeInt(0)}});
  return DictOf({{part.name, torch::Make(std::move(slice))}});
}

// What the model's state says of four experts of AutoEP on two ranks.
ValueRef LayerOf(const Fields& more = {}) {
  Fields fields = {{"expert_key_prefix", torch::MakeString("moe.experts")},
                   {"num_experts", torch::MakeInt(4)},
                   {"num_local_experts", torch::MakeInt(2)},
                   {"ep_size", torch::MakeInt(2)}};
  fields.insert(fields.end(), more.begin(), more.end());
  return DictOf(fields);
}

class DsWeightsTest : public ::testing::Test {
 protected:
  using Weights = std::map<std::string, std::pair<Shape, Numbers>>;

  void Put(const std::string& name, const ValueRef& root, const StorageBytes& bytes = {}) {
    std::filesystem::remove(std::filesystem::path(dir_.path()) / name);
    PutTag(fs_, dir_.fd(), {{name, ArchiveBytes(*root, bytes)}});
  }

  // The state of the optimizer of a data-parallel rank of two.
  void PutRank(int rank, const std::vector<RankPart>& parts, int64_t stage = 1,
               std::optional<int64_t> step = std::nullopt) {
    StorageBytes bytes;
    std::vector<ValueRef> flats, slices, counts;
    for (const RankPart& part : parts) {
      flats.push_back(TensorOf(part.numbers, bytes, part.dtype));
      slices.push_back(SliceOf(part));
      counts.push_back(torch::MakeInt(2));
    }
    torch::Dict states;
    if (step) states.Set(torch::MakeInt(0), DictOf({{"step", torch::MakeInt(*step)}})).IgnoreError();
    const ValueRef base =
        DictOf({{"state", torch::Make(std::move(states))}, {"param_groups", ListOf({DictOf({})})}});
    const char* weights = stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const Fields zero = {
        {"zero_stage", torch::MakeInt(stage)}, {"partition_count", ListOf(std::move(counts))},
        {weights, ListOf(std::move(flats))},   {"param_slice_mappings", ListOf(std::move(slices))},
        {"base_optimizer_state", base},        {"optimizer_state_dict", base}};
    Put(absl::StrCat("zero_pp_rank_", rank, "_mp_rank_00_optim_states.pt"),
        DictOf({{"optimizer_state_dict", DictOf(zero)}}), bytes);
  }

  // The state of the model, with the shapes of the trained parameters.
  void PutModel(const std::vector<std::pair<std::string, Shape>>& shapes, const Fields& more = {}) {
    std::vector<ValueRef> groups;
    for (const auto& [name, shape] : shapes)
      groups.push_back(DictOf({{name, torch::Make(torch::Size{shape})}}));
    Fields fields = {
        {"module", DictOf({})}, {"buffer_names", ListOf({})}, {"param_shapes", ListOf(std::move(groups))}};
    fields.insert(fields.end(), more.begin(), more.end());
    Put("mp_rank_00_model_states.pt", DictOf(fields));
  }

  // Of deepspeed.moe, as the model has it.
  void PutExpert(int number, const Numbers& numbers) {
    StorageBytes bytes;
    Put(absl::StrCat("layer_0_expert_", number, "_mp_rank_00_model_states.pt"),
        DictOf({{ExpertName(number), TensorOf(numbers, bytes)}}), bytes);
  }

  // Two experts on two ranks, and a weight that both ranks share.
  void PutNative() {
    PutModel({{"shared", {4}}, {ExpertName(0), {2}}});
    PutRank(0, {{"shared", {0, 1}}, {ExpertName(0), {10, 11}}});
    PutRank(1, {{"shared", {2, 3}}, {ExpertName(0), {20, 21}}});
    for (int number = 0; number < 2; ++number) PutExpert(number, {-1, -1});
  }

  // Four experts of AutoEP on two ranks: `first` are on rank 0. Expert n has the weight n of each of w1 to
  // w3.
  void PutAutoEp(const std::vector<int>& first, const std::vector<int>& second) {
    const std::vector<std::vector<int>> of_ranks = {first, second};
    std::vector<ValueRef> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<ValueRef> experts;
      Numbers numbers;
      for (const int expert : of_ranks[rank]) {
        experts.push_back(torch::MakeInt(expert));
        numbers.push_back(static_cast<float>(expert));
      }
      ranks.push_back(DictOf({{"rank", torch::MakeInt(rank)}, {"experts", ListOf(std::move(experts))}}));
      PutRank(rank, {{"moe.experts.w1", numbers}, {"moe.experts.w2", numbers}, {"moe.experts.w3", numbers}});
    }
    const ValueRef placement = DictOf({{"version", torch::MakeInt(1)},
                                       {"num_experts", torch::MakeInt(4)},
                                       {"ep_size", torch::MakeInt(2)},
                                       {"ranks", ListOf(std::move(ranks))}});
    const Fields more = {{"ds_autoep_layers", ListOf({LayerOf({{"expert_placement", placement}})})}};
    PutModel({{"moe.experts.w1", {2, 1}}, {"moe.experts.w2", {2, 1}}, {"moe.experts.w3", {2, 1}}}, more);
    // What makes it a checkpoint with files of experts. These are of no layer of deepspeed.moe.
    Put("expp_rank_0_mp_rank_00_optim_states.pt", DictOf({}));
  }

  absl::StatusOr<DsWeights> Gather() { return GatherDsWeights(fs_, dir_.fd(), /*exclude_frozen=*/false); }
  std::string Error(const std::string& reason = "CANNOT_CONVERT") {
    const absl::Status status = Gather().status();
    EXPECT_EQ(ReasonOf(status), reason) << status;
    return std::string(status.message());
  }

  // The gathered weights, with the numbers that their ranges have in the files.
  Weights Read() {
    Weights weights;
    const absl::StatusOr<DsWeights> gathered = Gather();
    EXPECT_TRUE(gathered.ok()) << gathered.status();
    if (!gathered.ok()) return weights;
    for (const Weight& weight : gathered->weights) {
      Numbers numbers;
      for (const SourceRange& range : weight.ranges) {
        std::ifstream file(std::filesystem::path(dir_.path()) /
                           gathered->inputs[static_cast<size_t>(range.input)]);
        file.seekg(range.from);
        const size_t before = numbers.size();
        numbers.resize(before + static_cast<size_t>(range.size) / sizeof(float));
        file.read(reinterpret_cast<char*>(numbers.data() + before), range.size);
      }
      const bool is_new = weights.try_emplace(weight.name, weight.shape, numbers).second;
      EXPECT_TRUE(is_new) << weight.name << " is there twice";
    }
    return weights;
  }

  const std::unique_ptr<FileSystem> posix_ = *MakePosixFileSystem();
  FileSystem& fs_ = *posix_;
  TempDir dir_;
};

// ---- The files must be of one save

TEST_F(DsWeightsTest, ModelOfAJobOfMoreRanksIsRefused) {
  PutModel({{"shared", {4}}}, {{"dp_world_size", torch::MakeInt(4)}});
  PutRank(0, {{"shared", {0, 1}}});
  PutRank(1, {{"shared", {2, 3}}});
  EXPECT_THAT(Error("INCOMPLETE_CHECKPOINT"),
              HasSubstr("is of a job of 4 data-parallel ranks, and there are 2 files"));
}

TEST_F(DsWeightsTest, OptimizerStatesOfTwoStepsAreRefused) {
  PutModel({{"shared", {4}}}, {{"dp_world_size", torch::MakeInt(2)}});
  PutRank(0, {{"shared", {0, 1}}}, 1, 17);
  PutRank(1, {{"shared", {2, 3}}}, 1, 17);
  EXPECT_THAT(Read(), UnorderedElementsAre(Pair("shared", Pair(Shape{4}, Numbers{0, 1, 2, 3}))));
  PutRank(1, {{"shared", {2, 3}}}, 1, 18);
  EXPECT_THAT(Error(), HasSubstr("of another step of the optimizer"));
}

// ---- deepspeed.moe: a rank calls its experts 0, 1, … whichever they are of all

TEST_F(DsWeightsTest, ExpertsOfEachRankGetTheirNumbersAmongAll) {
  PutNative();
  EXPECT_THAT(Read(), UnorderedElementsAre(Pair("shared", Pair(Shape{4}, Numbers{0, 1, 2, 3})),
                                           Pair(ExpertName(0), Pair(Shape{2}, Numbers{10, 11})),
                                           Pair(ExpertName(1), Pair(Shape{2}, Numbers{20, 21}))));
}

TEST_F(DsWeightsTest, ExpertThatIsNotTrainedComesFromItsOwnFile) {
  PutNative();
  PutModel({{"shared", {4}}});
  PutRank(0, {{"shared", {0, 1}}});
  PutRank(1, {{"shared", {2, 3}}});
  PutExpert(1, {7, 8});
  const Weights weights = Read();
  EXPECT_EQ(weights.size(), 3u);
  EXPECT_THAT(weights.at(ExpertName(1)).second, ElementsAre(7, 8));
}

TEST_F(DsWeightsTest, FilesOfExpertsThatTheRanksCannotHaveTogetherAreRefused) {
  PutNative();
  PutExpert(2, {0, 0});
  EXPECT_THAT(Error(), HasSubstr("there are files of 3 experts"));
}

TEST_F(DsWeightsTest, PartThatARankDoesNotHaveIsMissed) {
  PutNative();
  PutRank(1, {{"shared", {2, 3}}, {ExpertName(0), {20}}});
  EXPECT_THAT(Error(), HasSubstr(ExpertName(1) + " is 8 bytes, and the ranks have 4 of it"));
}

TEST_F(DsWeightsTest, PartsOfSeveralTypesAreRefused) {
  PutNative();
  PutRank(1, {{"shared", {2, 3}, DataType::kFloat16}, {ExpertName(0), {20, 21}}});
  EXPECT_THAT(Error(), HasSubstr("shared has several dtypes"));
}

TEST_F(DsWeightsTest, FilesOfExpertsAtStage3AreRefused) {
  PutNative();
  PutRank(0, {{"shared", {0, 1}}}, 3);
  EXPECT_THAT(Error(), HasSubstr("is of stage 3, and there are files of experts"));
}

// ---- AutoEP: the experts of a rank lie in one tensor

TEST_F(DsWeightsTest, ExpertsOfOneTensorComeInTheirOrder) {
  PutAutoEp({0, 1}, {2, 3});
  EXPECT_EQ(Read().at("moe.experts.w1"), std::pair(Shape({4, 1}), Numbers({0, 1, 2, 3})));
}

TEST_F(DsWeightsTest, ExpertsThatArePlacedOutOfOrderComeInTheirOrder) {
  PutAutoEp({3, 0}, {2, 1});
  EXPECT_EQ(Read().at("moe.experts.w3"), std::pair(Shape({4, 1}), Numbers({0, 1, 2, 3})));
}

TEST_F(DsWeightsTest, ExpertsThatNoRankTrainsAreMissed) {
  PutAutoEp({0, 1}, {2, 3});
  EXPECT_EQ(Read().size(), 3u);
  PutModel({{"moe.experts.w1", {2, 1}}, {"moe.experts.w3", {2, 1}}},
           {{"ds_autoep_layers", ListOf({LayerOf()})}});
  EXPECT_THAT(Error(), HasSubstr("no rank trains the experts moe.experts.w2"));
}

TEST_F(DsWeightsTest, TensorOfExpertsThatARankDoesNotHaveIsMissed) {
  PutAutoEp({0, 1}, {2, 3});
  PutRank(1, {{"moe.experts.w1", {2, 3}}, {"moe.experts.w2", {2}}, {"moe.experts.w3", {2, 3}}});
  EXPECT_THAT(Error(), HasSubstr("moe.experts.w2 is 8 bytes, and the ranks have 4 of it"));
}

}  // namespace
}  // namespace ckptd
