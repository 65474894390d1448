// The gRPC calls of ckptd.v1 as blocking functions. Only rpc.cc includes gRPC.
//
// Every call has a deadline, and carries the session's token if there is one. Errors of the daemon have a
// reason and details. Errors of the transport have no reason: UNAVAILABLE if there is no daemon or it has
// gone, DEADLINE_EXCEEDED if it did not answer in time. Thread-safe.
#ifndef CKPTD_CLIENT_CPP_SESSION_RPC_H_
#define CKPTD_CLIENT_CPP_SESSION_RPC_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "client/cpp/session/endpoint.h"
#include "storage/base/clock.h"

namespace ckptd::client {

class Rpc {
 public:
  // Connects at the first call. With an empty `token` only the calls of the service Admin, and those of
  // Checkpoints that look or report damage, are allowed.
  Rpc(const Endpoint& endpoint, std::string token);
  ~Rpc();

  absl::StatusOr<v1::JoinRunResponse> JoinRun(const v1::JoinRunRequest& request, Duration timeout);
  absl::StatusOr<v1::BeginResponse> Begin(const v1::BeginRequest& request, Duration timeout);
  absl::StatusOr<v1::ExtendResponse> Extend(const v1::ExtendRequest& request, Duration timeout);
  absl::StatusOr<v1::SealResponse> Seal(const v1::SealRequest& request, Duration timeout);
  absl::StatusOr<v1::AbortResponse> Abort(const v1::AbortRequest& request, Duration timeout);
  absl::StatusOr<v1::WaitResponse> Wait(const v1::WaitRequest& request, Duration timeout);
  absl::StatusOr<v1::Checkpoint> GetCheckpoint(const v1::GetCheckpointRequest& request, Duration timeout);
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const v1::ListCheckpointsRequest& request,
                                                              Duration timeout);
  absl::StatusOr<v1::ResumeResponse> Resume(const v1::ResumeRequest& request, Duration timeout);
  absl::StatusOr<v1::FinishResumeResponse> FinishResume(const v1::FinishResumeRequest& request,
                                                        Duration timeout);
  absl::StatusOr<v1::ReportDamageResponse> ReportDamage(const v1::ReportDamageRequest& request,
                                                        Duration timeout);
  absl::StatusOr<v1::OpenCheckpointResponse> OpenCheckpoint(const v1::OpenCheckpointRequest& request,
                                                            Duration timeout);
  absl::StatusOr<v1::LocateFilesResponse> LocateFiles(const v1::LocateFilesRequest& request,
                                                      Duration timeout);
  absl::StatusOr<v1::ReportReadingResponse> ReportReading(const v1::ReportReadingRequest& request,
                                                          Duration timeout);
  absl::StatusOr<v1::CloseCheckpointResponse> CloseCheckpoint(const v1::CloseCheckpointRequest& request,
                                                              Duration timeout);

  // Passes the file's bytes to `take`, in order. An error from `take` ends the stream and is returned.
  absl::Status ReadFile(const v1::ReadFileRequest& request, Duration timeout,
                        const std::function<absl::Status(std::string_view)>& take);
  // Passes events to `event` until it returns false (OK), the timeout passes (OK), or the stream breaks.
  absl::Status Watch(const v1::WatchRequest& request, Duration timeout,
                     const std::function<bool(const v1::WatchResponse&)>& event);

  absl::StatusOr<v1::Status> GetStatus(Duration timeout, bool all_nodes = false);
  absl::StatusOr<v1::Status> Drain(const v1::DrainRequest& request, Duration timeout);
  absl::StatusOr<v1::ListRunsResponse> ListRuns(Duration timeout);
  absl::StatusOr<v1::ListSessionsResponse> ListSessions(Duration timeout);
  absl::StatusOr<v1::Checkpoint> Pin(const v1::PinRequest& request, Duration timeout);
  absl::StatusOr<v1::Checkpoint> Unpin(const v1::UnpinRequest& request, Duration timeout);
  absl::StatusOr<v1::Checkpoint> Prefetch(const v1::PrefetchRequest& request, Duration timeout);
  absl::StatusOr<v1::Run> SetRetention(const v1::SetRetentionRequest& request, Duration timeout);
  absl::StatusOr<v1::ExplainRetentionResponse> ExplainRetention(const v1::ExplainRetentionRequest& request,
                                                                Duration timeout);
  absl::StatusOr<v1::Checkpoint> DeleteCheckpoint(const v1::DeleteCheckpointRequest& request,
                                                  Duration timeout);
  absl::StatusOr<v1::ListTrashResponse> ListTrash(const v1::ListTrashRequest& request, Duration timeout);
  absl::StatusOr<v1::GetHistoryResponse> GetHistory(const v1::GetHistoryRequest& request, Duration timeout);
  absl::StatusOr<v1::Checkpoint> UndeleteCheckpoint(const v1::UndeleteCheckpointRequest& request,
                                                    Duration timeout);
  absl::StatusOr<v1::ResolveSaveResponse> ResolveSave(const v1::ResolveSaveRequest& request,
                                                      Duration timeout);
  absl::StatusOr<v1::Checkpoint> ClearDamage(const v1::ClearDamageRequest& request, Duration timeout);
  // Passes one event for each tag to `event`, until all tags were tried. DEADLINE_EXCEEDED after `timeout`;
  // the daemon then stops, too, after the tag that is under way.
  absl::Status AdoptCheckpoints(const v1::AdoptCheckpointsRequest& request, Duration timeout,
                                const std::function<void(const v1::AdoptCheckpointsResponse&)>& event);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_SESSION_RPC_H_
