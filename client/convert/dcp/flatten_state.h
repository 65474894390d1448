// Flattens a nested state dict as torch does before it saves a distributed checkpoint.
#ifndef CKPTD_CLIENT_CONVERT_DCP_FLATTEN_STATE_H_
#define CKPTD_CLIENT_CONVERT_DCP_FLATTEN_STATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/dcp/dcp_metadata.h"
#include "client/formats/torch/value.h"

namespace ckptd {

// An object of the state dict that is saved by itself.
struct FlatEntry {
  std::string name;           // The steps of `path`, joined by dots.
  std::vector<DcpStep> path;  // Keys are text, as torch makes them: str(key).
  torch::ValueRef value;
};

struct FlatState {
  std::vector<FlatEntry> entries;     // In the order of the state dict.
  std::vector<std::string> left_out;  // Empty dicts, which flattening loses.
};

// Follows flatten_state_dict of torch/distributed/checkpoint/_nested_dict.py (torch 2.13): into dicts, and into lists
// that hold tensors or dicts at any depth. CANNOT_CONVERT if `root` is no dict, if two entries get one name, or for a
// key that is not a str, int, bool or None.
absl::StatusOr<FlatState> FlattenState(const torch::ValueRef& root);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DCP_FLATTEN_STATE_H_
