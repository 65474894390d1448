// What was said of a root's checkpoints, kept outside of it, and whether a root holds to it.
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

#include "storage/commit/root_store.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {

// What a promise was broken by, in words; empty: none was.
using Broken = std::vector<std::string>;

// What somebody says is committed, by sequence.
using ShownCheckpoints = std::map<int64_t, CommittedCheckpoint>;

class Oracle {
 public:
  // From now on the save may be seen, whole.
  void Began(const SaveSpec& save);
  // It must be seen, or a younger one of its tag; and what it replaced must not be.
  void Committed(int64_t sequence);
  // It must never be seen (again): reported as failed, or evicted.
  void Gone(int64_t sequence);
  // It may be seen or not: an eviction has begun.
  void Going(int64_t sequence);
  // At least so many are seen from now on.
  void Keeps(size_t floor) { floor_ = floor; }
  // A record that is being replaced, and one that has been.
  void PinBegan(int64_t sequence, bool pinned);
  void Pinned(int64_t sequence, bool pinned);
  void RunRecordBegan(const std::string& run_id) { run_ids_.insert(run_id); }
  void RunRecordSaved(const std::string& run_id) { run_ids_ = {run_id}; }

  // A store has said what is there: that is what was said, from now on. Saves of `live` sequences are still
  // under way.
  void Shown(const RootStore& store, const std::set<int64_t>& live = {});
  void Shown(const ShownCheckpoints& shown, const std::set<int64_t>& live = {});

  std::map<int64_t, SaveSpec> saves() const;  // All that began, by sequence.

  // Before a recovery, as a program that knows no ckptd reads it: a pointer is old or new, never garbage, and
  // never older than what was said to be committed.
  Broken CheckPointers(const CrashDisk& disk) const;
  // After a recovery: what the store shows, and every byte of it.
  Broken Check(CrashDisk& disk, const RootStore& store) const;
  Broken Check(CrashDisk& disk, const ShownCheckpoints& shown) const;
  // When trash was emptied as well: nothing is left but what is shown.
  Broken CheckNothingLeaked(const CrashDisk& disk, const ShownCheckpoints& shown) const;

  uint64_t Fingerprint() const;

 private:
  enum class State { kUnderWay, kCommitted, kGoing, kGone };
  struct Known {
    SaveSpec save;
    State state = State::kUnderWay;
  };
  void CheckPointersShown(const CrashDisk& disk, const ShownCheckpoints& shown, Broken& broken) const;
  void CheckWhole(CrashDisk& disk, const SaveSpec& save, Broken& broken) const;

  std::map<int64_t, Known> saves_;
  std::map<int64_t, std::set<bool>> pins_;  // What may be found.
  std::set<std::string> run_ids_ = {""};    // The same.
  size_t floor_ = 0;
  // Directories that were found to be whole: most states have them in common.
  std::shared_ptr<std::set<std::pair<int64_t, uint64_t>>> whole_ =
      std::make_shared<std::set<std::pair<int64_t, uint64_t>>>();
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_CRASH_ORACLE_H_
