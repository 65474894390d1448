#include "daemon/engine/admission/expected_sizes.h"

#include <algorithm>

namespace ckptd {

void ExpectedSizes::Remember(const Save& save) {
  State& state = states_.Of(save.run);
  if (state.world_size != save.world_size) state.part_bytes.clear();
  state.world_size = save.world_size;
  for (const auto& [rank, part] : save.parts) {
    if (save.Contributes(rank) && save.IsHere(rank)) state.part_bytes[rank] = part.end;
  }
}

int64_t ExpectedSizes::LastBytes(const Save& save, int rank) const {
  const State& state = states_.Of(save.run);
  if (state.world_size != save.world_size) return -1;
  const auto found = state.part_bytes.find(rank);
  return found == state.part_bytes.end() ? -1 : found->second;
}

std::vector<int> ExpectedSizes::UnknownRanks(const Save& save) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < save.world_size; ++rank) {
    const Part* part = save.FindPart(rank);
    const bool has_begun = part != nullptr && part->begun;
    if (!has_begun && LastBytes(save, rank) < 0) ranks.push_back(rank);
  }
  return ranks;
}

int64_t ExpectedSizes::PartBytes(const Save& save, int rank) const {
  const Part* part = save.FindPart(rank);
  if (part != nullptr && part->begun && !part->growing) return part->end;
  const int64_t placed = part == nullptr ? 0 : part->end;
  return std::max(placed, LastBytes(save, rank));
}

int64_t ExpectedSizes::TotalBytes(const Save& save) const {
  int64_t bytes = 0;
  for (int rank = 0; rank < save.world_size; ++rank) bytes += PartBytes(save, rank);
  return bytes;
}

}  // namespace ckptd
