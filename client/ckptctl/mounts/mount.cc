#include "client/ckptctl/mounts/mount.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ckptd::ctl {
namespace {

constexpr std::array kLocal = {"ext2", "ext3",    "ext4",  "xfs",   "btrfs",
                               "zfs",  "overlay", "tmpfs", "ramfs", "f2fs"};
constexpr std::array kCaching = {
    "ac",    "noac",         "lookupcache",   "attribute-timeout", "entry-timeout", "negative-timeout",
    "cache", "attr_timeout", "entry_timeout", "nosharecache"};

// The kernel writes blanks and backslashes of a path as octal numbers.
std::string Unescaped(const std::string& text) {
  std::string plain;
  return absl::CUnescape(text, &plain) ? plain : text;
}

bool Holds(const std::string& point, const std::string& path) {
  if (point == "/" || point == path) return true;
  return absl::StartsWith(path, point) && path[point.size()] == '/';
}

}  // namespace

// Lines of proc(5): 36 35 98:0 /root /mount/point rw,noatime master:1 - nfs4 server:/export rw,vers=4.2
Mount FindMount(const std::string& table, const std::string& path) {
  Mount found;
  size_t longest = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(table, '\n', absl::SkipEmpty()))) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::string point = Unescaped(fields[4]);
    if (!Holds(point, path) || point.size() < longest) continue;
    longest = point.size();  // Of two mounts at one point the later one is seen.
    found = {dash[1], Unescaped(dash[2]), absl::StrCat(fields[5], ",", dash[3])};
  }
  return found;
}

Mount MountOf(const std::string& path) {
  std::ifstream table("/proc/self/mountinfo");
  return FindMount(std::string(std::istreambuf_iterator<char>(table), {}), path);
}

std::string CachingOptions(const Mount& mount) {
  std::vector<std::string> found;
  for (const std::string& option : std::vector<std::string>(absl::StrSplit(mount.options, ','))) {
    const std::string name = option.substr(0, option.find('='));
    const bool is_time =
        absl::StartsWith(name, "acreg") || absl::StartsWith(name, "acdir") || name == "actimeo";
    if (is_time || std::find(kCaching.begin(), kCaching.end(), name) != kCaching.end())
      found.push_back(option);
  }
  return absl::StrJoin(found, ",");
}

bool IsLocal(const Mount& mount) {
  return std::find(kLocal.begin(), kLocal.end(), mount.type) != kLocal.end();
}

}  // namespace ckptd::ctl
