// One case of the simulation: nodes whose daemons share a root and an etcd, the ranks of a job on them, and
// one clock.
#ifndef CKPTD_TESTS_SIM_NODES_WORLD_H_
#define CKPTD_TESTS_SIM_NODES_WORLD_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/cases.h"
#include "tests/sim/schedule.h"
#include "tests/sim_nodes/oracle.h"
#include "tests/sim_nodes/plan.h"
#include "tests/sim_nodes/shared_bucket.h"
#include "tests/sim_nodes/shared_disk.h"
#include "tests/testing/etcd_model.h"
#include "tests/testing/simulated_etcd.h"

namespace ckptd::sim_nodes {

class Node;
class Rank;

inline constexpr int64_t kLeaseSeconds = 5;
inline constexpr Duration kGrace = std::chrono::seconds(10);  // For a lost node to come back.

// A launch of the job: the state that its ranks have in common.
struct Launch {
  std::string id;
  std::vector<int> nodes;  // Of each rank.
  uint64_t seed = 0;
  bool resumes = true;

  int world_size() const { return static_cast<int>(nodes.size()); }
  std::set<int> AllRanks() const;
};

class World {
 public:
  World(const Plan& plan, bool trace);
  ~World();
  sim::Result Run();

  // ---- for nodes and ranks
  const Plan& plan() const { return plan_; }
  sim::Schedule& schedule() { return schedule_; }
  Oracle& oracle() { return oracle_; }
  SimulatedEtcd& etcd() { return *etcd_; }
  SharedDisk& disk() { return *disk_; }
  SharedBucket* bucket() { return bucket_.get(); }  // Null: nothing is uploaded.
  Node& node(int index) { return *nodes_[static_cast<size_t>(index)]; }
  bool ending() const { return ending_; }  // Start nothing new.
  // Whether etcd has recorded that all ranks of the attempt have read this checkpoint. `attempt`: as in etcd.
  bool HasAgreed(int64_t attempt, int64_t sequence);
  void Count(const std::string& what) { ++result_.counts[what]; }
  void DaemonGone(int node);
  template <typename... Args>
  void Trace(const Args&... args) {
    if (tracing_)
      result_.trace.push_back(
          absl::StrCat(schedule_.elapsed() / std::chrono::microseconds(1), " us: ", args...));
  }

 private:
  void Apply(const Operation& operation);
  void LaunchJob(const std::shared_ptr<Launch>& launch);
  std::shared_ptr<Launch> NewLaunch(uint64_t how);
  std::vector<std::shared_ptr<Rank>> Living() const;
  void KillLiving();
  Node& Coordinator(uint64_t otherwise);
  // `pause`: until it starts again.
  void KillDaemon(Node& node, Duration pause);
  void PauseDaemon(Node& node, Duration pause);
  void StartDaemon(Node& node);
  void BeginRestore(bool in_good_order, uint64_t which);
  void RestoreEtcd(uint64_t which);
  // From a backup of this revision. No daemon and no rank lives.
  void RestoreEtcdAt(int64_t revision);
  void ResolveUnknown();
  int64_t ChooseBackup(EtcdModel& model, uint64_t which) const;
  bool RunUntil(Duration until, const std::function<bool()>& done);
  bool Settle(const char* what, const std::function<bool()>& done);
  void End();
  bool CheckBucket();
  void LoseDiskAndEtcd();
  void CheckHistory();
  // A change of the root that no daemon made, or a restore of etcd.
  struct RootChange {
    std::set<int64_t> there, gone;  // Sequences of checkpoints.
    bool etcd_restored = false;
  };
  struct Kept {
    std::set<int64_t> whole, damaged;  // Sequences.
    std::set<int64_t> there;           // In the root, even if etcd does not know them.
    std::set<int64_t> replacing;       // Saves for which another checkpoint is removed.
    std::set<int64_t> pinned = {};
  };
  static void KeepExisting(const RootChange& change, Kept* kept);
  bool CheckPutBack();
  bool CheckRetention();
  void CheckRemoval(const std::string& key, const std::string& value, Kept* kept);
  bool RanksAreIdle() const;
  std::string Activity() const;

  const Plan plan_;
  const bool tracing_;
  sim::Schedule schedule_;
  Oracle oracle_;
  sim::Random random_;
  sim::Result result_;
  std::unique_ptr<SimulatedEtcd> etcd_;
  std::unique_ptr<SharedDisk> disk_;
  std::unique_ptr<SharedBucket> bucket_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::shared_ptr<Rank>> ranks_;
  std::shared_ptr<Launch> newest_launch_;
  int launches_ = 0;
  bool ending_ = false;
  bool restoring_ = false;  // No daemon lives until etcd is restored.
  bool restored_ = false;
  std::map<int64_t, RootChange> changes_;  // By etcd's revision at that time, in its present history.
};

}  // namespace ckptd::sim_nodes
#endif  // CKPTD_TESTS_SIM_NODES_WORLD_H_
