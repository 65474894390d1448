// The life of a save on one node: its phases, and which event leads from one to the next. Nothing else writes
// the phase and the level of a save.
//
//   phase             event           next phase    what has happened
//   kTarget           Measured        kGathering    the tag is free, and the free space is known
//   kGathering        SizesKnown      kQueued       all ranks of this node have begun
//   kQueued           Promised        kAccepted     this node has reserved memory and disk
//   kAccepted         Admitted        kAdmitted     every node has
//   kAdmitted         Written         kWritten      the part of this node is durable
//   kWritten          Publishing      kPublishing   the authority has decided to publish it
//   kPublishing       Postponed       kWritten      nothing was published; the authority tries it again later
//   .. kGivingUp      Committed       kLoading      it is a checkpoint
//   .. kWritten       GiveUp          kGivingUp     this node has asked the authority to end it
//   .. kGivingUp      Fail            kFailing      the authority has ended it: it will be no checkpoint
//   .. kFailing       End             kEnded
//
// ".. P" is any phase of SavePhase up to P. The level is OPEN; from Sealed on, which is possible in any phase
// up to kGivingUp, it is SEALED; in kFailing it becomes end_level() at Reported; End sets the last one.
#ifndef CKPTD_DAEMON_ENGINE_RUN_SAVE_LIFECYCLE_H_
#define CKPTD_DAEMON_ENGINE_RUN_SAVE_LIFECYCLE_H_

#include <cstdint>

#include "ckptd/v1/types.pb.h"

namespace ckptd {

enum class SavePhase : uint8_t {
  kTarget,     // The file system is asked whether the tag is free and how much room there is.
  kGathering,  // Waits for the sizes of all ranks.
  kQueued,     // Waits in the admission queue for memory and disk.
  kAccepted,   // This node has promised its memory, and waits for the other nodes, if there are any.
  kAdmitted,   // Has memory and disk; ranks fill and seal their parts, and the parts are written.
  kWritten,    // This node's part is durable. The save may still be ended.
  kPublishing,
  kGivingUp,  // This node has asked the authority of the run to end it; the authority decides how it ends.
  kLoading,   // It is a checkpoint, and is read.
  kFailing,   // Will end; waits until no I/O refers to it and its directory is out of the way.
  kEnded,
};

class SaveLifecycle {
 public:
  SaveLifecycle() = default;
  // In any phase: for a save that an earlier daemon has sealed, and for tests.
  SaveLifecycle(SavePhase phase, v1::Level level) : phase_(phase), level_(level) {}

  SavePhase phase() const { return phase_; }
  v1::Level level() const { return level_; }
  v1::Level end_level() const { return end_level_; }  // With which a save in kFailing ends.

  void Measured();
  void SizesKnown();
  void Promised();
  void Admitted();
  void Sealed();
  void Written();
  // No-op in other phases than kWritten: the end follows all the same.
  void Publishing();
  // No-op in other phases than kPublishing.
  void Postponed();
  void Committed();
  // False: the authority was told before, or does not end it any more.
  bool GiveUp();
  // False: it fails already, or has ended.
  bool Fail(v1::Level end_level);
  void Reported();
  void End(v1::Level level);

 private:
  void Move(SavePhase from, SavePhase to);

  SavePhase phase_ = SavePhase::kTarget;
  v1::Level level_ = v1::OPEN;
  v1::Level end_level_ = v1::FAILED;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_SAVE_LIFECYCLE_H_
