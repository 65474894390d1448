#include "client/cpp/memory/copy.h"

#include <atomic>
#include <random>

#include "gtest/gtest.h"

namespace ckptd::client {
namespace {

std::vector<std::byte> Random(size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  std::minstd_rand random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Copies `from`, in pieces of `piece` bytes, to targets of `target` bytes.
std::vector<std::byte> CopyCut(const std::vector<std::byte>& from, size_t piece, size_t target, int threads) {
  std::vector<std::span<const std::byte>> pieces;
  for (size_t at = 0; at < from.size(); at += piece) {
    pieces.push_back(std::span(from).subspan(at, std::min(piece, from.size() - at)));
  }
  std::vector<std::byte> to(from.size());
  std::vector<std::span<std::byte>> targets;
  for (size_t at = 0; at < to.size(); at += target) {
    targets.push_back(std::span(to).subspan(at, std::min(target, to.size() - at)));
  }
  std::vector<CopyStep> steps;
  PlanCopy(pieces, targets, &steps);
  RunCopy(CopyWay::kIntoSegment, steps, threads);
  return to;
}

TEST(Copy, CopiesEveryByteForAnyPiecesAndTargets) {
  const std::vector<std::byte> small = Random(10'007, 1);
  for (const size_t piece : {1u, 7u, 4096u, 20'000u}) {
    for (const size_t target : {13u, 4096u, 20'000u}) {
      EXPECT_EQ(CopyCut(small, piece, target, 3), small) << piece << " " << target;
    }
  }
}

TEST(Copy, SharesOfThreadsHaveNoGapAndNoOverlap) {
  const std::vector<std::byte> large = Random((33 << 20) + 5, 2);
  for (const int threads : {1, 2, 3, 8}) {
    EXPECT_EQ(CopyCut(large, 5'000'011, 4 << 20, threads), large) << threads;
  }
}

TEST(Copy, PlansNoStepsForNoPieces) {
  std::vector<CopyStep> steps;
  PlanCopy({}, {}, &steps);
  EXPECT_TRUE(steps.empty());
  RunCopy(CopyWay::kIntoSegment, steps, 4);
}

TEST(ParallelFor, CallsWorkOnceForEachIndex) {
  std::vector<std::atomic<int>> done(100);
  ParallelFor(100, 4, [&](int i) { ++done[i]; });
  for (const std::atomic<int>& count : done) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace ckptd::client
