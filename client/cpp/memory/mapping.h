// Mappings of the daemon's segments into this process.
#ifndef CKPTD_CLIENT_CPP_MEMORY_MAPPING_H_
#define CKPTD_CLIENT_CPP_MEMORY_MAPPING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace ckptd::client {

enum class Access { kRead, kWrite };

// One segment, shared with the daemon. The last owner unmaps it: a part that is being written keeps its
// segments although the session has ended.
class Mapping {
 public:
  // Maps `size` bytes of `fd` and faults them in, in huge pages if `huge`. A forked child does not inherit
  // the mapping. Closes `fd`. INTERNAL if the file is shorter than `size`: reading beyond its end would be a
  // SIGBUS.
  static absl::StatusOr<std::shared_ptr<Mapping>> Map(UniqueFd fd, int64_t size, bool huge,
                                                      Access access = Access::kWrite);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }

  // The number of the part that the segment was lent for last: its bytes are that part's. Thread-safe.
  void LendTo(int64_t part) { borrower_ = part; }
  int64_t borrower() const { return borrower_; }

 private:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  size_t size_;
  std::atomic<int64_t> borrower_{0};
};

// True if every page of `bytes` is in this process's page table, as it is after a write. A page is missing
// after a hole was punched there: the daemon has freed it, and zeros would be read. It is missing, too, if
// the machine has swapped it out: a save that is reported lost is better than one full of zeros. Ask before
// reading, which maps a page of zeros.
bool ArePresent(std::span<const std::byte> bytes);

// A segment's descriptor and its announced size.
struct SegmentFile {
  UniqueFd fd;
  int64_t size = 0;
};

// Segments mapped one behind the other, privately: what this process writes is copied page by page, and
// nobody else sees it. The last owner unmaps it. A forked child inherits it and gets its own copy of the
// pages that it writes. Of reserved huge pages (hugetlb) there may be none left for the child; its write is
// then a SIGBUS.
class PrivateMapping {
 public:
  // Maps the segments and faults them in for reading. RESOURCE_EXHAUSTED, or the kernel's other error, if the
  // kernel refuses. INTERNAL if a file is shorter than its announced size: reading there would be a SIGBUS.
  static absl::StatusOr<std::shared_ptr<PrivateMapping>> Map(const std::vector<SegmentFile>& segments);
  ~PrivateMapping();
  PrivateMapping(const PrivateMapping&) = delete;
  PrivateMapping& operator=(const PrivateMapping&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  PrivateMapping(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  size_t size_;
};

using Segments = std::vector<std::shared_ptr<Mapping>>;

// The spans that hold the bytes [offset, offset + size) of a part, which is the concatenation of `segments`.
// OUT_OF_RANGE if the part ends before.
absl::StatusOr<std::vector<std::span<std::byte>>> Locate(const Segments& segments, int64_t offset,
                                                         int64_t size);

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_MEMORY_MAPPING_H_
