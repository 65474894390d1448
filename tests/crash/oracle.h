// Records what was reported about a root's checkpoints, outside of the root, and checks the root against it.
#ifndef CKPTD_TESTS_CRASH_ORACLE_H_
#define CKPTD_TESTS_CRASH_ORACLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "storage/commit/local/root_store.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {

// Descriptions of broken promises; empty: none.
using Broken = std::vector<std::string>;

// The checkpoints that a store or a daemon reports as committed, by sequence.
using ShownCheckpoints = std::map<int64_t, CommittedCheckpoint>;

class Oracle {
 public:
  // The save may become visible from now on, whole.
  void Began(const SaveSpec& save);
  // The save, or a newer one of its tag, must be visible; what it replaced must not be.
  void Committed(int64_t sequence);
  // The save must never be visible (again): it was reported as failed, or evicted.
  void Gone(int64_t sequence);
  // The same: it was reported as failed. So it is not in the list of the trash either.
  void Failed(int64_t sequence);
  // The save may be visible or not: its eviction has begun.
  void Going(int64_t sequence);
  // The save is visible or in the list of the trash: it is being brought back.
  void ComingBack(int64_t sequence);
  // From now on at least this many checkpoints are visible.
  void Keeps(size_t floor) { floor_ = floor; }
  // `PinBegan`: a pin record is being replaced. `Pinned`: it has been.
  void PinBegan(int64_t sequence, bool pinned);
  void Pinned(int64_t sequence, bool pinned);
  void RunRecordBegan(const std::string& run_id) { run_ids_.insert(run_id); }
  void RunRecordSaved(const std::string& run_id) { run_ids_ = {run_id}; }

  // A store reported what is committed: from now on that counts as acknowledged. Saves of `live` sequences
  // are still in flight.
  void Shown(const RootStore& store, const std::set<int64_t>& live = {});
  void Shown(const ShownCheckpoints& shown, const std::set<int64_t>& live = {});

  std::map<int64_t, SaveSpec> saves() const;  // All that began, by sequence.

  // Before a recovery, as a program reads them that does not know ckptd: a pointer has an old or a new
  // content, never garbage, and never one older than what was reported as committed.
  Broken CheckPointers(const CrashDisk& disk) const;
  // After a recovery: checks what the store reports, and every byte of it.
  Broken Check(CrashDisk& disk, RootStore& store) const;
  Broken Check(CrashDisk& disk, const ShownCheckpoints& shown) const;
  // What may be brought back was a checkpoint, and nothing is lost on its way. `offered`: by sequence.
  Broken CheckTrash(const std::set<int64_t>& offered, const ShownCheckpoints& shown) const;
  // After trash was emptied as well: only what was reported is left.
  Broken CheckNothingLeaked(const CrashDisk& disk, const ShownCheckpoints& shown) const;

  uint64_t Fingerprint() const;

 private:
  enum class State { kUnderWay, kCommitted, kGoing, kGone, kComingBack };
  struct Known {
    SaveSpec save;
    State state = State::kUnderWay;
  };
  void CheckPointersShown(const CrashDisk& disk, const ShownCheckpoints& shown, Broken& broken) const;
  void CheckWhole(CrashDisk& disk, const SaveSpec& save, Broken& broken) const;

  std::map<int64_t, Known> saves_;
  std::map<int64_t, std::set<bool>> pins_;  // The values that may be found.
  std::set<int64_t> failed_;
  std::set<std::string> run_ids_ = {""};  // Likewise.
  size_t floor_ = 0;
  // Directories already verified as whole: most states have them in common.
  std::shared_ptr<std::set<std::pair<int64_t, uint64_t>>> whole_ =
      std::make_shared<std::set<std::pair<int64_t, uint64_t>>>();
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_CRASH_ORACLE_H_
