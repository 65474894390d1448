// ReadFile: one step after the other, so that at any time one thing alone is under way: a question to the
// engine, a read on a worker, or a message on its way out. Whoever ends the step begins the next one.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/service/stream_calls.h"
#include "daemon/service/tsan_hop.h"
#include "daemon/service/wire_errors.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr int64_t kMessageBytes = 2 << 20;

class ReadFileCall final : public grpc::ServerWriteReactor<v1::ReadFileResponse> {
 public:
  ReadFileCall(ServiceContext* context, absl::StatusOr<Caller> caller, const v1::ReadFileRequest& request)
      : context_(context), request_(request) {
    if (!caller.ok()) {
      End(caller.status());
      return;
    }
    context_->loop->Post([this, who = *caller] {
      auto reader = context_->engine->FindReader(who, request_.lease());
      if (!reader.ok()) return End(reader.status());
      reader_ = *std::move(reader);
      context_->workers->Submit([this] { FindRange(); });
    });
  }

  void OnWriteDone(bool ok) override {
    TakeOver(this);
    if (!ok) return GiveUp();
    Send();
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override {
    TakeOver(this);
    delete this;
  }

 private:
  // On a worker: which bytes of which file.
  void FindRange() {
    const auto& files = reader_->manifest().body.files();
    const auto file = std::find_if(files.begin(), files.end(),
                                   [this](const auto& record) { return record.path() == request_.path(); });
    if (file == files.end()) {
      return End(MakeError(absl::StatusCode::kNotFound, "UNKNOWN_FILE",
                           absl::StrCat("the checkpoint has no file \"", request_.path(), "\""),
                           {{"path", request_.path()}}));
    }
    if (request_.offset() < 0 || request_.offset() > file->size_bytes() || request_.limit() < 0) {
      return End(MakeError(
          absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
          absl::StrCat("offset ", request_.offset(), " with limit ", request_.limit(), " is not within the ",
                       file->size_bytes(), " bytes of \"", request_.path(), "\""),
          {{"path", request_.path()}}));
    }
    next_ = request_.offset();
    end_ = file->size_bytes();
    if (request_.limit() > 0) end_ = next_ + std::min(request_.limit(), end_ - next_);
    Send();
  }

  // Reads up to the end of a chunk of the manifest: each is checked as a whole, so it is read once only.
  void Read() {
    const int64_t chunk = std::max<int64_t>(reader_->manifest().summary.chunk_bytes(), 1);
    buffer_.resize(static_cast<size_t>(std::min(end_, (next_ / chunk + 1) * chunk) - next_));
    sent_ = 0;
    if (const absl::Status read = reader_->Read(request_.path(), next_, buffer_); !read.ok())
      return End(read);
    next_ += static_cast<int64_t>(buffer_.size());
    Send();
  }

  // The next message, or the next read when everything read so far is sent.
  void Send() {
    if (cancelled_) return GiveUp();
    if (sent_ == buffer_.size()) {
      if (next_ == end_) return End(absl::OkStatus());
      return context_->workers->Submit([this] { Read(); });
    }
    const size_t count = std::min(buffer_.size() - sent_, static_cast<size_t>(kMessageBytes));
    response_.set_data(buffer_.data() + sent_, count);
    sent_ += count;
    GiveOn(this);
    StartWrite(&response_);
  }

  void GiveUp() { End(absl::CancelledError("the client gave the call up")); }

  void End(const absl::Status& status) {
    GiveOn(this);
    Finish(ToGrpcStatus(status));
  }

  ServiceContext* const context_;
  const v1::ReadFileRequest request_;
  std::shared_ptr<CheckpointReader> reader_;
  int64_t next_ = 0;  // To be read next,
  int64_t end_ = 0;   // up to here.
  std::vector<std::byte> buffer_;
  size_t sent_ = 0;  // Of the buffer.
  v1::ReadFileResponse response_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::ReadFileResponse>* StartReadFile(ServiceContext* context,
                                                              absl::StatusOr<Caller> caller,
                                                              const v1::ReadFileRequest& request) {
  return new ReadFileCall(context, std::move(caller), request);
}

}  // namespace ckptd
