// Removes from etcd what it has of saves that have ended, so that a run of any length needs bounded space there.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_OLD_SAVES_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_OLD_SAVES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/etcd/backoff.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/save/change_save.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Lives as long as this node leads. Removes the state, the index and the votes of a save in one transaction,
// when the save has ended a while ago and a checkpoint with a higher sequence is there. A rank that asks for
// the save after that begins it anew, and gets RANKS_MISSING or FENCED.
//
// No late copy of a request brings the keys back. A new save takes the next sequence, and compares the last
// one; all other requests compare the state, which must be there unchanged (CompareAndSwap).
class OldSaves {
 public:
  struct Options {
    std::string prefix;                         // Of the run's keys, with the slash at its end.
    std::string run;                            // For messages.
    Duration kept_for = std::chrono::hours(1);  // From when this coordinator first sees the end.
  };
  // `etcd` and `clock` must outlive it. `lost`: as SaveCoordinator::Hooks::lost; must not destroy the object.
  OldSaves(Etcd* etcd, Clock* clock, Options options, CompareAndSwap::Held leadership,
           std::function<void(const absl::Status&)> lost);

  void OnEnded(const SharedSave& save);  // Etcd shows that it has ended, and how.
  void OnTick();                         // Call it several times a second.

 private:
  struct Ended {
    SharedSave save;
    Instant seen_at;
  };
  std::vector<SharedSave> Due() const;
  void Removed(const std::vector<SharedSave>& saves, const absl::Status& removed);

  Clock* const clock_;
  Etcd* const etcd_;
  const Options options_;
  const LedgerKeys keys_;
  const CompareAndSwap::Held leadership_;
  const std::function<void(const absl::Status&)> lost_;
  std::map<int64_t, Ended> ended_;  // By sequence.
  int64_t newest_checkpoint_ = 0;   // The highest sequence of a checkpoint.
  bool asking_ = false;
  Backoff backoff_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_OLD_SAVES_H_
