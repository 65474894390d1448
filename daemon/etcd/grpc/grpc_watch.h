// A watch over gRPC. Internal to daemon/etcd, because it includes gRPC's headers.
#ifndef CKPTD_DAEMON_ETCD_GRPC_GRPC_WATCH_H_
#define CKPTD_DAEMON_ETCD_GRPC_GRPC_WATCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/etcd/etcd.h"
#include "daemon/etcd/grpc/etcd_connection.h"
#include "storage/base/clock.h"

namespace ckptd {

// Reads one stream after the other. When a stream breaks, the watch opens another one, which begins after the
// last reported revision; from another member if the member has failed.
class GrpcWatch : public std::enable_shared_from_this<GrpcWatch> {
 public:
  GrpcWatch(std::shared_ptr<EtcdConnection> connection, EtcdWatchSpec spec);

  void OnTick();
  // No callback runs from now on.
  void Stop();

 private:
  class Stream;

  void Open();
  // Drops the stream, and opens another one at the first tick after next_open_. `failure`: why its member has
  // failed; nullopt: the member is not at fault.
  void Reopen(std::optional<std::string_view> failure);
  void OnResponse(const Stream* stream, etcdserverpb::WatchResponse response);
  void OnCreated(const etcdserverpb::WatchResponse& response);
  void OnCanceled(const etcdserverpb::WatchResponse& response);
  void OnEvents(etcdserverpb::WatchResponse& response);
  void OnStreamEnded(const Stream* stream, const grpc::Status& status);
  void OnFailure(absl::StatusCode code, const std::string& message);
  // Reads etcd's revision, to find out whether etcd has gone back in time or only this member is behind.
  void AskRevision();
  void End(const absl::Status& why);

  const std::shared_ptr<EtcdConnection> connection_;
  const EtcdWatchSpec spec_;
  bool stopped_ = false;
  std::shared_ptr<Stream> stream_;      // Null: the next one is opened at next_open_.
  std::shared_ptr<EtcdMember> member_;  // Of the stream.
  std::string token_;                   // Of the stream.
  bool created_ = false;
  Instant next_open_, created_by_;
  int failures_ = 0;            // Since the last stream that was created.
  bool token_refused_ = false;  // Since the last stream that was created.
  int64_t next_revision_;       // The first revision that was not reported.
  std::vector<etcdserverpb::Event> fragments_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_GRPC_GRPC_WATCH_H_
