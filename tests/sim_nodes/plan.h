// The plan of one seed: the size of the cluster, which faults are on, and which operations happen when. All
// other variation comes from the same seed, but from separate random streams: a plan can lose operations
// while the rest runs almost unchanged.
#ifndef CKPTD_TESTS_SIM_NODES_PLAN_H_
#define CKPTD_TESTS_SIM_NODES_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/clock.h"
#include "tests/sim/bucket_model.h"
#include "tests/sim_nodes/shared_disk.h"
#include "tests/testing/simulated_etcd.h"

namespace ckptd::sim_nodes {

enum class OperationKind {
  kLaunch,   // A new launch of the job, on some of the nodes. Ranks of the old one may stay alive.
  kRespawn,  // New processes for all ranks of the newest launch.
  kKillRank,
  kKillLaunch,
  kLoseSession,
  kKillDaemon,  // It starts again a while later.
  kKillCoordinator,
  kStopDaemon,  // In good order; it starts again a while later.
  kPause,       // Of a daemon, perhaps for longer than its lease.
  kPauseCoordinator,
  kCutOff,  // A daemon from etcd.
  kChangeLeader,
  kCompact,  // Of etcd: events that watches have not read yet are gone.
  kHang,     // The file system, for all nodes.
  kOpen,     // A rank reads a checkpoint.
  kForeign,  // Another program makes a directory at the tag of a save.
  // Only in seeds that are chosen for them (plan.cc).
  kRead,          // A rank reads a checkpoint that need not be the newest.
  kDamage,        // Bytes of the newest checkpoint change.
  kFull,          // etcd has used up its quota, until an operator makes room.
  kRegisterAnew,  // A daemon gives up a registration that is good.
  kHangNode,      // The file system of one node, mostly of the coordinator's.
  kRestoreEtcd,   // From a backup, while the job and all daemons are stopped.
  kPutBack,       // A checkpoint that was removed is put back.
  kAbort,         // A rank aborts a save.
  kPin,           // An operator pins a checkpoint, or unpins it, on any node.
};
inline constexpr int kSwarmKinds = static_cast<int>(OperationKind::kForeign) + 1;  // Of any seed.
inline constexpr int kOperationKinds = static_cast<int>(OperationKind::kPin) + 1;

struct Operation {
  Duration at{};
  OperationKind kind = OperationKind::kLaunch;
  uint64_t a = 0, b = 0;  // Choose the target and the variant, modulo the number of candidates.
  std::string ToString() const;
};

struct Plan {
  uint64_t seed = 0;
  int nodes = 3;
  int segments = 16;  // Of each node's pool.
  std::optional<int> kept;
  SimulatedEtcd::Faults etcd;
  SharedDiskFaults disk;
  bool resaves = false;  // Launches save some tags again and again.
  bool overlap = false;  // A rank may have three saves in flight.
  bool subsets = false;  // Some saves are of some ranks only.
  bool skip = false;     // Some saves are skipped where there is no memory.
  bool short_timeouts = false;
  bool readers = false;       // Ranks read older checkpoints all the time.
  bool damage = false;        // Ranks find changed bytes and missing files of checkpoints.
  bool pointers = false;      // Most saves name a pointer, and some re-saves do not.
  bool forgets = false;       // Etcd forgets saves soon after their end.
  int suspect = 0;            // Percentage of parts that a rank calls suspect.
  bool clocks_apart = false;  // The dates of the nodes are hours apart.
  sim::UploadPlan uploads;
  Duration length{};
  std::vector<Operation> operations;  // Sorted by time.

  std::string ToString() const;
};

Plan PlanOf(uint64_t seed);

}  // namespace ckptd::sim_nodes
#endif  // CKPTD_TESTS_SIM_NODES_PLAN_H_
