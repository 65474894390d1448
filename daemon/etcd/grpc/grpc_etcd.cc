#include "daemon/etcd/grpc/grpc_etcd.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/etcd/grpc/etcd_call.h"
#include "daemon/etcd/grpc/etcd_connection.h"
#include "daemon/etcd/grpc/etcd_members.h"
#include "daemon/etcd/grpc/grpc_watch.h"
#include "storage/base/status_macros.h"

namespace ckptd {

using namespace etcdserverpb;

class GrpcEtcd::Impl {
 public:
  Impl(const EtcdOptions& options, EtcdCredentials credentials, Clock* clock, Post post)
      : connection_(
            std::make_shared<EtcdConnection>(options, std::move(credentials), clock, std::move(post))) {}
  ~Impl() {
    connection_->Close();
    for (const auto& weak : watches_) {
      if (auto watch = weak.lock()) watch->Stop();
    }
  }

  template <typename Request, typename Response>
  void Call(const Request& request, typename EtcdCallOf<Request, Response>::Method method,
            const std::string& purpose, Answer<Response> answer, bool linearizable, bool writes) {
    auto call =
        std::make_shared<EtcdCallOf<Request, Response>>(request, std::move(method), std::move(answer));
    call->purpose = purpose;
    call->linearizable = linearizable;
    call->writes = writes;
    connection_->Start(call);
  }

  std::shared_ptr<GrpcWatch> NewWatch(EtcdWatchSpec spec) {
    auto watch = std::make_shared<GrpcWatch>(connection_, std::move(spec));
    watches_.push_back(watch);
    // The watch begins after this has returned, and at the next tick at the latest.
    connection_->post()([weak = std::weak_ptr<GrpcWatch>(watch)] {
      if (auto begun = weak.lock()) begun->OnTick();
    });
    return watch;
  }

  EtcdConnection& connection() { return *connection_; }

  void OnTick() {
    connection_->OnTick();
    std::erase_if(watches_, [](const auto& watch) { return watch.expired(); });
    for (const auto& weak : std::vector<std::weak_ptr<GrpcWatch>>(watches_)) {
      if (auto watch = weak.lock()) watch->OnTick();
    }
  }

 private:
  const std::shared_ptr<EtcdConnection> connection_;
  std::vector<std::weak_ptr<GrpcWatch>> watches_;
};

namespace {

class WatchHandle : public EtcdWatch {
 public:
  explicit WatchHandle(std::shared_ptr<GrpcWatch> watch) : watch_(std::move(watch)) {}
  ~WatchHandle() override { watch_->Stop(); }

 private:
  const std::shared_ptr<GrpcWatch> watch_;
};

}  // namespace

GrpcEtcd::GrpcEtcd(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcEtcd::~GrpcEtcd() = default;

absl::StatusOr<std::unique_ptr<GrpcEtcd>> GrpcEtcd::Make(const EtcdOptions& options, Clock* clock,
                                                         Post post) {
  CKPTD_ASSIGN_OR_RETURN(EtcdCredentials credentials, ReadEtcdCredentials(options));
  return std::unique_ptr<GrpcEtcd>(
      new GrpcEtcd(std::make_unique<Impl>(options, std::move(credentials), clock, std::move(post))));
}

void GrpcEtcd::Renew(EtcdCredentials credentials, Renewed done) {
  impl_->connection().Renew(std::move(credentials), std::move(done));
}

void GrpcEtcd::OnTick() { impl_->OnTick(); }

std::vector<EtcdMemberState> GrpcEtcd::members() const {
  std::vector<EtcdMemberState> states;
  for (const auto& member : impl_->connection().members().all()) {
    states.push_back({member->endpoint, member->answers, member->error});
  }
  return states;
}

const absl::Status& GrpcEtcd::full() const { return impl_->connection().full(); }

void GrpcEtcd::OnCallEnded(CallEnded ended) { impl_->connection().OnCallEnded(std::move(ended)); }

void GrpcEtcd::Range(const RangeRequest& request, const std::string& purpose, Answer<RangeResponse> answer) {
  impl_->Call<RangeRequest, RangeResponse>(
      request, [](EtcdMember& member, auto... arguments) { member.kv->async()->Range(arguments...); },
      purpose, std::move(answer), /*linearizable=*/true, /*writes=*/false);
}

void GrpcEtcd::Txn(const TxnRequest& request, const std::string& purpose, Answer<TxnResponse> answer) {
  const bool writes = std::any_of(request.success().begin(), request.success().end(),
                                  [](const RequestOp& operation) { return operation.has_request_put(); });
  impl_->Call<TxnRequest, TxnResponse>(
      request, [](EtcdMember& member, auto... arguments) { member.kv->async()->Txn(arguments...); }, purpose,
      std::move(answer), /*linearizable=*/true, writes);
}

// Calls about leases are not linearizable: the answer has the member's own revision, which may be behind.
void GrpcEtcd::GrantLease(const LeaseGrantRequest& request, const std::string& purpose,
                          Answer<LeaseGrantResponse> answer) {
  impl_->Call<LeaseGrantRequest, LeaseGrantResponse>(
      request, [](EtcdMember& member, auto... arguments) { member.lease->async()->LeaseGrant(arguments...); },
      purpose, std::move(answer), /*linearizable=*/false, /*writes=*/true);
}

void GrpcEtcd::KeepLeaseAlive(const LeaseKeepAliveRequest& request, const std::string& purpose,
                              Answer<LeaseKeepAliveResponse> answer) {
  impl_->Call<LeaseKeepAliveRequest, LeaseKeepAliveResponse>(
      request,
      [](EtcdMember& member, auto... arguments) { member.lease->async()->LeaseKeepAlive(arguments...); },
      purpose, std::move(answer), /*linearizable=*/false, /*writes=*/false);
}

void GrpcEtcd::RevokeLease(const LeaseRevokeRequest& request, const std::string& purpose,
                           Answer<LeaseRevokeResponse> answer) {
  impl_->Call<LeaseRevokeRequest, LeaseRevokeResponse>(
      request,
      [](EtcdMember& member, auto... arguments) { member.lease->async()->LeaseRevoke(arguments...); },
      purpose, std::move(answer), /*linearizable=*/false, /*writes=*/false);
}

std::unique_ptr<EtcdWatch> GrpcEtcd::Watch(EtcdWatchSpec spec) {
  return std::make_unique<WatchHandle>(impl_->NewWatch(std::move(spec)));
}

}  // namespace ckptd
