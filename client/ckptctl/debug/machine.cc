#include "client/ckptctl/debug/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/ckptctl/commands/host.h"
#include "client/ckptctl/debug/daemon_process.h"
#include "client/ckptctl/mounts/mount.h"
#include "client/ckptctl/text/finding.h"
#include "client/ckptctl/text/text.h"
#include "storage/io/io_queue.h"

namespace ckptd::ctl {
namespace {

constexpr int kRingDepth = 8;
constexpr char kControlGroups[] = "/sys/fs/cgroup";
constexpr const char* kSettings[] = {
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/vm/nr_hugepages",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/dirty_ratio",
    "/proc/sys/vm/dirty_bytes",
    "/proc/sys/fs/file-nr",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/pressure/memory",
    "/proc/pressure/io",
};

// "PATH: what is in it". Several lines are indented below the path.
void AppendFile(const std::string& path, std::string* out) {
  const absl::StatusOr<std::string> read = ReadSmallFile(path);
  if (!read.ok()) return absl::StrAppend(out, std::string(read.status().message()), "\n");
  const absl::string_view text = absl::StripAsciiWhitespace(*read);
  if (!absl::StrContains(text, '\n')) return absl::StrAppend(out, path, ": ", text, "\n");
  absl::StrAppend(out, path, ":\n");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) absl::StrAppend(out, "  ", line, "\n");
}

std::string NameOfSystem() {
  const absl::StatusOr<std::string> text = ReadSmallFile("/etc/os-release");
  if (!text.ok()) return "unknown";
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (absl::StartsWith(line, "PRETTY_NAME=")) return std::string(line.substr(12));
  }
  return "unknown";
}

std::string DoctorOfHost() {
  return FindingsText("ckptctl doctor, for this user",
                      JudgeHost(ReadHostFacts(), MakeUringQueue(kRingDepth).status()));
}

}  // namespace

std::string DescribeMachine() {
  utsname name{};
  ::uname(&name);
  std::string out = absl::StrCat(
      name.sysname, " ", name.release, " ", name.version, " ", name.machine, "\n", "system: ", NameOfSystem(),
      "\n", "processors: ", ::sysconf(_SC_NPROCESSORS_ONLN), "\n\n", DoctorOfHost(), "\n");
  for (const char* path : kSettings) AppendFile(path, &out);
  AppendFile("/proc/meminfo", &out);
  return out;
}

std::string DescribeControlGroup(pid_t pid) {
  const absl::StatusOr<std::string> groups = ReadSmallFile(absl::StrCat("/proc/", pid, "/cgroup"));
  if (!groups.ok()) return absl::StrCat(std::string(groups.status().message()), "\n");
  const size_t begin = groups->find("0::");
  if (begin == groups->npos) return *groups;  // Version 1 only: the paths tell where to look.
  const std::string path = absl::StrCat(
      kControlGroups, absl::StripAsciiWhitespace(groups->substr(begin + 3, groups->find('\n', begin))));
  std::string out;
  for (const char* file :
       {"memory.max", "memory.high", "memory.current", "memory.events", "io.max", "cpu.max"})
    AppendFile(absl::StrCat(path, path.back() == '/' ? "" : "/", file), &out);
  return out;
}

std::string DescribeMounts(pid_t pid, const std::vector<std::string>& paths) {
  absl::StatusOr<std::string> mounts = ReadSmallFile(absl::StrCat("/proc/", pid, "/mountinfo"));
  if (pid == 0 || !mounts.ok()) mounts = ReadSmallFile("/proc/self/mountinfo");
  if (!mounts.ok()) return absl::StrCat(std::string(mounts.status().message()), "\n");
  Table table({"PATH", "TYPE", "SOURCE", "OPTIONS"});
  for (const std::string& path : std::set<std::string>(paths.begin(), paths.end())) {
    const Mount mount = FindMount(*mounts, path);
    table.Add({path, mount.type, mount.source, mount.options});
  }
  return table.ToString();
}

}  // namespace ckptd::ctl
