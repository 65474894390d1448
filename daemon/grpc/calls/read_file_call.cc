// ReadFile: a sequence of steps of which one is in flight at any time: a query to the engine, a read on a
// worker, or an outgoing message. The thread that ends a step starts the next one.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/grpc/base/tsan_hop.h"
#include "daemon/grpc/base/wire_errors.h"
#include "daemon/grpc/calls/stream_calls.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr int64_t kMessageBytes = 2 << 20;

class ReadFileCall final : public grpc::ServerWriteReactor<v1::ReadFileResponse> {
 public:
  ReadFileCall(ServiceContext* context, absl::StatusOr<Caller> caller, const v1::ReadFileRequest& request)
      : context_(context), request_(request) {
    if (caller.ok() && context_->call_limits != nullptr) {
      auto ticket = context_->call_limits->Start(caller->uid);
      if (!ticket.ok()) caller = ticket.status();
      if (ticket.ok()) ticket_ = *std::move(ticket);
    }
    if (!caller.ok()) {
      End(caller.status());
      return;
    }
    TsanRelease(this);
    context_->loop->Post([this, who = *caller] {
      auto reader = context_->engine->FindReader(who, request_.lease());
      if (!reader.ok()) return End(reader.status());
      reader_ = *std::move(reader);
      context_->workers->Submit([this] { FindRange(); });
    });
  }

  void OnWriteDone(bool ok) override {
    TsanAcquire(this);
    if (!ok) return GiveUp();
    Send();
  }
  void OnCancel() override {
    TsanAcquire(this);  // gRPC calls it after the constructor.
    *cancelled_ = true;
    if (ticket_ != nullptr) ticket_->StopWaiting();
  }
  void OnDone() override {
    TsanAcquire(this);
    delete this;
  }

 private:
  // On a worker: finds the file and the ranges to read.
  void FindRange() {
    const auto& files = reader_->manifest().body.files();
    const auto file = std::find_if(files.begin(), files.end(),
                                   [this](const auto& record) { return record.path() == request_.path(); });
    if (file == files.end()) {
      return End(MakeError(absl::StatusCode::kNotFound, "UNKNOWN_FILE",
                           absl::StrCat("the checkpoint has no file \"", request_.path(), "\""),
                           {{"path", request_.path()}}));
    }
    const absl::Status fits = ParseRanges(file->size_bytes());
    if (!fits.ok()) return End(fits);
    TakeMemory(file->size_bytes());
  }

  // Charges the most memory that this call holds at a time, before the first read: one chunk, or two if it
  // sends only pieces of chunks.
  void TakeMemory(int64_t size) {
    if (ticket_ == nullptr || ranges_.empty()) return Send();
    const int64_t chunk = std::min<int64_t>(reader_->manifest().summary.chunk_bytes(), size);
    const bool whole = ranges_.size() == 1 && ranges_[0] == std::pair<int64_t, int64_t>(0, size);
    const auto [ticket, cancelled] =
        std::pair(ticket_, cancelled_);  // Copies, because the call may have ended when they are used.
    ticket->ChargeWhenAvailable(whole ? chunk : 2 * chunk, [this](bool charged) {
      if (!charged) return GiveUp();
      context_->workers->Submit([this] { Send(); });
    });
    if (*cancelled) ticket->StopWaiting();
  }

  absl::Status ParseRanges(int64_t size) {
    const auto outside = [&](int64_t offset, int64_t count, const char* how) {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                       absl::StrCat("offset ", offset, " with ", count, " bytes ", how, " the ", size,
                                    " bytes of \"", request_.path(), "\""),
                       {{"path", request_.path()}});
    };
    if (request_.ranges().empty()) {
      const int64_t offset = request_.offset(), limit = request_.limit();
      if (offset < 0 || offset > size || limit < 0) return outside(offset, limit, "is not within");
      const int64_t end = limit > 0 ? offset + std::min(limit, size - offset) : size;
      if (offset < end) ranges_.emplace_back(offset, end);
      return absl::OkStatus();
    }
    int64_t end = 0;
    for (const v1::FileRange& range : request_.ranges()) {
      const int64_t offset = range.offset(), count = range.size_bytes();
      if (offset < 0 || count < 1 || offset > size || count > size - offset)
        return outside(offset, count, "is not within");
      if (offset < end) return outside(offset, count, "overlaps or precedes the range before it in");
      end = offset + count;
      ranges_.emplace_back(offset, end);
    }
    return absl::OkStatus();
  }

  // Reads all wanted pieces of one chunk. A chunk's checksum covers all of it, so each chunk is read only
  // once.
  void Read() {
    const int64_t chunk = std::max<int64_t>(reader_->manifest().summary.chunk_bytes(), 1);
    const int64_t first = ranges_[next_].first;
    const int64_t chunk_end = (first / chunk + 1) * chunk;
    std::vector<std::pair<int64_t, int64_t>> pieces;
    for (; next_ < ranges_.size() && ranges_[next_].first < chunk_end; ++next_) {
      auto& [begin, end] = ranges_[next_];
      pieces.emplace_back(begin, std::min(end, chunk_end));
      if (end <= chunk_end) continue;
      begin = chunk_end;
      break;
    }
    buffer_.resize(static_cast<size_t>(pieces.back().second - first));
    sent_ = 0;
    if (const absl::Status read = reader_->Read(request_.path(), first, buffer_); !read.ok())
      return End(read);
    auto packed = buffer_.begin();
    for (const auto& [begin, end] : pieces)
      packed = std::copy(buffer_.begin() + (begin - first), buffer_.begin() + (end - first), packed);
    buffer_.erase(packed, buffer_.end());
    Send();
  }

  // Sends the next message, or starts the next read when all that was read is sent.
  void Send() {
    if (*cancelled_) return GiveUp();
    if (sent_ == buffer_.size()) {
      if (next_ == ranges_.size()) return End(absl::OkStatus());
      return context_->workers->Submit([this] { Read(); });
    }
    const size_t count = std::min(buffer_.size() - sent_, static_cast<size_t>(kMessageBytes));
    response_.set_data(buffer_.data() + sent_, count);
    sent_ += count;
    TsanRelease(this);
    StartWrite(&response_);
  }

  void GiveUp() { End(absl::CancelledError("the client cancelled the call")); }

  void End(const absl::Status& status) {
    TsanRelease(this);
    Finish(ToGrpcStatus(status));
  }

  ServiceContext* const context_;
  const v1::ReadFileRequest request_;
  std::shared_ptr<CheckpointReader> reader_;
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // Begin and end offsets, in ascending order.
  size_t next_ = 0;                                  // Index of the range to read next.
  std::vector<std::byte> buffer_;
  size_t sent_ = 0;  // How many bytes of the buffer.
  v1::ReadFileResponse response_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<CallTicket> ticket_;  // Constant after the constructor.
};

}  // namespace

grpc::ServerWriteReactor<v1::ReadFileResponse>* StartReadFile(ServiceContext* context,
                                                              absl::StatusOr<Caller> caller,
                                                              const v1::ReadFileRequest& request) {
  return new ReadFileCall(context, std::move(caller), request);
}

}  // namespace ckptd
