// What a handler reads out of gRPC's context. Only for the .cc files of the services.
#ifndef CKPTD_DAEMON_GRPC_CALL_CONTEXT_H_
#define CKPTD_DAEMON_GRPC_CALL_CONTEXT_H_

#include <grpcpp/server_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/grpc/service_context.h"
#include "daemon/grpc/tsan_hop.h"
#include "daemon/grpc/unary_call.h"
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

// What to undo when an answer does not reach the client: a lease that nobody knows of would keep its
// checkpoint until the session ends. Null: nothing.
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

// Hands a unary call to `ask(engine, caller, request, reply)` on the engine's thread.
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
    GiveOn(call.get());
  });
  return call.get();
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_CALL_CONTEXT_H_
