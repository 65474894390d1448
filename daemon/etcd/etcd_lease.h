// A lease that this daemon keeps alive: etcd deletes the keys under it soon after the daemon has ended.
#ifndef CKPTD_DAEMON_ETCD_ETCD_LEASE_H_
#define CKPTD_DAEMON_ETCD_ETCD_LEASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "daemon/etcd/etcd.h"
#include "daemon/etcd/lease_end.h"
#include "storage/base/clock.h"

namespace ckptd {

// This daemon considers the lease ended before etcd does: it counts the time from the moment at which it sent
// the request, on a clock that runs while the machine is suspended. A caller checks held() before each action
// that needs the lease. A process that hangs does not call OnTick, and so loses its lease.
class EtcdLease {
 public:
  // `clock`: BootClock(), except in tests. `lost` runs once, in OnTick or in an answer of etcd's, when a
  // lease that was held has ended; never after Release. `etcd` and `clock` must outlive the lease.
  EtcdLease(Etcd* etcd, Clock* clock, int64_t ttl_seconds, std::string purpose,
            std::function<void(const absl::Status& why)> lost);
  // Does not revoke the lease: the keys stay until the lease expires.
  ~EtcdLease();

  // Call it once. Answers with the lease's id. LEDGER_UNAVAILABLE also if the answer came so late that the
  // lease may have ended.
  void Acquire(Etcd::Answer<int64_t> answer);
  bool held() const;
  int64_t id() const { return id_; }  // 0: not acquired yet.
  // When held() becomes false if etcd does not extend the lease before; on the lease's clock.
  Instant ends() const { return ends_; }
  // The same, for other threads; also when this object is gone.
  std::shared_ptr<const LeaseEnd> end() const { return end_; }
  void OnTick();  // Call it at least once a second.
  // Revokes the lease now; etcd deletes its keys.
  void Release(absl::AnyInvocable<void(absl::Status)> released);

 private:
  void Granted(Instant sent, absl::StatusOr<etcdserverpb::LeaseGrantResponse> granted,
               Etcd::Answer<int64_t> answer);
  void KeepAlive();
  void KeptAlive(Instant sent, const absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse>& kept);
  void OnLost(const absl::Status& why);

  Etcd* const etcd_;
  Clock* const clock_;
  const int64_t ttl_seconds_;
  const std::string purpose_;
  std::function<void(const absl::Status&)> lost_;  // Null: it has run, or must not run any more.
  int64_t id_ = 0;
  Instant ends_, next_keep_alive_;
  const std::shared_ptr<LeaseEnd> end_;
  bool asking_ = false;  // A request to keep it alive is under way.
  absl::Status last_error_;
  std::shared_ptr<EtcdLease*> self_;  // Points to null once this object is destroyed.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_LEASE_H_
