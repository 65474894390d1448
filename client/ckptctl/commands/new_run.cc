// `new-run`: gives a copy of a root that several nodes share a run of its own.
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/status_macros.h"
#include "storage/commit/shared/run/shared_run_id.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd::ctl {

absl::StatusOr<ExitCode> NewRun(const Context& context, const std::string& root) {
  CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<FileSystem> fs, MakePosixFileSystem());
  CKPTD_ASSIGN_OR_RETURN(const Handle handle, OpenRootDirectory(root, std::nullopt));
  const ScopedHandle dir(fs.get(), handle);
  CKPTD_ASSIGN_OR_RETURN(const RenewedRunId ids, RenewSharedRunId(fs.get(), dir.get()));
  *context.out << Printable(root) << ": run " << ids.after << " of its own; it held the id of run "
               << ids.before << "\n";
  return kOk;
}

}  // namespace ckptd::ctl
