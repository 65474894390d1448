// The files that a rank's state becomes, in NxD's layouts.
//
//   plain   <path>                                the state, its tensors in it
//   xser    <path>                                the state, with references in the places of tensors
//           <path>.info.pt                        {tid: dtype, shape, expert_model_parallel}
//           <path>.tensors/tensor_<tid>.pt        a tensor
//
// In xser a tensor inside a list stays where it is: NxD's loader looks for references in dicts only, and
// takes tensors wherever they are.
#ifndef CKPTD_CLIENT_CONVERT_NXD_OUTPUT_H_
#define CKPTD_CLIENT_CONVERT_NXD_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/convert/stream_files.h"
#include "client/convert/zero_state.h"

namespace ckptd {

struct NxdFiles {
  std::vector<std::string> directories;  // To be made for them.
  std::vector<PlannedFile> files;
};

// Adds them. Fails as torch::LayOutArchive does.
absl::Status PlanNxdFiles(const ZeroShard& shard, const std::string& path, bool xser, NxdFiles& files);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_OUTPUT_H_
