// Compares two trees of values bit for bit, tensors included.
#ifndef CKPTD_CLIENT_CONVERT_NXD_VALUE_COMPARER_H_
#define CKPTD_CLIENT_CONVERT_NXD_VALUE_COMPARER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/nxd/nxd_state.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

class ValueComparer {
 public:
  ValueComparer(FileSystem& fs, Handle tag, const NxdStates& states)
      : left_reader_(fs, tag, states), right_reader_(fs, tag, states) {}

  // Empty if both are equal. Otherwise the first difference, such as "param_groups[0]['lr'] is 0.1 and 0.2".
  // `where` is the name of both in that message. Fails if a tensor cannot be read.
  absl::StatusOr<std::string> Difference(const torch::Value& left, const torch::Value& right,
                                         const std::string& where);

 private:
  TensorReader left_reader_, right_reader_;
};

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_VALUE_COMPARER_H_
