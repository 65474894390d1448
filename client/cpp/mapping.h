// A segment of the daemon's memory, mapped into this process.
#ifndef CKPTD_CLIENT_CPP_MAPPING_H_
#define CKPTD_CLIENT_CPP_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace ckptd::client {

enum class Access { kRead, kWrite };

// Unmapped when the last owner goes: a part that is being filled keeps its segments although the session has
// ended.
class Mapping {
 public:
  // Maps all of `fd`, faulted in, in huge pages where the segment has them; a forked child does not inherit
  // it. `fd` is not needed afterwards. The file's size is checked: a shorter one would be a
  // SIGBUS later.
  static absl::StatusOr<std::shared_ptr<Mapping>> Map(UniqueFd fd, int64_t size, bool huge,
                                                      Access access = Access::kWrite);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  size_t size_;
};

// A segment's descriptor, and how much of it there is to be.
struct SegmentFile {
  UniqueFd fd;
  int64_t size = 0;
};

// Segments one behind the other, to read and to write: what this process writes there stays here. Unmapped
// when the last owner goes. A forked child has it, too, and its own copy of what it writes; but of pages that
// the system has reserved (hugetlb) there may be none left for a child, which would be a SIGBUS.
class PrivateMapping {
 public:
  // Faulted in, to be read. RESOURCE_EXHAUSTED or what else the kernel says where it does not go. The files'
  // sizes are checked: a shorter one would be a SIGBUS later.
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

// Where [offset, offset + size) of a part is, the part being its segments one behind the other. OUT_OF_RANGE
// when it ends before.
absl::StatusOr<std::vector<std::span<std::byte>>> Locate(const Segments& segments, int64_t offset,
                                                         int64_t size);

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_MAPPING_H_
