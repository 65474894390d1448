// A lease that is kept alive: keys under it say that this daemon lives.
#ifndef CKPTD_DAEMON_ETCD_ETCD_LEASE_H_
#define CKPTD_DAEMON_ETCD_ETCD_LEASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "daemon/etcd/etcd.h"
#include "storage/base/clock.h"

namespace ckptd {

// The lease is over for us before it is over for etcd: its time counts from the moment at which the request
// was sent, on a clock that runs while the machine is suspended. A caller that acts in its name asks held()
// first. A process that hangs does not call OnTick, and so loses its lease.
class EtcdLease {
 public:
  // `clock`: BootClock(), but for tests. `lost` runs once, in OnTick or in an answer of etcd's, when a lease
  // that was held has ended; never after Release. `etcd` and `clock` must outlive the lease.
  EtcdLease(Etcd* etcd, Clock* clock, int64_t ttl_seconds, std::string purpose,
            std::function<void(const absl::Status& why)> lost);
  // Revokes nothing: the keys stay until the lease ends by itself.
  ~EtcdLease();

  // Call it once. Answers with the lease's id. LEDGER_UNAVAILABLE also if the answer came so late that the
  // lease may have ended.
  void Acquire(Etcd::Answer<int64_t> answer);
  bool held() const;
  int64_t id() const { return id_; }  // 0: not acquired yet.
  // When held() becomes false without a further answer; on the lease's clock.
  Instant ends() const { return ends_; }
  void OnTick();  // At least once a second.
  // Ends the lease now, and deletes its keys.
  void Release(absl::AnyInvocable<void(absl::Status)> released);

 private:
  void Granted(Instant sent, absl::StatusOr<etcdserverpb::LeaseGrantResponse> granted,
               Etcd::Answer<int64_t> answer);
  void KeepAlive();
  void KeptAlive(Instant sent, const absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse>& kept);
  void Lose(const absl::Status& why);

  Etcd* const etcd_;
  Clock* const clock_;
  const int64_t ttl_seconds_;
  const std::string purpose_;
  std::function<void(const absl::Status&)> lost_;  // Null: it has run, or must not run.
  int64_t id_ = 0;
  Instant ends_, next_keep_alive_;
  bool asking_ = false;  // A request to keep it alive is under way.
  absl::Status last_error_;
  std::shared_ptr<EtcdLease*> self_;  // Null in it: the lease is gone.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_LEASE_H_
