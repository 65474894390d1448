// State that calls and watches share: the members, the token, and the revisions that etcd has answered with.
// Also retries the calls. Internal to daemon/etcd, because it includes gRPC's headers.
#ifndef CKPTD_DAEMON_ETCD_GRPC_ETCD_CONNECTION_H_
#define CKPTD_DAEMON_ETCD_GRPC_ETCD_CONNECTION_H_

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "daemon/etcd/grpc/etcd_call.h"
#include "daemon/etcd/grpc/etcd_history.h"
#include "daemon/etcd/grpc/etcd_members.h"
#include "daemon/etcd/grpc/etcd_options.h"
#include "storage/base/clock.h"

namespace ckptd {

class EtcdConnection : public std::enable_shared_from_this<EtcdConnection> {
 public:
  using Post = std::function<void(absl::AnyInvocable<void()> work)>;

  // `options` have been checked.
  EtcdConnection(EtcdOptions options, EtcdCredentials credentials, Clock* clock, Post post);

  // Tries the call until a member answers or its deadline passes. The answer comes after Start has returned.
  void Start(const std::shared_ptr<EtcdCall>& call);
  void OnTick();
  // Cancels all calls; their callbacks do not run.
  void Close();

  // A context for a request to a member, with the token if there is one.
  std::unique_ptr<grpc::ClientContext> NewContext(const std::string& token) const;
  // Empty: no user is configured. nullopt: there is no token yet; asks etcd for one, at most once a second.
  std::optional<std::string> Token();
  // Why etcd refused the user at the last authentication; OK if it did not refuse, or did not answer.
  const absl::Status& authentication_error() const { return authentication_error_; }
  // Forgets this token, which etcd has refused.
  void DropToken(const std::string& token);
  // How long to wait before the next round of tries, after `rounds` rounds in which every member has failed.
  Duration BackOff(int rounds);

  // See GrpcEtcd::Renew.
  using Renewed = std::function<void(absl::StatusOr<bool> changed)>;
  void Renew(EtcdCredentials credentials, Renewed done);

  using CallEnded = std::function<void(Duration took, const absl::Status& outcome)>;
  void OnCallEnded(CallEnded ended) { call_ended_ = std::move(ended); }

  // See GrpcEtcd::full.
  const absl::Status& full() const { return full_; }
  EtcdMembers& members() { return members_; }
  EtcdHistory& history() { return history_; }
  Instant Now() const { return clock_->Now(); }
  const EtcdOptions& options() const { return options_; }
  const Post& post() const { return post_; }

 private:
  void Try(const std::shared_ptr<EtcdCall>& call);
  void Tried(const std::shared_ptr<EtcdCall>& call, EtcdMember& member, const grpc::Status& status);
  void TryAgain(const std::shared_ptr<EtcdCall>& call, Duration wait);
  void TryAllThatAreDue();
  void Answer(const std::shared_ptr<EtcdCall>& call, const absl::Status& status);
  void ProbeFailedMembers();
  void Probed(EtcdMember& member, const grpc::Status& status);
  void Authenticated(const absl::StatusOr<etcdserverpb::AuthenticateResponse>& answer);
  // etcd_renewal.cc
  struct Trial;
  void Try(const std::shared_ptr<Trial>& trial, EtcdMember& member);
  void Tried(const std::shared_ptr<Trial>& trial, const grpc::Status& status);
  void Adopt(Trial& trial);

  const EtcdOptions options_;  // Except the credentials, which credentials_ has.
  EtcdCredentials credentials_;
  EtcdMembers members_;
  Clock* const clock_;
  const Post post_;
  EtcdHistory history_;
  CallEnded call_ended_;  // May be null.
  std::set<std::shared_ptr<EtcdCall>> calls_;
  std::string token_;  // Empty: there is none.
  bool authenticating_ = false;
  int renewals_ = 0;
  Instant next_authentication_;
  absl::Status authentication_error_;
  absl::Status full_;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_GRPC_ETCD_CONNECTION_H_
