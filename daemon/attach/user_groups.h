// Looks up the groups of a user in the files of this machine.
#ifndef CKPTD_DAEMON_ATTACH_USER_GROUPS_H_
#define CKPTD_DAEMON_ATTACH_USER_GROUPS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace ckptd {

struct UserGroups {
  std::optional<gid_t> primary;      // nullopt: passwd does not list this user.
  std::vector<gid_t> supplementary;  // In the order of the group file.
};

// Reads passwd(5) and group(5) itself, because the C library's getgrouplist loads NSS modules, which a static
// program cannot. So users from LDAP or SSSD have no supplementary groups here. If a file cannot be read, the
// user has no groups. Blocks on the files.
UserGroups FindGroups(uid_t uid, const std::string& passwd_path, const std::string& group_path);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ATTACH_USER_GROUPS_H_
