#include "daemon/engine/run/save_lifecycle.h"

#include <cassert>

namespace ckptd {

void SaveLifecycle::Move([[maybe_unused]] SavePhase from, SavePhase to) {
  assert(phase_ == from);
  phase_ = to;
}

void SaveLifecycle::Measured() { Move(SavePhase::kTarget, SavePhase::kGathering); }
void SaveLifecycle::SizesKnown() { Move(SavePhase::kGathering, SavePhase::kQueued); }
void SaveLifecycle::Promised() { Move(SavePhase::kQueued, SavePhase::kAccepted); }
void SaveLifecycle::Admitted() { Move(SavePhase::kAccepted, SavePhase::kAdmitted); }

void SaveLifecycle::Sealed() {
  assert(phase_ <= SavePhase::kGivingUp && level_ < v1::SEALED);
  level_ = v1::SEALED;
}

void SaveLifecycle::Written() { Move(SavePhase::kAdmitted, SavePhase::kWritten); }

void SaveLifecycle::Publishing() {
  if (phase_ == SavePhase::kWritten) phase_ = SavePhase::kPublishing;
}

void SaveLifecycle::Postponed() {
  if (phase_ == SavePhase::kPublishing) phase_ = SavePhase::kWritten;
}

void SaveLifecycle::Committed() {
  assert(phase_ <= SavePhase::kGivingUp);
  phase_ = SavePhase::kLoading;
}

bool SaveLifecycle::GiveUp() {
  if (phase_ > SavePhase::kWritten) return false;
  phase_ = SavePhase::kGivingUp;
  return true;
}

bool SaveLifecycle::Fail(v1::Level end_level) {
  if (phase_ >= SavePhase::kFailing) return false;
  phase_ = SavePhase::kFailing;
  end_level_ = end_level;
  return true;
}

void SaveLifecycle::Reported() {
  assert(phase_ == SavePhase::kFailing);
  level_ = end_level_;
}

void SaveLifecycle::End(v1::Level level) {
  assert(phase_ != SavePhase::kEnded);
  phase_ = SavePhase::kEnded;
  level_ = level;
}

}  // namespace ckptd
