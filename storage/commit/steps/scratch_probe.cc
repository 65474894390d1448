#include "storage/commit/steps/scratch_probe.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"

namespace ckptd {
namespace {

constexpr int64_t kMaxScratchNames = 10'000;

}  // namespace

absl::StatusOr<ProbeResult> ProbeInScratch(FileSystem& fs, Handle dir, const std::string& name,
                                           const std::string& path, IoBackend wanted,
                                           const IoQueueMakers& queues) {
  // A daemon that died while probing left a few names. More of them are the user's, and would take too long
  // to remove.
  RemovalBudget budget{.names = kMaxScratchNames};
  const absl::StatusOr<bool> gone = RemoveTreeWithin(fs, dir, name, budget);
  if (!gone.ok() && !IsMissing(gone.status()))
    return Annotate(gone.status(), "removing an old scratch directory");
  if (gone.ok() && !*gone) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNSUITABLE",
                     absl::StrCat(path, " holds more than ", kMaxScratchNames,
                                  " files and directories, which ckptd did not make; remove that directory"),
                     {{"path", path}});
  }
  CKPTD_RETURN_IF_ERROR(fs.MakeDir(dir, name));
  ProbeResult probe;
  {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle scratch, OpenScoped(fs, dir, name, OpenMode::kDirectory));
    CKPTD_ASSIGN_OR_RETURN(probe, ProbeDirectory(fs, scratch.get(), wanted, queues));
  }
  CKPTD_RETURN_IF_ERROR(RemoveTree(fs, dir, name));
  return probe;
}

}  // namespace ckptd
