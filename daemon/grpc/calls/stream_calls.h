// The streaming calls. Each is a reactor that lives until gRPC is done with it. Include it in .cc files only,
// because it brings gRPC's headers along.
#ifndef CKPTD_DAEMON_GRPC_CALLS_STREAM_CALLS_H_
#define CKPTD_DAEMON_GRPC_CALLS_STREAM_CALLS_H_

#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/grpc/base/service_context.h"
#include "daemon/sessions/call_authenticator.h"

namespace ckptd {

// If `caller` (or `peer`) is an error, the call ends with it.
grpc::ServerWriteReactor<v1::OpenSessionResponse>* StartOpenSession(ServiceContext* context,
                                                                    absl::StatusOr<Peer> peer,
                                                                    const v1::OpenSessionRequest& request);
grpc::ServerReadReactor<v1::WriteFileRequest>* StartWriteFile(ServiceContext* context,
                                                              absl::StatusOr<Caller> caller,
                                                              v1::WriteFileResponse* response);
grpc::ServerWriteReactor<v1::ReadFileResponse>* StartReadFile(ServiceContext* context,
                                                              absl::StatusOr<Caller> caller,
                                                              const v1::ReadFileRequest& request);
grpc::ServerWriteReactor<v1::WatchResponse>* StartWatch(ServiceContext* context,
                                                        absl::StatusOr<Caller> caller,
                                                        const v1::WatchRequest& request);
grpc::ServerWriteReactor<v1::AdoptCheckpointsResponse>* StartAdoptCheckpoints(
    ServiceContext* context, absl::StatusOr<Caller> caller, const v1::AdoptCheckpointsRequest& request);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_CALLS_STREAM_CALLS_H_
