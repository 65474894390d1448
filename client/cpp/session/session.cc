#include "client/cpp/session/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/memory/copy.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::client {

bool IsTransient(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return reason.empty() || reason == "DRAINING" || reason == "UNKNOWN_RUN";
    case absl::StatusCode::kCancelled:  // The server shuts down: this client never cancels.
      return reason.empty();
    case absl::StatusCode::kUnauthenticated:
      return reason == "UNKNOWN_TOKEN";
    default:
      return false;
  }
}

absl::StatusOr<std::shared_ptr<Session>> Session::Open(const Endpoint& endpoint, const v1::Hello& hello,
                                                       Duration timeout) {
  CKPTD_RETURN_IF_ERROR(CheckServer(endpoint.socket_path));
  absl::StatusOr<std::unique_ptr<Handoff>> handoff = Handoff::Connect(endpoint.handoff_path);
  if (absl::IsUnavailable(handoff.status())) {
    return Annotate(handoff.status(), absl::StrCat("no ckptd answers at ", endpoint.text));
  }
  CKPTD_RETURN_IF_ERROR(handoff.status());
  CKPTD_ASSIGN_OR_RETURN(v1::HelloResponse daemon, (*handoff)->Hello(hello, timeout));
  return std::shared_ptr<Session>(new Session(*std::move(handoff), std::move(daemon), endpoint));
}

Session::Session(std::unique_ptr<Handoff> handoff, v1::HelloResponse daemon, const Endpoint& endpoint)
    : handoff_(std::move(handoff)), daemon_(std::move(daemon)), rpc_(endpoint, daemon_.token()) {}

Session::~Session() {
  if (alive()) handoff_->Goodbye(std::chrono::seconds(2)).IgnoreError();
}

absl::StatusOr<Segments> Session::Map(const std::vector<v1::Segment>& segments, int threads,
                                      Duration timeout) {
  std::vector<int64_t> missing;
  {
    MutexLock lock(mutex_);
    for (const v1::Segment& segment : segments) {
      if (!mapped_.contains(segment.id())) missing.push_back(segment.id());
    }
  }
  CKPTD_ASSIGN_OR_RETURN(std::vector<ReceivedSegment> received, handoff_->FetchSegments(missing, timeout));
  std::vector<absl::StatusOr<std::shared_ptr<Mapping>>> fresh(received.size(),
                                                              absl::UnknownError("not mapped"));
  ParallelFor(static_cast<int>(received.size()), threads, [&](int i) {
    fresh[i] = Mapping::Map(std::move(received[i].fd), received[i].size, received[i].huge);
  });
  MutexLock lock(mutex_);
  for (size_t i = 0; i < fresh.size(); ++i) {
    if (!fresh[i].ok()) return fresh[i].status();
    mapped_[received[i].id] = *std::move(fresh[i]);
  }
  Segments result;
  for (const v1::Segment& segment : segments) {
    auto found = mapped_.find(segment.id());
    if (found == mapped_.end() ||
        static_cast<int64_t>(found->second->bytes().size()) != segment.size_bytes()) {
      return absl::InternalError(
          absl::StrCat("segment ", segment.id(), " has not the announced ", segment.size_bytes(), " bytes"));
    }
    result.push_back(found->second);
  }
  return result;
}

Segments Session::Forget(const std::vector<int64_t>& ids) {
  Segments forgotten;
  MutexLock lock(mutex_);
  for (const int64_t id : ids) {
    auto found = mapped_.find(id);
    if (found == mapped_.end()) continue;
    forgotten.push_back(std::move(found->second));
    mapped_.erase(found);
  }
  return forgotten;
}

}  // namespace ckptd::client
