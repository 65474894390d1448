// DiskRoom accounts for the space of the file systems: how much of the free space is reserved for saves, and
// whether more may become free.
//
// DiskRoom asks a file system for its free space only now and then. In between, it subtracts what saves have
// written since and what admitted saves are still to write. All roots on one device share its space.
#ifndef CKPTD_DAEMON_ENGINE_ADMISSION_DISK_ROOM_H_
#define CKPTD_DAEMON_ENGINE_ADMISSION_DISK_ROOM_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/admission/expected_sizes.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "storage/base/clock.h"

namespace ckptd {

class DiskRoom {
 public:
  struct Hooks {
    // Trash, evictions or a history write of the run may free space that has not been counted yet.
    std::function<bool(const Run&)> may_free_room;
    // Empties the run's trash, also checkpoints in their grace period if that is needed to free `bytes`.
    // Returns how many of these bytes the trash has.
    std::function<int64_t(Run*, int64_t bytes)> empty_trash;
    // A save waits for room that checkpoints take which wait for their upload. Null: there are none.
    std::function<void(Run*)> give_up_uploads = nullptr;
    // The free space of some root may have changed: admission tries again.
    std::function<void()> room_changed;
  };
  DiskRoom(Clock* clock, const std::map<std::string, std::unique_ptr<Run>>* runs, const SaveTable* saves,
           const ExpectedSizes* sizes, Hooks hooks);

  // The answer of a file system, and the state of the accounts when it was asked.
  struct Measurement {
    int64_t free_bytes = 0;
    int64_t written_bytes = 0;  // What this daemon had written to the device.
    int64_t changes = 0;        // How often this daemon may have freed space there.
  };
  void Measure(Run* run, absl::AnyInvocable<void(absl::StatusOr<Measurement>)> done);
  void Remember(const Run* run, const Measurement& measured);
  // The free space that a scan has found. Its Measurement began when the scan did.
  void SetFreeBytes(const Run* run, int64_t bytes) { states_.Of(run).measured.free_bytes = bytes; }
  // By all saves of this daemon so far.
  int64_t WrittenBytes() const;
  void SetWrittenBefore(const Run* run, int64_t bytes) { states_.Of(run).measured.written_bytes = bytes; }
  int64_t measured_free_bytes(const Run& run) const { return states_.Of(&run).measured.free_bytes; }

  enum class Claim {
    kReserved,  // Save::disk_reserved is set.
    kAsking,    // The file system is asked anew first; room_changed follows.
    kMayCome,   // There is too little now. Space that is being freed may help.
    kNever,     // There is too little, and nothing that the daemon does frees enough.
  };
  // Reserves the space that the save needs. `lack`: what is missing if the answer is not kReserved.
  Claim Reserve(Save* save, std::string* lack);
  // A save waits after kMayCome: empties trash for it. Our own deletions wake admission; space freed by other
  // programs is polled, rate-limited.
  void Poll(Save* save);
  // Empties trash on the run's device, the run's own first, until so many bytes are free again.
  void MakeRoom(Run* run, int64_t bytes);
  // As MakeRoom, for the next save of the run, which is expected to be as large as the run's newest
  // checkpoint. So that save finds room at once, and checkpoints in their grace period do not delay it.
  void MakeRoomForNext(Run* run);
  // Reserves the space that an admitted save needs now that it has grown. `rank`: whose part has grown.
  absl::Status Grow(Save* save, int rank);

  // What this daemon has written to the device since it started. Only grows.
  int64_t WrittenBytes(uint64_t device) const;
  // Space on the run's device may have been freed by this daemon.
  void NoteChange(const Run& run) { ++changes_[run.device]; }
  // Asks for the free space after such a change. `for_next`: and then calls MakeRoomForNext.
  void AskAfterChange(Run* run, bool for_next = false);
  bool IsAsking(const Run& run) const { return states_.Of(&run).asks > 0; }
  // The save has ended: what it wrote stays written, what it had reserved is free.
  void OnSaveEnded(const Save& save);

  void OnTick(Run* run, Instant now);
  void Forget(const Run* run) { states_.Forget(run); }

 private:
  struct State {
    Measurement measured;
    int asks = 0;                    // AskAfterChange calls under way.
    std::optional<Instant> poll_at;  // A save waits for space on disk.
  };
  int64_t NeededBytes(const Save& save) const;
  int64_t FreeBytes(const Run& run, const Save* except) const;
  int64_t OutstandingBytes(uint64_t device, const Save* except) const;
  bool MayCome(const Save& save) const;

  Clock* const clock_;
  const std::map<std::string, std::unique_ptr<Run>>* const runs_;
  const SaveTable* const saves_;
  const ExpectedSizes* const sizes_;
  const Hooks hooks_;
  RunStates<State> states_;
  std::map<uint64_t, int64_t> written_by_ended_;  // Device -> what saves that have ended wrote there.
  std::map<uint64_t, int64_t> changes_;           // Device -> how often space may have been freed there.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ADMISSION_DISK_ROOM_H_
