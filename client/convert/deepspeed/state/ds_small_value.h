// A small value of a DeepSpeed checkpoint, such as the optimizer's `step`, which is a number or a tensor of
// one element.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_SMALL_VALUE_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_SMALL_VALUE_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct SmallValue {
  torch::ValueRef value;  // Null: none.
  std::string bytes;      // Of the tensor; empty if the value is not a tensor.

  bool Equals(const SmallValue& other) const;
};

// Reads the tensor's element, if `value` is a tensor, from the file `path`, whose pickle contains the value.
absl::StatusOr<SmallValue> ReadSmallValue(FileSystem& fs, Handle tag, const std::string& path,
                                          const torch::ValueRef& value);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_SMALL_VALUE_H_
