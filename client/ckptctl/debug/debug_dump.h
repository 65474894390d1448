// `ckptctl debug dump`: one file with what a bug report needs, and without secrets.
#ifndef CKPTD_CLIENT_CKPTCTL_DEBUG_DEBUG_DUMP_H_
#define CKPTD_CLIENT_CKPTCTL_DEBUG_DEBUG_DUMP_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands/commands.h"

namespace ckptd::ctl {

// Writes the file, which must not exist yet, readable for this user only. Empty: ckptd-debug-HOST-TIME.txt in
// the working directory. What cannot be had is named in it with the reason: kOk, unless the file cannot be
// written. Works without a daemon.
absl::StatusOr<ExitCode> DebugDump(const Context& context, const std::string& output_file);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_DEBUG_DEBUG_DUMP_H_
