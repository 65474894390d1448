// A history by the real engine: trainers save through it, on a CrashDisk; after every operation of the disk,
// on whichever thread, and after every word that a trainer hears, copies of what a crash would leave are put
// aside with what the oracle had heard by then. In the end Judge starts the next daemon on each of them.
//
// What a trainer hears is told to the oracle in the very reply, before the engine goes on. A copy of the disk
// and one of the oracle are taken under one lock: so what had been acknowledged when an operation began is in
// the oracle that its crash is held against.
#ifndef CKPTD_TESTS_CRASH_ENGINE_HISTORY_H_
#define CKPTD_TESTS_CRASH_ENGINE_HISTORY_H_

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
  ~EngineHistory();

  CrashDisk& disk() { return *disk_; }
  DiskDaemon& daemon() { return *daemon_; }

  // From now on every operation is a crash point, or none is.
  void Explore(bool on);
  // Puts a copy aside, for Restart: after the next such operation on a path that ends so.
  void KeepAfter(const std::string& operation, const std::string& path);

  void Start();  // The daemon, which recovers the root.
  // The machine loses its power where KeepAfter said, and the next daemon recovers the root.
  void Restart();

  std::vector<SessionId> Launch(const std::string& launch, int world_size = 2);
  DiskDaemon::Begun Begin(const std::vector<SessionId>& trainers, const std::string& tag,
                          const DiskDaemon::SaveOptions& options = {});
  void Seal(const DiskDaemon::Begun& begun, int rank);
  // Waits until a rank's part is on disk, with its record.
  void ExpectDurable(const DiskDaemon::Begun& begun, int rank);
  // Waits until every rank has heard how it ended.
  void ExpectEnd(const DiskDaemon::Begun& begun, v1::Level level);
  // All of it, and then what retention does.
  void Save(const std::vector<SessionId>& trainers, const std::string& tag,
            const DiskDaemon::SaveOptions& options = {});
  void Abort(const DiskDaemon::Begun& begun, int rank);
  void Pin(const std::string& tag, int64_t sequence, bool pinned);
  void ExpectResume(const std::vector<SessionId>& trainers, int64_t sequence);
  // Waits until this is what is committed, and no save is under way.
  void ExpectListed(const std::vector<std::string>& tags);  // Oldest first.

  // Nothing is a crash point any more; every copy is judged, until one is not as it must be.
  void Judge();
  int points() const { return points_; }    // At which the world was ended.
  int crashes() const { return crashes_; }  // Power cuts and kills.
  int states() const { return judged_; }    // Different ones, each taken over by another daemon.
  std::string Summary() const;

 private:
  struct Crash {
    std::string trace;
    std::unique_ptr<CrashDisk> left;
    Oracle oracle;
  };

  void Visit(const std::string& what) ABSL_LOCKS_EXCLUDED(mutex_);
  void Copy(std::unique_ptr<CrashDisk> left, std::string trace) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Changes what the oracle knows; where `said`, that is a crash point.
  void Tell(const std::function<void(Oracle&)>& change, const std::string& said = "");
  void Heard(const DiskDaemon::Begun& begun, v1::Level level);
  void MayEvict(const DiskDaemon::Begun& begun);
  // Waits until the daemon has nothing to do, and tells the oracle what retention has taken.
  void Settle();

  Broken JudgeOne(Crash& crash) const;
  // What is there must not be called failed to the trainers that saved it.
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
  std::map<int64_t, Asked> asked_;  // By sequence: what its trainers said.
  std::set<int64_t> going_;         // What retention takes.
  int points_ = 0, crashes_ = 0, judged_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_CRASH_ENGINE_HISTORY_H_
