// Watch: the engine pushes events into a bounded queue, gRPC takes them out one at a time.
#include <memory>
#include <optional>
#include <utility>

#include "daemon/service/stream_calls.h"
#include "daemon/service/tsan_hop.h"
#include "daemon/service/watch_queue.h"
#include "daemon/service/wire_errors.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"

namespace ckptd {
namespace {

// Held by gRPC until it is done and by the engine until the watch is removed.
class WatchCall final : public grpc::ServerWriteReactor<v1::WatchResponse>,
                        public std::enable_shared_from_this<WatchCall> {
 public:
  explicit WatchCall(ServiceContext* context) : context_(context) {}

  void Start(absl::StatusOr<Caller> caller, const v1::WatchRequest& request) {
    until_done_ = shared_from_this();
    GiveOn(this);
    if (!caller.ok()) return End(caller.status());
    context_->loop->Post([self = shared_from_this(), who = *caller, request] {
      absl::Status refused;
      self->watcher_ = self->context_->engine->AddWatcher(
          who, request, [self](const v1::WatchResponse& event) { return self->OnEvent(event); }, &refused);
      if (!refused.ok()) self->End(refused);
    });
  }

  void OnWriteDone(bool ok) override {
    TakeOver(this);
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok && !ending_) ending_ = absl::CancelledError("the client has gone");
    }
    Continue();
  }
  void OnCancel() override { End(absl::CancelledError("the client gave the call up")); }
  void OnDone() override {
    TakeOver(this);
    context_->loop->Post(
        [self = std::move(until_done_)] { self->context_->engine->RemoveWatcher(self->watcher_); });
  }

 private:
  // On the engine's thread. False: this watch has ended.
  bool OnEvent(const v1::WatchResponse& event) {
    {
      MutexLock lock(mutex_);
      if (ending_) return false;
      if (!queue_.Push(event)) {
        ending_ =
            MakeError(absl::StatusCode::kResourceExhausted, "WATCHER_TOO_SLOW",
                      "this watcher does not read its events; watch again after looking at what there is");
      }
    }
    Continue();
    return true;
  }

  void End(absl::Status status) {
    {
      MutexLock lock(mutex_);
      if (!ending_) ending_ = std::move(status);
    }
    Continue();
  }

  // Sends the next event, or ends the call, unless a message is on its way: then its completion goes on here.
  // The lock is not held during calls of gRPC, which may come straight back.
  void Continue() {
    std::optional<grpc::Status> finish;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (ending_) {
        finished_ = true;
        finish = ToGrpcStatus(*ending_);
      } else if (std::optional<v1::WatchResponse> event = queue_.Pop()) {
        writing_ = true;
        message_ = *std::move(event);
      } else {
        return;
      }
    }
    GiveOn(this);
    if (finish) return Finish(*finish);
    StartWrite(&message_);
  }

  ServiceContext* const context_;
  int64_t watcher_ = 0;        // The engine's thread only.
  v1::WatchResponse message_;  // Belongs to gRPC while writing_.
  std::shared_ptr<WatchCall> until_done_;

  Mutex mutex_;
  WatchQueue queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> ending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchResponse>* StartWatch(ServiceContext* context,
                                                        absl::StatusOr<Caller> caller,
                                                        const v1::WatchRequest& request) {
  auto call = std::make_shared<WatchCall>(context);
  call->Start(std::move(caller), request);
  return call.get();
}

}  // namespace ckptd
