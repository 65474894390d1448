// Seam: etcd, the store that decides for several daemons. Implementations: GrpcEtcd; for tests in
// tests/testing.
//
// Called on one thread, the engine's; answers run there, after the call has returned, and never after the
// destruction of the object. Every answer comes within the call's deadline.
//
// A request is asked again when its answer was lost, so it may be applied twice, and once more LATER: a copy
// that was under way to another member may arrive after the answer, and after what was asked next. Therefore
// a transaction that writes compares the mod_revision of every key that it rewrites, or that the key was
// never there, and its `failure` branch reads these keys: whoever finds there what it wanted to write has
// succeeded.
//
// Errors have a reason of etcd_errors.h, and say what the call was for (`purpose`, as in "no answer from etcd
// while PURPOSE").
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

// Ends with the object: no callback runs after that. May be destroyed by its own callbacks.
class EtcdWatch {
 public:
  virtual ~EtcdWatch() = default;
};

struct EtcdWatchSpec {
  std::string key, range_end;  // As in etcdserverpb.RangeRequest.
  int64_t from_revision = 1;   // The first whose events are reported.
  std::string purpose;
  // Events in the order of their revisions, each once, all events of a revision in one call. They may come
  // late: what they say was so, and may be so no longer.
  std::function<void(const std::vector<etcdserverpb::Event>&)> changed;
  // No more events will come. LEDGER_COMPACTED: some are forgotten, so read the range again and watch from
  // there. Other errors: what the watch needs is refused, or etcd has lost its past. That etcd is away for a
  // while ends no watch.
  std::function<void(const absl::Status&)> ended;
};

class Etcd {
 public:
  template <typename T>
  using Answer = absl::AnyInvocable<void(absl::StatusOr<T>)>;

  virtual ~Etcd() = default;

  // Linearizable: sees all that was answered before, to any client.
  virtual void Range(const etcdserverpb::RangeRequest& request, const std::string& purpose,
                     Answer<etcdserverpb::RangeResponse> answer) = 0;
  // Also the way to put and to delete: a transaction without comparisons.
  virtual void Txn(const etcdserverpb::TxnRequest& request, const std::string& purpose,
                   Answer<etcdserverpb::TxnResponse> answer) = 0;

  // A lease whose grant was asked for twice exists twice; the one that no caller knows ends by itself.
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
