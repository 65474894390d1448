// The groups of a user, from the files of this machine.
#ifndef CKPTD_DAEMON_ATTACH_USER_GROUPS_H_
#define CKPTD_DAEMON_ATTACH_USER_GROUPS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace ckptd {

struct UserGroups {
  std::optional<gid_t> primary;      // nullopt: the file of users does not have this user.
  std::vector<gid_t> supplementary;  // In the order of the file of groups.
};

// Reads passwd(5) and group(5) itself: the C library's getgrouplist loads NSS modules, which a static program
// cannot. So a user of LDAP or SSSD has no supplementary groups here. Errors count as "no groups": a right
// that cannot be looked up is not assumed. Blocks on the files.
UserGroups FindGroups(uid_t uid, const std::string& passwd_path, const std::string& group_path);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_USER_GROUPS_H_
