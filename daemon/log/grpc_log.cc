#include "daemon/log/grpc_log.h"

#include <grpc/support/log.h>

#include "daemon/log/log.h"

namespace ckptd {
namespace {

// gRPC reports an error when a client disconnects or sends garbage, which is only a warning for the daemon.
void OnGrpcLog(gpr_log_func_args* line) {
  const bool error = line->severity == GPR_LOG_SEVERITY_ERROR;
  Log(error ? LogLevel::kWarning : LogLevel::kDebug, "gRPC", {{"text", line->message}});
}

}  // namespace

void RouteGrpcLog() { gpr_set_log_function(&OnGrpcLog); }

}  // namespace ckptd
