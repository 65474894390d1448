// One unary call on its way through the engine. Only for the .cc files of the services: it brings gRPC's
// headers along.
#ifndef CKPTD_DAEMON_GRPC_UNARY_CALL_H_
#define CKPTD_DAEMON_GRPC_UNARY_CALL_H_

#include <grpcpp/support/server_callback.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/grpc/call_limits.h"
#include "daemon/grpc/tsan_hop.h"
#include "daemon/grpc/wire_errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {

// Answered once, by whoever is first: the engine, or the client that gave up (or its deadline, or the
// server's end). gRPC holds it until it is done, and so does the engine until it has replied: a reply that
// comes too late is dropped. A reply may say what to undo when it does not reach the client.
template <typename Request, typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // gRPC deletes both messages when the call is done, so the request is taken out of its hands: a cancelled
  // call may be done while the engine still reads it. (A swap, for a request may name 10,000 files.)
  static std::shared_ptr<UnaryCall> Start(const Request* request, Response* response) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(response));
    call->request_.Swap(const_cast<Request*>(request));
    call->until_done_ = call;
    return call;
  }

  // Counts the call and its request as the user's until it is done. LIMIT_EXCEEDED: they have too many.
  absl::Status CountFor(CallLimits* limits, uid_t uid) {
    if (limits == nullptr) return absl::OkStatus();
    CKPTD_ASSIGN_OR_RETURN(ticket_, limits->Start(uid));
    return ticket_->Charge(static_cast<int64_t>(request_.SpaceUsedLong()));
  }

  const Request& request() const { return request_; }
  bool answered() const { return answered_.load(); }

  // `undo` runs, once and on any thread, when the answer was dropped or could not be sent: the client had
  // given the call up, or is gone. An answer that was sent may still be lost on its way; nobody learns of
  // that here.
  void Answer(absl::StatusOr<Response> answer, std::function<void()> undo = nullptr) {
    undo_ = std::move(undo);  // Before `answered_`, for OnCancel.
    if (answered_.exchange(true)) return Undo();
    if (answer.ok() && ticket_ != nullptr) {  // It may lie here until the client reads it, in both forms.
      const absl::Status fits =
          ticket_->Charge(static_cast<int64_t>(answer->SpaceUsedLong() + answer->ByteSizeLong()));
      if (!fits.ok()) {
        Undo();
        answer = fits;
      }
    }
    if (answer.ok()) *response_ = *std::move(answer);
    GiveOn(this);
    Finish(ToGrpcStatus(answer.status()));
  }

  // gRPC also calls it when the status of an answered call could not be sent.
  void OnCancel() override {
    if (!answered_.exchange(true)) {
      GiveOn(this);
      return Finish(ToGrpcStatus(absl::CancelledError("the client gave the call up")));
    }
    Undo();
  }
  void OnDone() override {
    TakeOver(this);
    GiveOn(this);
    until_done_.reset();
  }
  ~UnaryCall() override { TakeOver(this); }

 private:
  explicit UnaryCall(Response* response) : response_(response) {}

  void Undo() {
    if (undo_ && !undone_.exchange(true)) undo_();
  }

  Request request_;
  Response* const response_;
  std::atomic<bool> answered_ = false;
  std::function<void()> undo_;  // Of the engine's answer.
  std::atomic<bool> undone_ = false;
  std::shared_ptr<CallTicket> ticket_;  // Set before the call is posted to the engine.
  std::shared_ptr<UnaryCall> until_done_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_UNARY_CALL_H_
