// Inspects what matters to ckptd on a machine, and says what to improve.
#ifndef CKPTD_CLIENT_CKPTCTL_COMMANDS_HOST_H_
#define CKPTD_CLIENT_CKPTCTL_COMMANDS_HOST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ckptctl/text/finding.h"
#include "storage/io/probe.h"

namespace ckptd::ctl {

struct HostFacts {
  int64_t huge_pages_total = 0;  // The number of 2 MiB pages.
  int64_t huge_pages_free = 0;
  std::string shmem_enabled;      // The selected word. Empty: this kernel has no such setting.
  bool makes_huge_pages = false;  // This kernel makes huge pages of shared memory on request (MADV_COLLAPSE).
  std::string io_uring_disabled;  // "0", "1" or "2". Empty: the kernel is older than 6.6.
  int64_t memlock_bytes = -1;     // RLIMIT_MEMLOCK; -1: no limit.
  int64_t memory_total_bytes = 0;
  int64_t memory_available_bytes = 0;
};

// Reads /proc and /sys beneath `prefix` (empty: those of this machine), and the limits of this process, and
// asks the kernel for one huge page.
HostFacts ReadHostFacts(const std::string& prefix = "");

// `uring` is the status of creating an io_uring ring.
std::vector<Finding> JudgeHost(const HostFacts& facts, const absl::Status& uring);
std::vector<Finding> JudgeRoot(const absl::StatusOr<ProbeResult>& probe);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_COMMANDS_HOST_H_
