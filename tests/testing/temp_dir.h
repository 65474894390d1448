// A directory for one test, on the disk that Bazel works on, gone at the end.
#ifndef CKPTD_TESTS_TESTING_TEMP_DIR_H_
#define CKPTD_TESTS_TESTING_TEMP_DIR_H_

#include <fcntl.h>

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
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
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

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_TEMP_DIR_H_
