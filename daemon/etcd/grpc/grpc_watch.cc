#include "daemon/etcd/grpc/grpc_watch.h"

#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "daemon/etcd/etcd_errors.h"
#include "storage/base/errors.h"

namespace ckptd {

// One stream. It reads the next response when the last one has been handled, so that a slow owner slows etcd
// down instead of filling the memory. `until_done_` keeps it alive until gRPC has ended it.
class GrpcWatch::Stream
    : public grpc::ClientBidiReactor<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>,
      public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::weak_ptr<GrpcWatch> watch, EtcdConnection::Post post,
         std::unique_ptr<grpc::ClientContext> context)
      : watch_(std::move(watch)), post_(std::move(post)), context_(std::move(context)) {}

  void Open(EtcdMember& member, etcdserverpb::WatchRequest request) {
    request_ = std::move(request);
    until_done_ = shared_from_this();
    member.watch->async()->Watch(context_.get(), this);
    AddHold();  // Reads are started outside of gRPC's callbacks.
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }
  void ReadNext() { StartRead(&response_); }
  void Cancel() {
    context_->TryCancel();
    EndReading();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return EndReading();
    post_([watch = watch_, self = shared_from_this(), response = std::move(response_)]() mutable {
      if (auto owner = watch.lock()) owner->OnResponse(self.get(), std::move(response));
    });
  }
  void OnDone(const grpc::Status& status) override {
    post_([watch = watch_, self = std::move(until_done_), status] {
      if (auto owner = watch.lock()) owner->OnStreamEnded(self.get(), status);
    });
  }

 private:
  void EndReading() {
    if (!reading_ended_.exchange(true)) RemoveHold();
  }

  const std::weak_ptr<GrpcWatch> watch_;
  const EtcdConnection::Post post_;
  const std::unique_ptr<grpc::ClientContext> context_;
  etcdserverpb::WatchRequest request_;
  etcdserverpb::WatchResponse response_;
  std::atomic<bool> reading_ended_ = false;
  std::shared_ptr<Stream> until_done_;
};

GrpcWatch::GrpcWatch(std::shared_ptr<EtcdConnection> connection, EtcdWatchSpec spec)
    : connection_(std::move(connection)), spec_(std::move(spec)), next_revision_(spec_.from_revision) {}

void GrpcWatch::Stop() {
  stopped_ = true;
  if (stream_ != nullptr) std::exchange(stream_, nullptr)->Cancel();
}

void GrpcWatch::End(const absl::Status& why) {
  const auto self = shared_from_this();  // The callback may destroy the watch.
  Stop();
  spec_.ended(Annotate(why, spec_.purpose));
}

void GrpcWatch::OnTick() {
  if (stopped_) return;
  if (!connection_->history().lost().ok()) return End(connection_->history().lost());
  if (stream_ == nullptr) {
    if (!connection_->authentication_error().ok()) return End(connection_->authentication_error());
    if (connection_->Now() >= next_open_) Open();
  } else if (!created_ && connection_->Now() >= created_by_) {
    Reopen("it has not begun to watch in time");
  }
}

void GrpcWatch::Open() {
  const std::optional<std::string> token = connection_->Token();
  if (!token) return;
  token_ = *token;
  member_ = connection_->members().current();
  created_ = false;
  created_by_ = connection_->Now() + connection_->options().try_timeout;
  fragments_.clear();
  etcdserverpb::WatchRequest request;
  request.mutable_create_request()->set_key(spec_.key);
  request.mutable_create_request()->set_range_end(spec_.range_end);
  request.mutable_create_request()->set_start_revision(next_revision_);
  request.mutable_create_request()->set_fragment(true);
  stream_ = std::make_shared<Stream>(weak_from_this(), connection_->post(), connection_->NewContext(token_));
  stream_->Open(*member_, std::move(request));
}

void GrpcWatch::Reopen(std::optional<std::string_view> failure) {
  std::exchange(stream_, nullptr)->Cancel();
  if (failure) connection_->members().Failed(*member_, *failure, connection_->Now());
  ++failures_;
  const int members = connection_->members().size();
  next_open_ = connection_->Now();
  if (failures_ % members == 0) next_open_ += connection_->BackOff(failures_ / members);
}

void GrpcWatch::OnResponse(const Stream* stream, etcdserverpb::WatchResponse response) {
  const auto self = shared_from_this();
  if (stream != stream_.get()) return;  // From an earlier stream.
  if (absl::Status lost = connection_->history().Check(response.header(), 0); !lost.ok()) return End(lost);
  if (response.canceled()) return OnCanceled(response);
  if (response.created()) OnCreated(response);
  OnEvents(response);
  if (stream == stream_.get()) stream_->ReadNext();
}

void GrpcWatch::OnCreated(const etcdserverpb::WatchResponse& response) {
  created_ = true;
  connection_->members().Answered(*member_);
  failures_ = 0;
  token_refused_ = false;
  if (response.header().revision() < connection_->history().highest()) AskRevision();
}

void GrpcWatch::OnCanceled(const etcdserverpb::WatchResponse& response) {
  if (response.compact_revision() > 0) return End(EtcdCompacted(response.compact_revision()));
  OnFailure(absl::StatusCode::kUnavailable, response.cancel_reason());
}

void GrpcWatch::OnEvents(etcdserverpb::WatchResponse& response) {
  for (etcdserverpb::Event& event : *response.mutable_events()) {
    if (event.kv().mod_revision() >= next_revision_) fragments_.push_back(std::move(event));
  }
  if (response.fragment() || fragments_.empty()) return;
  const std::vector<etcdserverpb::Event> events = std::exchange(fragments_, {});
  next_revision_ = events.back().kv().mod_revision() + 1;
  connection_->history().Observe(next_revision_ - 1);
  spec_.changed(events);
}

void GrpcWatch::OnStreamEnded(const Stream* stream, const grpc::Status& status) {
  if (stream != stream_.get()) return;
  OnFailure(status.ok() ? absl::StatusCode::kUnavailable : static_cast<absl::StatusCode>(status.error_code()),
            status.error_message());
}

// If the token has expired, etcd fails a watch with "permission denied".
void GrpcWatch::OnFailure(absl::StatusCode code, const std::string& message) {
  const EtcdFailure failure = ExplainFailure(code, message);
  const bool refused = ReasonOf(failure.error) == ledger_reason::kRefused;
  if (refused && !token_.empty() && !token_refused_) {
    token_refused_ = true;
    connection_->DropToken(token_);
    return Reopen(/*failure=*/std::nullopt);
  }
  if (failure.next != NextTry::kAnotherMember) return End(failure.error);
  Reopen(message);
}

void GrpcWatch::AskRevision() {
  etcdserverpb::RangeRequest request;
  request.set_key(spec_.key);
  request.set_count_only(true);
  auto call = std::make_shared<EtcdCallOf<etcdserverpb::RangeRequest, etcdserverpb::RangeResponse>>(
      std::move(request),
      [](EtcdMember& member, auto... arguments) { member.kv->async()->Range(arguments...); },
      // history() keeps the answer's revision, and the next tick checks history(). If no member answers, the next
      // stream asks again.
      [](const absl::StatusOr<etcdserverpb::RangeResponse>&) {});
  call->purpose = spec_.purpose;
  call->linearizable = true;
  connection_->Start(call);
}

}  // namespace ckptd
