// What one seed does: how large the world is, which faults are on, and what is done to it when. Everything
// else that varies (how long an operation takes, what a trainer saves) comes from the same seed, but from
// streams of their own: so a plan can lose operations and the rest still goes much the same way.
#ifndef CKPTD_TESTS_SIM_PLAN_H_
#define CKPTD_TESTS_SIM_PLAN_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/clock.h"
#include "tests/sim/sim_disk.h"

namespace ckptd::sim {

enum class Act {
  kLaunch,  // A new launch of a run's job, which may leave the old one's trainers alive.
  kKillTrainer,
  kKillLaunch,
  kLoseSession,    // The trainer lives, and does not know at once.
  kRespawnRank,    // A new process for one rank of the newest launch.
  kRespawnLaunch,  // For all, under the same launch id.
  kRestart,        // The daemon is killed.
  kDrain,          // It ends in good order.
  kAbort,
  kOperatorAbort,
  kOpen,
  kPin,
  kUnpin,
  kHang,      // A disk, for a while.
  kNoMemory,  // The machine, for a while.
  kStepDate,
  kRepeat,  // A trainer sends its last request of a save once more.
  kPrefetch,
  kRot,      // A file on disk.
  kForeign,  // Another program finishes a checkpoint in the root, or writes one anew.
  kAdopt,
};
inline constexpr int kActs = static_cast<int>(Act::kAdopt) + 1;

struct Operation {
  Duration at{};
  Act act = Act::kLaunch;
  uint64_t a = 0, b = 0;  // Whom, how: taken modulo what there is.
  std::string Words() const;
};

struct Plan {
  uint64_t seed = 0;
  int runs = 1;         // Roots of jobs that mean no harm.
  bool shared = false;  // All roots are on one file system.
  bool users = false;   // Each run is another user's.
  // One more user, with two roots of its own, who takes what it can get and gives nothing back.
  bool hostile = false;
  int segments = 8;
  int64_t disk_bytes = 0;
  std::optional<int> kept;
  DiskFaults faults;
  bool growing = false, skip = false, supersede = false, resaves = false, grpc_only = false, overlap = false;
  bool conflicts = false;
  bool short_patience = false;
  bool small_disk = false;
  int foreign = 0;  // Checkpoints of another program, in each root from the beginning.
  int maps = 0;     // Percent of the readers map what they read from memory.
  int damage = 0;   // Percent of the readers of what an attempt resumes from find some.
  Duration length{};
  std::vector<Operation> operations;  // In the order of their times.

  int roots() const { return hostile ? runs + 2 : runs; }
  uid_t UidOf(int run) const;
  std::string Words() const;
};

// A save of three ranks with three files of 3 MiB each, in segments of 2 MiB.
inline constexpr int kMostSegmentsOfSave = 15;

Plan PlanOf(uint64_t seed);

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_PLAN_H_
