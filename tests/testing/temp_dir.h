// A directory for one test, on the disk that Bazel uses, removed at the end.
#ifndef CKPTD_TESTS_TESTING_TEMP_DIR_H_
#define CKPTD_TESTS_TESTING_TEMP_DIR_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "storage/base/unique_fd.h"

namespace ckptd {

class TempDir {
 public:
  explicit TempDir(const std::string& parent = Parent()) : path_(parent + "/ckptd-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) Die();
    fd_.reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd_) Die();
  }
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    if (!error) return;
    // remove_all opens a descriptor for each level of the tree; rm does not.
    if (std::system(("rm -rf '" + path_ + "'").c_str()) != 0) std::perror(path_.c_str());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }  // Also its handle in a PosixFileSystem.

 private:
  static std::string Parent() {
    const char* parent = std::getenv("TEST_TMPDIR");
    return parent != nullptr ? parent : "/tmp";
  }
  void Die() const {
    std::fprintf(stderr, "making %s: %s\n", path_.c_str(), std::strerror(errno));
    std::abort();
  }

  std::string path_;
  UniqueFd fd_;
};

// Makes `depth` nested directories: "0/0/0/...". The path is too long for one call, so each directory is
// created through the descriptor of its parent. Not below TEST_TMPDIR: leftovers of a failed test overflow
// Bazel's stack.
inline bool MakeNestedDirectories(int dir, int depth) {
  UniqueFd above(::dup(dir));
  for (int level = 0; level < depth; ++level) {
    if (::mkdirat(above.get(), "0", 0755) != 0) return false;
    above.reset(::openat(above.get(), "0", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!above) return false;
  }
  return true;
}

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_TEMP_DIR_H_
