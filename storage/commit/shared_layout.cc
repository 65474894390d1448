#include "storage/commit/shared_layout.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

absl::StatusOr<ScopedHandle> OpenShared(FileSystem& fs, Handle root, const std::string& name) {
  const std::string path =
      absl::StrCat(std::string(kOurDirectory), "/", std::string(kSharedDirectory), "/", name);
  CKPTD_RETURN_IF_ERROR(MakeDirsDurably(fs, root, path));
  return OpenScoped(fs, root, path, OpenMode::kDirectory);
}

}  // namespace

absl::StatusOr<SharedLayout> OpenSharedLayout(FileSystem* fs, Handle root) {
  SharedLayout layout;
  layout.fs = fs;
  layout.root = root;
  CKPTD_ASSIGN_OR_RETURN(layout.inflight, OpenShared(*fs, root, std::string(kInflightDirectory)));
  CKPTD_ASSIGN_OR_RETURN(layout.trash, OpenShared(*fs, root, std::string(kTrashDirectory)));
  return layout;
}

}  // namespace ckptd
