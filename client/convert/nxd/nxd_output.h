// Plans the files of a rank's state, in NxD's two layouts.
//
//   plain   <path>                                the state with its tensors
//   xser    <path>                                the state with references in place of tensors
//           <path>.info.pt                        {tid: dtype, shape, expert_model_parallel}
//           <path>.tensors/tensor_<tid>.pt        one tensor
//
// In xser a tensor inside a list stays in the state: NxD's loader looks for references only in dicts, and
// accepts tensors anywhere.
#ifndef CKPTD_CLIENT_CONVERT_NXD_NXD_OUTPUT_H_
#define CKPTD_CLIENT_CONVERT_NXD_NXD_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/convert/files/stream_files.h"
#include "client/convert/nxd/zero_state.h"

namespace ckptd {

struct NxdFiles {
  std::vector<std::string> directories;  // The directories that the files need.
  std::vector<PlannedFile> files;
};

// Adds the files and directories of `shard` to `files`. Fails as torch::LayOutArchive does.
absl::Status PlanNxdFiles(const ZeroShard& shard, const std::string& path, bool xser, NxdFiles& files);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_NXD_OUTPUT_H_
