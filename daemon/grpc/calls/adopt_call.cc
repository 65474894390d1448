// AdoptCheckpoints: queues every outcome, of which there is one for each tag, and only the newest progress
// event.
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "daemon/grpc/calls/pushed_stream.h"
#include "daemon/grpc/calls/stream_calls.h"

namespace ckptd {
namespace {

class AdoptQueue {
 public:
  absl::Status Push(const v1::AdoptCheckpointsResponse& event) {
    if (!events_.empty() && IsProgress(events_.back())) events_.pop_back();
    events_.push_back(event);
    return absl::OkStatus();
  }
  std::optional<v1::AdoptCheckpointsResponse> Pop() {
    if (events_.empty()) return std::nullopt;
    v1::AdoptCheckpointsResponse event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  static bool IsProgress(const v1::AdoptCheckpointsResponse& event) {
    return event.outcome() == v1::ADOPT_OUTCOME_UNSPECIFIED;
  }

  std::deque<v1::AdoptCheckpointsResponse> events_;
};

using AdoptStream = PushedStream<v1::AdoptCheckpointsResponse, AdoptQueue>;

}  // namespace

grpc::ServerWriteReactor<v1::AdoptCheckpointsResponse>* StartAdoptCheckpoints(
    ServiceContext* context, absl::StatusOr<Caller> caller, const v1::AdoptCheckpointsRequest& request) {
  return AdoptStream::Start(
      context, std::move(caller),
      [context, request](const Caller& who, const std::shared_ptr<AdoptStream>& stream) {
        const int64_t adoption = context->engine->AdoptCheckpoints(
            who, request, [stream](const v1::AdoptCheckpointsResponse& event) { return stream->Push(event); },
            [stream](const absl::Status& ended) { stream->End(ended); });
        return [context, adoption] { context->engine->StopAdoption(adoption); };
      });
}

}  // namespace ckptd
