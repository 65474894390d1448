// A streamed answer: the engine pushes messages, gRPC takes them one at a time, a queue lies between. Only
// for the .cc files of the services: it brings gRPC's headers along.
#ifndef CKPTD_DAEMON_GRPC_PUSHED_STREAM_H_
#define CKPTD_DAEMON_GRPC_PUSHED_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/grpc/call_limits.h"
#include "daemon/grpc/service_context.h"
#include "daemon/grpc/tsan_hop.h"
#include "daemon/grpc/wire_errors.h"
#include "daemon/sessions/call_authenticator.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Queue holds what waits: absl::Status Push(const Response&), an error where the client is too slow to go on;
// std::optional<Response> Pop(). Held by gRPC until it is done and by the engine until it was told so.
template <typename Response, typename Queue>
class PushedStream final : public grpc::ServerWriteReactor<Response>,
                           public std::enable_shared_from_this<PushedStream<Response, Queue>> {
 public:
  using Leave = absl::AnyInvocable<void()>;
  // On the engine's thread: asks it for messages; how it is told, there too, that nobody listens any more.
  using Subscribe = absl::AnyInvocable<Leave(const Caller&, const std::shared_ptr<PushedStream>&)>;

  // A caller that was refused ends the call with that error.
  static PushedStream* Start(ServiceContext* context, absl::StatusOr<Caller> caller, Subscribe subscribe) {
    auto stream = std::make_shared<PushedStream>(context);
    stream->until_done_ = stream;
    GiveOn(stream.get());
    if (caller.ok() && context->call_limits != nullptr) {
      auto ticket = context->call_limits->Start(caller->uid);
      if (!ticket.ok()) caller = ticket.status();
      if (ticket.ok()) stream->ticket_ = *std::move(ticket);
    }
    if (caller.ok()) {
      context->loop->Post([stream, who = *std::move(caller), subscribe = std::move(subscribe)]() mutable {
        stream->leave_ = subscribe(who, stream);
      });
    } else {
      stream->End(caller.status());
    }
    return stream.get();
  }

  explicit PushedStream(ServiceContext* context) : context_(context) {}

  // On the engine's thread. False: nobody listens any more.
  bool Push(const Response& message) {
    {
      MutexLock lock(mutex_);
      if (ending_) return false;
      if (absl::Status pushed = queue_.Push(message); !pushed.ok()) GiveUp(std::move(pushed));
    }
    Continue();
    return true;
  }

  // After what waits has been sent.
  void End(const absl::Status& status) {
    {
      MutexLock lock(mutex_);
      if (!ending_) ending_ = status;
    }
    Continue();
  }

  void OnWriteDone(bool ok) override {
    TakeOver(this);
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) GiveUp(absl::CancelledError("the client has gone"));
    }
    Continue();
  }
  void OnCancel() override {
    {
      MutexLock lock(mutex_);
      GiveUp(absl::CancelledError("the client gave the call up"));
    }
    Continue();
  }
  void OnDone() override {
    TakeOver(this);
    context_->loop->Post([self = std::move(until_done_)] {
      if (self->leave_) self->leave_();
    });
  }

 private:
  void GiveUp(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queue_ = Queue();
    if (!ending_) ending_ = std::move(status);
  }

  // Sends the next message, or ends the call, unless a message is on its way: then its completion goes on
  // here. The lock is not held during calls of gRPC, which may come straight back.
  void Continue() {
    std::optional<grpc::Status> finish;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (std::optional<Response> next = queue_.Pop()) {
        writing_ = true;
        message_ = *std::move(next);
      } else if (ending_) {
        finished_ = true;
        finish = ToGrpcStatus(*ending_);
      } else {
        return;
      }
    }
    GiveOn(this);
    if (finish) return this->Finish(*finish);
    this->StartWrite(&message_);
  }

  ServiceContext* const context_;
  std::shared_ptr<CallTicket> ticket_;  // Constant after Start.
  Leave leave_;                         // The engine's thread only.
  Response message_;                    // Belongs to gRPC while writing_.
  std::shared_ptr<PushedStream> until_done_;

  Mutex mutex_;
  Queue queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> ending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_PUSHED_STREAM_H_
