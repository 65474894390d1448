// AdoptCheckpoints: the engine tells how far it is, gRPC sends that one message at a time. Outcomes wait in a
// queue, of which there are as many as tags; progress is dropped while anything waits.
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "daemon/service/stream_calls.h"
#include "daemon/service/tsan_hop.h"
#include "daemon/service/wire_errors.h"
#include "storage/base/mutex.h"

namespace ckptd {
namespace {

// Held by gRPC until it is done and by the engine until the adoption has ended.
class AdoptCall final : public grpc::ServerWriteReactor<v1::AdoptCheckpointsResponse>,
                        public std::enable_shared_from_this<AdoptCall> {
 public:
  explicit AdoptCall(ServiceContext* context) : context_(context) {}

  void Start(absl::StatusOr<Caller> caller, const v1::AdoptCheckpointsRequest& request) {
    until_done_ = shared_from_this();
    GiveOn(this);
    if (!caller.ok()) return End(caller.status());
    context_->loop->Post([self = shared_from_this(), who = *caller, request] {
      self->adoption_ = self->context_->engine->AdoptCheckpoints(
          who, request, [self](const v1::AdoptCheckpointsResponse& event) { return self->OnEvent(event); },
          [self](const absl::Status& ended) { self->End(ended); });
    });
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
    context_->loop->Post(
        [self = std::move(until_done_)] { self->context_->engine->StopAdoption(self->adoption_); });
  }

 private:
  // On the engine's thread. False: nobody listens any more.
  bool OnEvent(const v1::AdoptCheckpointsResponse& event) {
    {
      MutexLock lock(mutex_);
      if (ending_) return false;
      const bool progress = event.outcome() == v1::ADOPT_OUTCOME_UNSPECIFIED;
      if (!progress || (queue_.empty() && !writing_)) queue_.push_back(event);
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

  void GiveUp(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queue_.clear();
    if (!ending_) ending_ = std::move(status);
  }

  // Sends the next message, or ends the call, unless a message is on its way: then its completion goes on
  // here. The lock is not held during calls of gRPC, which may come straight back.
  void Continue() {
    std::optional<grpc::Status> finish;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (!queue_.empty()) {
        writing_ = true;
        message_ = std::move(queue_.front());
        queue_.pop_front();
      } else if (ending_) {
        finished_ = true;
        finish = ToGrpcStatus(*ending_);
      } else {
        return;
      }
    }
    GiveOn(this);
    if (finish) return Finish(*finish);
    StartWrite(&message_);
  }

  ServiceContext* const context_;
  int64_t adoption_ = 0;                  // The engine's thread only.
  v1::AdoptCheckpointsResponse message_;  // Belongs to gRPC while writing_.
  std::shared_ptr<AdoptCall> until_done_;

  Mutex mutex_;
  std::deque<v1::AdoptCheckpointsResponse> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> ending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerWriteReactor<v1::AdoptCheckpointsResponse>* StartAdoptCheckpoints(
    ServiceContext* context, absl::StatusOr<Caller> caller, const v1::AdoptCheckpointsRequest& request) {
  auto call = std::make_shared<AdoptCall>(context);
  call->Start(std::move(caller), request);
  return call.get();
}

}  // namespace ckptd
