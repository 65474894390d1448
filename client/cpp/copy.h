// The one copy of a save: many sources into many targets, by several threads.
#ifndef CKPTD_CLIENT_CPP_COPY_H_
#define CKPTD_CLIENT_CPP_COPY_H_

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace ckptd::client {

struct CopyStep {
  std::byte* to;
  const std::byte* from;
  size_t size;
};

// Lays the pieces, one behind the other, into the targets, one behind the other. The targets hold at least as
// much.
void PlanCopy(std::span<const std::span<const std::byte>> pieces,
              std::span<const std::span<std::byte>> targets, std::vector<CopyStep>* steps);

// Runs the steps, each thread an equal share of the bytes; the calling thread is one of them.
void RunCopy(const std::vector<CopyStep>& steps, int threads);

// work(0) ... work(count - 1), by up to `threads` threads; the calling thread is one of them.
void ParallelFor(int count, int threads, const std::function<void(int)>& work);

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_COPY_H_
