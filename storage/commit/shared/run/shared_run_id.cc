//   <root>/.ckptd/shared/run/<id>/
//
// The id is the name of an empty directory, and `run` has that one entry. A daemon makes both under a name of
// its own, syncs them, and renames its directory to `run`. A plain rename puts a directory in the place of an
// empty one at most, and `run` is never empty, so the first rename counts for all and no later one succeeds:
// on every file system, without locks, links and flags, and also if a daemon is paused before its rename, or
// does not see `run` because its view of the names is old. A daemon that is killed before its rename leaves
// two empty directories.
#include "storage/commit/shared/run/shared_run_id.h"

#include <cerrno>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/format/names.h"
#include "storage/fs/file_system.h"

namespace ckptd {
namespace {

constexpr size_t kIdCharacters = 32;

std::string RandomId() {
  std::random_device random;
  std::string id;
  while (id.size() < kIdCharacters)
    absl::StrAppend(&id, absl::StrFormat("%08x", static_cast<uint32_t>(random())));
  return id;
}

bool IsId(const std::string& name) {
  return name.size() == kIdCharacters && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// NOT_FOUND with errno ENOENT if there is none.
absl::StatusOr<std::string> Read(const SharedLayout& layout) {
  FileSystem& fs = *layout.fs;
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle run,
                         OpenScoped(fs, layout.shared.get(), kRunDirectory, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(run.get()));
  if (entries.empty()) return LookAgain("the id of the run", "its directory looks empty");
  if (entries.size() > 1 || !IsId(entries[0].name)) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "ROOT_UNREADABLE",
        absl::StrCat(std::string(kOurDirectory), "/", std::string(kSharedDirectory), "/",
                     std::string(kRunDirectory), " holds the id of the run and nothing else, but has ",
                     entries.size(), " entries, the first is ", entries[0].name,
                     "; remove what another program has put there"));
  }
  // The daemon that renamed it may have been killed before the sync.
  CKPTD_RETURN_IF_ERROR(fs.Sync(layout.shared.get(), SyncMode::kAll));
  return entries[0].name;
}

// OK also if another daemon's is there.
absl::Status Make(const SharedLayout& layout, const std::string& id) {
  FileSystem& fs = *layout.fs;
  const Handle shared = layout.shared.get();
  // Two daemons may make the same id again.
  const std::string made = absl::StrCat(std::string(kRunDirectory), ".", RandomId());
  CKPTD_RETURN_IF_ERROR(fs.MakeDir(shared, made));
  CKPTD_RETURN_IF_ERROR(fs.MakeDir(shared, absl::StrCat(made, "/", id)));
  {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, OpenScoped(fs, shared, made, OpenMode::kDirectory));
    CKPTD_RETURN_IF_ERROR(fs.Sync(dir.get(), SyncMode::kAll));
  }
  const absl::Status renamed = fs.Rename(shared, made, shared, kRunDirectory, RenameMode::kReplace);
  if (renamed.ok()) return absl::OkStatus();
  RemoveTree(fs, shared, made).IgnoreError();  // Best effort: nothing looks for it.
  const int error = ErrnoOf(renamed);
  return error == ENOTEMPTY || error == EEXIST ? absl::OkStatus() : renamed;
}

absl::StatusOr<std::string> MakeAndRead(const SharedLayout& layout, const std::string& id) {
  CKPTD_RETURN_IF_ERROR(Annotate(Make(layout, id), "making the id of the run"));
  absl::StatusOr<std::string> made = Read(layout);
  if (!MayBeAnothersChange(made.status())) return made;
  return LookAgain("the id of the run", made.status());
}

}  // namespace

// The old directory is renamed, not removed: a crash in between leaves no id, and the next daemon makes one.
absl::StatusOr<RenewedRunId> RenewSharedRunId(FileSystem* fs, Handle root) {
  const std::string shared = absl::StrCat(std::string(kOurDirectory), "/", std::string(kSharedDirectory));
  const absl::StatusOr<FileStat> found =
      fs->Stat(root, absl::StrCat(shared, "/", std::string(kRunDirectory)));
  if (IsMissing(found.status())) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNREADABLE",
                     absl::StrCat("this is not the root of a run that several nodes share: it has no ",
                                  shared, "/", std::string(kRunDirectory)));
  }
  CKPTD_RETURN_IF_ERROR(found.status());
  CKPTD_ASSIGN_OR_RETURN(const SharedLayout layout, OpenSharedLayout(fs, root));
  CKPTD_ASSIGN_OR_RETURN(std::string before, Read(layout));
  const std::string old = absl::StrCat(std::string(kRunDirectory), ".", before);
  CKPTD_RETURN_IF_ERROR(
      fs->Rename(layout.shared.get(), kRunDirectory, layout.shared.get(), old, RenameMode::kReplace));
  CKPTD_RETURN_IF_ERROR(fs->Sync(layout.shared.get(), SyncMode::kAll));
  CKPTD_ASSIGN_OR_RETURN(std::string after, SharedRunId(layout));
  RemoveTree(*fs, layout.shared.get(), old).IgnoreError();  // Best effort: nothing looks for it.
  return RenewedRunId{std::move(before), std::move(after)};
}

absl::StatusOr<std::string> SharedRunId(const SharedLayout& layout) {
  absl::StatusOr<std::string> id = Read(layout);
  if (!MayBeAnothersChange(id.status())) return id;
  return MakeAndRead(layout, RandomId());
}

absl::Status RestoreSharedRunId(const SharedLayout& layout, const std::string& id) {
  absl::StatusOr<std::string> found = Read(layout);
  if (MayBeAnothersChange(found.status())) found = MakeAndRead(layout, id);
  if (!found.ok()) return found.status();
  if (*found == id) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kRootChanged,
      absl::StrCat("the directory ", std::string(kOurDirectory),
                   " of the root was removed, and the root is that of another run now: its id is ", *found,
                   ", and was ", id, "; end the jobs that use this root, and start them anew"));
}

}  // namespace ckptd
