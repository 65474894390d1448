// The plan of one seed: the size of the world, which faults are on, and which operations happen when. All
// other variation (how long an I/O takes, what a trainer saves) comes from the same seed, but from separate
// random streams: a plan can lose operations while the rest runs almost unchanged.
#ifndef CKPTD_TESTS_SIM_PLAN_H_
#define CKPTD_TESTS_SIM_PLAN_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "storage/base/clock.h"
#include "tests/sim/bucket_model.h"
#include "tests/sim/sim_disk.h"

namespace ckptd::sim {

enum class OperationKind {
  kLaunch,  // A new launch of a job. The trainers of the old launch may stay alive.
  kKillTrainer,
  kKillLaunch,
  kLoseSession,    // The daemon ends the session; the trainer lives and notices later.
  kRespawnRank,    // A new process for one rank of the newest launch.
  kRespawnLaunch,  // New processes for all ranks, under the same launch id.
  kRestart,        // Kills the daemon.
  kDrain,          // Drains the daemon: an orderly end.
  kAbort,
  kOperatorAbort,
  kOpen,
  kPin,
  kUnpin,
  kHang,      // A disk hangs for a while.
  kNoMemory,  // The machine runs out of memory for a while.
  kStepDate,
  kRepeat,  // A trainer repeats its last request of a save.
  kPrefetch,
  kDamageFile,  // Damages a file on disk.
  kForeign,     // Another program completes a checkpoint in the root, or overwrites one.
  kAdopt,
  kUndelete,
  kMoveIn,      // A checkpoint of another root is moved in.
  kPutBack,     // A copy of an evicted checkpoint is put back.
  kRemoveOurs,  // The directory .ckptd of an open root is removed.
};
inline constexpr int kOperationKinds = static_cast<int>(OperationKind::kRemoveOurs) + 1;

struct Operation {
  Duration at{};
  OperationKind kind = OperationKind::kLaunch;
  uint64_t a = 0, b = 0;  // Choose the target and the variant, modulo the number of candidates.
  std::string ToString() const;
};

struct Plan {
  uint64_t seed = 0;
  int runs = 1;         // Roots of well-behaved jobs.
  bool shared = false;  // All roots are on one file system.
  bool users = false;   // Each run belongs to a different user.
  // One more user, with two roots, takes all resources that it can get, and returns none.
  bool hostile = false;
  int segments = 8;
  int64_t disk_bytes = 0;
  std::optional<int> kept;
  int suspect = 0;          // Percentage of parts that a rank calls suspect.
  int64_t every_steps = 0;  // Checkpoints whose step is a multiple of it are kept, too; 0: none.
  Duration grace{};         // Of the trash.
  DiskFaults faults;
  bool growing = false, skip = false, supersede = false, resaves = false, grpc_only = false, overlap = false;
  bool conflicts = false;
  bool short_timeouts = false;
  bool small_disk = false;
  int foreign = 0;  // Checkpoints of another program that each root starts with.
  int maps = 0;     // Percentage of readers that map checkpoints from memory.
  bool models =
      false;           // Some launches have another model: they cannot resume, and save a state of their own.
  int damage = 0;      // Percentage of resuming readers that report damage.
  UploadPlan uploads;  // Of each run.
  Duration length{};
  std::vector<Operation> operations;  // Sorted by time.

  int roots() const { return hostile ? runs + 2 : runs; }
  uid_t UidOf(int run) const;
  std::string ToString() const;
};

// A save of three ranks with three files of 3 MiB each, in segments of 2 MiB.
inline constexpr int kMaxSegmentsOfSave = 15;

Plan PlanOf(uint64_t seed);

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_PLAN_H_
