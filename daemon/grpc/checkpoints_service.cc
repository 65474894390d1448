#include "daemon/grpc/checkpoints_service.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ckptd/v1/service.grpc.pb.h"
#include "daemon/attach/container_roots.h"
#include "daemon/grpc/calls/call_context.h"
#include "daemon/grpc/calls/stream_calls.h"
#include "daemon/sessions/peer_namespaces.h"
#include "daemon/sessions/peer_table.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/object/bucket_url.h"

namespace ckptd {
namespace {

using Context = grpc::CallbackServerContext;
using Unary = grpc::ServerUnaryReactor;

absl::Status PathOfAnotherNamespace(const std::string& path, const std::string& why) {
  return MakeError(
      absl::StatusCode::kPermissionDenied, "FOREIGN_NAMESPACE",
      absl::StrCat(
          "OpenRoot of \"", path,
          "\" is refused, because the caller's path may be another directory "
          "to the daemon: ",
          why,
          "; hand the directory over as a descriptor (AttachRoot on the hand-off socket), or list the "
          "directories that containers may name under security.container_roots in the daemon's "
          "configuration"),
      {{"path", path}});
}

// On a worker: opens, as the session's user, the directory that a session without descriptors names by path.
absl::StatusOr<RootAttachment> OpenRootOf(ServiceContext& context, const Caller& caller,
                                          const std::string& path, const Peer& peer) {
  CKPTD_ASSIGN_OR_RETURN(FileUser user, context.sessions->UserOf(caller.session));
  if (const std::optional<mode_t> umask = UmaskOfPeer(peer.pid)) {
    user.umask = std::make_shared<std::atomic<mode_t>>(*umask);
  }
  if (IsBucketUrl(path)) return context.make_attachment(UniqueFd(), path, user);
  absl::StatusOr<Handle> directory = -1;
  if (caller.may_name_paths) {
    directory = OpenRootDirectory(path, user);
  } else if (const std::optional<std::string> base = ContainerRootOf(context.container_roots, path)) {
    directory = OpenDirectoryBeneath(*base, path, user);
  } else {
    return PathOfAnotherNamespace(path, peer.namespaces.why);
  }
  CKPTD_RETURN_IF_ERROR(directory.status());
  return context.make_attachment(UniqueFd(*directory), path, user);
}

class CheckpointsService final : public v1::Checkpoints::CallbackService {
 public:
  explicit CheckpointsService(ServiceContext* context) : context_(context) {}

  grpc::ServerWriteReactor<v1::OpenSessionResponse>* OpenSession(
      Context* call, const v1::OpenSessionRequest* request) override {
    return StartOpenSession(context_, context_->authenticator->FindPeer(call->peer()), *request);
  }

  Unary* OpenRoot(Context* call, const v1::OpenRootRequest* request,
                  v1::OpenRootResponse* response) override {
    const Peer peer = context_->authenticator->FindPeer(call->peer()).value_or(Peer{});
    // The AttachQueue opens the directory, not gRPC's thread or the engine's, because its file system may
    // hang.
    return AskEngine(
        context_, call, TokenRule::kRequired, request, response,
        [context = context_, peer](Engine&, const Caller& caller, const v1::OpenRootRequest& asked,
                                   Reply<v1::OpenRootResponse> reply) {
          // The file system of a path is unknown until it is opened.
          context->attaches->Submit(
              caller.uid, "opened by path",
              [context, caller, peer, path = asked.path()] {
                return OpenRootOf(*context, caller, path, peer);
              },
              [context, session = caller.session,
               reply = std::move(reply)](absl::StatusOr<RootAttachment> attachment) mutable {
                context->loop->Post([context, session, attachment = std::move(attachment),
                                     reply = std::move(reply)]() mutable {
                  Attach(*context, session, std::move(attachment), std::move(reply));
                });
              });
        });
  }

  Unary* JoinRun(Context* call, const v1::JoinRunRequest* request, v1::JoinRunResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::JoinRun);
  }
  Unary* Begin(Context* call, const v1::BeginRequest* request, v1::BeginResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::Begin);
  }
  Unary* Extend(Context* call, const v1::ExtendRequest* request, v1::ExtendResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::Extend);
  }
  grpc::ServerReadReactor<v1::WriteFileRequest>* WriteFile(Context* call,
                                                           v1::WriteFileResponse* response) override {
    return StartWriteFile(context_, CallerOf(*context_, *call, TokenRule::kRequired), response);
  }
  Unary* Seal(Context* call, const v1::SealRequest* request, v1::SealResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::Seal);
  }
  // An operator may abort and await saves by name, without a session.
  Unary* Abort(Context* call, const v1::AbortRequest* request, v1::AbortResponse* response) override {
    return Ask(call, TokenRule::kOptional, request, response, &Engine::Abort);
  }
  Unary* Wait(Context* call, const v1::WaitRequest* request, v1::WaitResponse* response) override {
    return Ask(call, TokenRule::kOptional, request, response, &Engine::Wait);
  }

  Unary* GetCheckpoint(Context* call, const v1::GetCheckpointRequest* request,
                       v1::Checkpoint* response) override {
    return Ask(call, TokenRule::kOptional, request, response, &Engine::GetCheckpoint);
  }
  Unary* ListCheckpoints(Context* call, const v1::ListCheckpointsRequest* request,
                         v1::ListCheckpointsResponse* response) override {
    return Ask(call, TokenRule::kOptional, request, response, &Engine::ListCheckpoints);
  }
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(Context* call,
                                                     const v1::WatchRequest* request) override {
    return StartWatch(context_, CallerOf(*context_, *call, TokenRule::kOptional), *request);
  }

  Unary* Resume(Context* call, const v1::ResumeRequest* request, v1::ResumeResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::Resume);
  }
  Unary* OpenCheckpoint(Context* call, const v1::OpenCheckpointRequest* request,
                        v1::OpenCheckpointResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::OpenCheckpoint);
  }
  Unary* FinishResume(Context* call, const v1::FinishResumeRequest* request,
                      v1::FinishResumeResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::FinishResume);
  }
  Unary* ReportDamage(Context* call, const v1::ReportDamageRequest* request,
                      v1::ReportDamageResponse* response) override {
    return Ask(call, TokenRule::kOptional, request, response, &Engine::ReportDamage);  // Also of operators.
  }
  Unary* LocateFiles(Context* call, const v1::LocateFilesRequest* request,
                     v1::LocateFilesResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::LocateFiles);
  }
  Unary* ReportReading(Context* call, const v1::ReportReadingRequest* request,
                       v1::ReportReadingResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::ReportReading);
  }
  Unary* CloseCheckpoint(Context* call, const v1::CloseCheckpointRequest* request,
                         v1::CloseCheckpointResponse* response) override {
    return Ask(call, TokenRule::kRequired, request, response, &Engine::CloseCheckpoint);
  }
  grpc::ServerWriteReactor<v1::ReadFileResponse>* ReadFile(Context* call,
                                                           const v1::ReadFileRequest* request) override {
    return StartReadFile(context_, CallerOf(*context_, *call, TokenRule::kRequired), *request);
  }

 private:
  // Every unary method of the engine has the same shape.
  template <typename Request, typename Response>
  Unary* Ask(Context* call, TokenRule rule, const Request* request, Response* response,
             void (Engine::*method)(const Caller&, const Request&, Reply<Response>)) {
    return AskEngine(context_, call, rule, request, response,
                     [method](Engine& engine, const Caller& caller, const Request& asked,
                              Reply<Response> reply) { (engine.*method)(caller, asked, std::move(reply)); });
  }

  static void Attach(ServiceContext& context, SessionId session, absl::StatusOr<RootAttachment> attachment,
                     Reply<v1::OpenRootResponse> reply) {
    if (!attachment.ok()) return reply(attachment.status());
    context.engine->AttachRoot(session, *std::move(attachment),
                               [reply = std::move(reply)](absl::StatusOr<std::string> root) mutable {
                                 if (!root.ok()) return reply(root.status());
                                 v1::OpenRootResponse response;
                                 response.set_root(*root);
                                 reply(std::move(response));
                               });
  }

  ServiceContext* const context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCheckpointsService(ServiceContext* context) {
  return std::make_unique<CheckpointsService>(context);
}

}  // namespace ckptd
