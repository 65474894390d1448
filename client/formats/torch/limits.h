// How much one file of torch.save may need before it is refused, with RESOURCE_EXHAUSTED, reason
// ARCHIVE_TOO_LARGE, and the limit's name. Tensors do not count: they are read by range.
#ifndef CKPTD_CLIENT_FORMATS_TORCH_LIMITS_H_
#define CKPTD_CLIENT_FORMATS_TORCH_LIMITS_H_

#include <cstdint>

namespace ckptd::torch {

struct Limits {
  int64_t directory_bytes = int64_t{256} << 20;  // The ZIP directory.
  int64_t pickle_bytes = int64_t{256} << 20;     // data.pkl.
  int64_t depth = 100;                           // Nested containers.
  // Values that the pickle makes or refers to again, some 20 for each tensor. Also values of the whole tree,
  // shared ones counted each time they are reached, so that a walk over the tree ends.
  int64_t objects = 5'000'000;
  int64_t memo_entries = 5'000'000;
  // Bytes of strings: all that are made, keys each time they are set, and those of the whole tree, counted in
  // the same way.
  int64_t string_bytes = int64_t{512} << 20;
};

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_LIMITS_H_
