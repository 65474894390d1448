// The one copy that a save or a restore makes: from many sources to many targets, by several threads.
#ifndef CKPTD_CLIENT_CPP_MEMORY_COPY_H_
#define CKPTD_CLIENT_CPP_MEMORY_COPY_H_

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "storage/base/memory/streaming_copy.h"

namespace ckptd::client {

struct CopyStep {
  std::byte* to;
  const std::byte* from;
  size_t size;
};

// Appends to `steps` what copies the concatenation of `pieces` to the concatenation of `targets`. The targets
// hold at least as many bytes.
void PlanCopy(std::span<const std::span<const std::byte>> pieces,
              std::span<const std::span<std::byte>> targets, std::vector<CopyStep>* steps);

// Runs the steps with up to `threads` threads, each copying an equal share of the bytes. The calling thread
// is one of them.
void RunCopy(CopyWay way, const std::vector<CopyStep>& steps, int threads);

// Calls work(0) ... work(count - 1), with up to `threads` threads. The calling thread is one of them; if the
// system allows no more threads, it does all of the work.
void ParallelFor(int count, int threads, const std::function<void(int)>& work);

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_MEMORY_COPY_H_
