// bench_save ENDPOINT ROOT BYTES SAVES THREADS PIECES PAGES
//
// Saves BYTES of memory, gathered from PIECES pieces, SAVES times. Each save waits for a line on stdin, which
// the caller sends when the disk is idle, and is committed before the next begins. The first save is cold.
// Prints one JSON line for each save, with the seconds of the stall (the whole Save call), of Begin and Seal
// together, from the call until COMMITTED, and of a copy of the same bytes by each of the processor's loops,
// by THREADS threads, measured right before. That copy goes to memory made like the daemon's pool, on PAGES of
// the kind that the pool has ("plain", "transparent" or "hugetlb").
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cpp/client.h"
#include "client/cpp/memory/copy.h"
#include "daemon/memory/page_filler.h"
#include "daemon/memory/segment_memory.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/memory/copy_loops.h"
#include "storage/base/memory/huge_pages.h"

namespace {

using ckptd::PagePolicy;
using ckptd::SegmentMemory;
using ckptd::client::Client;
using ckptd::client::Level;
using ckptd::client::Run;
using ckptd::client::Save;

double Seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

std::chrono::nanoseconds Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

int Fail(const absl::Status& status) {
  std::cerr << "bench_save: " << status.message() << "\n";
  return 1;
}

// The state in so many pieces, like the tensors of a model.
std::vector<std::span<const std::byte>> Cut(std::span<const std::byte> state, int pieces) {
  std::vector<std::span<const std::byte>> cut;
  for (int i = 0; i < pieces; ++i) {
    const size_t start = state.size() * i / pieces, end = state.size() * (i + 1) / pieces;
    cut.push_back(state.subspan(start, end - start));
  }
  return cut;
}

// A copy of everything; each thread copies an equal share.
void Copy(const ckptd::CopyLoop& loop, std::span<std::byte> to, std::span<const std::byte> from,
          int threads) {
  ckptd::client::ParallelFor(threads, threads, [&](int i) {
    const size_t start = from.size() * i / threads, end = from.size() * (i + 1) / threads;
    loop.copy(reinterpret_cast<char*>(to.data()) + start, reinterpret_cast<const char*>(from.data()) + start,
              end - start);
  });
}

// JSON with the seconds of a copy by each loop that works here.
std::string MeasureCopies(std::span<std::byte> to, std::span<const std::byte> from, int threads) {
  std::vector<std::string> measured;
  for (const ckptd::CopyLoop& loop : ckptd::CopyLoops()) {
    if (!loop.works_here()) continue;
    const auto begin = Now();
    Copy(loop, to, from, threads);
    measured.push_back(absl::StrFormat("\"%s\": %.6f", loop.name, Seconds(Now() - begin)));
  }
  return absl::StrCat("{", absl::StrJoin(measured, ", "), "}");
}

// Memory as the daemon makes it for its pool, faulted in. The daemon gives up huge pages that take long to
// make; here they are worth the wait, because the pool has them. `huge` becomes false if the kernel has none.
absl::StatusOr<SegmentMemory> PoolMemory(int64_t bytes, bool& huge) {
  const int64_t size = (bytes + ckptd::kHugePageBytes - 1) / ckptd::kHugePageBytes * ckptd::kHugePageBytes;
  ckptd::PageFiller filler;
  const std::atomic<bool> stop = false;
  absl::StatusOr<SegmentMemory> memory =
      SegmentMemory::Make(size, huge ? PagePolicy::kAuto : PagePolicy::kPlain, filler, stop);
  if (huge && memory.ok() && memory->pages() == ckptd::PageKind::kPlain) {
    madvise(memory->data(), static_cast<size_t>(size),
            MADV_HUGEPAGE);  // The filler has advised against them.
    huge = ckptd::MakePagesHuge(memory->data(), size) == 0;
  }
  return memory;
}

int Bench(Run& run, int64_t bytes, int saves, int threads, int pieces, const std::string& pages) {
  std::vector<std::byte> state(static_cast<size_t>(bytes));
  std::memset(state.data(), 0x5a, state.size());
  bool huge = pages != "plain";
  absl::StatusOr<SegmentMemory> pool = PoolMemory(std::max<int64_t>(bytes, 1), huge);
  if (!pool.ok()) return Fail(pool.status());
  const std::span<std::byte> copy(pool->data(), state.size());
  const std::string described =
      absl::StrFormat("from malloc's pages to shared pages of %s, touched", huge ? "2 MiB" : "4 KiB");
  std::string line;
  for (int i = 0; i < saves && std::getline(std::cin, line); ++i) {
    const std::string copies = MeasureCopies(copy, state, threads);
    std::memcpy(state.data(), &i, std::min(sizeof i, state.size()));  // No two saves are equal.

    const auto begin = Now();
    absl::StatusOr<Save> save =
        run.Save({.tag = absl::StrFormat("bench_%d", i), .step = i, .timeout = std::chrono::seconds(120)},
                 {{"state.bin", Cut(state, pieces)}});
    if (!save.ok()) return Fail(save.status());
    const auto stall = Now() - begin;
    if (absl::Status durable = save->Wait(Level::kCommitted, std::chrono::seconds(600)); !durable.ok())
      return Fail(durable);
    const auto durable = Now() - begin;
    std::cout << absl::StrFormat(
                     "{\"save\": %d, \"bytes\": %d, \"threads\": %d, \"stall_s\": %.6f, \"handoff_s\": %.6f, "
                     "\"copy_s\": %.6f, "
                     "\"map_s\": %.6f, \"durable_s\": %.6f, \"copies\": %s, \"pages\": \"%s\"}",
                     i, bytes, threads, Seconds(stall), Seconds(save->timing().begin + save->timing().seal),
                     Seconds(save->timing().copy), Seconds(save->timing().map), Seconds(durable), copies,
                     described)
              << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t bytes = 0;
  int saves = 0, threads = 0, pieces = 0;
  if (argc != 8 || !absl::SimpleAtoi(argv[3], &bytes) || !absl::SimpleAtoi(argv[4], &saves) ||
      !absl::SimpleAtoi(argv[5], &threads) || !absl::SimpleAtoi(argv[6], &pieces) || bytes < 0 || saves < 1 ||
      threads < 1 || pieces < 1) {
    std::cerr << "usage: bench_save ENDPOINT ROOT BYTES SAVES THREADS PIECES PAGES\n";
    return 2;
  }
  absl::StatusOr<Client> client = Client::Connect(argv[1]);
  if (!client.ok()) return Fail(client.status());
  absl::StatusOr<Run> run = client->OpenRun(argv[2], {.num_kept_ckpts = 1, .copy_threads = threads});
  if (!run.ok()) return Fail(run.status());
  return Bench(*run, bytes, saves, threads, pieces, argv[7]);
}
