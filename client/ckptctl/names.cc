#include "client/ckptctl/names.h"

#include <sys/stat.h>

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd::ctl {
namespace {

std::optional<std::pair<dev_t, ino_t>> Identity(const std::string& path) {
  struct stat stat;
  if (::stat(path.c_str(), &stat) != 0) return std::nullopt;
  return std::pair(stat.st_dev, stat.st_ino);
}

std::string Known(const v1::ListRunsResponse& runs) {
  if (runs.runs().empty()) return "the daemon has no run that you may see";
  std::string known = "there is";
  for (const v1::Run& run : runs.runs()) absl::StrAppend(&known, " ", run.name(), " (", run.path(), ")");
  return known;
}

}  // namespace

absl::StatusOr<v1::Run> FindRun(const v1::ListRunsResponse& runs, const std::string& wanted) {
  const auto identity = Identity(wanted);
  for (const v1::Run& run : runs.runs()) {
    if (run.name() == wanted || run.path() == wanted) return run;
  }
  // Another path to the same directory; the daemon's may be that of another mount namespace.
  for (const v1::Run& run : runs.runs()) {
    if (identity && Identity(run.path()) == identity) return run;
  }
  return MakeError(
      absl::StatusCode::kNotFound, "UNKNOWN_RUN",
      absl::StrCat("no run is ", wanted, ": ", Known(runs), "; write runs/ID or the root's path"));
}

absl::StatusOr<std::string> CheckpointName(const v1::ListRunsResponse& runs, const std::string& name) {
  if (name.starts_with("runs/") && name.find("/checkpoints/") != std::string::npos) return name;
  const size_t slash = name.rfind('/');
  const std::string tag = slash == std::string::npos ? name : name.substr(slash + 1);
  if (tag.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                     absl::StrCat("\"", name, "\" names no tag; write ROOT/TAG"));
  }
  if (slash == std::string::npos) {
    if (runs.runs_size() == 1) return absl::StrCat(runs.runs(0).name(), "/checkpoints/", tag);
    const bool none = runs.runs().empty();
    return MakeError(none ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
                     none ? "UNKNOWN_RUN" : "INVALID_ARGUMENT",
                     absl::StrCat("which run's ", tag, "? ", Known(runs), "; write ROOT/TAG"));
  }
  absl::StatusOr<v1::Run> run = FindRun(runs, slash == 0 ? "/" : name.substr(0, slash));
  if (!run.ok()) return run.status();
  return absl::StrCat(run->name(), "/checkpoints/", tag);
}

}  // namespace ckptd::ctl
