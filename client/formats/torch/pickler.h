// Writes pickles of protocol 2, as torch.save does: tensors by reference, and shared text and objects once,
// then from the memo.
#ifndef CKPTD_CLIENT_FORMATS_TORCH_PICKLER_H_
#define CKPTD_CLIENT_FORMATS_TORCH_PICKLER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/value.h"

namespace ckptd::torch {

struct Pickled {
  std::string bytes;
  std::vector<StorageRef> storages;  // Their keys in the pickle are 0, 1, ... in this order.
};

// Fails as archive_layout.h says.
absl::StatusOr<Pickled> Pickle(const Value& root, const Limits& limits);

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_PICKLER_H_
