#include "daemon/log/grpc_log.h"

#include <grpc/support/log.h>

#include "daemon/log/log.h"

namespace ckptd {
namespace {

// What gRPC calls an error is for us a client that went away or talked nonsense.
void OnGrpcLog(gpr_log_func_args* line) {
  const bool error = line->severity == GPR_LOG_SEVERITY_ERROR;
  Log(error ? LogLevel::kWarning : LogLevel::kDebug, "gRPC", {{"text", line->message}});
}

}  // namespace

void RouteGrpcLog() { gpr_set_log_function(&OnGrpcLog); }

}  // namespace ckptd
