#include "daemon/engine/resume/local_ranks.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

absl::Status CheckListed(const v1::JoinRunRequest& request) {
  const auto& ranks = request.local_ranks();
  if (std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) != ranks.end())
    return InvalidArgument("local_ranks is not ascending, or names a rank twice");
  if (ranks[0] < 0 || ranks[ranks.size() - 1] >= request.world_size()) {
    return InvalidArgument(absl::StrCat("local_ranks are in [", ranks[0], ", ", ranks[ranks.size() - 1],
                                        "]; they are in [0, ", request.world_size(), ")"));
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), request.rank())) {
    return InvalidArgument(absl::StrCat("rank ", request.rank(),
                                        " is not in local_ranks; they are the ranks of ",
                                        "this node, also the one that joins"));
  }
  if (request.local_world_size() != 0 && request.local_world_size() != ranks.size()) {
    return InvalidArgument(absl::StrCat("local_ranks names ", ranks.size(),
                                        " ranks, and local_world_size is ", request.local_world_size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> BlockOf(const v1::JoinRunRequest& request) {
  const int local = request.local_world_size(), world = request.world_size();
  if (local == 0 || local == world) return std::vector<int>();
  if (world % local != 0) {
    return InvalidArgument(absl::StrCat("world_size ", world, " is no multiple of local_world_size ", local,
                                        ", so which ranks are on this node is not known: set local_ranks"));
  }
  std::vector<int> ranks(static_cast<size_t>(local));
  std::iota(ranks.begin(), ranks.end(), request.rank() / local * local);
  return ranks;
}

}  // namespace

absl::StatusOr<std::vector<int>> LocalRanksOf(const v1::JoinRunRequest& request) {
  const int local = request.local_world_size();
  if (local < 0 || local > request.world_size())
    return InvalidArgument(absl::StrCat("local_world_size is ", local, "; it is in [0, world_size]"));
  if (request.local_ranks().empty()) return BlockOf(request);
  CKPTD_RETURN_IF_ERROR(CheckListed(request));
  if (request.local_ranks_size() == request.world_size()) return std::vector<int>();
  return std::vector<int>(request.local_ranks().begin(), request.local_ranks().end());
}

}  // namespace ckptd
