#include "daemon/runtime/process/machine.h"

#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "storage/base/errors.h"

namespace ckptd {

int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  rlimit raised = limit;
  raised.rlim_cur = raised.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

absl::StatusOr<std::string> RandomId() {
  std::array<char, 16> bytes;
  // getrandom returns up to 256 bytes completely or not at all.
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return ErrnoError(errno, "getrandom");
  }
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

std::optional<int64_t> ControlGroupMemoryLimit(const std::string& proc, const std::string& cgroup) {
  std::ifstream groups(proc);
  std::filesystem::path group;
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::/", 0) == 0) group = line.substr(4);
  }
  std::optional<int64_t> smallest;
  // The root group has no such file, and no limit.
  for (; !group.empty(); group = group.parent_path()) {
    int64_t limit = 0;
    std::ifstream file(std::filesystem::path(cgroup) / group / "memory.max");
    if (file >> limit) smallest = std::min(smallest.value_or(limit), limit);
  }
  return smallest;
}

}  // namespace ckptd
