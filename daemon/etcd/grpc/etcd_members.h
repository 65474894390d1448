// The channels to etcd's members. Internal to daemon/etcd, because it includes gRPC's headers.
#ifndef CKPTD_DAEMON_ETCD_GRPC_ETCD_MEMBERS_H_
#define CKPTD_DAEMON_ETCD_GRPC_ETCD_MEMBERS_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/etcd/grpc/etcd_options.h"
#include "etcd/service.grpc.pb.h"
#include "storage/base/clock.h"

namespace ckptd {

// Calls and watches share it, because the set of members may be replaced while they are in flight.
struct EtcdMember {
  std::string endpoint;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  std::unique_ptr<etcdserverpb::Watch::Stub> watch;
  std::unique_ptr<etcdserverpb::Auth::Stub> auth;
  std::optional<bool> answers;  // Whether it answered the last request that has ended; nullopt: none has.
  std::string error;            // Why it did not answer.
  Instant failed_at{};  // When it last failed to answer. During a probe: when that ends at the latest.
};

class EtcdMembers {
 public:
  // Makes no connection yet. `options` have been checked.
  static EtcdMembers Make(const EtcdOptions& options, const EtcdCredentials& credentials);

  // Keeps the channels until the process ends, or until LetGo. While members are in use, one set must be kept.
  void Keep() const;
  void LetGo() const;

  // The member to ask.
  const std::shared_ptr<EtcdMember>& current() const { return members_[current_]; }
  static void Answered(EtcdMember& member);
  // If it is the current member, the next one becomes current.
  void Failed(EtcdMember& member, std::string_view error, Instant now);
  const std::vector<std::shared_ptr<EtcdMember>>& all() const { return members_; }
  int size() const { return static_cast<int>(members_.size()); }
  std::string Names() const;

 private:
  std::vector<std::shared_ptr<EtcdMember>> members_;
  size_t current_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_GRPC_ETCD_MEMBERS_H_
