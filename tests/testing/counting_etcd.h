// An Etcd that counts what one node, or several, ask of it.
#ifndef CKPTD_TESTS_TESTING_COUNTING_ETCD_H_
#define CKPTD_TESTS_TESTING_COUNTING_ETCD_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "daemon/etcd/etcd.h"

namespace ckptd {

struct EtcdCounts {
  int64_t writes = 0;  // Transactions that may write, which etcd's members agree on.
  int64_t reads = 0;
  int64_t conflicts = 0;  // Writes that did not happen, for something had changed.
};

// Both must outlive it.
class CountingEtcd : public Etcd {
 public:
  CountingEtcd(Etcd* etcd, EtcdCounts* counts) : etcd_(etcd), counts_(counts) {}

  void Range(const etcdserverpb::RangeRequest& request, const std::string& purpose,
             Answer<etcdserverpb::RangeResponse> answer) override {
    ++counts_->reads;
    etcd_->Range(request, purpose, std::move(answer));
  }
  void Txn(const etcdserverpb::TxnRequest& request, const std::string& purpose,
           Answer<etcdserverpb::TxnResponse> answer) override {
    const auto is_read = [](const auto& operation) { return operation.has_request_range(); };
    const bool reads = std::all_of(request.success().begin(), request.success().end(), is_read);
    ++(reads ? counts_->reads : counts_->writes);
    etcd_->Txn(request, purpose,
               [counts = counts_, reads,
                answer = std::move(answer)](absl::StatusOr<etcdserverpb::TxnResponse> response) mutable {
                 if (!reads && response.ok() && !response->succeeded()) ++counts->conflicts;
                 answer(std::move(response));
               });
  }
  void GrantLease(const etcdserverpb::LeaseGrantRequest& request, const std::string& purpose,
                  Answer<etcdserverpb::LeaseGrantResponse> answer) override {
    etcd_->GrantLease(request, purpose, std::move(answer));
  }
  void KeepLeaseAlive(const etcdserverpb::LeaseKeepAliveRequest& request, const std::string& purpose,
                      Answer<etcdserverpb::LeaseKeepAliveResponse> answer) override {
    etcd_->KeepLeaseAlive(request, purpose, std::move(answer));
  }
  void RevokeLease(const etcdserverpb::LeaseRevokeRequest& request, const std::string& purpose,
                   Answer<etcdserverpb::LeaseRevokeResponse> answer) override {
    etcd_->RevokeLease(request, purpose, std::move(answer));
  }
  std::unique_ptr<EtcdWatch> Watch(EtcdWatchSpec spec) override { return etcd_->Watch(std::move(spec)); }

 private:
  Etcd* const etcd_;
  EtcdCounts* const counts_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_COUNTING_ETCD_H_
