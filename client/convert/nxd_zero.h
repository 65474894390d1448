// Converts the ZeRO-1 optimizer of a tag that NeuronX Distributed saved: shards into a merged state, a merged
// state into shards, shards into those of another number of data-parallel ranks. docs/convert.md.
//
//   1. Names are looked at, then every file's pickle, and all of it is checked: what cannot be converted
//      without loss is refused before anything is written.
//   2. The new tag is made beside its place (staging.h), by copying ranges of the old files; model/,
//      scheduler.pt and user_content.pt are copied. One tensor- and pipeline-parallel rank at a time is in
//      memory: its pickles and the plan, and the buffers of stream_files.h.
//   3. The markers that NxD goes by are written, everything is synced, and one rename publishes it.
//
// The input is only read. Copies, not hard links: NxD writes a file that is there in place, so a save over
// the one tag would change the other.
#ifndef CKPTD_CLIENT_CONVERT_NXD_ZERO_H_
#define CKPTD_CLIENT_CONVERT_NXD_ZERO_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/convert/nxd_tag.h"
#include "storage/fs/file_system.h"
#include "storage/io/probe.h"

namespace ckptd {

struct NxdZeroOptions {
  bool to_full = false;
  int dp_size = 0;          // Of the shards to be made, 1 to kMostShards. Not looked at when `to_full`.
  bool dry_run = false;     // Nothing is written: step 1 alone.
  bool unfinished = false;  // Also a tag whose save has not ended.
  IoQueueMakers queues = {};
  int64_t chunk_bytes = 4 << 20;
  int depth = 16;
  // Plans of about so many bytes are made at once.
  int64_t plan_bytes = int64_t{48} << 20;
};

constexpr int kMostShards = 65536;

struct NxdZeroReport {
  NxdTag from;
  bool to_full = false;
  int to_dp = 0;  // 1 when `to_full`.
  int64_t optim_files = 0;
  int64_t optim_bytes = 0;
  int64_t carried_files = 0;
  int64_t carried_bytes = 0;
  std::vector<std::string> removed;  // Left-overs of conversions that died.
  std::string io_backend;            // Empty after a dry run.
  int64_t total_bytes() const { return optim_bytes + carried_bytes; }
};

// `in`: the tag's directory. The result is `name` in `parent`, which is free or an empty directory; that it
// is not in `in` the caller has checked (places.h). `progress` hears of the plan and of the bytes written so
// far, and says whether to go on (ABORTED, INTERRUPTED). Blocks.
//
// After an error nothing is left, but where the error is INDETERMINATE (staging.h). Other reasons:
// INVALID_ARGUMENT, those of nxd_tag.h, zero_state.h and torch/archive.h, NO_SPACE, and what the disks say.
absl::StatusOr<NxdZeroReport> ConvertNxdZero(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const NxdZeroOptions& options,
    const std::function<bool(const NxdZeroReport& plan, int64_t bytes)>& progress);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_NXD_ZERO_H_
