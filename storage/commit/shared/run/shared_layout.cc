#include "storage/commit/shared/run/shared_layout.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

absl::StatusOr<ScopedHandle> MakeAndOpen(FileSystem& fs, Handle dir, std::string_view path) {
  CKPTD_RETURN_IF_ERROR(MakeDirsDurably(fs, dir, path));
  return OpenScoped(fs, dir, path, OpenMode::kDirectory);
}

// Another node may have made them, and not synced them yet, or have been killed before it did.
absl::Status SyncAbove(const SharedLayout& layout) {
  FileSystem& fs = *layout.fs;
  CKPTD_RETURN_IF_ERROR(fs.Sync(layout.shared.get(), SyncMode::kAll));
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle ours,
                         OpenScoped(fs, layout.root, kOurDirectory, OpenMode::kDirectory));
  CKPTD_RETURN_IF_ERROR(fs.Sync(ours.get(), SyncMode::kAll));
  return fs.Sync(layout.root, SyncMode::kAll);
}

}  // namespace

absl::StatusOr<SharedLayout> OpenSharedLayout(FileSystem* fs, Handle root) {
  SharedLayout layout;
  layout.fs = fs;
  layout.root = root;
  const std::string shared = absl::StrCat(std::string(kOurDirectory), "/", std::string(kSharedDirectory));
  CKPTD_ASSIGN_OR_RETURN(layout.shared, MakeAndOpen(*fs, root, shared));
  CKPTD_ASSIGN_OR_RETURN(layout.inflight, MakeAndOpen(*fs, layout.shared.get(), kInflightDirectory));
  CKPTD_ASSIGN_OR_RETURN(layout.trash, MakeAndOpen(*fs, layout.shared.get(), kTrashDirectory));
  CKPTD_RETURN_IF_ERROR(SyncAbove(layout));
  return layout;
}

}  // namespace ckptd
