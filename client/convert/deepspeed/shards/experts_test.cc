#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/convert/deepspeed/shards/expert_layers.h"
#include "client/convert/deepspeed/shards/native_experts.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using torch::ValueRef;
using Sizes = std::vector<int64_t>;
using Places = std::vector<Sizes>;
using Fields = std::vector<std::pair<std::string, ValueRef>>;

constexpr char kName[] = "moe.experts.w1";

ValueRef DictOf(const Fields& fields) {
  torch::Dict dict;
  for (const auto& [key, value] : fields) dict.Set(key, value);
  return torch::Make(std::move(dict));
}

ValueRef ListOf(std::vector<ValueRef> items) { return torch::Make(torch::List{std::move(items)}); }

ValueRef Placement(const Places& places, int64_t experts, Fields more = {}) {
  std::vector<ValueRef> ranks;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    std::vector<ValueRef> of_rank;
    for (const int64_t expert : places[rank]) of_rank.push_back(torch::MakeInt(expert));
    ranks.push_back(DictOf(
        {{"rank", torch::MakeInt(static_cast<int64_t>(rank))}, {"experts", ListOf(std::move(of_rank))}}));
  }
  Fields fields = {{"version", torch::MakeInt(1)},
                   {"num_experts", torch::MakeInt(experts)},
                   {"ep_size", torch::MakeInt(static_cast<int64_t>(places.size()))},
                   {"ranks", ListOf(std::move(ranks))}};
  fields.insert(fields.end(), more.begin(), more.end());
  return DictOf(fields);
}

// Four experts on two ranks. A later field replaces an earlier one.
ValueRef Layer(const Fields& more = {}) {
  Fields fields = {{"expert_key_prefix", torch::MakeString("moe.experts")},
                   {"num_experts", torch::MakeInt(4)},
                   {"num_local_experts", torch::MakeInt(2)},
                   {"ep_size", torch::MakeInt(2)}};
  fields.insert(fields.end(), more.begin(), more.end());
  return DictOf(fields);
}

absl::StatusOr<ExpertLayers> Parse(std::vector<ValueRef> layers, bool stage3 = false) {
  torch::Dict root;
  root.Set("ds_autoep_layers", ListOf(std::move(layers)));
  return ExpertLayers::Parse(root, stage3);
}

void ExpectRefused(const absl::Status& status, const std::string& words) {
  EXPECT_EQ(ReasonOf(status), "CANNOT_CONVERT") << status;
  EXPECT_NE(status.message().find(words), std::string::npos) << status;
}

TEST(ExpertLayersTest, FindsTheThreeTensorsOfALayer) {
  const absl::StatusOr<ExpertLayers> layers = Parse({Layer()});
  ASSERT_TRUE(layers.ok()) << layers.status();
  EXPECT_EQ(layers->params().size(), 3u);
  EXPECT_EQ(layers->Find("moe.experts.w4"), nullptr);
  ASSERT_NE(layers->Find(kName), nullptr);
  EXPECT_EQ(layers->Find(kName)->of_rank, (Places{{0, 1}, {2, 3}}));
  EXPECT_TRUE(Parse({})->empty());
  EXPECT_TRUE(ExpertLayers::Parse(torch::Dict(), false)->empty());
}

TEST(ExpertLayersTest, PlacesExpertsInTheWholeTensor) {
  const auto layers = Parse({Layer({{"expert_placement", Placement({{3}, {0, 2, 1}}, 4)}})});
  ASSERT_TRUE(layers.ok()) << layers.status();
  const absl::StatusOr<TpRule> rule = layers->Find(kName)->RuleFor({3, 5, 2}, 1);
  ASSERT_TRUE(rule.ok()) << rule.status();
  EXPECT_EQ(rule->map->shape, (Sizes{4, 5, 2}));
  EXPECT_EQ(rule->map->slices[1].pieces[1].whole_offset, 2 * 10);
  EXPECT_EQ(rule->map->slices[1].pieces[1].slice_offset, 1 * 10);
  ExpectRefused(layers->Find(kName)->RuleFor({2, 5, 2}, 1).status(), "has 3 experts");
  ExpectRefused(layers->Find(kName)->RuleFor({}, 1).status(), "has 3 experts");
  ExpectRefused(layers->Find(kName)->RuleFor({3, int64_t{1} << 62}, 1).status(), "impossibly large");
}

TEST(ExpertLayersTest, RefusesPlacesThatAreNone) {
  const auto with = [](const ValueRef& placement) {
    return Parse({Layer({{"expert_placement", placement}})}).status();
  };
  ExpectRefused(with(Placement({{0, 1}, {2, 4}}, 4)), "the expert 4 of 4");
  ExpectRefused(with(Placement({{0, 1}, {2, 2}}, 4)), "twice");
  ExpectRefused(with(Placement({{0, 1}, {2}}, 4)), "places 3 of 4");
  ExpectRefused(with(Placement({{0, 1}, {2, 3}}, 5)), "5 experts");
  ExpectRefused(with(Placement({{0, 1}, {2, 3}}, 4, {{"version", torch::MakeInt(2)}})), "version 2");
  const ValueRef same = DictOf({{"rank", torch::MakeInt(0)}, {"experts", ListOf({})}});
  ExpectRefused(with(Placement({{}, {}}, 4, {{"ranks", ListOf({same, same})}})), "twice");
}

TEST(ExpertLayersTest, RefusesLayersThatAreNone) {
  ExpectRefused(Parse({torch::MakeInt(1)}).status(), "ds_autoep_layers");
  ExpectRefused(Parse({Layer({{"expert_key_prefix", torch::MakeInt(1)}})}).status(), "expert_key_prefix");
  ExpectRefused(Parse({Layer({{"num_experts", torch::MakeInt(5)}})}).status(), "is not num_experts, 5");
  ExpectRefused(Parse({Layer({{"num_experts", torch::MakeInt(int64_t{1} << 40)}})}).status(), "num_experts");
  ExpectRefused(Parse({Layer({{"ep_rank", torch::MakeInt(2)}})}).status(), "ep_rank is 2 of 2");
  ExpectRefused(Parse({Layer(), Layer()}).status(), "twice");
  ExpectRefused(Parse({Layer()}, true).status(), "checkpoint_format");
}

TEST(ExpertLayersTest, RefusesAStoredMapThatPlacesExpertsElsewhere) {
  const auto piece = [](int64_t whole) {
    const auto place = [](int64_t at) { return ListOf({torch::MakeInt(at), ListOf({torch::MakeInt(1)})}); };
    return DictOf({{"shape", ListOf({torch::MakeInt(2)})}, {"source", place(whole)}, {"dest", place(0)}});
  };
  const auto layers_by = [&](int64_t first) {
    torch::Dict ranks;
    for (const int64_t rank : {0, 1})
      ranks.Set(rank, DictOf({{"shard_shape", ListOf({torch::MakeInt(2)})},
                              {"pieces", ListOf({piece(rank == 0 ? first : 2 - first)})}}));
    const ValueRef map =
        DictOf({{"logical_shape", ListOf({torch::MakeInt(4)})}, {"ranks", torch::Make(ranks)}});
    const ValueRef maps = DictOf({{"moe.experts.w1", map}, {"moe.experts.w2", map}, {"moe.experts.w3", map}});
    return Parse({Layer({{"affine_maps", DictOf({{"version", torch::MakeInt(1)}, {"params", maps}})}})});
  };
  EXPECT_TRUE(layers_by(0)->Find(kName)->RuleFor({2}, 0).ok());
  ExpectRefused(layers_by(2)->Find(kName)->RuleFor({2}, 0).status(), "another one");
}

TEST(ExpertLayersTest, RefusesFilesThatPlaceExpertsDifferently) {
  ExpertLayers layers = *Parse({Layer()});
  EXPECT_TRUE(layers.Merge(*Parse({Layer({{"ep_rank", torch::MakeInt(1)}})})).ok());
  EXPECT_EQ(layers.description()->As<torch::List>()->items.size(), 1u);
  const ValueRef other = Placement({{1, 0}, {2, 3}}, 4);
  ExpectRefused(layers.Merge(*Parse({Layer({{"expert_placement", other}})})), "differently");
}

TEST(ExpertRanksTest, FollowTheOrderOfTheParallelGroups) {
  const ExpertRanks experts_first = {.data_parallel = 6, .data_before_expert = false};
  EXPECT_EQ(experts_first.Of(3, 2), 1u);
  EXPECT_EQ(experts_first.Of(4, 2), 0u);
  const ExpertRanks data_first = {.data_parallel = 6, .data_before_expert = true};
  EXPECT_EQ(data_first.Of(1, 2), 0u);
  EXPECT_EQ(data_first.Of(4, 2), 1u);
}

TEST(NativeExpertsTest, HaveTheirNumbersInTheirNames) {
  const std::string layer = "a.deepspeed_moe.experts.deepspeed_experts.";
  const std::optional<NativeExpert> native = ParseNativeExpert(layer + "12.fc.weight");
  ASSERT_TRUE(native.has_value());
  EXPECT_EQ(native->layer, layer);
  EXPECT_EQ(native->number, 12);
  EXPECT_EQ(native->NameOf(3), layer + "3.fc.weight");
  for (const std::string& other : {layer + "12", layer + "x.weight", layer + "-1.weight", layer + "1weight",
                                   std::string("a.deepspeed_moe.gate.wg.weight")})
    EXPECT_FALSE(ParseNativeExpert(other).has_value()) << other;
}

TEST(NativeExpertsTest, MustAllBeOnEachRank) {
  const std::vector<std::string> files = {"layer_0_expert_0_mp_rank_00_model_states.pt",
                                          "layer_0_expert_1_mp_rank_00_model_states.pt",
                                          "expp_rank_0_mp_rank_00_optim_states.pt"};
  const std::string prefix = "a.deepspeed_moe.experts.deepspeed_experts.";
  EXPECT_TRUE(
      CheckAllExpertsOnEachRank(files, {prefix + "0.weight", prefix + "0.bias", prefix + "1.weight"}).ok());
  ExpectRefused(CheckAllExpertsOnEachRank(files, {prefix + "0.weight", "gate.weight"}), "of 2 experts");
}

}  // namespace
}  // namespace ckptd
