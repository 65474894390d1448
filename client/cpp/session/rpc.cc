#include "client/cpp/session/rpc.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ckptd/v1/service.grpc.pb.h"
#include "client/cpp/session/wire_errors.h"
#include "storage/base/errors.h"

namespace ckptd::client {
namespace {

constexpr int kMaxMessageBytes =
    256 << 20;  // Bytes; a list with the files of many checkpoints is that large.

std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // A subchannel pool of its own: the back-off of an earlier channel's failed connection must not delay this
  // one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return grpc::CreateCustomChannel(endpoint.text, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

class Rpc::Impl {
 public:
  Impl(const Endpoint& endpoint, std::string token)
      : endpoint_(endpoint),
        token_(std::move(token)),
        channel_(MakeChannel(endpoint)),
        checkpoints_(v1::Checkpoints::NewStub(channel_)),
        admin_(v1::Admin::NewStub(channel_)) {}

  v1::Checkpoints::StubInterface* checkpoints() { return checkpoints_.get(); }
  v1::Admin::StubInterface* admin() { return admin_.get(); }

  void Prepare(grpc::ClientContext* context, Duration timeout) const {
    context->set_deadline(std::chrono::system_clock::now() + timeout);
    if (!token_.empty()) context->AddMetadata("ckptd-token", token_);
  }

  absl::Status Convert(const grpc::Status& status, const grpc::ClientContext& context) const {
    if (status.ok()) return absl::OkStatus();
    std::string_view details;
    const auto& trailers = context.GetServerTrailingMetadata();
    if (auto found = trailers.find("grpc-status-details-bin"); found != trailers.end()) {
      details = {found->second.data(), found->second.size()};
    }
    absl::Status converted = FromWire(status.error_code(), status.error_message(), details);
    if (!ReasonOf(converted).empty()) return converted;
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      // gRPC's message is "failed to connect to all addresses; last error: UNKNOWN: unix:...: Connection
      // refused". Only its last part is the cause.
      const std::string& message = status.error_message();
      const size_t last = message.rfind(": ");
      const std::string cause = last == std::string::npos ? message : message.substr(last + 2);
      const std::string what = absl::StrCat("no answer from ckptd at ", endpoint_.text, ": ", cause);
      // The socket exists, but this user may not connect to it.
      if (cause == "Permission denied") return MakeError(absl::StatusCode::kPermissionDenied, "EACCES", what);
      return absl::UnavailableError(what);
    }
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(
          absl::StrCat("ckptd at ", endpoint_.text, " did not answer within the timeout"));
    }
    return converted;
  }

  template <typename Service, typename Request, typename Response>
  absl::StatusOr<Response> Call(Service* service,
                                grpc::Status (Service::*method)(grpc::ClientContext*, const Request&,
                                                                Response*),
                                const Request& request, Duration timeout) const {
    grpc::ClientContext context;
    Prepare(&context, timeout);
    Response response;
    const grpc::Status status = (service->*method)(&context, request, &response);
    if (!status.ok()) return Convert(status, context);
    return response;
  }

 private:
  const Endpoint endpoint_;
  const std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Checkpoints::StubInterface> checkpoints_;
  std::unique_ptr<v1::Admin::StubInterface> admin_;
};

Rpc::Rpc(const Endpoint& endpoint, std::string token)
    : impl_(std::make_unique<Impl>(endpoint, std::move(token))) {}
Rpc::~Rpc() = default;

using CheckpointsStub = v1::Checkpoints::StubInterface;
using AdminStub = v1::Admin::StubInterface;

absl::StatusOr<v1::JoinRunResponse> Rpc::JoinRun(const v1::JoinRunRequest& request, Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::JoinRun, request, timeout);
}
absl::StatusOr<v1::BeginResponse> Rpc::Begin(const v1::BeginRequest& request, Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::Begin, request, timeout);
}
absl::StatusOr<v1::ExtendResponse> Rpc::Extend(const v1::ExtendRequest& request, Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::Extend, request, timeout);
}
absl::StatusOr<v1::SealResponse> Rpc::Seal(const v1::SealRequest& request, Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::Seal, request, timeout);
}
absl::StatusOr<v1::AbortResponse> Rpc::Abort(const v1::AbortRequest& request, Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::Abort, request, timeout);
}
absl::StatusOr<v1::WaitResponse> Rpc::Wait(const v1::WaitRequest& request, Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::Wait, request, timeout);
}
absl::StatusOr<v1::Checkpoint> Rpc::GetCheckpoint(const v1::GetCheckpointRequest& request, Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::GetCheckpoint, request, timeout);
}
absl::StatusOr<v1::ListCheckpointsResponse> Rpc::ListCheckpoints(const v1::ListCheckpointsRequest& request,
                                                                 Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::ListCheckpoints, request, timeout);
}
absl::StatusOr<v1::ResumeResponse> Rpc::Resume(const v1::ResumeRequest& request, Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::Resume, request, timeout);
}
absl::StatusOr<v1::FinishResumeResponse> Rpc::FinishResume(const v1::FinishResumeRequest& request,
                                                           Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::FinishResume, request, timeout);
}
absl::StatusOr<v1::ReportDamageResponse> Rpc::ReportDamage(const v1::ReportDamageRequest& request,
                                                           Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::ReportDamage, request, timeout);
}
absl::StatusOr<v1::OpenCheckpointResponse> Rpc::OpenCheckpoint(const v1::OpenCheckpointRequest& request,
                                                               Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::OpenCheckpoint, request, timeout);
}
absl::StatusOr<v1::LocateFilesResponse> Rpc::LocateFiles(const v1::LocateFilesRequest& request,
                                                         Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::LocateFiles, request, timeout);
}
absl::StatusOr<v1::ReportReadingResponse> Rpc::ReportReading(const v1::ReportReadingRequest& request,
                                                             Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::ReportReading, request, timeout);
}
absl::StatusOr<v1::CloseCheckpointResponse> Rpc::CloseCheckpoint(const v1::CloseCheckpointRequest& request,
                                                                 Duration timeout) {
  return impl_->Call(impl_->checkpoints(), &CheckpointsStub::CloseCheckpoint, request, timeout);
}
absl::StatusOr<v1::Status> Rpc::GetStatus(Duration timeout, bool all_nodes) {
  v1::GetStatusRequest request;
  request.set_all_nodes(all_nodes);
  return impl_->Call(impl_->admin(), &AdminStub::GetStatus, request, timeout);
}
absl::StatusOr<v1::Status> Rpc::Drain(const v1::DrainRequest& request, Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::Drain, request, timeout);
}
absl::StatusOr<v1::ListRunsResponse> Rpc::ListRuns(Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::ListRuns, v1::ListRunsRequest(), timeout);
}
absl::StatusOr<v1::ListSessionsResponse> Rpc::ListSessions(Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::ListSessions, v1::ListSessionsRequest(), timeout);
}
absl::StatusOr<v1::Checkpoint> Rpc::Pin(const v1::PinRequest& request, Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::Pin, request, timeout);
}
absl::StatusOr<v1::Checkpoint> Rpc::Unpin(const v1::UnpinRequest& request, Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::Unpin, request, timeout);
}
absl::StatusOr<v1::Checkpoint> Rpc::Prefetch(const v1::PrefetchRequest& request, Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::Prefetch, request, timeout);
}
absl::StatusOr<v1::Run> Rpc::SetRetention(const v1::SetRetentionRequest& request, Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::SetRetention, request, timeout);
}
absl::StatusOr<v1::ExplainRetentionResponse> Rpc::ExplainRetention(const v1::ExplainRetentionRequest& request,
                                                                   Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::ExplainRetention, request, timeout);
}
absl::StatusOr<v1::Checkpoint> Rpc::DeleteCheckpoint(const v1::DeleteCheckpointRequest& request,
                                                     Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::DeleteCheckpoint, request, timeout);
}
absl::StatusOr<v1::GetHistoryResponse> Rpc::GetHistory(const v1::GetHistoryRequest& request,
                                                       Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::GetHistory, request, timeout);
}
absl::StatusOr<v1::ListTrashResponse> Rpc::ListTrash(const v1::ListTrashRequest& request, Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::ListTrash, request, timeout);
}
absl::StatusOr<v1::Checkpoint> Rpc::UndeleteCheckpoint(const v1::UndeleteCheckpointRequest& request,
                                                       Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::UndeleteCheckpoint, request, timeout);
}
absl::StatusOr<v1::ResolveSaveResponse> Rpc::ResolveSave(const v1::ResolveSaveRequest& request,
                                                         Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::ResolveSave, request, timeout);
}
absl::StatusOr<v1::Checkpoint> Rpc::ClearDamage(const v1::ClearDamageRequest& request, Duration timeout) {
  return impl_->Call(impl_->admin(), &AdminStub::ClearDamage, request, timeout);
}

absl::Status Rpc::ReadFile(const v1::ReadFileRequest& request, Duration timeout,
                           const std::function<absl::Status(std::string_view)>& take) {
  grpc::ClientContext context;
  impl_->Prepare(&context, timeout);
  auto stream = impl_->checkpoints()->ReadFile(&context, request);
  v1::ReadFileResponse response;
  while (stream->Read(&response)) {
    if (absl::Status taken = take(response.data()); !taken.ok()) {
      context.TryCancel();
      stream->Finish();
      return taken;
    }
  }
  return impl_->Convert(stream->Finish(), context);
}

absl::Status Rpc::Watch(const v1::WatchRequest& request, Duration timeout,
                        const std::function<bool(const v1::WatchResponse&)>& event) {
  grpc::ClientContext context;
  impl_->Prepare(&context, timeout);
  auto stream = impl_->checkpoints()->Watch(&context, request);
  v1::WatchResponse response;
  while (stream->Read(&response)) {
    if (event(response)) continue;
    context.TryCancel();
    stream->Finish();
    return absl::OkStatus();
  }
  const grpc::Status status = stream->Finish();
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return absl::OkStatus();
  return impl_->Convert(status, context);
}

absl::Status Rpc::AdoptCheckpoints(const v1::AdoptCheckpointsRequest& request, Duration timeout,
                                   const std::function<void(const v1::AdoptCheckpointsResponse&)>& event) {
  grpc::ClientContext context;
  impl_->Prepare(&context, timeout);
  auto stream = impl_->admin()->AdoptCheckpoints(&context, request);
  v1::AdoptCheckpointsResponse response;
  while (stream->Read(&response)) event(response);
  return impl_->Convert(stream->Finish(), context);
}

}  // namespace ckptd::client
