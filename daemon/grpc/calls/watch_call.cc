// Watch: streams the engine's events through a bounded queue.
#include <memory>
#include <utility>

#include "daemon/grpc/calls/pushed_stream.h"
#include "daemon/grpc/calls/stream_calls.h"
#include "daemon/grpc/calls/watch_queue.h"

namespace ckptd {
namespace {

using WatchStream = PushedStream<v1::WatchResponse, WatchQueue>;

}  // namespace

grpc::ServerWriteReactor<v1::WatchResponse>* StartWatch(ServiceContext* context,
                                                        absl::StatusOr<Caller> caller,
                                                        const v1::WatchRequest& request) {
  return WatchStream::Start(
      context, std::move(caller),
      [context, request](const Caller& who, const std::shared_ptr<WatchStream>& stream) {
        absl::Status refused;
        const int64_t watcher = context->engine->AddWatcher(
            who, request, [stream](const v1::WatchResponse& event) { return stream->Push(event); }, &refused);
        if (!refused.ok()) stream->End(refused);
        return [context, watcher] { context->engine->RemoveWatcher(watcher); };
      });
}

}  // namespace ckptd
