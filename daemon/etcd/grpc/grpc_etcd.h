// etcd over asynchronous gRPC: no thread waits for an answer.
#ifndef CKPTD_DAEMON_ETCD_GRPC_GRPC_ETCD_H_
#define CKPTD_DAEMON_ETCD_GRPC_GRPC_ETCD_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/grpc/etcd_options.h"
#include "storage/base/clock.h"

namespace ckptd {

// The last known state of a member of etcd.
struct EtcdMemberState {
  std::string endpoint;
  std::optional<bool> answers;  // nullopt: no request to it has ended yet.
  std::string error;            // Why it does not answer.
};

// A call asks one member after the other, and waits between two rounds, until one has answered or the call's
// timeout is over. An error that is due to the request or to the user ends the call at once. etcd refuses a
// request above 1.5 MiB or 128 operations.
//
// The revision and the cluster id of every answer are compared with those of earlier answers. From the first
// sign that etcd has gone back in time, every call and every watch of this object ends with LEDGER_RESTORED.
class GrpcEtcd : public Etcd {
 public:
  // `post` runs work on the owner's thread, or drops it when that thread has ended. It must be thread-safe,
  // and may be called after this object has been destroyed.
  using Post = std::function<void(absl::AnyInvocable<void()> work)>;

  // INVALID_ARGUMENT, or ErrnoError of a file of the TLS options. Connects at the first call.
  static absl::StatusOr<std::unique_ptr<GrpcEtcd>> Make(const EtcdOptions& options, Clock* clock, Post post);
  ~GrpcEtcd() override;

  // Uses these credentials from now on, if a member of etcd answers with them, or none has answered with the
  // present ones. `done`: whether they differ from the present ones; an error, such as that the password is
  // wrong: those stay. Connections that are open go on. `done` runs within EtcdOptions::try_timeout, perhaps
  // within the call.
  using Renewed = std::function<void(absl::StatusOr<bool> changed)>;
  void Renew(EtcdCredentials credentials, Renewed done);

  // Handles timeouts and retries. Call it several times a second.
  void OnTick();

  // In the order of the options.
  std::vector<EtcdMemberState> members() const;
  // LEDGER_FULL after etcd has refused a call because its quota is used up, until it accepts a write again.
  const absl::Status& full() const;
  // `ended` runs at the end of each call, before its answer; `took` counts all its tries.
  using CallEnded = std::function<void(Duration took, const absl::Status& outcome)>;
  void OnCallEnded(CallEnded ended);

  void Range(const etcdserverpb::RangeRequest& request, const std::string& purpose,
             Answer<etcdserverpb::RangeResponse> answer) override;
  void Txn(const etcdserverpb::TxnRequest& request, const std::string& purpose,
           Answer<etcdserverpb::TxnResponse> answer) override;
  void GrantLease(const etcdserverpb::LeaseGrantRequest& request, const std::string& purpose,
                  Answer<etcdserverpb::LeaseGrantResponse> answer) override;
  void KeepLeaseAlive(const etcdserverpb::LeaseKeepAliveRequest& request, const std::string& purpose,
                      Answer<etcdserverpb::LeaseKeepAliveResponse> answer) override;
  void RevokeLease(const etcdserverpb::LeaseRevokeRequest& request, const std::string& purpose,
                   Answer<etcdserverpb::LeaseRevokeResponse> answer) override;
  std::unique_ptr<EtcdWatch> Watch(EtcdWatchSpec spec) override;

 private:
  class Impl;
  explicit GrpcEtcd(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_GRPC_GRPC_ETCD_H_
