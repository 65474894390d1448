// A streamed answer: the engine pushes messages into a queue, from which gRPC takes them one at a time.
// Include it in .cc files only, because it brings gRPC's headers along.
#ifndef CKPTD_DAEMON_GRPC_CALLS_PUSHED_STREAM_H_
#define CKPTD_DAEMON_GRPC_CALLS_PUSHED_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/grpc/base/call_limits.h"
#include "daemon/grpc/base/service_context.h"
#include "daemon/grpc/base/tsan_hop.h"
#include "daemon/grpc/base/wire_errors.h"
#include "daemon/sessions/call_authenticator.h"
#include "storage/base/mutex.h"

namespace ckptd {

// `Queue` holds the messages that wait. It has absl::Status Push(const Response&), which fails when the
// client is too slow, and std::optional<Response> Pop(). gRPC holds a reference until the call is done, the
// engine until it has unsubscribed.
template <typename Response, typename Queue>
class PushedStream final : public grpc::ServerWriteReactor<Response>,
                           public std::enable_shared_from_this<PushedStream<Response, Queue>> {
 public:
  using Unsubscribe = absl::AnyInvocable<void()>;
  // Runs on the engine's thread: subscribes to messages, and returns how to unsubscribe, on the same thread.
  using Subscribe = absl::AnyInvocable<Unsubscribe(const Caller&, const std::shared_ptr<PushedStream>&)>;

  // If `caller` is an error, the call ends with it.
  static PushedStream* Start(ServiceContext* context, absl::StatusOr<Caller> caller, Subscribe subscribe) {
    auto stream = std::make_shared<PushedStream>(context);
    stream->until_done_ = stream;
    TsanRelease(stream.get());
    if (caller.ok() && context->call_limits != nullptr) {
      auto ticket = context->call_limits->Start(caller->uid);
      if (!ticket.ok()) caller = ticket.status();
      if (ticket.ok()) stream->ticket_ = *std::move(ticket);
    }
    if (caller.ok()) {
      context->loop->Post([stream, who = *std::move(caller), subscribe = std::move(subscribe)]() mutable {
        stream->unsubscribe_ = subscribe(who, stream);
      });
    } else {
      stream->End(caller.status());
    }
    return stream.get();
  }

  explicit PushedStream(ServiceContext* context) : context_(context) {}

  // Call it on the engine's thread. Returns false if the client no longer listens.
  bool Push(const Response& message) {
    {
      MutexLock lock(mutex_);
      if (ending_) return false;
      if (absl::Status pushed = queue_.Push(message); !pushed.ok()) GiveUp(std::move(pushed));
    }
    Continue();
    return true;
  }

  // Ends the call after the waiting messages have been sent.
  void End(const absl::Status& status) {
    {
      MutexLock lock(mutex_);
      if (!ending_) ending_ = status;
    }
    Continue();
  }

  void OnWriteDone(bool ok) override {
    TsanAcquire(this);
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) GiveUp(absl::CancelledError("the client has disconnected"));
    }
    Continue();
  }
  void OnCancel() override {
    {
      MutexLock lock(mutex_);
      GiveUp(absl::CancelledError("the client cancelled the call"));
    }
    Continue();
  }
  void OnDone() override {
    TsanAcquire(this);
    context_->loop->Post([self = std::move(until_done_)] {
      if (self->unsubscribe_) self->unsubscribe_();
    });
  }

 private:
  void GiveUp(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queue_ = Queue();
    if (!ending_) ending_ = std::move(status);
  }

  // Sends the next message or ends the call. While a message is in flight, does nothing: its completion calls
  // this again. The lock is not held during calls into gRPC, which may call back at once.
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
    TsanRelease(this);
    if (finish) return this->Finish(*finish);
    this->StartWrite(&message_);
  }

  ServiceContext* const context_;
  std::shared_ptr<CallTicket> ticket_;  // Constant after Start.
  Unsubscribe unsubscribe_;             // Used on the engine's thread only.
  Response message_;                    // Belongs to gRPC while writing_.
  std::shared_ptr<PushedStream> until_done_;

  Mutex mutex_;
  Queue queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> ending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_CALLS_PUSHED_STREAM_H_
