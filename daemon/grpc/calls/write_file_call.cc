// WriteFile: the header names a placed file, the engine says where in memory it lies, and the following
// messages are copied there.
#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "daemon/grpc/base/tsan_hop.h"
#include "daemon/grpc/base/wire_errors.h"
#include "daemon/grpc/calls/stream_calls.h"
#include "daemon/grpc/calls/write_cursor.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"

namespace ckptd {
namespace {

absl::Status OutOfOrder(const char* message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT", message);
}

// A read from the stream is always in flight, so a cancelled stream ends when that read fails. If the save
// fails meanwhile, the engine revokes the write; the client gets the reason at its next message or at its
// end.
class WriteFileCall final : public grpc::ServerReadReactor<v1::WriteFileRequest> {
 public:
  WriteFileCall(ServiceContext* context, absl::StatusOr<Caller> caller, v1::WriteFileResponse* response)
      : context_(context), response_(response) {
    if (caller.ok() && context_->call_limits != nullptr) {
      auto ticket = context_->call_limits->Start(caller->uid);
      if (!ticket.ok()) caller = ticket.status();
      if (ticket.ok()) ticket_ = *std::move(ticket);
    }
    if (!caller.ok()) {
      Answer(caller.status());
      return;
    }
    caller_ = *caller;
    TsanRelease(this);
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    TsanAcquire(this);
    if (!opened_) return Open(ok);
    if (!ok) return End(cancelled_ ? absl::CancelledError("the client cancelled the call") : Revoked());
    if (request_.kind_case() != v1::WriteFileRequest::kData) {
      return End(OutOfOrder("WriteFile: every message after the header must have data"));
    }
    if (absl::Status copied = Copy(); !copied.ok()) return End(std::move(copied));
    v1::WriteFileRequest().Swap(
        &request_);  // Frees the message, so that an idle client holds no memory here.
    TsanRelease(this);
    StartRead(&request_);
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override {
    TsanAcquire(this);
    delete this;
  }

 private:
  void Open(bool ok) {
    if (!ok || request_.kind_case() != v1::WriteFileRequest::kHeader) {
      return Answer(OutOfOrder("WriteFile: the first message must have the header"));
    }
    context_->loop->Post([this] {
      const v1::WriteFileHeader& header = request_.header();
      auto target = context_->engine->BeginWrite(caller_, header.key(), header.path(),
                                                 [this](const absl::Status& why) { Revoke(why); });
      if (!target.ok()) return Answer(target.status());
      write_id_ = target->id;
      cursor_ = WriteCursor(header.path(), target->size, std::move(target->runs));
      opened_ = true;
      TsanRelease(this);
      StartRead(&request_);
    });
  }

  absl::Status Copy() {
    MutexLock lock(mutex_);
    if (!revoked_.ok()) return revoked_;
    return cursor_.Append(request_.data());
  }

  absl::Status Revoked() {
    MutexLock lock(mutex_);
    return revoked_;
  }

  // Runs on the engine's thread; waits for the copy of one message at most. The engine does not call it after
  // EndWrite, so never after this object is gone.
  void Revoke(const absl::Status& why) {
    MutexLock lock(mutex_);
    revoked_ = why;
  }

  // Ends the write in the engine before it answers, because a Seal that follows the answer must not find the
  // write open.
  void End(absl::Status status) {
    context_->loop->Post([this, status = std::move(status)] {
      context_->engine->EndWrite(write_id_);
      response_->set_size_bytes(cursor_.written());
      Answer(status);
    });
  }

  void Answer(const absl::Status& status) {
    TsanRelease(this);
    Finish(ToGrpcStatus(status));
  }

  ServiceContext* const context_;
  v1::WriteFileResponse* const response_;
  std::shared_ptr<CallTicket> ticket_;
  Caller caller_;
  v1::WriteFileRequest request_;
  bool opened_ = false;
  int64_t write_id_ = 0;
  WriteCursor cursor_;
  Mutex mutex_;                                   // Held while bytes are copied.
  absl::Status revoked_ ABSL_GUARDED_BY(mutex_);  // Why the engine has taken the memory back.
  std::atomic<bool> cancelled_ = false;
};

}  // namespace

grpc::ServerReadReactor<v1::WriteFileRequest>* StartWriteFile(ServiceContext* context,
                                                              absl::StatusOr<Caller> caller,
                                                              v1::WriteFileResponse* response) {
  return new WriteFileCall(context, std::move(caller), response);
}

}  // namespace ckptd
