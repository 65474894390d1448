// The channels to etcd's members. Internal to daemon/etcd: it brings gRPC's headers along.
#ifndef CKPTD_DAEMON_ETCD_ETCD_MEMBERS_H_
#define CKPTD_DAEMON_ETCD_ETCD_MEMBERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/etcd/etcd_options.h"
#include "etcd/service.grpc.pb.h"

namespace ckptd {

struct EtcdMember {
  std::string endpoint;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  std::unique_ptr<etcdserverpb::Watch::Stub> watch;
  std::unique_ptr<etcdserverpb::Auth::Stub> auth;
};

class EtcdMembers {
 public:
  // Reads the files of TLS. Connects to nobody yet.
  static absl::StatusOr<EtcdMembers> Make(const EtcdOptions& options);

  // The one to ask.
  EtcdMember& current() { return *members_[current_]; }
  // The next one is asked from now on, unless it is already.
  void Failed(const EtcdMember& member);
  int size() const { return static_cast<int>(members_.size()); }
  std::string Names() const;

 private:
  std::vector<std::unique_ptr<EtcdMember>> members_;
  size_t current_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_MEMBERS_H_
