// Helpers of the services' handlers: who calls, and how a unary call gets to the engine. Include it in .cc
// files only, because it brings gRPC's headers along.
#ifndef CKPTD_DAEMON_GRPC_CALLS_CALL_CONTEXT_H_
#define CKPTD_DAEMON_GRPC_CALLS_CALL_CONTEXT_H_

#include <grpcpp/server_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/grpc/base/service_context.h"
#include "daemon/grpc/base/tsan_hop.h"
#include "daemon/grpc/calls/unary_call.h"
#include "daemon/sessions/call_authenticator.h"

namespace ckptd {

inline absl::StatusOr<Caller> CallerOf(const ServiceContext& context, const grpc::CallbackServerContext& call,
                                       TokenRule rule) {
  std::optional<std::string> token;
  const auto& metadata = call.client_metadata();
  if (const auto found = metadata.find("ckptd-token"); found != metadata.end()) {
    token.emplace(found->second.data(), found->second.size());
  }
  return context.authenticator->Find(call.peer(), token, rule);
}

// Returns what to undo if an answer does not reach the client; null if nothing. A lease that the client does
// not know of would keep its checkpoint until the session ends.
template <typename Response>
std::function<void()> UndoOf(ServiceContext* context, const Caller& who,
                             const absl::StatusOr<Response>& answer) {
  if constexpr (requires { answer->lease(); }) {
    if (!answer.ok() || answer->lease().empty()) return nullptr;
    v1::CloseCheckpointRequest close;
    close.set_lease(answer->lease());
    return [context, who, close] {
      context->loop->Post([context, who, close] {
        context->engine->CloseCheckpoint(who, close,
                                         [](const absl::StatusOr<v1::CloseCheckpointResponse>&) {});
      });
    };
  }
  return nullptr;
}

// Runs `ask(engine, caller, request, reply)` on the engine's thread for a unary call.
template <typename Request, typename Response, typename Ask>
grpc::ServerUnaryReactor* AskEngine(ServiceContext* context, const grpc::CallbackServerContext* call_context,
                                    TokenRule rule, const Request* request, Response* response, Ask ask) {
  auto call = UnaryCall<Request, Response>::Start(request, response);
  absl::StatusOr<Caller> caller = CallerOf(*context, *call_context, rule);
  if (!caller.ok()) {
    call->Answer(caller.status());
    return call.get();
  }
  if (absl::Status counted = call->CountFor(context->call_limits, caller->uid); !counted.ok()) {
    call->Answer(std::move(counted));
    return call.get();
  }
  context->loop->Post([context, call, who = *caller, ask = std::move(ask)]() mutable {
    if (call->answered()) return;
    ask(*context->engine, who, call->request(),
        Reply<Response>([context, call, who](absl::StatusOr<Response> answer) {
          std::function<void()> undo = UndoOf(context, who, answer);
          call->Answer(std::move(answer), std::move(undo));
        }));
    TsanRelease(call.get());
  });
  return call.get();
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_CALLS_CALL_CONTEXT_H_
