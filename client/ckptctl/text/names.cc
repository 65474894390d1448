#include "client/ckptctl/text/names.h"

#include <sys/stat.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/errors.h"
#include "storage/format/run_name.h"

namespace ckptd::ctl {
namespace {

constexpr int kMostRunsShown = 3;

std::string Known(const v1::ListRunsResponse& runs) {
  if (runs.runs().empty()) return "the daemon has no run that you may see";
  std::string known = "the daemon has ";
  int shown = 0;
  for (const v1::Run& run : runs.runs()) {
    if (shown == kMostRunsShown) break;
    absl::StrAppend(&known, shown++ == 0 ? "" : ", ", run.path(), " (", run.name(), ", uid ", run.uid(), ")");
  }
  if (const int more = runs.runs_size() - kMostRunsShown; more > 0)
    absl::StrAppend(&known, " and ", more, " more, see ckptctl list");
  return known;
}

// Of the directory at `path`.
std::optional<struct stat> StatOf(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? std::optional(info) : std::nullopt;
}

bool IsIn(const v1::Run& run, const struct stat& directory) {
  if (run.inode() == 0)
    return run.name() == RunName(directory.st_dev, directory.st_ino);  // Of an older daemon.
  return run.device() == directory.st_dev && run.inode() == directory.st_ino;
}

}  // namespace

bool IsRootOf(const v1::Run& run, const std::string& path) {
  const std::optional<struct stat> directory = StatOf(path);
  return directory && IsIn(run, *directory);
}

absl::StatusOr<v1::Run> FindRun(const v1::ListRunsResponse& runs, const std::string& wanted) {
  const std::optional<struct stat> directory = StatOf(wanted);
  std::vector<const v1::Run*> claims;
  for (const v1::Run& run : runs.runs()) {
    if (run.name() == wanted || (directory && IsIn(run, *directory))) return run;
    if (run.path() == wanted) claims.push_back(&run);
  }
  // This process cannot stat the path; it may belong to another mount namespace.
  if (!directory && claims.size() == 1) return *claims[0];
  if (claims.empty()) {
    return MakeError(
        absl::StatusCode::kNotFound, "UNKNOWN_RUN",
        absl::StrCat("there is no run ", wanted, "; ", Known(runs), "; write runs/ID or the root's path"));
  }
  const std::string claimed = absl::StrJoin(claims, " and ", [](std::string* out, const v1::Run* run) {
    absl::StrAppend(out, run->name(), " (uid ", run->uid(), ")");
  });
  if (!directory) {
    return InvalidArgument(absl::StrCat(claimed, " both name ", wanted, " as their root; write runs/ID"));
  }
  return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_RUN",
                   absl::StrCat("no run is in ", wanted, ": ", claimed,
                                " calls its root so, but works in another directory; to select that run, "
                                "write runs/ID"));
}

absl::StatusOr<std::string> CheckpointName(const v1::ListRunsResponse& runs, const std::string& name) {
  if (name.starts_with("runs/") && name.find("/checkpoints/") != std::string::npos) return name;
  const size_t slash = name.rfind('/');
  const std::string tag = slash == std::string::npos ? name : name.substr(slash + 1);
  if (tag.empty() && slash > 0 && !FindRun(runs, name.substr(0, slash)).ok())
    return CheckpointName(runs, name.substr(0, slash));  // "ROOT/TAG/", as a shell completes it.
  if (tag.empty()) {
    return InvalidArgument(absl::StrCat("\"", name, "\" has no tag; write ROOT/TAG"));
  }
  if (slash == std::string::npos) {
    if (runs.runs_size() == 1) return absl::StrCat(runs.runs(0).name(), "/checkpoints/", tag);
    const bool none = runs.runs().empty();
    return MakeError(none ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
                     none ? "UNKNOWN_RUN" : "INVALID_ARGUMENT",
                     absl::StrCat(none ? "no run has tag " : "several runs may have tag ", tag, ": ",
                                  Known(runs), "; write ROOT/TAG"));
  }
  absl::StatusOr<v1::Run> run = FindRun(runs, slash == 0 ? "/" : name.substr(0, slash));
  if (!run.ok()) return run.status();
  return absl::StrCat(run->name(), "/checkpoints/", tag);
}

}  // namespace ckptd::ctl
