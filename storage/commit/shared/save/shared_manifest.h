// The manifest of a save of several nodes: made by the run's coordinator from the records of the nodes' parts
// and from what the ledger says, so that every coordinator makes the same bytes.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_MANIFEST_H_
#define CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/commit/steps/types.h"
#include "storage/format/manifest.h"

namespace ckptd {

// Reads the record of each node, in the order of their names. `digests`: node -> digest, as the nodes have
// told the ledger that they are durable. LOOK_AGAIN if a record with this digest is not to be seen on this
// node yet. Errors of the disk are themselves. DATA_LOSS, reason CORRUPT_PART_RECORD, if a record with this
// digest is not of this save and node: it was written like that.
absl::StatusOr<std::vector<storage::v1::NodePartRecord>> ReadNodeParts(
    const SharedLayout& layout, const SharedInflight& save,
    const std::map<std::string, std::string>& digests);

// What the ledger has fixed when it said that the save is being published.
struct LedgerFacts {
  std::string tag;
  int64_t sequence = 0;
  int64_t attempt = 0;
  int64_t ordinal = 0;
  CommitTimes times = {};
  std::vector<int> ranks = {};  // That had something to save, ascending; empty: all.
  int64_t replaces = 0;         // The sequence of the checkpoint with this tag that is removed; 0: none.
  // Pointers of that checkpoint, which the save takes over (TakeOverPointers of pointers.h). They come after
  // those of the save's own ranks, as long as there is room.
  std::map<std::string, std::string> inherited_pointers = {};
};

// What ranks of several nodes may say differently is decided by the lowest rank that says it. No error goes
// away by itself, so the save is given up: FILE_CONFLICT if two ranks have one file, or one's file is
// another's directory; INVALID_ARGUMENT if the parts are not those of all these ranks of the save, or were
// written with different chunk sizes; METRICS_TOO_LARGE.
absl::StatusOr<Manifest> BuildSharedManifest(const LedgerFacts& facts,
                                             const std::vector<storage::v1::NodePartRecord>& parts);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_MANIFEST_H_
