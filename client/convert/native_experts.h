// Experts of deepspeed.moe, which are modules of their own. A rank calls its experts 0, 1, … whichever they
// are of all; only the names of their files, layer_L_expert_E_…, have their numbers among all.
#ifndef CKPTD_CLIENT_CONVERT_NATIVE_EXPERTS_H_
#define CKPTD_CLIENT_CONVERT_NATIVE_EXPERTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

// Checks that every rank has all experts, so that their names are the same everywhere. `files` are those of
// experts, and `names` the parameters of a rank. CANNOT_CONVERT says how many of them it has.
absl::Status CheckAllExpertsOnEachRank(const std::vector<std::string>& files,
                                       const std::vector<std::string>& names);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NATIVE_EXPERTS_H_
