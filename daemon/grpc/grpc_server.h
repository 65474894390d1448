// The gRPC server on a Unix socket: our services, health and reflection.
// It accepts connections itself, because gRPC does not say which process a connection comes from (PeerTable).
#ifndef CKPTD_DAEMON_GRPC_GRPC_SERVER_H_
#define CKPTD_DAEMON_GRPC_GRPC_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/grpc/base/service_context.h"
#include "daemon/sessions/peer_table.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

struct GrpcLimits {
  int max_connections = 4096;
  int max_connections_per_uid = 1024;
  int streams_per_connection = 256;
  int64_t memory_bytes = int64_t{1} << 30;  // Used by gRPC itself.
};

class GrpcServer {
 public:
  // Accepts connections from the return on. Health checks get NOT_SERVING until SetServing. `listener` is a
  // listening, non-blocking Unix socket. `log` gets a line for each connection that cannot be accepted or
  // exceeds a limit.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(UniqueFd listener, PeerTable* peers,
                                                           ServiceContext* context,
                                                           std::function<void(const std::string&)> log,
                                                           GrpcLimits limits = {});
  // Calls Stop without grace.
  ~GrpcServer();

  // For connections from now on, and gRPC's memory at once. `streams_per_connection` cannot change.
  void SetLimits(const GrpcLimits& limits);

  // Sets the answer to health checks, for "" and for each service.
  void SetServing(bool serving);
  // Accepts no more calls, waits up to `grace` for those in flight, then cancels them. Later calls of Stop
  // are no-ops.
  void Stop(Duration grace);

  // Turns of the accepting loop since the start, at least one a second while the thread is alive. The
  // watchdog reads it.
  int64_t turns() const;

 private:
  GrpcServer();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_GRPC_SERVER_H_
