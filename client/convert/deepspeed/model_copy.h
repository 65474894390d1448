// Plans the copy of a model's file for a universal checkpoint of AutoEP: its universal_checkpoint_info says
// which parameters are experts.
#ifndef CKPTD_CLIENT_CONVERT_DEEPSPEED_MODEL_COPY_H_
#define CKPTD_CLIENT_CONVERT_DEEPSPEED_MODEL_COPY_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/convert/files/stream_files.h"
#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// What is said of the experts.
struct ExpertInfo {
  std::string pattern;     // Of their names.
  torch::ValueRef layers;  // ds_autoep_layers.
};

// `input` is the number of the file among the inputs. Fails as OpenArchiveAt and PlanArchive.
absl::StatusOr<PlannedFile> PlanModelCopy(FileSystem& fs, Handle tag, const std::string& path, int input,
                                          const ExpertInfo& info);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_DEEPSPEED_MODEL_COPY_H_
