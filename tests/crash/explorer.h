// Simulates a crash after every operation of a history, in every way, and checks that the real recovery keeps
// the promises.
//
//   CrashDisk disk;
//   Explorer explorer({...});
//   disk.OnChange([&](const std::string& what) { explorer.Visit(disk, oracle, what); });
//
// At each point the power is cut, once for each kind of loss; and the process is killed while its writes are
// in flight. The explorer recovers what is left and compares it with the oracle. Then it empties the trash
// and checks that nothing is left over, does a further save, lets the late writes land, and cuts the power
// again with the loss of everything unsynced: what recovery reported must have been durable.
//
// Optionally, recovery itself is crashed after each of its operations, and so is the recovery of that.
#ifndef CKPTD_TESTS_CRASH_EXPLORER_H_
#define CKPTD_TESTS_CRASH_EXPLORER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/commit/local/root_store.h"
#include "tests/crash/oracle.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {

// Opens a store on a disk, with the disk's I/O queues.
absl::StatusOr<std::unique_ptr<RootStore>> OpenStore(CrashDisk& disk, Clock& clock);

struct ExplorerOptions {
  int seeds = 8;              // Random losses at each point.
  int recovery_depth = 0;     // How deeply recoveries are interrupted.
  int seeds_in_recovery = 2;  // Random losses, beside the loss of everything.
};

class Explorer {
 public:
  explicit Explorer(ExplorerOptions options) : options_(options) {}

  // Checks one crash point. No-op after a failure.
  void Visit(const CrashDisk& disk, const Oracle& oracle, const std::string& what);

  int points() const { return points_; }            // Visited.
  int in_recovery() const { return in_recovery_; }  // Of these, inside a recovery (or a nested one).
  int crashes() const { return crashes_; }          // Power cuts and kills.
  int states() const { return recoveries_; }        // Distinct states, each recovered.
  std::string Summary() const;

 private:
  void VisitAt(const CrashDisk& disk, const Oracle& oracle, const std::string& trace, int depth);
  void Recover(std::unique_ptr<CrashDisk> disk, Oracle oracle, const std::string& trace, int depth);
  void CheckGoesOn(CrashDisk& disk, RootStore& store, Oracle& oracle, Broken& broken);
  void Report(const std::string& trace, const Broken& broken);

  const ExplorerOptions options_;
  FakeClock clock_;
  std::set<std::tuple<uint64_t, uint64_t, int, int>> seen_;  // Disk, oracle, depth, late writes.
  uint64_t seed_ = 0;
  int points_ = 0;
  int in_recovery_ = 0;
  int crashes_ = 0;
  int recoveries_ = 0;
  bool failed_ = false;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_CRASH_EXPLORER_H_
