#include "daemon/sessions/session_registry.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/engine/seams/limits.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

absl::StatusOr<std::string> NewToken() {
  std::array<char, 16> bits;
  // getrandom returns up to 256 bytes completely or not at all.
  if (getrandom(bits.data(), bits.size(), 0) != static_cast<ssize_t>(bits.size())) {
    return ErrnoError(errno, "getrandom");
  }
  return absl::BytesToHexString(absl::string_view(bits.data(), bits.size()));
}

absl::Status UnknownToken() {
  return MakeError(
      absl::StatusCode::kUnauthenticated, "UNKNOWN_TOKEN",
      "no open session has this token; it ends with the session's connection or process, or with the "
      "daemon: say Hello again");
}

}  // namespace

SessionRegistry::SessionRegistry(int max_sessions, int max_sessions_per_uid)
    : max_sessions_(max_sessions), max_sessions_per_uid_(max_sessions_per_uid) {}

void SessionRegistry::SetMostPerUser(int sessions) {
  MutexLock lock(mutex_);
  max_sessions_per_uid_ = sessions;
}

absl::StatusOr<SessionRegistry::Opened> SessionRegistry::Open(const SessionRequest& request) {
  CKPTD_ASSIGN_OR_RETURN(std::string token, NewToken());
  MutexLock lock(mutex_);
  if (static_cast<int>(sessions_.size()) >= max_sessions_) {
    return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_SESSIONS",
                     absl::StrCat("the daemon has ", sessions_.size(),
                                  " sessions, which is max_sessions; end some or raise it"));
  }
  if (const auto of_uid = sessions_of_uid_.find(request.user.uid);
      of_uid != sessions_of_uid_.end() && of_uid->second >= max_sessions_per_uid_) {
    return UidLimitExceeded(request.user.uid, "sessions", max_sessions_per_uid_, "sessions_per_uid");
  }
  if (request.keeper && closed_to_keepers_) {
    return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                     "this private daemon is ending; start another one");
  }
  Session session;
  session.info.id = ++last_session_;
  session.info.uid = request.user.uid;
  session.info.gid = request.user.gid;
  session.info.pid = request.pid;
  session.info.client_instance = request.client_instance;
  session.info.client_name = request.client_name;
  session.info.descriptors = request.descriptors;
  session.info.tenant = request.tenant;
  session.user = request.user;
  session.keeper = request.keeper;
  session.token = token;
  if (request.keeper) ++keepers_;
  ++sessions_of_uid_[request.user.uid];
  Opened opened{session.info, token};
  by_token_[token] = session.info.id;
  sessions_.emplace(opened.info.id, std::move(session));
  return opened;
}

bool SessionRegistry::Close(SessionId session) {
  MutexLock lock(mutex_);
  auto found = sessions_.find(session);
  if (found == sessions_.end()) return false;
  if (found->second.keeper) --keepers_;
  if (const auto of_uid = sessions_of_uid_.find(found->second.info.uid); --of_uid->second == 0)
    sessions_of_uid_.erase(of_uid);
  by_token_.erase(found->second.token);
  sessions_.erase(found);
  return true;
}

bool SessionRegistry::CloseToKeepers() {
  MutexLock lock(mutex_);
  closed_to_keepers_ = keepers_ == 0;
  return closed_to_keepers_;
}

absl::StatusOr<SessionInfo> SessionRegistry::Find(const std::string& token, uid_t uid) const {
  MutexLock lock(mutex_);
  auto found = by_token_.find(token);
  if (found == by_token_.end()) return UnknownToken();
  const SessionInfo& info = sessions_.at(found->second).info;
  if (info.uid != uid) {
    return MakeError(absl::StatusCode::kPermissionDenied, "WRONG_UID",
                     absl::StrCat("this token belongs to a session of uid ", info.uid,
                                  ", but the call comes from uid ", uid));
  }
  return info;
}

absl::StatusOr<FileUser> SessionRegistry::UserOf(SessionId session) const {
  MutexLock lock(mutex_);
  auto found = sessions_.find(session);
  if (found == sessions_.end()) return UnknownToken();
  return found->second.user;
}

int SessionRegistry::sessions() const {
  MutexLock lock(mutex_);
  return static_cast<int>(sessions_.size());
}

int SessionRegistry::keepers() const {
  MutexLock lock(mutex_);
  return keepers_;
}

}  // namespace ckptd
