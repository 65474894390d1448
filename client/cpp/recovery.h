// Which sealed saves can be offered to the next daemon.
#ifndef CKPTD_CLIENT_CPP_RECOVERY_H_
#define CKPTD_CLIENT_CPP_RECOVERY_H_

#include "absl/status/status.h"
#include "client/cpp/client_impl.h"

namespace ckptd::client {

// True if the bytes that were sealed are all in this process's memory still.
bool IsRecoverable(const StagedSave& save);

// STAGED_LOST: the save ended with its daemon, or after it was offered to the next one.
absl::Status StagedLost(const StagedSave& save, const std::string& why);
// The error of a save that its next daemon has ended with `end`: what means the same with any daemon stays
// what it is, the rest is STAGED_LOST.
absl::Status LostBy(const StagedSave& save, const absl::Status& end);

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_RECOVERY_H_
