// Routes gRPC's own messages to the daemon's log.
#ifndef CKPTD_DAEMON_LOG_GRPC_LOG_H_
#define CKPTD_DAEMON_LOG_GRPC_LOG_H_

namespace ckptd {

// Logs errors only, unless $GRPC_VERBOSITY says otherwise. Call it before gRPC is used.
void RouteGrpcLog();

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LOG_GRPC_LOG_H_
