// SaveDriver carries the decisions of a run's authority to the classes that own the saves of this node, and
// reports to the authority how far this node is.
//
//   SaveIntake       a rank begins a save    -> Begin       kProposed   -> the save has a sequence
//   AdmissionQueue   has room for a save     -> Accept      kAdmitted   -> the ranks get their memory
//   SaveTracker      its ranks have sealed   -> Sealed      kSealed     -> the save is SEALED
//   any of them      it cannot go on         -> Fail        kEnded      -> the save fails for its ranks
//   MemberFiles      its part is durable     -> Durable     kPublishing -> nobody ends it any more
//                                                           kCommitted  -> the save is COMMITTED
//
// SaveIntake and MemberFiles tell the authority themselves. A save that this node has told the others to end
// stays in the phase kGivingUp until they have.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_SAVE_DRIVER_H_
#define CKPTD_DAEMON_ENGINE_SAVE_SAVE_DRIVER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/base/clock.h"

namespace ckptd {

class SaveDriver {
 public:
  struct Hooks {
    // The ranks that have begun a save continue with its sequence, or get the error.
    std::function<void(const Run&, const SaveId&, const absl::StatusOr<int64_t>& sequence)> begun;
    // The save is in the phase kAdmitted now.
    std::function<void(Save*)> admitted;
    std::function<void(Save*)> sealed;
    std::function<void(Save*, CommittedCheckpoint, PointerFiles)> committed;
    // It is a checkpoint that this node could not read: its root has to be looked at.
    std::function<void(Save*)> committed_unread;
    std::function<void(Save*, const absl::Status&)> indeterminate;
    // The save cannot go on.
    std::function<void(Save*, const absl::Status&)> fail;
    // The authority has ended the save.
    std::function<void(Save*, const absl::Status&)> ended;
    // The other nodes have released the memory of a save that fails.
    std::function<void(Save*)> continue_failing;
    // Of Authority::Hooks.
    std::function<void(Run*, int64_t sequence)> removed;
    std::function<void(Run*, int64_t sequence, const std::optional<storage::v1::Damage>&,
                       absl::AnyInvocable<void()> recorded)>
        damage_changed;
    std::function<void(Run*, const std::string& tag, int64_t sequence, bool pinned)> pin_changed;
    std::function<void(Run*, int64_t sequence, bool force, Callback<absl::Status> deleted)> delete_requested;
    std::function<void(Run*, const SharedUploads::Restore&,
                       Callback<absl::StatusOr<SharedUploads::Newest>> brought)>
        restore_requested;
    std::function<void(Run*, int64_t sequence, const std::optional<storage::v1::RetentionPolicy>&)>
        newest_committed;
    std::function<void(Run*)> root_changed, leadership_changed;
  };
  SaveDriver(Clock* clock, EngineObserver* observer, SaveTable* saves, Hooks hooks);

  // The root is open.
  void Start(Run* run);

  // ---- what has happened on this node
  void OnAccepted(Save* save);  // Its memory and its disk space are reserved.
  void OnSealedHere(Save* save);
  void OnGivingUp(Save* save, const absl::Status& why);

 private:
  using Decision = Authority::Decision;

  void OnChanged(Run* run, const SaveId& id, const Decision& decision);
  Save* BeginHere(Run* run, const SaveId& id, const Decision& decision);
  void OnAdmitted(Save* save, const Decision& decision);
  void OnSealedEverywhere(Save* save);
  void OnCommitted(Save* save);
  void OnEnded(Run* run, const SaveId& id, const absl::Status& why);
  void OnReleased(Run* run, const SaveId& id);
  void OnLoaded(int64_t save_id, absl::StatusOr<LoadedCheckpoint> loaded);

  Clock* const clock_;
  EngineObserver* const observer_;
  SaveTable* const saves_;
  const Hooks hooks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_SAVE_DRIVER_H_
