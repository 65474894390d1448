// Who is connected: sessions and their tokens. A token is the only right that a gRPC call has.
//
// Thread-safe: the hand-off's thread opens and closes sessions, gRPC's threads look them up.
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

// What is known of a process that wants a session.
struct SessionRequest {
  FileUser user;  // From the socket, never from a message.
  pid_t pid = 0;  // 0: not known (another pid namespace).
  std::string client_instance;
  std::string client_name;
  bool keeper = false;      // Holds a private daemon open.
  bool descriptors = true;  // False: came by gRPC alone.
  int64_t tenant = 0;       // As Caller::tenant.
};

class SessionRegistry {
 public:
  explicit SessionRegistry(int max_sessions, int max_sessions_per_uid = 65536);

  struct Opened {
    SessionInfo info;
    std::string token;  // 128 random bits in hex.
  };
  // RESOURCE_EXHAUSTED, reason TOO_MANY_SESSIONS or LIMIT_EXCEEDED; UNAVAILABLE, reason DRAINING, for a
  // keeper that comes too late.
  absl::StatusOr<Opened> Open(const SessionRequest& request);
  // False when it was closed before.
  bool Close(SessionId session);
  // From now on no keeper comes in: the daemon ends. False, and nothing changes, while there is one.
  bool CloseToKeepers();

  // Of a call's token and its connection's user. UNAUTHENTICATED, reason UNKNOWN_TOKEN, when no open session
  // has it; PERMISSION_DENIED, reason WRONG_UID, when the session is another user's.
  absl::StatusOr<SessionInfo> Find(const std::string& token, uid_t uid) const;
  // As whom this session's files are made. UNAUTHENTICATED, reason UNKNOWN_TOKEN, when it is closed.
  absl::StatusOr<FileUser> UserOf(SessionId session) const;

  int sessions() const;
  int keepers() const;  // Open sessions that hold a private daemon open.

 private:
  struct Session {
    SessionInfo info;
    FileUser user;
    bool keeper;
    std::string token;
  };

  const int max_sessions_;
  const int max_sessions_per_uid_;
  mutable Mutex mutex_;
  std::unordered_map<SessionId, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, SessionId> by_token_ ABSL_GUARDED_BY(mutex_);
  SessionId last_session_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uid_t, int> sessions_of_uid_ ABSL_GUARDED_BY(mutex_);
  int keepers_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_to_keepers_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SESSIONS_SESSION_REGISTRY_H_
