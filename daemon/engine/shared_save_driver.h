// SharedSaveDriver carries what the nodes of a shared run decide of their saves to the classes that own the
// saves of this node, and tells SharedRun how far this node is.
//
//   AdmissionQueue   has room for a save     -> Accept      kAdmitted   -> the ranks get their memory
//   SaveTracker      its ranks have sealed   -> Sealed      kSealed     -> the save is SEALED
//   Publisher        its parts are on disk   -> Durable     kCommitted  -> the save is COMMITTED
//   any of them      it cannot go on         -> Fail        kEnded      -> the save fails for its ranks
//
// A save that this node has told the others to end stays in the phase kGivingUp until they have. Sealed parts
// are not kept for the next daemon: a daemon that restarts loses them, and the other nodes end the save.
#ifndef CKPTD_DAEMON_ENGINE_SHARED_SAVE_DRIVER_H_
#define CKPTD_DAEMON_ENGINE_SHARED_SAVE_DRIVER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/engine_types.h"
#include "daemon/engine/root_io.h"
#include "daemon/engine/run.h"
#include "daemon/engine/save.h"
#include "daemon/engine/save_table.h"
#include "daemon/engine/shared_files_io.h"
#include "daemon/engine/shared_run.h"
#include "storage/base/clock.h"

namespace ckptd {

class SharedSaveDriver {
 public:
  struct Hooks {
    // The ranks that have begun a save go on with its sequence, or hear the error.
    std::function<void(const Run&, const SaveId&, const absl::StatusOr<int64_t>& sequence)> begun;
    // The save is in the phase kAdmitted now.
    std::function<void(Save*)> admitted;
    std::function<void(Save*)> sealed;
    std::function<void(Save*, CommittedCheckpoint, PointerFiles)> committed;
    // It is a checkpoint that this node could not read: its root has to be looked at.
    std::function<void(Save*)> committed_unread;
    std::function<void(Save*, const absl::Status&)> indeterminate;
    std::function<void(Save*, absl::Status, v1::Level)> fail;
    std::function<void(Save*)> continue_failing;
    // Of SharedRun::Hooks.
    std::function<void(Run*, int64_t sequence)> removed;
    std::function<void(Run*, int64_t sequence, const std::optional<storage::v1::Damage>&)> damage_changed;
    std::function<void(Run*, int64_t sequence, const std::optional<storage::v1::RetentionPolicy>&)>
        newest_committed;
    std::function<void(Run*)> root_changed, office_changed;
  };
  SharedSaveDriver(Clock* clock, EngineObserver* observer, SaveTable* saves, Hooks hooks);

  // The root of a shared run is open.
  void Start(Run* run);

  // ---- what has happened on this node, to a save of a shared run
  void OnAccepted(Save* save);  // Its memory and its disk space are reserved.
  void OnSealedHere(Save* save);
  void OnPartWritten(Save* save);
  void OnGivingUp(Save* save, const absl::Status& why);

 private:
  using Decision = SharedRun::Decision;

  void OnChanged(Run* run, const SaveId& id, const Decision& decision);
  Save* BeginHere(Run* run, const SaveId& id, const Decision& decision);
  void OnAdmitted(Save* save, const Decision& decision);
  void OnSealedEverywhere(Save* save);
  void OnCommitted(Save* save);
  void OnEnded(Run* run, const SaveId& id, const absl::Status& why);
  void OnReleased(Run* run, const SaveId& id);
  void OnFinished(int64_t save_id, const absl::StatusOr<std::string>& digest);
  void OnLoaded(int64_t save_id, absl::StatusOr<SharedFilesIo::Loaded> loaded);

  Clock* const clock_;
  EngineObserver* const observer_;
  SaveTable* const saves_;
  const Hooks hooks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SHARED_SAVE_DRIVER_H_
