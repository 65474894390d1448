// AdmissionQueue admits saves: it reserves memory and disk for all ranks of a checkpoint at once, before a
// byte is copied, so that two half-admitted saves cannot block each other.
//
// Saves that wait for room get it in this order:
//   - Within a run, and within a user, the oldest first. A younger save gets no memory that an older one
//     waits for.
//   - Saves that leave their user within its share (MemoryShares) before those that do not. They do not wait
//     for one another, because there is a share for each user.
//   - Of the saves beyond the share the oldest first. So that they do not starve while small saves of others
//     come and go, one of them at a time gets a turn: for over_share_grace no other save gets memory. After a
//     turn there is no other turn for as long.
//   - A save holds up no other save while it waits for memory of its own run or its own user, for the disk,
//     or for a root whose file system hangs.
#ifndef CKPTD_DAEMON_ENGINE_ADMISSION_ADMISSION_QUEUE_H_
#define CKPTD_DAEMON_ENGINE_ADMISSION_ADMISSION_QUEUE_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/admission/disk_room.h"
#include "daemon/engine/admission/expected_sizes.h"
#include "daemon/engine/admission/memory_shares.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/clock.h"

namespace ckptd {

class AdmissionQueue {
 public:
  struct Hooks {
    // Ends the save, which is FAILED, SKIPPED or SUPERSEDED by the reason. May call TryAdmitAll.
    std::function<void(Save*, absl::Status)> fail;
    // The save has its room on this node.
    std::function<void(Save*)> accepted;
    // The session that has joined as this rank; 0: none.
    std::function<SessionId(const Run&, int64_t attempt, int rank)> session_of_rank;
  };
  // `over_share_grace`: how long a save may hold memory beyond its user's share while others wait, and how
  // long a turn lasts.
  AdmissionQueue(Clock* clock, SegmentPool* pool, const SaveTable* saves, const ExpectedSizes* sizes,
                 const MemoryShares* shares, DiskRoom* disk, Duration over_share_grace, Hooks hooks);

  // A turn that has begun keeps its length.
  void SetOverShareGrace(Duration grace) { over_share_grace_ = grace; }

  // A rank of the save has begun: queues the save if the sizes of all ranks are known now.
  void Gather(Save* save);
  // Call it when memory or disk space has come back, or a save has ended. It may be called from a hook: then
  // another walk follows the one that is under way.
  void TryAdmitAll();

  void OnTick(Instant now);
  Instant NextDeadline() const { return try_again_at_.value_or(Instant::max()); }

 private:
  // The save of a user beyond the share that gets the next memory that comes back.
  struct Turn {
    int64_t save = 0;
    uid_t uid = 0;
    Instant until;
  };
  // One walk over the saves that wait.
  struct Walk {
    MemoryUse use;
    std::set<const Run*> runs;        // An older save of the run waits.
    std::set<uid_t> users;            // An older save of the user waits for memory.
    std::vector<Save*> beyond_share;  // In the order in which they began.
    std::vector<Save*> held_back;
    bool memory_awaited = false;  // By a save that comes before all saves beyond the share.
  };
  void AdmitSome();
  // The steps of a walk. False: a save was admitted or has ended, and a new walk begins.
  bool TryTurn(Walk& walk);
  bool TryWithinShare(Walk& walk);
  bool TryInOrder(Walk& walk, Save* save);
  bool DeferBeyondShare(Walk& walk, Save* save);
  bool TryBeyondShare(Walk& walk);
  bool EndHeldBack(const Walk& walk);
  bool Try(const Walk& walk, Save* save);
  void SortByLastTurn(std::vector<Save*>& saves) const;

  bool TryAdmit(Save* save, const MemoryUse& use);
  bool ReserveDisk(Save* save);
  absl::Status ReserveMemory(Save* save);
  absl::Status ReserveMemoryWithin(Save* save, const MemoryUse& use);
  void Admit(Save* save);
  void Skip(Save* save, const std::string& why);
  void SupersedeOlder(Save* save);

  bool TakeBackMemory(Save* save, const MemoryUse& use);
  int64_t RoomOnItsWay() const;
  void EndBeyondShare(const std::vector<Save*>& over, const MemoryUse& use);

  void EndTurnIfOver();
  void GiveTurn(const std::vector<Save*>& waiting);
  void TryAgainAt(Instant when);

  Clock* const clock_;
  SegmentPool* const pool_;
  const SaveTable* const saves_;
  const ExpectedSizes* const sizes_;
  const MemoryShares* const shares_;
  DiskRoom* const disk_;
  Duration over_share_grace_;
  const Hooks hooks_;

  bool walking_ = false, walk_again_ = false;
  std::optional<Instant> try_again_at_;  // When the passing of time alone may let a save be admitted.
  std::optional<Turn> turn_;
  Instant next_turn_at_;
  std::map<uid_t, Instant> last_turn_;  // When the user's last turn ended.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ADMISSION_ADMISSION_QUEUE_H_
