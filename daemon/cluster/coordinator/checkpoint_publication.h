// The steps by which the coordinator of a run makes a checkpoint of a save that all nodes have written.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_CHECKPOINT_PUBLICATION_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_CHECKPOINT_PUBLICATION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/engine/seams/shared_root_io.h"
#include "daemon/etcd/backoff.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/save/change_save.h"
#include "daemon/ledger/save/save_publication.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// The publication of one save, from SEALED, or from where an earlier coordinator has left it, to its end:
//
//   1. Find the checkpoint that has the tag, and check that the parts make a checkpoint that may replace it.
//      (FindReplaced)
//   2. Decide, once no node reads the old checkpoint: the save is PUBLISHING, and the old checkpoint is
//      removed. (etcd)
//   3. Look where the save is: an earlier coordinator may have done any of the next steps. (Find)
//   4. Publish. If a checkpoint of ckptd has the tag, remove it, and publish again. If that checkpoint is not
//      the one of step 2, because a name was stale, first decide to remove it, and which of its pointers the
//      save takes over.
//   5. Record the outcome: COMMITTED; or ENDED, for example because something foreign is at the tag, or
//      because the outcome is unknown. (etcd)
//
// Each step is retried, with a backoff, until it is answered. After an error in step 4 it is unknown what was
// carried out, so the publication continues at step 3. All state that must survive is in etcd and the root.
class CheckpointPublication {
 public:
  // They must outlive the object.
  struct Tools {
    SavePublication* decisions = nullptr;
    CheckpointReaders* readers = nullptr;
    SharedRootIo* root = nullptr;
    Clock* clock = nullptr;
  };
  struct Options {
    CompareAndSwap::Held leadership;
    std::map<std::string, std::string> digests;  // Of each node's part record; all are durable.
    int64_t later_than_us = 0;                   // The commit gets a later time, whatever the clock shows.
    // How long to look for a save that is nowhere, before its outcome counts as unknown.
    Duration longest_look = std::chrono::seconds(10);
  };
  // `ended`: with the save, which is COMMITTED or ENDED. `lost`: NOT_COORDINATOR, or an error of
  // etcd_errors.h except LEDGER_UNAVAILABLE and LEDGER_FULL. One of the two runs, once; either may destroy
  // the object.
  CheckpointPublication(Tools tools, Options options, SharedSave save,
                        std::function<void(const SharedSave&)> ended,
                        std::function<void(const absl::Status&)> lost);

  // Takes the next step, unless one is under way or the backoff is not over. Call it several times a second.
  void Go();
  int64_t sequence() const { return save_.sequence; }
  // What the publication waits for, for messages; empty: nothing.
  const std::string& waits_for() const { return waits_for_; }

 private:
  enum class Step {
    kFindReplaced,
    kFindParts,
    kDecide,
    kLook,
    kPublish,
    kEvict,
    kFindPointers,
    kTakeOver,
    kRemove,
    kCommit,
    kGiveUp,
    kUnknown
  };

  void FindReplaced();
  void OnReplaced(const absl::StatusOr<SharedRootIo::Replaced>& found);
  void FindParts();
  void OnPartsFound(const absl::StatusOr<SharedPlace>& place);
  void Decide();
  void OnDecided(const absl::StatusOr<SavePublication::Publishing>& publishing);
  void Look();
  void OnFound(const absl::StatusOr<SharedPlace>& place);
  bool IsNowhereAnyMore();
  void OnNowhere();
  void Publish();
  void OnPublished(const absl::StatusOr<SharedRootIo::Published>& published);
  void Evict();
  void OnEvicting(const absl::Status& evicting);
  void FindPointers();
  void OnPointersFound(const absl::StatusOr<SharedRootIo::Replaced>& found);
  void TakeOver();
  void OnTakenOver(const absl::StatusOr<SharedSave>& save);
  void Remove();
  void OnRemoved(const absl::StatusOr<bool>& gone);
  void Commit();
  void GiveUp();
  void RecordUnknown();
  void OnEnded(const absl::StatusOr<SharedSave>& save);

  void Next(Step step);
  // The step failed, or must wait; `step` is taken later.
  void Retry(Step step, const std::string& why);
  // Handles an error of etcd: retries `step`, or ends with `lost`.
  void RetryOrLose(Step step, const absl::Status& error);
  SharedInflight Inflight() const;
  SharedRootIo::Publication PublicationOf(const std::map<std::string, std::string>& digests) const;
  // Makes a callback that ends the step and calls `done`. It may run after the destruction of this object.
  template <typename Answer>
  auto Then(void (CheckpointPublication::*done)(const Answer&));

  const Tools tools_;
  const Options options_;
  SharedSave save_;
  std::function<void(const SharedSave&)> ended_;
  std::function<void(const absl::Status&)> lost_;
  Step step_;
  bool busy_ = false;
  Backoff backoff_{std::chrono::milliseconds(100), std::chrono::seconds(1)};
  std::string waits_for_;

  SharedRootIo::Replaced replaces_;  // The checkpoint that the save replaces.
  std::string unreadable_;           // With kFindParts: why FindReplaced has failed.
  int64_t moved_in_ = 0;             // See SharedRootIo::Published.
  int64_t in_the_way_ = 0;           // The checkpoint that Publish has found at the tag; 0: none.
  SharedRootIo::Publication publication_;
  ledger::v1::SaveEnd given_up_;          // With kGiveUp.
  std::optional<Instant> nowhere_since_;  // When the save was first in no place.
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_CHECKPOINT_PUBLICATION_H_
