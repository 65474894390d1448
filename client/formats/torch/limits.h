// How much one torch.save file may ask for before it is refused: RESOURCE_EXHAUSTED, reason
// ARCHIVE_TOO_LARGE, naming the limit. Tensors do not count; they are read by range.
#ifndef CKPTD_CLIENT_FORMATS_TORCH_LIMITS_H_
#define CKPTD_CLIENT_FORMATS_TORCH_LIMITS_H_

#include <cstdint>

namespace ckptd::torch {

struct Limits {
  int64_t directory_bytes = int64_t{256} << 20;  // The ZIP directory.
  int64_t pickle_bytes = int64_t{256} << 20;     // data.pkl.
  int64_t depth = 100;                           // Containers within containers.
  // Values that the pickle makes or refers to again, some 20 for a tensor; and values of the whole tree, a
  // shared one counted each time that it is reached, so that a walk over the tree ends.
  int64_t objects = 5'000'000;
  int64_t memo_entries = 5'000'000;
  // Text and bytes: all that is made, keys each time that they are set, and of the whole tree in the same
  // way.
  int64_t string_bytes = int64_t{512} << 20;
};

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_LIMITS_H_
