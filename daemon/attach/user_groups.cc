#include "daemon/attach/user_groups.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace ckptd {

UserGroups FindGroups(uid_t uid, const std::string& passwd_path, const std::string& group_path) {
  UserGroups found;
  std::string name, line;
  std::ifstream users(passwd_path);
  while (name.empty() && std::getline(users, line)) {  // name:password:uid:gid:...
    const std::vector<std::string> fields = absl::StrSplit(line, ':');
    uint32_t its_uid = 0, gid = 0;
    if (fields.size() < 4 || !absl::SimpleAtoi(fields[2], &its_uid) || its_uid != uid) continue;
    if (!absl::SimpleAtoi(fields[3], &gid)) continue;
    name = fields[0];
    found.primary = gid;
  }
  if (name.empty()) return found;
  std::ifstream groups(group_path);
  while (std::getline(groups, line)) {  // name:password:gid:member,member
    const std::vector<std::string> fields = absl::StrSplit(line, ':');
    uint32_t gid = 0;
    if (fields.size() < 4 || !absl::SimpleAtoi(fields[2], &gid)) continue;
    const std::vector<std::string> members = absl::StrSplit(fields[3], ',');
    if (std::find(members.begin(), members.end(), name) != members.end()) found.supplementary.push_back(gid);
  }
  return found;
}

}  // namespace ckptd
