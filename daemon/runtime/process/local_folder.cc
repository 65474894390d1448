#include "daemon/runtime/process/local_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

absl::Status OthersMayWrite(const std::string& path, const std::string& why) {
  return MakeError(absl::StatusCode::kPermissionDenied, "WRONG_UID",
                   absl::StrCat(path, " ", why, "; choose another folder, or one that does not exist yet"));
}

}  // namespace

absl::Status MakeLocalFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return ErrnoError(error.value(), absl::StrCat("making the parents of ", path));
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return ErrnoError(errno, absl::StrCat("making ", path));
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return ErrnoError(errno, path);
  if (!S_ISDIR(info.st_mode)) return OthersMayWrite(path, "is a link or a file, and not a directory");
  if (info.st_uid != ::geteuid()) {
    return OthersMayWrite(
        path, absl::StrCat("belongs to uid ", info.st_uid, ", and this user is uid ", ::geteuid()));
  }
  if ((info.st_mode & 0022) != 0) {
    return OthersMayWrite(path,
                          absl::StrFormat("has mode %04o, so that others may write there: chmod go-w %s",
                                          info.st_mode & 07777, path));
  }
  return absl::OkStatus();
}

std::string LocalGreeting(const std::string& socket_path) {
  return absl::StrCat("export CKPTD_ENDPOINT='unix:", absl::StrReplaceAll(socket_path, {{"'", "'\\''"}}),
                      "'\n# Ctrl-C ends this daemon as soon as all sealed saves are durable.\n");
}

}  // namespace ckptd
