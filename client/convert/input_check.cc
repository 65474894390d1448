#include "client/convert/input_check.h"

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/verify.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

// The suffix of all files that the conversions read.
constexpr char kInputSuffix[] = ".pt";

// Collects the paths, relative to the input, of the .pt files in a directory tree that are not in `known`.
absl::Status FindStrayFiles(FileSystem& fs, Handle dir, const std::string& prefix, int depth,
                            const std::set<std::string>& known, std::vector<std::string>& stray) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(dir));
  for (const DirEntry& entry : entries) {
    const std::string path = prefix + entry.name;
    if (entry.type == FileType::kDirectory) {
      if (depth == 0 || entry.name.starts_with(kOurDirectory)) continue;
      CKPTD_ASSIGN_OR_RETURN(const ScopedHandle below, OpenScoped(fs, dir, entry.name, OpenMode::kDirectory));
      CKPTD_RETURN_IF_ERROR(FindStrayFiles(fs, below.get(), path + "/", depth - 1, known, stray));
    } else if (entry.name.ends_with(kInputSuffix) && !known.contains(path)) {
      stray.push_back(path);
    }
  }
  return absl::OkStatus();
}

absl::Status FirstProblem(const std::vector<VerifyProblem>& problems) {
  const VerifyProblem& first = problems.front();
  const std::string more =
      problems.size() == 1 ? "" : absl::StrCat(" (and ", problems.size() - 1, " more problems)");
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE",
                   absl::StrCat(first.path, ": ", first.message, more,
                                "; convert an older checkpoint (ckptctl verify says which are whole)"),
                   {{"path", first.path}, {"chunk", absl::StrCat(first.chunk)}});
}

}  // namespace

absl::StatusOr<InputCheck> CheckInput(FileSystem& fs, Handle in,
                                      const std::function<bool(int64_t total, int64_t bytes)>& progress) {
  const absl::StatusOr<FileStat> ours = fs.Stat(in, kOurDirectory);
  if (absl::IsNotFound(ours.status())) return InputCheck{};
  CKPTD_RETURN_IF_ERROR(ours.status());
  CKPTD_ASSIGN_OR_RETURN(const VerifyReport report, VerifyFiles(fs, in, progress));
  if (!report.problems.empty()) return FirstProblem(report.problems);

  std::set<std::string> known;
  for (const storage::v1::FileRecord& file : report.manifest.body.files()) known.insert(file.path());
  std::vector<std::string> stray;
  CKPTD_RETURN_IF_ERROR(FindStrayFiles(fs, in, "", static_cast<int>(kMaxOpenLevels), known, stray));
  if (!stray.empty()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "MIXED_CHECKPOINT",
        absl::StrCat(stray.front(), " is not part of the committed checkpoint ", report.tag,
                     stray.size() == 1 ? "" : absl::StrCat(", nor are ", stray.size() - 1, " others"),
                     ": it may be of another save; move it out of the directory"),
        {{"path", stray.front()}});
  }
  return InputCheck{true, report.verified_bytes};
}

}  // namespace ckptd
