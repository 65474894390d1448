// Options of the conversions that write files of weights.
#ifndef CKPTD_CLIENT_CKPTCTL_CONVERT_WEIGHT_OPTIONS_H_
#define CKPTD_CLIENT_CKPTCTL_CONVERT_WEIGHT_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/formats/data_type.h"

namespace ckptd::ctl {

// --max_shard_size: bytes of "5GB" or "5000000"; nullopt for "none". INVALID_ARGUMENT for anything else.
absl::StatusOr<std::optional<int64_t>> ParseShardSize(const std::string& text);

// --dtype: float32, float16 or bfloat16, and torch's other names for them. INVALID_ARGUMENT for anything else.
absl::StatusOr<DataType> ParseWeightType(std::string text);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_CONVERT_WEIGHT_OPTIONS_H_
