#include "client/cpp/reading/ranges.h"

#include <algorithm>

namespace ckptd::client {

RangePlan PlanRanges(std::vector<FilePiece> wanted) {
  std::erase_if(wanted, [](const FilePiece& piece) { return piece.into.empty(); });
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const FilePiece& a, const FilePiece& b) { return a.offset < b.offset; });
  RangePlan plan;
  const FilePiece* furthest =
      nullptr;  // Holds every byte that the next piece shares with any piece before it.
  int64_t end = 0;
  for (const FilePiece& piece : wanted) {
    const int64_t covered = std::clamp<int64_t>(end - piece.offset, 0, std::ssize(piece.into));
    const auto shared = static_cast<size_t>(covered);
    if (shared > 0)
      plan.copies.push_back(
          {piece.into.data(), furthest->into.data() + (piece.offset - furthest->offset), shared});
    if (shared == piece.into.size()) continue;
    plan.pieces.push_back({piece.offset + covered, piece.into.subspan(shared)});
    furthest = &piece;
    end = piece.offset + std::ssize(piece.into);
  }
  return plan;
}

}  // namespace ckptd::client
