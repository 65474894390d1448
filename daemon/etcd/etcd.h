// Seam: etcd, the store that decides for several daemons. Implementations: GrpcEtcd; for tests in
// tests/testing.
//
// Called on one thread, the engine's; answers run there, after the call has returned, and never after the
// destruction of the object. Every answer comes within the call's deadline.
//
// A request is sent again when its answer was lost, so etcd may apply it twice, and once more LATER: a copy
// that was under way to another member may arrive after the answer, and after later requests. Therefore a
// transaction that writes compares the mod_revision of every key that it rewrites, or that the key does not
// exist yet, and its `failure` branch reads these keys: if they have the values that the caller wanted to
// write, an earlier copy of the request has succeeded.
//
// Errors have a reason of etcd_errors.h. Their messages contain the call's `purpose`, as in "no answer from
// etcd while PURPOSE", except those of LEDGER_RESTORED and of a refused user.
#ifndef CKPTD_DAEMON_ETCD_ETCD_H_
#define CKPTD_DAEMON_ETCD_ETCD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "etcd/messages.pb.h"

namespace ckptd {

// No callback runs after the destruction of the object. Its own callbacks may destroy it.
class EtcdWatch {
 public:
  virtual ~EtcdWatch() = default;
};

struct EtcdWatchSpec {
  std::string key, range_end;  // As in etcdserverpb.RangeRequest.
  int64_t from_revision = 1;   // The first whose events are reported.
  std::string purpose;
  // Events in the order of their revisions, each once, all events of a revision in one call. They may come
  // late: the keys may have changed again since.
  std::function<void(const std::vector<etcdserverpb::Event>&)> changed;
  // No more events will come. LEDGER_COMPACTED: etcd no longer has some of the events, so read the range
  // again and watch from that revision. Other errors: etcd refuses the watch, or was restored from a backup.
  // The watch goes on after a time in which etcd was unavailable.
  std::function<void(const absl::Status&)> ended;
};

class Etcd {
 public:
  template <typename T>
  using Answer = absl::AnyInvocable<void(absl::StatusOr<T>)>;

  virtual ~Etcd() = default;

  // Linearizable: sees every write that etcd has acknowledged before, to any client.
  virtual void Range(const etcdserverpb::RangeRequest& request, const std::string& purpose,
                     Answer<etcdserverpb::RangeResponse> answer) = 0;
  // To put or delete without a condition, send a transaction without comparisons.
  virtual void Txn(const etcdserverpb::TxnRequest& request, const std::string& purpose,
                   Answer<etcdserverpb::TxnResponse> answer) = 0;

  // A request that was sent twice may grant two leases; the one whose id no caller has expires.
  virtual void GrantLease(const etcdserverpb::LeaseGrantRequest& request, const std::string& purpose,
                          Answer<etcdserverpb::LeaseGrantResponse> answer) = 0;
  // TTL 0 in the answer: the lease has ended.
  virtual void KeepLeaseAlive(const etcdserverpb::LeaseKeepAliveRequest& request, const std::string& purpose,
                              Answer<etcdserverpb::LeaseKeepAliveResponse> answer) = 0;
  // LEDGER_LEASE_ENDED if there is no such lease.
  virtual void RevokeLease(const etcdserverpb::LeaseRevokeRequest& request, const std::string& purpose,
                           Answer<etcdserverpb::LeaseRevokeResponse> answer) = 0;

  virtual std::unique_ptr<EtcdWatch> Watch(EtcdWatchSpec spec) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_H_
