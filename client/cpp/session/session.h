// One session with a daemon: the hand-off connection, the gRPC calls with its token, and its mapped segments.
#ifndef CKPTD_CLIENT_CPP_SESSION_SESSION_H_
#define CKPTD_CLIENT_CPP_SESSION_SESSION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/v1/types.pb.h"
#include "client/cpp/memory/mapping.h"
#include "client/cpp/session/endpoint.h"
#include "client/cpp/session/handoff.h"
#include "client/cpp/session/rpc.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd::client {

// The timeout of a call for which the daemon does not wait for anything. After it the daemon counts as hung.
inline constexpr Duration kCallTimeout = std::chrono::seconds(30);

// True if trying again, perhaps in a new session, may succeed: the transport failed, the daemon is draining,
// the token is one of a daemon that has gone, or the root is being recovered.
bool IsTransient(const absl::Status& status);

// Thread-safe.
class Session {
 public:
  static absl::StatusOr<std::shared_ptr<Session>> Open(const Endpoint& endpoint, const v1::Hello& hello,
                                                       Duration timeout);
  ~Session();  // Sends Goodbye, so that a private daemon knows that its keeper left on purpose.

  Rpc& rpc() { return rpc_; }
  Handoff& handoff() { return *handoff_; }
  const v1::HelloResponse& daemon() const { return daemon_; }
  bool alive() const { return handoff_->alive(); }

  // The mappings of segments that are lent to this session, in their order. Fetches and maps those that are
  // not mapped yet, with up to `threads` threads.
  absl::StatusOr<Segments> Map(const std::vector<v1::Segment>& segments, int threads, Duration timeout);
  // Drops the mappings of segments that the daemon will not lend to this session again, and returns them.
  Segments Forget(const std::vector<int64_t>& ids);

 private:
  Session(std::unique_ptr<Handoff> handoff, v1::HelloResponse daemon, const Endpoint& endpoint);

  const std::unique_ptr<Handoff> handoff_;
  const v1::HelloResponse daemon_;
  Rpc rpc_;
  Mutex mutex_;
  std::map<int64_t, std::shared_ptr<Mapping>> mapped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_SESSION_SESSION_H_
