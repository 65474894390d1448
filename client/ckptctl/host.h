// What of the machine matters to ckptd, and what to do about it.
#ifndef CKPTD_CLIENT_CKPTCTL_HOST_H_
#define CKPTD_CLIENT_CKPTCTL_HOST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/io/probe.h"

namespace ckptd::ctl {

enum class Verdict { kOk, kWarning, kFailure };

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string subject;  // "huge pages"
  std::string what;     // What was found.
  std::string advice;   // What to do; empty when there is nothing to.
};

struct HostFacts {
  int64_t huge_pages_total = 0;  // Of 2 MiB.
  int64_t huge_pages_free = 0;
  std::string shmem_enabled;      // The chosen word; empty: the kernel has none.
  std::string io_uring_disabled;  // "0", "1", "2"; empty: a kernel before 6.6.
  int64_t memlock_bytes = -1;     // RLIMIT_MEMLOCK; -1: no limit.
  int64_t memory_total_bytes = 0;
  int64_t memory_available_bytes = 0;
};

// Reads /proc and /sys beneath `prefix` (empty: the machine's), and the limits of this process.
HostFacts ReadHostFacts(const std::string& prefix = "");

// `uring`: what making a ring said.
std::vector<Finding> JudgeHost(const HostFacts& facts, const absl::Status& uring);
std::vector<Finding> JudgeRoot(const absl::StatusOr<ProbeResult>& probe);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_HOST_H_
