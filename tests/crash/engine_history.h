// A history by the real engine: trainers save through it on a CrashDisk. After every operation of the disk,
// on any thread, and after every message to a trainer, it stores copies of what a crash would leave, together
// with what the oracle knew by then. At the end, Judge starts the next daemon on each copy.
//
// A reply tells the oracle what the trainer learns before the engine continues. The copies of the disk and of
// the oracle are taken under one lock: what was acknowledged when an operation began is in the oracle that
// its crash is judged by.
#ifndef CKPTD_TESTS_CRASH_ENGINE_HISTORY_H_
#define CKPTD_TESTS_CRASH_ENGINE_HISTORY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "storage/base/mutex.h"
#include "tests/crash/disk_daemon.h"
#include "tests/crash/oracle.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {

class EngineHistory {
 public:
  explicit EngineHistory(CrashDiskOptions options);
  // The daemon keeps what retention evicts in the trash. Call it before Start.
  void KeepTrash() { trash_grace_ = DiskDaemon::kKeepsTrash; }
  ~EngineHistory();

  CrashDisk& disk() { return *disk_; }
  DiskDaemon& daemon() { return *daemon_; }

  // From now on every operation is a crash point (or none is).
  void Explore(bool on);
  // Stores a copy for Restart: after the next operation of this kind on a path that ends like this.
  void KeepAfter(const std::string& operation, const std::string& path);

  void Start();  // Starts the daemon, which recovers the root.
  // Cuts the power at the point chosen by KeepAfter, and recovers the root with the next daemon.
  void Restart();

  std::vector<SessionId> Launch(const std::string& launch, int world_size = 2);
  DiskDaemon::Begun Begin(const std::vector<SessionId>& trainers, const std::string& tag,
                          const DiskDaemon::SaveOptions& options = {});
  void Seal(const DiskDaemon::Begun& begun, int rank);
  // Waits until a rank's part and its record are on disk.
  void ExpectDurable(const DiskDaemon::Begun& begun, int rank);
  // Waits until every rank has received this outcome.
  void ExpectEnd(const DiskDaemon::Begun& begun, v1::Level level);
  // Does a whole save, and waits for retention.
  void Save(const std::vector<SessionId>& trainers, const std::string& tag,
            const DiskDaemon::SaveOptions& options = {});
  void Abort(const DiskDaemon::Begun& begun, int rank);
  void Pin(const std::string& tag, int64_t sequence, bool pinned);
  // Brings an evicted checkpoint back from the trash, which pins it.
  void Undelete(const std::string& tag, int64_t sequence);
  void ExpectResume(const std::vector<SessionId>& trainers, int64_t sequence);
  // Waits until exactly these checkpoints are committed and no save is in flight.
  void ExpectListed(const std::vector<std::string>& tags);  // Oldest first.
  // Waits until exactly these checkpoints can be brought back from the trash.
  void ExpectInTrash(const std::set<int64_t>& sequences);

  // Ends exploration and judges every copy, until one violates a promise.
  void Judge();
  int points() const { return points_; }    // Number of points at which a crash was simulated.
  int crashes() const { return crashes_; }  // Power cuts and kills.
  int states() const { return judged_; }    // Distinct states, each taken over by another daemon.
  std::string Summary() const;

 private:
  struct Crash {
    std::string trace;
    std::unique_ptr<CrashDisk> left;
    Oracle oracle;
  };

  void Visit(const std::string& what) ABSL_LOCKS_EXCLUDED(mutex_);
  void Copy(std::unique_ptr<CrashDisk> left, std::string trace) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Changes what the oracle knows. If `said` is not empty, this is a crash point.
  void Tell(const std::function<void(Oracle&)>& change, const std::string& said = "");
  void Heard(const DiskDaemon::Begun& begun, v1::Level level);
  std::set<int64_t> Staying(const std::set<int64_t>& sequences, int64_t newest) const;
  void MayEvict(const DiskDaemon::Begun& begun);
  bool IsTidy() const;
  // Waits until the daemon is idle, and tells the oracle what retention evicted.
  void Settle();

  Broken JudgeOne(Crash& crash) const;
  // What the next daemon offers from the trash, if it keeps it as this one does.
  Broken JudgeTrash(Crash& crash) const;
  // Adds a violation if the trainers of a committed checkpoint are told that its save failed.
  void CheckEnds(DiskDaemon& daemon, const ShownCheckpoints& shown, Broken& broken) const;

  Mutex mutex_;
  Oracle oracle_ ABSL_GUARDED_BY(mutex_);
  bool exploring_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<bool(const std::string&)> keep_after_ ABSL_GUARDED_BY(mutex_);
  std::optional<Crash> kept_ ABSL_GUARDED_BY(mutex_);
  std::vector<Crash> crashed_ ABSL_GUARDED_BY(mutex_);
  std::set<std::tuple<uint64_t, uint64_t, int>> seen_ ABSL_GUARDED_BY(mutex_);  // Disk, oracle, late writes.
  uint64_t seed_ ABSL_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<CrashDisk> disk_;
  std::unique_ptr<DiskDaemon> daemon_;
  struct Asked {
    std::string launch;
    int world_size = 0;
    DiskDaemon::SaveOptions options;
  };
  std::map<std::vector<SessionId>, std::string> launches_;
  std::map<int64_t, Asked> asked_;  // By sequence: what its trainers requested.
  std::set<int64_t> going_;         // Sequences that retention is evicting.
  std::chrono::hours trash_grace_{0};
  int points_ = 0, crashes_ = 0, judged_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_CRASH_ENGINE_HISTORY_H_
