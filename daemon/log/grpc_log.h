// gRPC's own messages as our log lines.
#ifndef CKPTD_DAEMON_LOG_GRPC_LOG_H_
#define CKPTD_DAEMON_LOG_GRPC_LOG_H_

namespace ckptd {

// Errors only, unless $GRPC_VERBOSITY says otherwise. Before gRPC is used.
void RouteGrpcLog();

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LOG_GRPC_LOG_H_
