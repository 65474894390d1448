// etcd as a simulation sees it: one EtcdModel, and for each daemon a client that is slow, loses requests and
// answers, and can be cut off. No thread and no gRPC: what happens depends on the seed alone.
#ifndef CKPTD_TESTS_TESTING_SIMULATED_ETCD_H_
#define CKPTD_TESTS_TESTING_SIMULATED_ETCD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/etcd/etcd.h"
#include "storage/base/clock.h"
#include "tests/testing/etcd_model.h"

namespace ckptd {

// Linearizable, as etcd is: a request is applied at one moment, but perhaps long after its client has asked
// again, and after it was answered.
class SimulatedEtcd {
 public:
  // Runs an event later, on the simulation's only thread; events due together in the order of their calls.
  using After = std::function<void(Duration delay, absl::AnyInvocable<void()> event)>;

  // Times are those of `clock`; chances are in percent of the tries of a call.
  struct Faults {
    Duration longest_way = std::chrono::milliseconds(2);  // From a client to etcd, and back.
    int lost_requests = 0;
    int lost_answers = 0;
    int late_requests = 0;  // They arrive after another try, or after the answer.
    Duration latest_request = std::chrono::seconds(20);
    Duration latest_event = std::chrono::milliseconds(2);  // Until a watch reports what has happened.
    Duration lease_patience =
        std::chrono::milliseconds(0);  // A lease may live for so much longer than its TTL.
  };

  SimulatedEtcd(After after, Clock* clock, uint64_t seed, Faults faults);
  ~SimulatedEtcd();

  // A daemon's way to etcd. It may be destroyed before or after this object.
  class Client : public Etcd {
   public:
    // While it is cut off, nothing arrives in either direction; calls end with LEDGER_UNAVAILABLE.
    virtual void CutOff(bool cut) = 0;
  };
  std::unique_ptr<Client> Connect();

  // What is stored; after a change its watches are told.
  void WithModel(const std::function<void(EtcdModel&)>& use);
  // From now on everything arrives soon, and once.
  void EndFaults();
  // Full: its quota is used up. It answers reads, keeps leases alive and removes keys, and refuses whatever
  // may store something, with LEDGER_FULL.
  void SetFull(bool full);
  // From now on every watch reports what has happened so much later.
  void DelayEvents(Duration delay);
  // As a member that takes over does: every lease has its full time again.
  void ChangeLeader();
  // As etcd that was stopped and was restored from a backup of this revision. What was on its way never
  // arrives, and every lease of the backup has its full time again. All clients must be gone.
  void Restore(int64_t revision);
  // Runs whenever a transaction has arrived, before it is applied: what is done there came first. Null: no
  // more.
  void BeforeTransaction(std::function<void(const etcdserverpb::TxnRequest&)> run);

 private:
  class Server;
  class ClientOf;
  class WatchOf;
  const std::shared_ptr<Server> server_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_SIMULATED_ETCD_H_
