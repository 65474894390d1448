// The service ckptd.v1.Checkpoints: a thin adapter between gRPC calls and the engine.
#ifndef CKPTD_DAEMON_GRPC_CHECKPOINTS_SERVICE_H_
#define CKPTD_DAEMON_GRPC_CHECKPOINTS_SERVICE_H_

#include <memory>

#include "daemon/grpc/base/service_context.h"

namespace grpc {
class Service;
}

namespace ckptd {

// `context` must outlive every call of the service.
std::unique_ptr<grpc::Service> MakeCheckpointsService(ServiceContext* context);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_CHECKPOINTS_SERVICE_H_
