// Writes a pickle of protocol 2, as torch.save does: tensors by reference, text and objects once and then
// from the memo.
#ifndef CKPTD_STORAGE_FORMAT_TORCH_PICKLER_H_
#define CKPTD_STORAGE_FORMAT_TORCH_PICKLER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/format/torch/limits.h"
#include "storage/format/torch/value.h"

namespace ckptd::torch {

struct Pickled {
  std::string bytes;
  std::vector<StorageRef> storages;  // Their keys in the pickle are 0, 1, ... in this order.
};

// Errors: archive_layout.h.
absl::StatusOr<Pickled> Pickle(const Value& root, const Limits& limits);

}  // namespace ckptd::torch
#endif  // CKPTD_STORAGE_FORMAT_TORCH_PICKLER_H_
