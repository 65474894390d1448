// Reads parts of the pickles of a DeepSpeed checkpoint, and says what is not as expected: CANNOT_CONVERT,
// with `where` and the value.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_VALUE_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_VALUE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/deepspeed/state/flat_vector.h"
#include "client/formats/torch/value.h"

namespace ckptd {

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
  int64_t elements = 0;
};

namespace ds {

absl::Status Unexpected(std::string_view where, const torch::Value* value, std::string_view expected);

// `value` as a T. It may be null, as what Dict::Find returns.
template <typename T>
absl::StatusOr<const T*> As(const torch::ValueRef& value, std::string_view where, std::string_view expected) {
  const T* result = value != nullptr ? value->As<T>() : nullptr;
  if (result == nullptr) return Unexpected(where, value.get(), expected);
  return result;
}

// A dict, or null for None or nothing.
absl::StatusOr<const torch::Dict*> OptionalDict(const torch::ValueRef& value, std::string_view where);
// Of a list or a tuple.
absl::StatusOr<const std::vector<torch::ValueRef>*> Items(const torch::ValueRef& value,
                                                          std::string_view where);
absl::StatusOr<int64_t> Integer(const torch::ValueRef& value, std::string_view where);
// Numbers of a list, a tuple or a torch.Size, none of them negative.
absl::StatusOr<std::vector<int64_t>> Sizes(const torch::ValueRef& value, std::string_view where);
// A number, or a member of ZeroStageEnum, written by its value or, by Python 3.11, by its name.
absl::StatusOr<int64_t> Stage(const torch::ValueRef& value);
// A dict of shapes by name, in its order.
absl::StatusOr<std::vector<NamedShape>> Shapes(const torch::Dict& dict, std::string_view where);
// A contiguous tensor of the input file number `input`.
absl::StatusOr<FlatTensor> Flat(const torch::ValueRef& value, int input, std::string_view where);
// A list of strings; empty for None or nothing.
absl::StatusOr<std::vector<std::string>> Names(const torch::ValueRef& value, std::string_view where);

}  // namespace ds
}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_STATE_DS_VALUE_H_
