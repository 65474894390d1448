// OpenSession: a session for a client that cannot receive descriptors. It ends with the stream.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/grpc/base/tsan_hop.h"
#include "daemon/grpc/base/wire_errors.h"
#include "daemon/grpc/calls/stream_calls.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int kProtocolVersion = 1;
constexpr size_t kMaxName = 100;

// Posts the opening and the closing of the session to the engine's thread in this order, even if the client
// disconnects at once.
class OpenSessionCall final : public grpc::ServerWriteReactor<v1::OpenSessionResponse>,
                              public std::enable_shared_from_this<OpenSessionCall> {
 public:
  explicit OpenSessionCall(ServiceContext* context) : context_(context) {}

  void Start(absl::StatusOr<Peer> peer, const v1::OpenSessionRequest& request) {
    until_done_ = shared_from_this();
    if (absl::Status opened = Open(std::move(peer), request); !opened.ok()) return End(std::move(opened));
    {
      MutexLock lock(mutex_);
      writing_ = true;
    }
    TsanRelease(this);
    StartWrite(&response_);
  }

  void OnWriteDone(bool) override {
    TsanAcquire(this);
    {
      MutexLock lock(mutex_);
      writing_ = false;
    }
    FinishWhenEnded();
  }
  void OnCancel() override { End(absl::CancelledError("the client ended its session")); }
  void OnDone() override {
    TsanAcquire(this);
    if (session_ != 0) {
      context_->sessions->Close(session_);
      context_->loop->Post([context = context_, session = session_] {
        context->engine->SessionClosed(session, "its OpenSession stream ended");
      });
    }
    until_done_.reset();
  }

 private:
  absl::Status Open(absl::StatusOr<Peer> peer, const v1::OpenSessionRequest& request) {
    CKPTD_RETURN_IF_ERROR(peer.status());
    if (context_->call_limits != nullptr) {
      CKPTD_ASSIGN_OR_RETURN(ticket_, context_->call_limits->Start(peer->user.uid));
    }
    if (request.min_version() > kProtocolVersion || request.max_version() < kProtocolVersion) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "VERSION_UNSUPPORTED",
                       absl::StrCat("the client speaks versions ", request.min_version(), " to ",
                                    request.max_version(), ", this daemon (", context_->daemon_version,
                                    ") speaks ", kProtocolVersion, "; upgrade the older of the two"));
    }
    const std::string& instance = request.client_instance();
    if (instance.size() != 32 || instance.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                       "client_instance must be 32 hexadecimal digits");
    }
    if (request.client_name().size() > kMaxName) {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                       absl::StrCat("client_name has ", request.client_name().size(), " bytes; at most ",
                                    kMaxName, " are allowed"));
    }
    CKPTD_ASSIGN_OR_RETURN(SessionRegistry::Opened opened,
                           context_->sessions->Open({.user = peer->user,
                                                     .pid = peer->pid,
                                                     .client_instance = instance,
                                                     .client_name = request.client_name(),
                                                     .keeper = false,
                                                     .descriptors = false,
                                                     .tenant = peer->namespaces.tenant}));
    session_ = opened.info.id;
    // The engine learns of the session before any call with its token, because those calls are posted later.
    context_->loop->Post([context = context_, info = opened.info] { context->engine->SessionOpened(info); });
    response_.set_version(kProtocolVersion);
    response_.set_token(opened.token);
    response_.set_daemon_instance(context_->daemon_instance);
    response_.set_daemon_version(context_->daemon_version);
    return absl::OkStatus();
  }

  void End(absl::Status status) {
    {
      MutexLock lock(mutex_);
      if (!ending_) ending_ = std::move(status);
    }
    FinishWhenEnded();
  }

  void FinishWhenEnded() {
    grpc::Status status;
    {
      MutexLock lock(mutex_);
      if (!ending_ || writing_ || finished_) return;
      finished_ = true;
      status = ToGrpcStatus(*ending_);
    }
    TsanRelease(this);
    Finish(status);
  }

  ServiceContext* const context_;
  std::shared_ptr<CallTicket> ticket_;  // Constant after Start.
  SessionId session_ = 0;               // Constant after Start.
  v1::OpenSessionResponse response_;
  std::shared_ptr<OpenSessionCall> until_done_;

  Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> ending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerWriteReactor<v1::OpenSessionResponse>* StartOpenSession(ServiceContext* context,
                                                                    absl::StatusOr<Peer> peer,
                                                                    const v1::OpenSessionRequest& request) {
  auto call = std::make_shared<OpenSessionCall>(context);
  call->Start(std::move(peer), request);
  return call.get();
}

}  // namespace ckptd
