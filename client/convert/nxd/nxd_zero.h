// Converts the ZeRO-1 optimizer of a tag that NeuronX Distributed saved: shards to a merged state, a merged
// state to shards, or shards to another number of shards. See docs/convert.md.
//
//   1. Scan the names, load every file's pickle and check all of it. What cannot be converted without loss is
//      refused before anything is written.
//   2. Make the new tag in a staging directory (staging.h) by copying ranges of the old files. Copy model/,
//      scheduler.pt and user_content.pt. Only one tensor- and pipeline-parallel rank is in memory at a time:
//      its pickles, its plan, and the buffers of stream_files.h.
//   3. Write the markers that NxD looks for, sync everything, and publish the tag with one rename.
//
// The input is only read. The converter copies and makes no hard links: NxD overwrites existing files in
// place, so a save to one tag would change the other.
#ifndef CKPTD_CLIENT_CONVERT_NXD_NXD_ZERO_H_
#define CKPTD_CLIENT_CONVERT_NXD_NXD_ZERO_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/files/output_tree.h"
#include "client/convert/nxd/nxd_tag.h"
#include "storage/fs/file_system.h"

namespace ckptd {

struct NxdZeroOptions {
  bool to_full = false;
  int dp_size = 0;                // The number of shards to make, 1 to kMaxShards. Ignored if `to_full`.
  bool dry_run = false;           // Do only step 1: nothing is written.
  bool allow_unfinished = false;  // Convert a tag even if its save has not ended.
  OutputOptions output = {};
  // Plans of about this many bytes, in memory, are made at once.
  int64_t plan_bytes = int64_t{48} << 20;
};

constexpr int kMaxShards = 65536;

struct NxdZeroReport {
  NxdTag from;
  bool to_full = false;
  int to_dp = 0;  // 1 if `to_full`.
  int64_t optim_files = 0;
  int64_t optim_bytes = 0;
  int64_t carried_files = 0;
  int64_t carried_bytes = 0;
  std::vector<std::string> removed;  // Leftovers of killed conversions that were removed.
  std::string io_backend;            // Empty after a dry run.
  int64_t total_bytes() const { return optim_bytes + carried_bytes; }
};

// Converts the tag whose directory is `in` to `name` in `parent`, which must be missing or an empty
// directory. The caller has checked that it is not inside `in` (convert_paths.h). Calls `progress` with the
// plan and the bytes written so far; if it returns false, the conversion stops with ABORTED, reason
// INTERRUPTED. Blocks.
//
// After an error it leaves nothing behind, except if the error is INDETERMINATE (staging.h). Other reasons:
// INVALID_ARGUMENT, those of nxd_tag.h, zero_state.h and torch/archive.h, NO_SPACE, and the disks' errors.
absl::StatusOr<NxdZeroReport> ConvertNxdZero(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const NxdZeroOptions& options,
    const std::function<bool(const NxdZeroReport& plan, int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_NXD_ZERO_H_
