#include "storage/commit/shared/run/shared_term.h"

#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

// A late coordinator may make a file after the directory was listed.
constexpr int kTries = 100;

// What a late coordinator has put together there goes into the trash in one step: it may rename it to its place
// at any time, and then all of it must be there.
absl::Status EmptyTerm(const SharedLayout& layout, const std::string& name) {
  FileSystem& fs = *layout.fs;
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle term,
                         OpenScoped(fs, layout.shared.get(), name, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(term.get()));
  for (const DirEntry& entry : entries) {
    const absl::Status gone =
        entry.type == FileType::kDirectory
            ? fs.Rename(term.get(), entry.name, layout.trash.get(), entry.name, RenameMode::kReplace)
            : fs.Remove(term.get(), entry.name, entry.type);
    if (!gone.ok() && !IsMissing(gone)) return gone;
  }
  return absl::OkStatus();
}

// True if nothing has the name. A late coordinator may make a file in it, or remove one, meanwhile.
absl::StatusOr<bool> RemoveTerm(const SharedLayout& layout, const std::string& name) {
  absl::Status removed = EmptyTerm(layout, name);
  if (removed.ok()) removed = layout.fs->Remove(layout.shared.get(), name, FileType::kDirectory);
  const int error = ErrnoOf(removed);
  if (!removed.ok() && error != ENOENT && error != ENOTEMPTY && error != EEXIST) return removed;
  const absl::StatusOr<FileStat> left = layout.fs->Stat(layout.shared.get(), name);
  if (left.ok()) return false;
  if (IsMissing(left.status())) return true;
  return left.status();
}

absl::Status RemoveTermForGood(const SharedLayout& layout, const std::string& name) {
  for (int i = 0; i < kTries; ++i) {
    CKPTD_ASSIGN_OR_RETURN(const bool gone, RemoveTerm(layout, name));
    if (gone) return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      name, ", where an earlier coordinator makes files, is not empty after ", kTries, " tries"));
}

}  // namespace

absl::StatusOr<ScopedHandle> BeginTerm(const SharedLayout& layout, int64_t term) {
  if (term < 1) return InvalidArgument(absl::StrCat("term ", term, "; terms begin at 1"));
  FileSystem& fs = *layout.fs;
  const absl::Status made = fs.MakeDir(layout.shared.get(), TermName(term));
  if (!made.ok() && ErrnoOf(made) != EEXIST) return made;  // It is there if this call is a second one.
  CKPTD_ASSIGN_OR_RETURN(ScopedHandle own,
                         OpenScoped(fs, layout.shared.get(), TermName(term), OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(layout.shared.get()));
  for (const DirEntry& entry : entries) {
    const std::optional<int64_t> earlier = ParseTermName(entry.name);
    if (earlier.has_value() && *earlier < term) CKPTD_RETURN_IF_ERROR(RemoveTermForGood(layout, entry.name));
  }
  return own;
}

}  // namespace ckptd
