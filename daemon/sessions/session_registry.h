// The open sessions and their tokens. A gRPC call has the rights of its token, and no others.
// Thread-safe: the hand-off server's thread opens and closes sessions, gRPC's threads look them up.
#ifndef CKPTD_DAEMON_SESSIONS_SESSION_REGISTRY_H_
#define CKPTD_DAEMON_SESSIONS_SESSION_REGISTRY_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "daemon/engine/engine.h"
#include "storage/base/mutex.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {

// What the daemon knows of a process that asks for a session.
struct SessionRequest {
  FileUser user;  // From the socket, never from a message.
  pid_t pid = 0;  // 0: unknown (another pid namespace).
  std::string client_instance;
  std::string client_name;
  bool keeper = false;      // Keeps a private daemon running.
  bool descriptors = true;  // False: the session uses gRPC only.
  int64_t tenant = 0;       // As Caller::tenant.
};

class SessionRegistry {
 public:
  explicit SessionRegistry(int max_sessions, int max_sessions_per_uid = 65536);

  // Sessions that are open stay.
  void SetMostPerUser(int sessions);

  struct Opened {
    SessionInfo info;
    std::string token;  // 128 random bits in hex.
  };
  // RESOURCE_EXHAUSTED, reason TOO_MANY_SESSIONS or LIMIT_EXCEEDED; UNAVAILABLE, reason DRAINING, for a
  // keeper after CloseToKeepers.
  absl::StatusOr<Opened> Open(const SessionRequest& request);
  // Returns false if the session was closed before.
  bool Close(SessionId session);
  // Refuses keepers from now on, because the daemon ends. Returns false, and changes nothing, while a keeper
  // is open.
  bool CloseToKeepers();

  // Finds the session of a token. `uid` is the user of the connection. UNAUTHENTICATED, reason UNKNOWN_TOKEN,
  // when no open session has the token; PERMISSION_DENIED, reason WRONG_UID, when the session belongs to
  // another user.
  absl::StatusOr<SessionInfo> Find(const std::string& token, uid_t uid) const;
  // Returns the user that owns this session's files. UNAUTHENTICATED, reason UNKNOWN_TOKEN, when the session
  // is closed.
  absl::StatusOr<FileUser> UserOf(SessionId session) const;

  int sessions() const;
  int keepers() const;  // Open sessions that keep a private daemon running.

 private:
  struct Session {
    SessionInfo info;
    FileUser user;
    bool keeper;
    std::string token;
  };

  const int max_sessions_;
  mutable Mutex mutex_;
  int max_sessions_per_uid_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<SessionId, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, SessionId> by_token_ ABSL_GUARDED_BY(mutex_);
  SessionId last_session_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uid_t, int> sessions_of_uid_ ABSL_GUARDED_BY(mutex_);
  int keepers_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_to_keepers_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SESSIONS_SESSION_REGISTRY_H_
