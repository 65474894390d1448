#include "tests/sim/marks.h"

#include <cstring>

#include "tests/sim/random.h"

namespace ckptd::sim {
namespace {

constexpr int64_t kMarkEvery = 1 << 20;
using Mark = Marks::value_type;

int64_t PlaceOf(size_t mark, int64_t size) {
  return mark + 1 == CountMarks(size) ? size - static_cast<int64_t>(sizeof(Mark))
                                      : static_cast<int64_t>(mark) * kMarkEvery;
}

// Files begin at page boundaries, so no mark spans two spans.
template <typename Byte, typename Visit>
void EachMark(const std::vector<std::span<Byte>>& runs, Visit visit) {
  int64_t size = 0;
  for (const auto& run : runs) size += static_cast<int64_t>(run.size());
  int64_t begins = 0;
  size_t mark = 0;
  for (const auto& run : runs) {
    const int64_t ends = begins + static_cast<int64_t>(run.size());
    for (; mark < CountMarks(size) && PlaceOf(mark, size) < ends; ++mark)
      visit(mark, run.data() + (PlaceOf(mark, size) - begins));
    begins = ends;
  }
}

}  // namespace

size_t CountMarks(int64_t size) { return size == 0 ? 0 : static_cast<size_t>((size - 1) / kMarkEvery) + 2; }

void WriteMarks(const std::vector<std::span<std::byte>>& runs, const Marks& marks) {
  EachMark(runs, [&marks](size_t mark, std::byte* at) { std::memcpy(at, &marks.at(mark), sizeof(Mark)); });
}

Marks ReadMarks(const std::vector<std::span<const std::byte>>& runs) {
  Marks marks;
  EachMark(runs,
           [&marks](size_t, const std::byte* at) { std::memcpy(&marks.emplace_back(), at, sizeof(Mark)); });
  return marks;
}

uint64_t Digest(const Marks& marks) {
  uint64_t digest = 0;
  for (const Mark mark : marks) digest = Mix(digest, mark);
  return digest;
}

}  // namespace ckptd::sim
