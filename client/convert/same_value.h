// Whether two trees say the same, bit for bit, tensors included.
#ifndef CKPTD_CLIENT_CONVERT_SAME_VALUE_H_
#define CKPTD_CLIENT_CONVERT_SAME_VALUE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/nxd_state.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

class SameValue {
 public:
  SameValue(FileSystem& fs, Handle tag, const NxdStates& states)
      : left_reader_(fs, tag, states), right_reader_(fs, tag, states) {}

  // Empty when they are the same; else where they differ and how: "param_groups[0]['lr'] is 0.1 and 0.2".
  // `where` is the name of both. An error: a tensor could not be read.
  absl::StatusOr<std::string> Difference(const torch::Value& left, const torch::Value& right,
                                         const std::string& where);

 private:
  TensorReader left_reader_, right_reader_;
};

// "['lr']" or "[3]": a step into a dict, for messages.
std::string KeyText(const torch::Value& key);
// A short word for a value: 0.1, 'abc', a tensor float32[3, 4], a list of 2.
std::string ValueText(const torch::Value& value);
std::string ShapeText(const std::vector<int64_t>& shape);  // "[3, 4]"

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_SAME_VALUE_H_
