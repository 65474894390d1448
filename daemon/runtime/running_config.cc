#include "daemon/runtime/running_config.h"

#include <fcntl.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

constexpr char kHead[] =
    "# The configuration in force, written by ckptd at its start and at each reload. Changes here change "
    "nothing.\n";

}  // namespace

std::string RunningConfigPath(const std::string& socket_path) { return socket_path + ".config"; }

absl::Status WriteRunningConfig(const config::v1::DaemonConfig& config, int metrics_port) {
  config::v1::DaemonConfig shown = config;
  if (shown.metrics().port() == 0 && metrics_port > 0) shown.mutable_metrics()->set_port(metrics_port);
  std::string text;
  google::protobuf::TextFormat::PrintToString(shown, &text);
  text = kHead + text;
  const std::string path = RunningConfigPath(config.socket_path()), fresh = path + ".new";
  // Others may be allowed to write into the directory: a file or a link of this name is not followed.
  ::unlink(fresh.c_str());
  const UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return ErrnoError(errno, absl::StrCat("making ", fresh));
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    return ErrnoError(error, absl::StrCat("writing ", path));
  }
  return absl::OkStatus();
}

}  // namespace ckptd
