// Brings a checkpoint back from the trash to its tag.
//
//   U1. Check that the tag is free, and that the checkpoint has all files of its manifest.
//   U2. Pin it durably: else retention would evict it again at the next commit.
//   U3. Rename it from trash/ to its tag, without replacing anything. Sync both directories.
//
// A crash before the rename is durable leaves it in the trash, as it was, and perhaps a pin that names
// nothing: sequences are not used twice. A crash after it leaves it at its tag, pinned.
#ifndef CKPTD_STORAGE_COMMIT_LOCAL_UNDELETE_H_
#define CKPTD_STORAGE_COMMIT_LOCAL_UNDELETE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/local/layout.h"
#include "storage/commit/local/trash.h"
#include "storage/commit/steps/records.h"
#include "storage/io/probe.h"

namespace ckptd {

struct BroughtBack {
  absl::Status status;
  bool unknown = false;                       // It is not known which name a crash would leave.
  storage::v1::ManifestSummary summary = {};  // If the status is OK.
};
// Of those of the tag, the one with this sequence, or with the highest one if `sequence` is 0. NOT_FOUND,
// reason NO_CHECKPOINT, if there is none. ALREADY_EXISTS, reason TAG_TAKEN, if a checkpoint of ckptd has the
// tag, or TAG_FOREIGN, if something else has it. DATA_LOSS if its manifest or a file is damaged or missing:
// it stays in the trash. UNKNOWN, reason INDETERMINATE, with `unknown`.
BroughtBack BringBack(const Layout& layout, const ProbeResult& probe, Pins& pins, Trash& trash,
                      const std::string& tag, int64_t sequence);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_LOCAL_UNDELETE_H_
