// Experts of deepspeed.moe, which are modules of their own. A rank calls its experts 0, 1, … whichever they
// are of all; only the names of their files, layer_L_expert_E_…, have their numbers among all.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_NATIVE_EXPERTS_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_NATIVE_EXPERTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

// A parameter of an expert: "layers.0.deepspeed_moe.experts.deepspeed_experts.3.weight".
struct NativeExpert {
  std::string layer;  // Up to the number, with the dot before it.
  int number = 0;
  std::string rest;  // From the dot behind the number on.

  // The parameter of another expert of the layer.
  std::string NameOf(int other) const;
};
// nullopt: not a parameter of an expert.
std::optional<NativeExpert> ParseNativeExpert(const std::string& name);

// Checks that every rank has all experts, so that their names are the same everywhere. `files` are those of
// experts, and `names` the parameters of a rank. CANNOT_CONVERT says how many of them it has.
absl::Status CheckAllExpertsOnEachRank(const std::vector<std::string>& files,
                                       const std::vector<std::string>& names);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_SHARDS_NATIVE_EXPERTS_H_
