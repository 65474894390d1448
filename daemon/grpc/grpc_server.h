// The gRPC server on a Unix socket: our services, health and reflection.
//
// It accepts connections itself, for gRPC would not tell who they come from (PeerTable).
#ifndef CKPTD_DAEMON_GRPC_GRPC_SERVER_H_
#define CKPTD_DAEMON_GRPC_GRPC_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/grpc/service_context.h"
#include "daemon/sessions/peer_table.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

struct GrpcLimits {
  int max_connections = 4096;
  int max_connections_per_uid = 1024;
  int streams_per_connection = 256;
  int64_t memory_bytes = int64_t{1} << 30;  // Of gRPC itself.
};

class GrpcServer {
 public:
  // Accepts from the return on, and answers health checks with NOT_SERVING until SetServing. `listener` is a
  // listening, non-blocking Unix socket; `log` hears of connections that could not be taken, or are beyond a
  // limit and were closed.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(UniqueFd listener, PeerTable* peers,
                                                           ServiceContext* context,
                                                           std::function<void(const std::string&)> log,
                                                           GrpcLimits limits = {});
  // As Stop without grace.
  ~GrpcServer();

  // What health checks hear, of "" and of each service.
  void SetServing(bool serving);
  // Takes no more calls, lets those under way end until the grace is over, then cancels them. Once.
  void Stop(Duration grace);

  // Turns of the accepting loop since the start, at least one a second: the watchdog sees that it lives.
  int64_t turns() const;

 private:
  GrpcServer();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_GRPC_SERVER_H_
