#include "client/cpp/session/endpoint.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/errors.h"

namespace ckptd::client {
namespace {

constexpr size_t kMaxSocketPath = 99;  // With ".handoff" appended it still fits a sockaddr_un.

std::string FirstWord(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// Field 22 of /proc/<pid>/stat. Fields are counted from behind the name, which may hold spaces and brackets.
std::string StartTime(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return "0";
  std::istringstream rest(line.substr(end_of_name + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return field;
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text) {
  Endpoint endpoint;
  endpoint.text = text;
  if (endpoint.text.empty()) {
    const char* from_environment = std::getenv("CKPTD_ENDPOINT");
    endpoint.text =
        from_environment != nullptr && *from_environment != 0 ? from_environment : kDefaultEndpoint;
  }
  auto refuse = [&](const std::string& why) {
    return InvalidArgument(
        absl::StrCat("endpoint \"", endpoint.text, "\" ", why, "; use the form unix:/path/to/ckptd.sock"));
  };
  if (!endpoint.text.starts_with("unix:/")) return refuse("is not a Unix socket with an absolute path");
  endpoint.socket_path = endpoint.text.substr(5);
  if (endpoint.socket_path.size() > kMaxSocketPath) {
    return refuse(absl::StrCat("has a path of ", endpoint.socket_path.size(), " bytes, more than the ",
                               kMaxSocketPath, " that a socket's address can hold"));
  }
  if (endpoint.socket_path.find('\0') != std::string::npos) return refuse("contains a zero byte");
  endpoint.handoff_path = absl::StrCat(endpoint.socket_path, ".handoff");
  return endpoint;
}

absl::Status CheckServer(const std::string& socket_path, std::optional<uid_t> server) {
  struct stat info = {};
  if (!server) {
    if (stat(socket_path.c_str(), &info) != 0) return absl::OkStatus();
    server = info.st_uid;
  }
  if (*server == 0 || *server == getuid() || *server == geteuid()) return absl::OkStatus();
  std::error_code unresolved;
  const std::filesystem::path folder = std::filesystem::canonical(socket_path, unresolved).parent_path();
  if (!unresolved && stat(folder.c_str(), &info) == 0 && info.st_uid == *server) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kPermissionDenied, "WRONG_UID",
      absl::StrCat("the socket ", socket_path, " belongs to uid ", *server,
                   ", which is neither root, nor this user (uid ", getuid(), "), nor the owner of ",
                   folder.string(), ": another user may have put it there, so nothing was sent. Set ",
                   "$CKPTD_ENDPOINT to the socket of a daemon that you trust, or have it serve in a ",
                   "directory of its own"));
}

std::string LaunchIdOfParent() {
  const pid_t parent = getppid();
  return absl::StrCat("parent-", FirstWord("/proc/sys/kernel/random/boot_id"), "-", parent, "-",
                      StartTime(parent));
}

std::string RandomHex128() {
  uint64_t words[2] = {0, 0};
  // getrandom never returns fewer than 16 bytes. It blocks until the kernel's generator is seeded.
  if (getrandom(words, sizeof words, 0) != static_cast<ssize_t>(sizeof words)) std::abort();
  return absl::StrFormat("%016x%016x", words[0], words[1]);
}

}  // namespace ckptd::client
