// One session with a daemon: the hand-off connection, its token's gRPC calls, and the segments that are
// mapped.
#ifndef CKPTD_CLIENT_CPP_SESSION_H_
#define CKPTD_CLIENT_CPP_SESSION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/v1/types.pb.h"
#include "client/cpp/endpoint.h"
#include "client/cpp/handoff.h"
#include "client/cpp/mapping.h"
#include "client/cpp/rpc.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd::client {

// How long a call that needs no waiting may take before the daemon counts as hung.
inline constexpr Duration kCallTimeout = std::chrono::seconds(30);

// What ends with a session or a moment, and so is worth asking again: the transport's own errors, a daemon
// that drains, a token of a daemon that is gone, a root that is being recovered.
bool IsTransient(const absl::Status& status);

// Thread-safe.
class Session {
 public:
  static absl::StatusOr<std::shared_ptr<Session>> Open(const Endpoint& endpoint, const v1::Hello& hello,
                                                       Duration timeout);
  ~Session();  // Says Goodbye, so that a private daemon knows that its keeper left on purpose.

  Rpc& rpc() { return rpc_; }
  Handoff& handoff() { return *handoff_; }
  const v1::HelloResponse& daemon() const { return daemon_; }
  bool alive() const { return handoff_->alive(); }

  // The mappings of segments that are lent to this session, in order; those that are not mapped yet are
  // fetched and mapped by up to `threads` threads.
  absl::StatusOr<Segments> Map(const std::vector<v1::Segment>& segments, int threads, Duration timeout);
  // Segments that are not lent to this session any more.
  void Forget(const std::vector<int64_t>& ids);

 private:
  Session(std::unique_ptr<Handoff> handoff, v1::HelloResponse daemon, const Endpoint& endpoint);

  const std::unique_ptr<Handoff> handoff_;
  const v1::HelloResponse daemon_;
  Rpc rpc_;
  Mutex mutex_;
  std::map<int64_t, std::shared_ptr<Mapping>> mapped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_SESSION_H_
