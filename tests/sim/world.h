// One case: the daemon's real engine, ledger and pool, disks and trainers of the simulation, one clock.
#ifndef CKPTD_TESTS_SIM_WORLD_H_
#define CKPTD_TESTS_SIM_WORLD_H_

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
#include "tests/sim/oracle.h"
#include "tests/sim/plan.h"
#include "tests/sim/schedule.h"
#include "tests/sim/sim_disk.h"

namespace ckptd::sim {

class Hostile;
class Trainer;

// A launch of a run's job: what its ranks have in common.
struct Launch {
  int run = 0;
  uid_t uid = 0;
  std::string id;
  int world_size = 1;
  uint64_t seed = 0;
  bool resumes = true;
  bool descriptors = true;
};

struct Result {
  std::string violation;  // Empty: every promise was kept.
  int64_t steps = 0;      // Events, ticks not counted.
  std::map<std::string, int64_t> counts;
  std::vector<std::string> trace;
};

class World : public EngineObserver {
 public:
  World(const Plan& plan, bool trace);
  ~World() override;
  Result Run();

  // ---- for the trainers
  const Plan& plan() const { return plan_; }
  Schedule& schedule() { return schedule_; }
  Oracle& oracle() { return oracle_; }
  Engine* engine() { return engine_.get(); }  // Null while no daemon runs.
  SegmentPool* pool() { return pool_.get(); }
  int64_t daemon() const { return daemon_; }  // Counts them.
  bool ending() const { return ending_; }     // Begin nothing new.
  std::string RunName(int run) const;         // Empty while its root is not open.
  SessionId NewSession() { return ++sessions_; }
  RootAttachment Attachment(int run);
  void Count(const std::string& what) { ++result_.counts[what]; }
  // The daemon said that it has read it into memory.
  bool IsReadAhead(int run, int64_t sequence) const { return read_ahead_.contains({run, sequence}); }
  template <typename... Words>
  void Trace(const Words&... words);

  // A reply that has to be given, once, as long as this daemon lives.
  template <typename T, typename Handler>
  Reply<T> Expect(std::string what, Handler handler);

  // ---- EngineObserver
  void OnSaveEnded(const SaveSummary& summary) override;
  void OnWarning(const std::string& message) override;
  void OnInfo(const std::string& message) override;
  void OnRootOpened(const std::string& run, const std::string& path, const ProbeResult&) override;

 private:
  class SimPopulator;
  struct Pending {
    std::string what;
    int64_t daemon;
  };
  template <typename T, typename Handler>
  struct Expected;

  void Do(const Operation& operation);
  std::vector<std::string> TagsOf(const std::string& run_name);
  void LaunchJob(int run, uint64_t how, std::shared_ptr<Launch> again);
  void StartDaemon();
  void KillDaemon(Duration pause, bool locked);
  void Tick(int64_t daemon);
  void Adopt(int run, const std::string& run_name, const Operation& operation);
  void Prefetch(int run, const std::string& name, bool then_open, uint64_t by);
  void Check();
  int64_t Opened() const;
  void CheckReadAhead(const PoolUsage& usage);
  void CheckDamageIsMarked();
  void CheckNotStarved(int run, const v1::Checkpoint& ended);
  void CheckNoRoomComes(int run, const v1::Checkpoint& ended);
  std::optional<v1::Checkpoint> Known(int run, const std::string& tag);
  int64_t MappedBytes() const;
  bool Quiet();
  std::string WhatGoesOn();
  bool RunUntil(Duration until, bool may_be_quiet);
  void End();
  std::vector<std::shared_ptr<Trainer>> Living(int run = -1) const;
  std::shared_ptr<Trainer> Pick(uint64_t which) const;

  const Plan plan_;
  const bool tracing_;
  Schedule schedule_;
  Oracle oracle_;
  Random random_;
  Result result_;
  std::vector<std::shared_ptr<SimDisk>> disks_;
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<Engine> engine_;
  int64_t daemon_ = 0;
  bool starting_ = false;
  bool ending_ = false;
  Instant no_memory_until_;
  SessionId sessions_ = 0;
  int launches_ = 0;
  std::map<int, std::shared_ptr<Launch>> newest_launch_;
  std::shared_ptr<Hostile> hostile_;  // May be null.
  std::vector<std::shared_ptr<Trainer>> trainers_;
  std::map<int64_t, Pending> pending_;  // Replies.
  int64_t next_pending_ = 0;
  std::vector<SegmentMemory> graveyard_;          // Freed too early: kept, so that the case can end in words.
  std::set<std::pair<int, int64_t>> read_ahead_;  // Run, sequence; by this daemon.
  std::vector<std::pair<int, v1::Checkpoint>> now_in_memory_;  // As was said in this step.
  int64_t opened_ = 0;  // Checkpoints, and what the pool was like, before the step.
  PoolUsage usage_;
  std::map<std::string, int> runs_by_path_;
  std::map<int, std::string> run_names_;
  bool in_tick_ = false;
};

}  // namespace ckptd::sim

#include "tests/sim/world_inl.h"

#endif  // CKPTD_TESTS_SIM_WORLD_H_
