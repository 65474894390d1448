// For suites that run against the simulated etcd, a model over gRPC, and Debian's etcd.
#ifndef CKPTD_TESTS_TESTING_ANY_ETCD_H_
#define CKPTD_TESTS_TESTING_ANY_ETCD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "tests/sim/schedule.h"
#include "tests/testing/etcd_caller.h"
#include "tests/testing/etcd_cluster.h"
#include "tests/testing/etcd_fake_member.h"
#include "tests/testing/simulated_etcd.h"

namespace ckptd {

struct EtcdKind {
  enum Way {
    kSimulated,              // No faults.
    kFaulty,                 // Simulated, with the faults of the seed.
    kModel,                  // Over gRPC.
    kModelThatLosesAnswers,  // Over gRPC: the first answer to each request.
    kReal,
  };
  Way way = kSimulated;
  uint64_t seed = 0;

  bool simulated() const { return way == kSimulated || way == kFaulty; }
  // When their time is over, without a word of the test.
  bool ends_leases() const { return simulated() || way == kReal; }
  std::string name() const;  // For the name of a test.
};
inline void PrintTo(const EtcdKind& kind, std::ostream* out) { *out << kind.name(); }
// All kinds, of the faulty one as many as there are seeds.
std::vector<EtcdKind> AllEtcds(int seeds);
std::vector<EtcdKind> SimulatedEtcds(int seeds);

class AnyEtcd {
 public:
  explicit AnyEtcd(EtcdKind kind);
  ~AnyEtcd();

  EtcdCaller& caller() { return *caller_; }
  Clock* clock();  // That of leases.
  // A connection for one daemon: of its own if etcd is simulated. Lives as long as this object.
  Etcd* NewClient();
  bool simulated() const { return simulation_ != nullptr; }
  SimulatedEtcd& simulation() { return *simulation_; }  // Only then.
  // Likewise: runs an event later, at its time.
  void After(Duration delay, absl::AnyInvocable<void()> event) { schedule_.After(delay, std::move(event)); }

  bool has_model() const { return simulation_ != nullptr || member_ != nullptr; }
  void WithModel(const std::function<void(EtcdModel&)>& use);
  // For a lease that is not kept alive: over gRPC the model knows no time. Elsewhere it ends by itself.
  void EndLeaseOfModel(int64_t id);
  // The real one; it serves all tests of a process.
  static EtcdCluster& Cluster();
  static void StopCluster();

 private:
  void StartSimulation(EtcdKind kind);
  void Connect(EtcdKind kind);
  void StartMember(bool loses_answers, EtcdOptions* options);
  void Tick();

  sim::Schedule schedule_;
  std::unique_ptr<SimulatedEtcd> simulation_;
  std::vector<std::unique_ptr<SimulatedEtcd::Client>> clients_;
  std::unique_ptr<EtcdFakeMember> member_;
  std::unique_ptr<EtcdCaller> caller_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_ANY_ETCD_H_
