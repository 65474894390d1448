// Which ranks of a world are on this node, as JoinRun says.
#ifndef CKPTD_DAEMON_ENGINE_RESUME_LOCAL_RANKS_H_
#define CKPTD_DAEMON_ENGINE_RESUME_LOCAL_RANKS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"

namespace ckptd {

// In order; empty: all ranks are on this node. `rank` and `world_size` of the request were checked.
// INVALID_ARGUMENT if the request contradicts itself, or does not tell which ranks are here.
absl::StatusOr<std::vector<int>> LocalRanksOf(const v1::JoinRunRequest& request);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RESUME_LOCAL_RANKS_H_
