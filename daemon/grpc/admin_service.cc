#include "daemon/grpc/admin_service.h"

#include <memory>
#include <utility>

#include "ckptd/v1/service.grpc.pb.h"
#include "daemon/grpc/calls/call_context.h"
#include "daemon/grpc/calls/stream_calls.h"

namespace ckptd {
namespace {

using Context = grpc::CallbackServerContext;
using Unary = grpc::ServerUnaryReactor;

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(ServiceContext* context) : context_(context) {}

  Unary* GetStatus(Context* call, const v1::GetStatusRequest* request, v1::Status* response) override {
    return AskEngine(context_, call, TokenRule::kOptional, request, response,
                     [context = context_](Engine& engine, const Caller& caller,
                                          const v1::GetStatusRequest& asked, Reply<v1::Status> reply) {
                       v1::Status status = engine.GetStatus(caller);
                       AddClusterStatus(*context, caller, &status);
                       if (!asked.all_nodes() || !status.has_cluster()) return reply(std::move(status));
                       context->add_summaries(std::move(status), std::move(reply));
                     });
  }
  Unary* Drain(Context* call, const v1::DrainRequest* request, v1::Status* response) override {
    return AskEngine(context_, call, TokenRule::kOptional, request, response,
                     [context = context_](Engine& engine, const Caller& caller, const v1::DrainRequest& asked,
                                          Reply<v1::Status> reply) {
                       absl::StatusOr<v1::Status> status = engine.SetDrained(caller, asked);
                       if (status.ok()) AddClusterStatus(*context, caller, &*status);
                       reply(std::move(status));
                     });
  }
  Unary* ListRuns(Context* call, const v1::ListRunsRequest* request,
                  v1::ListRunsResponse* response) override {
    return AskEngine(context_, call, TokenRule::kOptional, request, response,
                     [](Engine& engine, const Caller& caller, const v1::ListRunsRequest&,
                        Reply<v1::ListRunsResponse> reply) {
                       v1::Status status = engine.GetStatus(caller);
                       v1::ListRunsResponse runs;
                       runs.mutable_runs()->Swap(status.mutable_runs());
                       reply(std::move(runs));
                     });
  }
  Unary* ListSessions(Context* call, const v1::ListSessionsRequest* request,
                      v1::ListSessionsResponse* response) override {
    return AskEngine(context_, call, TokenRule::kOptional, request, response,
                     [](Engine& engine, const Caller& caller, const v1::ListSessionsRequest&,
                        Reply<v1::ListSessionsResponse> reply) { reply(engine.ListSessions(caller)); });
  }
  Unary* Pin(Context* call, const v1::PinRequest* request, v1::Checkpoint* response) override {
    return SetPinned(call, request, response, true);
  }
  Unary* Unpin(Context* call, const v1::UnpinRequest* request, v1::Checkpoint* response) override {
    return SetPinned(call, request, response, false);
  }
  Unary* SetRetention(Context* call, const v1::SetRetentionRequest* request, v1::Run* response) override {
    return AskEngine(context_, call, TokenRule::kOptional, request, response,
                     [](Engine& engine, const Caller& caller, const v1::SetRetentionRequest& asked,
                        Reply<v1::Run> reply) { engine.SetRetention(caller, asked, std::move(reply)); });
  }
  Unary* ExplainRetention(Context* call, const v1::ExplainRetentionRequest* request,
                          v1::ExplainRetentionResponse* response) override {
    return AskEngine(context_, call, TokenRule::kOptional, request, response,
                     [](Engine& engine, const Caller& caller, const v1::ExplainRetentionRequest& asked,
                        Reply<v1::ExplainRetentionResponse> reply) {
                       engine.ExplainRetention(caller, asked, std::move(reply));
                     });
  }
  Unary* DeleteCheckpoint(Context* call, const v1::DeleteCheckpointRequest* request,
                          v1::Checkpoint* response) override {
    return AskEngine(
        context_, call, TokenRule::kOptional, request, response,
        [](Engine& engine, const Caller& caller, const v1::DeleteCheckpointRequest& asked,
           Reply<v1::Checkpoint> reply) { engine.DeleteCheckpoint(caller, asked, std::move(reply)); });
  }
  Unary* ListTrash(Context* call, const v1::ListTrashRequest* request,
                   v1::ListTrashResponse* response) override {
    return AskEngine(
        context_, call, TokenRule::kOptional, request, response,
        [](Engine& engine, const Caller& caller, const v1::ListTrashRequest& asked,
           Reply<v1::ListTrashResponse> reply) { engine.ListTrash(caller, asked, std::move(reply)); });
  }
  Unary* GetHistory(Context* call, const v1::GetHistoryRequest* request,
                    v1::GetHistoryResponse* response) override {
    return AskEngine(context_, call, TokenRule::kOptional, request, response,
                     [history = context_->history](Engine& engine, const Caller& caller,
                                                   const v1::GetHistoryRequest& asked,
                                                   Reply<v1::GetHistoryResponse> reply) {
                       engine.FindRoot(
                           caller, asked.run(),
                           [history, asked, reply = std::move(reply)](absl::StatusOr<RootKey> root) mutable {
                             if (!root.ok()) return reply(root.status());
                             history->Read(*std::move(root), std::move(asked), std::move(reply));
                           });
                     });
  }
  Unary* UndeleteCheckpoint(Context* call, const v1::UndeleteCheckpointRequest* request,
                            v1::Checkpoint* response) override {
    return AskEngine(
        context_, call, TokenRule::kOptional, request, response,
        [](Engine& engine, const Caller& caller, const v1::UndeleteCheckpointRequest& asked,
           Reply<v1::Checkpoint> reply) { engine.UndeleteCheckpoint(caller, asked, std::move(reply)); });
  }
  Unary* ResolveSave(Context* call, const v1::ResolveSaveRequest* request,
                     v1::ResolveSaveResponse* response) override {
    return AskEngine(
        context_, call, TokenRule::kOptional, request, response,
        [](Engine& engine, const Caller& caller, const v1::ResolveSaveRequest& asked,
           Reply<v1::ResolveSaveResponse> reply) { engine.ResolveSave(caller, asked, std::move(reply)); });
  }
  Unary* ClearDamage(Context* call, const v1::ClearDamageRequest* request,
                     v1::Checkpoint* response) override {
    return AskEngine(
        context_, call, TokenRule::kOptional, request, response,
        [](Engine& engine, const Caller& caller, const v1::ClearDamageRequest& asked,
           Reply<v1::Checkpoint> reply) { engine.ClearDamage(caller, asked.name(), std::move(reply)); });
  }

  Unary* Prefetch(Context* call, const v1::PrefetchRequest* request, v1::Checkpoint* response) override {
    return AskEngine(
        context_, call, TokenRule::kOptional, request, response,
        [](Engine& engine, const Caller& caller, const v1::PrefetchRequest& asked,
           Reply<v1::Checkpoint> reply) { engine.Prefetch(caller, asked.name(), std::move(reply)); });
  }
  grpc::ServerWriteReactor<v1::AdoptCheckpointsResponse>* AdoptCheckpoints(
      Context* call, const v1::AdoptCheckpointsRequest* request) override {
    return StartAdoptCheckpoints(context_, CallerOf(*context_, *call, TokenRule::kOptional), *request);
  }

 private:
  template <typename Request>
  Unary* SetPinned(Context* call, const Request* request, v1::Checkpoint* response, bool pinned) {
    return AskEngine(
        context_, call, TokenRule::kOptional, request, response,
        [pinned](Engine& engine, const Caller& caller, const Request& asked, Reply<v1::Checkpoint> reply) {
          engine.SetPinned(caller, asked.name(), pinned, std::move(reply));
        });
  }

  ServiceContext* const context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(ServiceContext* context) {
  return std::make_unique<AdminService>(context);
}

}  // namespace ckptd
