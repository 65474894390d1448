#include "daemon/config/shared_folders.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr int kMaxFolders = 64;

bool IsIn(const std::string& folder, const std::string& path) {
  return path.compare(0, folder.size(), folder) == 0 &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

// Without ".", "..", empty components, and slashes at the end.
std::string Plain(const std::string& path) {
  std::string plain = std::filesystem::path(path).lexically_normal().string();
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  return plain;
}

// Empty if nothing is wrong with it.
std::string WhatIsWrong(const std::string& folder) {
  const std::string quoted = absl::StrCat("\"", absl::CHexEscape(folder), "\"");
  if (folder.empty() || folder[0] != '/' || folder.find('\0') != std::string::npos)
    return absl::StrCat(quoted, " is not an absolute path");
  const std::string plain = Plain(folder);
  if (plain == "/") {
    return absl::StrCat(quoted,
                        " is all of this machine, with the disks that it has for itself; write the "
                        "folder at which the shared file system is mounted");
  }
  if (plain == folder) return "";
  return absl::StrCat(quoted, " has \".\", \"..\", or a slash too many; write \"", absl::CHexEscape(plain),
                      "\"");
}

absl::Status Wrong(const std::string& folder, const std::string& what) {
  return InvalidArgument(absl::StrCat("cluster.shared_folders: \"", folder, "\" ", what));
}

}  // namespace

std::vector<std::string> CheckSharedFolders(const SharedFolders& folders) {
  std::vector<std::string> problems;
  if (folders.size() > kMaxFolders) {
    problems.push_back(absl::StrCat(folders.size(), " folders; at most ", kMaxFolders,
                                    " are allowed, so write one that has several of them in it"));
  }
  for (int i = 0; i < folders.size(); ++i) {
    const std::string wrong = WhatIsWrong(folders[i]);
    if (!wrong.empty()) {
      problems.push_back(wrong);
      continue;
    }
    for (int k = 0; k < folders.size(); ++k) {
      if (k == i || !IsIn(folders[k], folders[i])) continue;
      if (folders[k] == folders[i] && k > i) continue;  // It is reported once.
      problems.push_back(absl::StrCat("\"", folders[i], "\" is shared already, by \"", folders[k],
                                      "\"; remove one of the two lines"));
      break;
    }
  }
  return problems;
}

std::string SharedFolderOf(const SharedFolders& folders, const std::string& path) {
  for (const std::string& folder : folders) {
    if (IsIn(folder, path)) return folder;
  }
  return "";
}

absl::Status LookAtSharedFolder(const std::string& folder) {
  std::error_code error;
  const std::string real = std::filesystem::canonical(folder, error).string();
  if (error) {
    return Wrong(folder, absl::StrCat("cannot be looked at (", error.message(),
                                      "): mount its file system there, on every node"));
  }
  if (real != folder) {
    return Wrong(folder,
                 absl::StrCat("has a symbolic link in it, and roots are compared by where they really are; "
                              "write \"",
                              real, "\""));
  }
  if (std::filesystem::is_directory(folder, error)) return absl::OkStatus();
  return Wrong(folder, "is not a directory; write the folder at which the shared file system is mounted");
}

}  // namespace ckptd
