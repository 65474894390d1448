#include "storage/commit/shared/run/shared_layout.h"

#include <cerrno>
#include <string_view>

#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

// Other nodes may be making it at this moment.
absl::StatusOr<ScopedHandle> MakeAndOpen(FileSystem& fs, Handle dir, std::string_view name) {
  const absl::Status made = MakeDirOrStat(fs, dir, name).status();
  if (ErrnoOf(made) == EEXIST) return LookAgain(name, made);
  CKPTD_RETURN_IF_ERROR(made);
  absl::StatusOr<ScopedHandle> opened = OpenScoped(fs, dir, name, OpenMode::kDirectory);
  if (MayBeAnothersChange(opened.status())) return LookAgain(name, opened.status());
  return opened;
}

}  // namespace

absl::StatusOr<SharedLayout> OpenSharedLayout(FileSystem* fs, Handle root) {
  SharedLayout layout;
  layout.fs = fs;
  layout.root = root;
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle ours, MakeAndOpen(*fs, root, kOurDirectory));
  CKPTD_ASSIGN_OR_RETURN(layout.shared, MakeAndOpen(*fs, ours.get(), kSharedDirectory));
  CKPTD_ASSIGN_OR_RETURN(layout.inflight, MakeAndOpen(*fs, layout.shared.get(), kInflightDirectory));
  CKPTD_ASSIGN_OR_RETURN(layout.trash, MakeAndOpen(*fs, layout.shared.get(), kTrashDirectory));
  // Those, too, that were there: another node may have been killed before it synced them.
  for (const Handle dir : {layout.shared.get(), ours.get(), root})
    CKPTD_RETURN_IF_ERROR(fs->Sync(dir, SyncMode::kAll));
  return layout;
}

}  // namespace ckptd
