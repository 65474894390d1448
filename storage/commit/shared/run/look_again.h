// What a daemon sees in a root that other nodes change at the same time may be older than what they have
// done: a network file system keeps names and attributes for some seconds. An error that such a delay
// explains says neither that something is gone nor that it is damaged: the daemon looks again, for a bounded
// time.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_RUN_LOOK_AGAIN_H_
#define CKPTD_STORAGE_COMMIT_SHARED_RUN_LOOK_AGAIN_H_

#include <chrono>
#include <string_view>

#include "absl/status/status.h"
#include "storage/base/clock.h"

namespace ckptd {

// For how long one node may not see what another one has done, where cluster.visibility_seconds says nothing else.
inline constexpr Duration kStaleness = std::chrono::seconds(5);

inline constexpr char kLookAgain[] = "LOOK_AGAIN";

// UNAVAILABLE, reason LOOK_AGAIN: `what` was looked for, and `why` is what was found instead. No client hears
// it: the daemon itself asks again, and says `what` when its time is over.
absl::Status LookAgain(std::string_view what, std::string_view why);
absl::Status LookAgain(std::string_view what, const absl::Status& why);

// True if another node's change may explain the error: the name is not there yet or any more (ENOENT), or
// what was open was replaced (ESTALE).
bool MayBeAnothersChange(const absl::Status& status);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_RUN_LOOK_AGAIN_H_
