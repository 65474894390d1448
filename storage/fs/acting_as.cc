#include "storage/fs/acting_as.h"

#include <grp.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

absl::Status Mismatch(const FileUser& user, const std::string& why) {
  return MakeError(absl::StatusCode::kPermissionDenied, "USER_MISMATCH",
                   absl::StrCat("cannot act as user ", user.uid, ":", user.gid, ": ", why));
}

bool SetGroups(const std::vector<gid_t>& groups) {
  return ::syscall(SYS_setgroups, groups.size(), groups.data()) == 0;
}

// setfsuid does not report failure. Calling it with an invalid id returns the id that is set.
bool SetFsUid(uid_t uid) {
  ::setfsuid(uid);
  return static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))) == uid;
}

bool SetFsGid(gid_t gid) {
  ::setfsgid(gid);
  return static_cast<gid_t>(::setfsgid(static_cast<gid_t>(-1))) == gid;
}

}  // namespace

absl::StatusOr<Actor> Actor::Make(const std::optional<FileUser>& user) {
  Actor actor;
  actor.own_uid_ = ::geteuid();
  actor.own_gid_ = ::getegid();
  if (!user.has_value() || user->uid == actor.own_uid_) return actor;
  if (actor.own_uid_ != 0) {
    return Mismatch(
        *user, absl::StrCat("this process is user ", actor.own_uid_, ", and only root may act as others"));
  }
  const int count = ::getgroups(0, nullptr);
  actor.own_groups_.resize(count > 0 ? static_cast<size_t>(count) : 0);
  if (count > 0 && ::getgroups(count, actor.own_groups_.data()) != count) {
    return ErrnoError(errno, "getgroups");
  }
  actor.user_ = user;
  const Scope tried(actor);
  if (!tried.status().ok()) return tried.status();
  return actor;
}

Actor::Scope::Scope(const Actor& actor) : actor_(actor) {
  if (!actor_.user_.has_value()) return;
  const FileUser& user = *actor_.user_;
  const char* refused = nullptr;
  if (!SetGroups(user.groups)) {
    refused = "setgroups";
  } else if (!SetFsGid(user.gid)) {
    refused = "setfsgid";
  } else if (!SetFsUid(user.uid)) {
    refused = "setfsuid";
  }
  if (refused == nullptr) return;
  status_ =
      Mismatch(user, absl::StrCat(refused,
                                  " was refused; CAP_SETUID and CAP_SETGID are needed, and a user namespace "
                                  "that has this user"));
  Restore();
}

Actor::Scope::~Scope() {
  if (actor_.user_.has_value() && status_.ok()) Restore();
}

void Actor::Scope::Restore() {
  const int saved_errno = errno;
  const bool uid = SetFsUid(actor_.own_uid_);
  const bool gid = SetFsGid(actor_.own_gid_);
  // If the change of groups was refused at the start there is nothing to undo.
  const bool groups = SetGroups(actor_.own_groups_) || !status_.ok();
  if (!uid || !gid || !groups) {
    std::fprintf(stderr,
                 "ckptd: a thread could not restore its own user after acting as user %u: %s; aborting\n",
                 actor_.user_->uid, std::strerror(errno));
    std::abort();
  }
  errno = saved_errno;
}

}  // namespace ckptd
