#include "client/ckptctl/commands/host.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/memory/huge_pages.h"
#include "storage/base/unique_fd.h"

namespace ckptd::ctl {
namespace {

constexpr char kShmemEnabled[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
constexpr char kHugePages[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
constexpr int64_t kLittleSpace = int64_t{1} << 30;
constexpr int64_t kLittleMemlock = int64_t{1} << 20;

// JuiceFS calls itself a power of two as large, from 1 PiB on, where nothing limits it.
bool HasNoLimit(const ProbeResult& probe) {
  const int64_t total = probe.total_bytes;
  return total >= int64_t{1} << 50 && (total & (total - 1)) == 0;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  std::string result = text.str();
  while (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

int64_t ReadNumber(const std::string& path) {
  std::istringstream text(ReadAll(path));
  int64_t number = 0;
  text >> number;
  return number;
}

// Asks for a huge page of shared memory, as the daemon does for its segments, and frees it.
bool MakesHugePages() {
  const UniqueFd memory(memfd_create("ckptctl-doctor", MFD_CLOEXEC));
  if (!memory || ftruncate(memory.get(), kHugePageBytes) != 0) return false;
  const size_t reserved = 2 * kHugePageBytes;  // Holds an aligned huge page.
  void* const range = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return false;
  const auto begin = reinterpret_cast<uintptr_t>(range);
  void* const aligned =
      reinterpret_cast<void*>((begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
  const bool made = mmap(aligned, kHugePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                         memory.get(), 0) != MAP_FAILED &&
                    MakePagesHuge(static_cast<std::byte*>(aligned), kHugePageBytes) == 0;
  munmap(range, reserved);
  return made;
}

// The selected word: "advise" of "always within_size [advise] never".
std::string Chosen(const std::string& words) {
  const size_t begin = words.find('['), end = words.find(']');
  return begin == std::string::npos || end == std::string::npos ? ""
                                                                : words.substr(begin + 1, end - begin - 1);
}

Finding HugePages(const HostFacts& facts) {
  if (facts.huge_pages_free > 0) {
    return {Verdict::kOk, "huge pages",
            absl::StrCat(HumanBytes(facts.huge_pages_free * kHugePageBytes), " reserved and free, of ",
                         HumanBytes(facts.huge_pages_total * kHugePageBytes)),
            ""};
  }
  const std::string& word = facts.shmem_enabled;
  if (word == "advise" || word == "always" || word == "within_size" || word == "force") {
    return {Verdict::kOk, "huge pages",
            absl::StrCat("transparent huge pages for shared memory (", word, "); no reserved one is free"),
            ""};
  }
  if (facts.makes_huge_pages) {
    return {Verdict::kOk, "huge pages", "transparent huge pages on request; no reserved one is free", ""};
  }
  return {
      Verdict::kWarning, "huge pages",
      absl::StrCat("none: 0 of ", facts.huge_pages_total,
                   " reserved ones are free, and transparent ones for shared memory are ",
                   word.empty() ? "not in this kernel" : absl::StrCat("off (", word, ")"),
                   ", also on request",
                   "; the daemon uses 4 KiB pages, at about half the disk's speed and twice the CPU"),
      absl::StrCat(
          "as root: echo advise > ", kShmemEnabled,
          "   or reserve them before ckptd starts: sysctl vm.nr_hugepages=N (N = the pool's bytes / 2 MiB)")};
}

Finding IoUring(const HostFacts& facts, const absl::Status& uring) {
  if (uring.ok()) return {Verdict::kOk, "io_uring", "works for this user", ""};
  const bool by_sysctl = facts.io_uring_disabled == "1" || facts.io_uring_disabled == "2";
  return {Verdict::kWarning, "io_uring",
          absl::StrCat("not for this user: ", std::string(uring.message()),
                       "; the daemon uses threads instead, with the same guarantees and more CPU"),
          by_sysctl ? "as root: sysctl kernel.io_uring_disabled=0"
                    : "in a container: allow io_uring_setup, io_uring_enter and io_uring_register in its "
                      "seccomp profile"};
}

Finding Memlock(const HostFacts& facts) {
  const std::string what = facts.memlock_bytes < 0 ? "no limit" : HumanBytes(facts.memlock_bytes);
  if (facts.memlock_bytes < 0 || facts.memlock_bytes >= kLittleMemlock) {
    return {Verdict::kOk, "locked memory", what, ""};
  }
  return {Verdict::kWarning, "locked memory",
          absl::StrCat(what, ": kernels before 5.12 charge io_uring's rings to it"),
          "LimitMEMLOCK=8M in the unit, or ulimit -l"};
}

Finding Memory(const HostFacts& facts) {
  return {
      Verdict::kOk, "memory",
      absl::StrCat(
          HumanBytes(facts.memory_available_bytes), " available of ", HumanBytes(facts.memory_total_bytes),
          "; size the pool at twice the largest checkpoint of this node, so that two saves may overlap"),
      ""};
}

Finding Ability(bool can, const char* subject, const char* yes, const char* no) {
  return {can ? Verdict::kOk : Verdict::kWarning, subject, can ? yes : no, ""};
}

}  // namespace

HostFacts ReadHostFacts(const std::string& prefix) {
  HostFacts facts;
  facts.huge_pages_total = ReadNumber(absl::StrCat(prefix, kHugePages, "nr_hugepages"));
  facts.huge_pages_free = ReadNumber(absl::StrCat(prefix, kHugePages, "free_hugepages"));
  facts.shmem_enabled = Chosen(ReadAll(absl::StrCat(prefix, kShmemEnabled)));
  facts.makes_huge_pages = MakesHugePages();
  facts.io_uring_disabled = ReadAll(absl::StrCat(prefix, "/proc/sys/kernel/io_uring_disabled"));
  std::istringstream meminfo(ReadAll(absl::StrCat(prefix, "/proc/meminfo")));
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream fields(line);
    std::string name;
    int64_t kib = 0;
    fields >> name >> kib;
    if (name == "MemTotal:") facts.memory_total_bytes = kib << 10;
    if (name == "MemAvailable:") facts.memory_available_bytes = kib << 10;
  }
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  facts.memlock_bytes = limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit.rlim_cur);
  return facts;
}

std::vector<Finding> JudgeHost(const HostFacts& facts, const absl::Status& uring) {
  return {HugePages(facts), IoUring(facts, uring), Memlock(facts), Memory(facts)};
}

std::vector<Finding> JudgeRoot(const absl::StatusOr<ProbeResult>& probe) {
  if (!probe.ok()) {
    return {{Verdict::kFailure, "root", std::string(probe.status().message()),
             "ckptd cannot use this root: give this user write access, or choose another file system"}};
  }
  std::vector<Finding> findings;
  findings.push_back(
      {Verdict::kOk, "file system",
       absl::StrCat(probe->file_system, ", ", probe->io_backend, ": ", probe->io_backend_cause), ""});
  const bool little = probe->free_bytes < kLittleSpace;
  findings.push_back(
      {little ? Verdict::kWarning : Verdict::kOk, "free space",
       HasNoLimit(*probe) ? "unknown: the file system names no limit" : HumanBytes(probe->free_bytes),
       little ? "free some space: the daemon refuses a save that does not fit, before it copies a byte"
              : ""});
  findings.push_back(Ability(probe->direct_io, "direct I/O", "an aligned write was read back equal",
                             "does not work: writes go through the page cache and take more CPU"));
  findings.push_back(Ability(probe->fallocate, "fallocate", "works",
                             "does not work: files grow while they are written, which is slower"));
  findings.push_back(
      Ability(probe->rename_exchange, "re-save", "two names can be exchanged in one step",
              "names cannot be exchanged: ckptd uses a synced intent record and two renames instead"));
  findings.push_back({Verdict::kOk, "directory sync, locks", "work", ""});
  for (const std::string& warning : probe->warnings)
    findings.push_back({Verdict::kWarning, "root", warning, ""});
  return findings;
}

}  // namespace ckptd::ctl
