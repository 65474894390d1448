// One unary call on its way through the engine. Include it in .cc files only, because it brings gRPC's
// headers along.
#ifndef CKPTD_DAEMON_GRPC_CALLS_UNARY_CALL_H_
#define CKPTD_DAEMON_GRPC_CALLS_UNARY_CALL_H_

#include <grpcpp/support/server_callback.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/grpc/base/call_limits.h"
#include "daemon/grpc/base/tsan_hop.h"
#include "daemon/grpc/base/wire_errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {

// A unary call is answered once: by the engine, or by the client's cancellation, its deadline or the server's
// end, whichever is first. gRPC holds a reference until the call is done, the engine until it has replied. A
// reply that comes too late is dropped, and may say what to undo then.
template <typename Request, typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // Swaps the request out of gRPC's message, because gRPC deletes both messages when the call is done, and a
  // cancelled call may be done while the engine still reads the request. (It may name 10,000 files, so no
  // copy.)
  static std::shared_ptr<UnaryCall> Start(const Request* request, Response* response) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(response));
    call->request_.Swap(const_cast<Request*>(request));
    call->until_done_ = call;
    return call;
  }

  // Charges the call and its request to the user until it is done. Fails with LIMIT_EXCEEDED as CallLimits
  // does.
  absl::Status CountFor(CallLimits* limits, uid_t uid) {
    if (limits == nullptr) return absl::OkStatus();
    CKPTD_ASSIGN_OR_RETURN(ticket_, limits->Start(uid));
    return ticket_->Charge(static_cast<int64_t>(request_.SpaceUsedLong()));
  }

  const Request& request() const { return request_; }
  bool answered() const { return answered_.load(); }

  // `undo` runs, once and on any thread, if the answer is dropped or cannot be sent because the client has
  // cancelled or disconnected. An answer that was sent may still be lost on its way, which is not noticed
  // here.
  void Answer(absl::StatusOr<Response> answer, std::function<void()> undo = nullptr) {
    undo_ = std::move(undo);  // Set before `answered_`, because OnCancel reads it.
    if (answered_.exchange(true)) return Undo();
    if (answer.ok() &&
        ticket_ != nullptr) {  // Until the client reads it, it may be in memory as a message and as bytes.
      const absl::Status fits =
          ticket_->Charge(static_cast<int64_t>(answer->SpaceUsedLong() + answer->ByteSizeLong()));
      if (!fits.ok()) {
        Undo();
        answer = fits;
      }
    }
    if (answer.ok()) *response_ = *std::move(answer);
    TsanRelease(this);
    Finish(ToGrpcStatus(answer.status()));
  }

  // gRPC also calls this when the status of an answered call cannot be sent.
  void OnCancel() override {
    if (!answered_.exchange(true)) {
      TsanRelease(this);
      return Finish(ToGrpcStatus(absl::CancelledError("the client cancelled the call")));
    }
    Undo();
  }
  void OnDone() override {
    TsanAcquire(this);
    TsanRelease(this);
    until_done_.reset();
  }
  ~UnaryCall() override { TsanAcquire(this); }

 private:
  explicit UnaryCall(Response* response) : response_(response) {}

  void Undo() {
    if (undo_ && !undone_.exchange(true)) undo_();
  }

  Request request_;
  Response* const response_;
  std::atomic<bool> answered_ = false;
  std::function<void()> undo_;  // Undoes the engine's answer.
  std::atomic<bool> undone_ = false;
  std::shared_ptr<CallTicket> ticket_;  // Set before the call is posted to the engine.
  std::shared_ptr<UnaryCall> until_done_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_CALLS_UNARY_CALL_H_
