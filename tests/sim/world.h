// One case of the simulation: the daemon's real engine, ledger and pool on simulated disks, with simulated
// trainers and one clock.
#ifndef CKPTD_TESTS_SIM_WORLD_H_
#define CKPTD_TESTS_SIM_WORLD_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/memory/populator.h"
#include "daemon/memory/segment_pool.h"
#include "tests/sim/cases.h"
#include "tests/sim/oracle.h"
#include "tests/sim/plan.h"
#include "tests/sim/schedule.h"
#include "tests/sim/sim_bucket.h"
#include "tests/sim/sim_disk.h"

namespace ckptd::sim {

class Hostile;
class Trainer;

// A launch of a job: what its ranks have in common.
struct Launch {
  int run = 0;
  uid_t uid = 0;
  std::string id;
  int world_size = 1;
  uint64_t seed = 0;
  bool resumes = true;
  bool other_model = false;  // No checkpoint of another launch fits.
  bool descriptors = true;
  // Attempts of which a rank has begun from nothing, because every checkpoint was damaged, or of another
  // model.
  std::set<int64_t> from_nothing;
};

class World : public EngineObserver {
 public:
  World(const Plan& plan, bool trace);
  ~World() override;
  Result Run();

  // ---- For the trainers
  const Plan& plan() const { return plan_; }
  Schedule& schedule() { return schedule_; }
  Oracle& oracle() { return oracle_; }
  Engine* engine() { return engine_.get(); }  // Null while no daemon runs.
  SegmentPool* pool() { return pool_.get(); }
  int64_t daemon() const { return daemon_; }  // The number of this daemon; counts up with each restart.
  bool ending() const { return ending_; }     // The case is ending: start nothing new.
  std::string RunName(int run) const;         // Empty until the root is open.
  SessionId NewSession() { return ++sessions_; }
  RootAttachment Attachment(int run);
  void Count(const std::string& what) { ++result_.counts[what]; }
  // True if the daemon reported that it has prefetched this checkpoint.
  bool IsPrefetched(int run, int64_t sequence) const { return prefetched_.contains({run, sequence}); }
  // Whether the run's checkpoints are uploaded. Not those of the hostile user.
  bool HasBucket(int run) const { return plan_.uploads.every > 0 && run < plan_.runs; }
  template <typename... Args>
  void Trace(const Args&... args);

  // Returns a reply that this daemon must call exactly once while it lives.
  template <typename T, typename Handler>
  Reply<T> Expect(std::string what, Handler handler);

  // ---- EngineObserver
  void OnSaveEnded(const SaveSummary& summary) override;
  void OnWarning(const std::string& message) override;
  void OnInfo(const std::string& message) override;
  void OnRootOpened(const std::string& run, const std::string& path, const ProbeResult&) override;

 private:
  // How long a user may hold more than its share. A save within its share waits this long, perhaps for the
  // turn of a larger save before that, and for the disk: its admission timeout (20 s) is enough.
  static constexpr Duration kOverShareGrace = std::chrono::seconds(2);

  class SimPopulator;
  struct Pending {
    std::string what;
    int64_t daemon;
  };
  template <typename T, typename Handler>
  struct Expected;

  void Apply(const Operation& operation);
  std::vector<std::string> TagsOf(const std::string& run_name);
  void LaunchJob(int run, uint64_t how, std::shared_ptr<Launch> again);
  void StartDaemon();
  void KillDaemon(Duration pause, bool locked);
  void Tick(int64_t daemon);
  void Adopt(int run, const std::string& run_name, const Operation& operation);
  void Undelete(int run, const std::string& run_name, uint64_t which);
  void Prefetch(int run, const std::string& name, bool then_open, uint64_t by);
  void Check();
  int64_t Opened() const;
  void CheckPrefetch(const PoolUsage& usage);
  void CheckDamageIsMarked();
  void CheckUploads();
  void CheckNotStarved(int run, const v1::Checkpoint& ended);
  void CheckNoRoomComes(int run, const v1::Checkpoint& ended);
  std::optional<v1::Checkpoint> FindCheckpoint(int run, const std::string& tag);
  int64_t MappedBytes() const;
  bool IsIdle();
  std::string DescribeActivity();
  // Runs until all work in flight has ended; a violation if it does not.
  bool Settle(const std::string& what);
  void LaunchTwoRanks(int run, const std::string& id);
  void LoseDisks();
  bool RunUntil(Duration until, bool stop_when_idle);
  void End();
  std::vector<std::shared_ptr<Trainer>> LivingTrainers(int run = -1) const;
  std::shared_ptr<Trainer> Pick(uint64_t which) const;

  const Plan plan_;
  const bool tracing_;
  Schedule schedule_;
  Oracle oracle_;
  Random random_;
  Result result_;
  std::vector<std::shared_ptr<SimDisk>> disks_;
  std::map<int, std::shared_ptr<SimBucket>> buckets_;  // By run.
  int ticks_ = 0;
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<Engine> engine_;
  int64_t daemon_ = 0;
  bool starting_ = false;
  bool ending_ = false;
  Instant no_memory_until_;
  std::map<int, Instant> last_end_;  // Of a save, by run.
  SessionId sessions_ = 0;
  int launches_ = 0;
  std::map<int, std::shared_ptr<Launch>> newest_launch_;
  std::shared_ptr<Hostile> hostile_;  // May be null.
  std::vector<std::shared_ptr<Trainer>> trainers_;
  std::map<int64_t, Pending> pending_;  // Replies that are due.
  int64_t next_pending_ = 0;
  // Segments that were freed too early, which stay until the violation is reported.
  std::vector<SegmentMemory> graveyard_;
  std::set<std::pair<int, int64_t>> prefetched_;  // Run, sequence; prefetched by this daemon.
  std::vector<std::pair<int, v1::Checkpoint>> reported_resident_;  // As reported in this step.
  int64_t opened_ = 0;  // Checkpoints opened, and the pool's usage, before the step.
  PoolUsage usage_;
  std::map<std::string, int> runs_by_path_;
  std::map<int, std::string> run_names_;
  bool in_tick_ = false;
};

}  // namespace ckptd::sim

#include "tests/sim/world_inl.h"

#endif  // CKPTD_TESTS_SIM_WORLD_H_
