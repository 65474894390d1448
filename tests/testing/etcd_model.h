// A model of etcd's content: keys with all their versions, transactions, leases, compaction. It answers as
// one member that never fails; who uses it makes the faults.
#ifndef CKPTD_TESTS_TESTING_ETCD_MODEL_H_
#define CKPTD_TESTS_TESTING_ETCD_MODEL_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "etcd/messages.pb.h"

namespace ckptd {

// Errors have etcd's codes and texts. Used on one thread.
class EtcdModel {
 public:
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request) const;
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request);

  etcdserverpb::LeaseGrantResponse GrantLease(const etcdserverpb::LeaseGrantRequest& request);
  etcdserverpb::LeaseKeepAliveResponse KeepLeaseAlive(
      const etcdserverpb::LeaseKeepAliveRequest& request) const;
  // Also what happens when a lease ends: its keys are deleted.
  absl::StatusOr<etcdserverpb::LeaseRevokeResponse> RevokeLease(
      const etcdserverpb::LeaseRevokeRequest& request);

  // What a backup of that revision holds: nothing of what came later has happened, and leases that have ended
  // since live.
  void TakeBack(int64_t revision);
  // Of the living leases, their TTLs in seconds by id.
  std::map<int64_t, int64_t> leases() const;

  // Applies once more every transaction that was ever asked for, in order, as late copies of requests may be.
  void ReplayTransactions();

  void Compact(int64_t revision) { compacted_ = revision; }
  int64_t compacted() const { return compacted_; }
  int64_t revision() const { return revision_; }
  // What has happened in a range from a revision on, in order.
  std::vector<etcdserverpb::Event> Events(const std::string& key, const std::string& range_end,
                                          int64_t from) const;
  etcdserverpb::ResponseHeader Header() const;

 private:
  struct Lease {
    int64_t ttl_seconds = 0;
    int64_t granted_at = 0;  // The revision then,
    int64_t ended_at = 0;    // and the last one with its keys; 0: it lives.
  };
  using Versions = std::map<int64_t, etcdserverpb::KeyValue>;  // By revision; version 0: deleted.

  static bool Contains(const std::string& key, const std::string& range_end, const std::string& candidate);
  // The key as it was at a revision; null: it did not exist.
  const etcdserverpb::KeyValue* At(const std::string& key, int64_t revision) const;
  std::vector<const etcdserverpb::KeyValue*> InRange(const std::string& key, const std::string& range_end,
                                                     int64_t revision) const;
  bool Holds(const etcdserverpb::Compare& compare) const;
  absl::Status Check(const etcdserverpb::TxnRequest& request) const;
  absl::StatusOr<etcdserverpb::TxnResponse> Apply(const etcdserverpb::TxnRequest& request, int64_t next);
  void Put(const etcdserverpb::PutRequest& request, int64_t revision);
  const Lease* FindLease(int64_t id) const;  // Null: it does not live.
  int64_t DeleteRange(const std::string& key, const std::string& range_end, int64_t revision);

  std::map<std::string, Versions> keys_;
  std::map<int64_t, Lease> leases_;  // By id; also those that have ended.
  std::vector<etcdserverpb::TxnRequest> transactions_;
  int64_t revision_ = 1, compacted_ = 0, next_lease_ = 1;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_ETCD_MODEL_H_
