// Encodes an absl::Status for the wire: gRPC's code and message, and the reason and details in the trailing
// metadata `grpc-status-details-bin` as google.rpc.Status with one google.rpc.ErrorInfo (docs/protocol.md).
#ifndef CKPTD_DAEMON_GRPC_BASE_WIRE_ERRORS_H_
#define CKPTD_DAEMON_GRPC_BASE_WIRE_ERRORS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace ckptd {

// The codes have the same numbers in absl and gRPC. A client refuses more than 8 KiB of metadata, so a long
// message is cut at kMaxWireMessage bytes and a long detail at kMaxWireDetail bytes; a list of ranks is cut
// between two ranks.
inline constexpr size_t kMaxWireMessage = 1000;
inline constexpr size_t kMaxWireDetail = 500;
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_BASE_WIRE_ERRORS_H_
