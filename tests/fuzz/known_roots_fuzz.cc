// The daemon's list of known roots, a text proto: what is read can be written and read again.
#include "daemon/attach/state_directory.h"
#include "storage/base/errors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

void Load(const uint8_t* data, size_t size) {
  static const TempDir& dir = *new TempDir;
  const std::string path = dir.path() + "/known_roots.txtpb";
  std::FILE* file = std::fopen(path.c_str(), "wb");
  FUZZ_CHECK(file != nullptr && std::fwrite(data, 1, size, file) == size && std::fclose(file) == 0);
  size_t roots = 0;
  {
    const auto state = StateDirectory::Open(dir.path());
    if (!state.ok()) {
      FUZZ_CHECK(ReasonOf(state.status()) == "STATE_UNREADABLE");
      return;
    }
    roots = (*state)->roots().size();
    storage::v1::KnownRoot root;
    root.set_path("/not/in/any/corpus");
    root.set_device(UINT64_MAX);
    root.set_inode(UINT64_MAX);
    FUZZ_CHECK((*state)->Remember(root).ok());
  }
  const auto again = StateDirectory::Open(dir.path());
  FUZZ_CHECK(again.ok() && (*again)->roots().size() <= roots + 1 && !(*again)->roots().empty());
  FUZZ_CHECK((*again)->roots().back().path() == "/not/in/any/corpus");
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::Load(data, size);
  return 0;
}
