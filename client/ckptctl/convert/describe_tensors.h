// `describe --tensors`.
#ifndef CKPTD_CLIENT_CKPTCTL_CONVERT_DESCRIBE_TENSORS_H_
#define CKPTD_CLIENT_CKPTCTL_CONVERT_DESCRIBE_TENSORS_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/exit_codes.h"

namespace ckptd::ctl {

// Lists the tensors in the files of a checkpoint, also of one that another program has written: ROOT/TAG, with a root on
// disk or s3://BUCKET/PREFIX, which needs no daemon; or a name that the daemon knows. kNotSo if a file cannot be read.
absl::StatusOr<ExitCode> DescribeTensors(const Context& context, const std::string& name);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_CONVERT_DESCRIBE_TENSORS_H_
