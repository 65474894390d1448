// A file system of a few blocks, for tests with a full disk. Needs permission to mount.
#ifndef CKPTD_TESTS_TESTING_SMALL_TMPFS_H_
#define CKPTD_TESTS_TESTING_SMALL_TMPFS_H_

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <string>
#include <thread>

#include "storage/base/unique_fd.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {

// Mounted in a separate mount namespace that nothing else sees, and removed with its descriptor.
class SmallTmpfs {
 public:
  explicit SmallTmpfs(int bytes) {
    std::thread([this, bytes] {
      const std::string options = "mode=0777,size=" + std::to_string(bytes);
      if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
        return;
      if (::mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, options.c_str()) != 0) return;
      fd_.reset(::open(dir_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    }).join();
  }
  // False if this process may not mount.
  bool ok() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }

 private:
  TempDir dir_;
  UniqueFd fd_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_SMALL_TMPFS_H_
