// SaveTracker takes a save from its first Seal to its end: seals, waits, aborts, deadlines, failures.
//
// How a save ends:
//   Fail      decides that the save will not become a checkpoint, and takes its memory and its directory back.
//   End       the last step of every save, committed ones included; calls the hooks in the order of Hooks.
// A failed save that recovery could still publish (all its parts are written) is reported only when its
// directory is durably out of the way. Any other one is reported at once.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_SAVE_TRACKER_H_
#define CKPTD_DAEMON_ENGINE_SAVE_SAVE_TRACKER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/admission/expected_sizes.h"
#include "daemon/engine/retention/trash_collector.h"
#include "daemon/engine/roots/root_scanner.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/save/ended_saves.h"
#include "daemon/engine/save/write_streams.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/clock.h"

namespace ckptd {

class SaveTracker {
 public:
  struct Hooks {
    std::function<v1::Checkpoint(const Save&, v1::View)> describe;
    // The save has reached another level, or a rank has sealed.
    std::function<void(const Save&)> changed;
    // Every rank has sealed, and none was told so yet.
    std::function<void(Save*)> all_sealed;
    // Every rank of this node has sealed. OnSealedEverywhere follows, perhaps within the call.
    std::function<void(Save*)> sealed_here;
    // The save is to fail. The run's authority decides how it ends, and OnEnded follows with that, perhaps
    // within the call.
    std::function<void(Save*, const absl::Status&)> give_up;
    // A rank has sealed, and was answered: its part may be written.
    std::function<void(Save*)> part_sealed;
    // From now on the save fails: the next daemon must not inherit it.
    std::function<void(Save*)> failing;
    // The save has ended and still holds its memory. A listener that keeps the memory takes the reservation.
    std::function<void(Save*)> releasing_memory;
    // The memory is back, and the save does not count as in flight any more.
    std::function<void(const Save&)> memory_released;
    // How the save ended is to be written to the run's history.
    std::function<void(Run*, const storage::v1::Outcome&)> record;
    // Everybody who waited for the save was answered. It is in EndedSaves now.
    std::function<void(Save*)> ended;
  };
  SaveTracker(Clock* clock, SegmentPool* pool, EngineObserver* observer, SaveTable* saves, EndedSaves* past,
              WriteStreams* streams, const ExpectedSizes* sizes, RootScanner* scanner, TrashCollector* trash,
              Hooks hooks);

  // A rank has written its part into memory.
  void Seal(Save* save, const Member& member, const v1::SealRequest& request, Reply<v1::SealResponse> reply);
  // No trainer of any node is needed any longer.
  void OnSealedEverywhere(Save* save);
  // `ranks`: the ranks that abort; none for an operator. SEALED if the save is being published.
  absl::Status Abort(Save* save, const std::vector<int>& ranks, const std::string& message);
  // Answers when the level is reached, the save has ended, or the deadline has passed.
  void Wait(Save* save, Waiter waiter);

  // The save is not to become a checkpoint. No-op if it fails already, or is being published.
  void Fail(Save* save, const absl::Status& error);
  // The run's authority has ended the save: it is FAILED, SKIPPED or SUPERSEDED by the reason. No-op if it
  // fails already.
  void OnEnded(Save* save, const absl::Status& why);
  // Call it when a RootIo call of a failing save has ended, and after a scan.
  void ContinueFailing(Save* save);
  void End(Save* save, v1::Level level);

  // Answers waits whose time is up, and fails saves that miss a deadline.
  void OnTick(Instant now);
  Instant NextDeadline() const;

 private:
  // Returns the files that the request seals.
  absl::StatusOr<std::vector<SealedFile>> CheckSeal(const Save& save, const Part& part,
                                                    const v1::SealRequest& request) const;
  void SealPart(Save* save, Part& part, const v1::SealRequest& request);
  void AnswerWaiters(Save* save);
  void Report(Save* save);  // Tells the history, the observer, watchers and waiters how the save ended.
  void FailReplies(Save* save);
  void TakeBackMemory(Save* save);
  void Discard(Save* save);
  void OnDiscarded(Save* save, const absl::Status& discarded);
  void AnswerLateBegins(Save* save);
  std::string HoldersOfMemory(const Save& save) const;
  std::string SavesInstead(const Save& save) const;
  void WarnOfDifferentTags(Save* save, Instant now);
  absl::Status DeadlineError(const Save& save) const;

  Clock* const clock_;
  SegmentPool* const pool_;
  EngineObserver* const observer_;
  SaveTable* const saves_;
  EndedSaves* const past_;
  WriteStreams* const streams_;
  const ExpectedSizes* const sizes_;
  RootScanner* const scanner_;
  TrashCollector* const trash_;
  const Hooks hooks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_SAVE_TRACKER_H_
