// The sessions that are open.
#ifndef CKPTD_DAEMON_ENGINE_RUN_SESSION_TABLE_H_
#define CKPTD_DAEMON_ENGINE_RUN_SESSION_TABLE_H_

#include <sys/types.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "daemon/engine/seams/engine_types.h"

namespace ckptd {

// Owns the engine's list of open sessions.
class SessionTable {
 public:
  void Add(const SessionInfo& info) { sessions_.emplace(info.id, info); }

  // Returns the session that was removed; nullopt when it was not open.
  std::optional<SessionInfo> Remove(SessionId id) {
    auto node = sessions_.extract(id);
    if (node.empty()) return std::nullopt;
    return std::move(node.mapped());
  }

  // Null: it is not open.
  const SessionInfo* Find(SessionId id) const {
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? nullptr : &found->second;
  }
  bool IsOpen(SessionId id) const { return sessions_.contains(id); }
  // Whether the session is open and belongs to this user.
  bool IsOfUser(SessionId id, uid_t uid) const {
    const SessionInfo* session = Find(id);
    return session != nullptr && session->uid == uid;
  }
  // Whether the client process `instance` has an open session.
  bool InstanceLives(const std::string& instance) const {
    return std::any_of(sessions_.begin(), sessions_.end(),
                       [&](const auto& entry) { return entry.second.client_instance == instance; });
  }
  const std::map<SessionId, SessionInfo>& all() const { return sessions_; }
  int count() const { return static_cast<int>(sessions_.size()); }

 private:
  std::map<SessionId, SessionInfo> sessions_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_SESSION_TABLE_H_
