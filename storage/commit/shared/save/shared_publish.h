// How a save of several nodes becomes <root>/<tag>, and how a daemon finds out whether it has. The argument
// is at the top of shared_publish.cc.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_PUBLISH_H_
#define CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_PUBLISH_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/format/manifest.h"

namespace ckptd {

// A save that the ledger says is being published.
struct SharedInflight {
  std::string tag;
  int64_t sequence = 0;
  std::string name;  // Beneath inflight/; never used for another save.
};

enum class SharedPlace {
  kPublished,  // At its tag.
  kInFlight,
  kInTrash,  // It was given up, and is never published.
  // It is in none of these places, and younger saves are checkpoints, which come after its end: it was
  // published and has been removed since, or was given up. The ledger has gone back to a time before that.
  kSuperseded,
  // <root>/.ckptd was removed, and with it what was in flight. Only the store that has made the
  // directory knows that (SharedRootStore::Find); for others it is nowhere.
  kLost,
  kNowhere,  // Another daemon may be moving it: look again, for longer than names of the file system are
             // stale.
};
// Changes nothing, but syncs: what it calls published or in trash is there durably.
absl::StatusOr<SharedPlace> FindShared(const SharedLayout& layout, const SharedInflight& save);

// Publishes what is in flight, all of whose files are durable, or finds that it has been. `term`: the
// coordinator's; no two daemons have the same. `manifest` depends on the ledger and the part records alone,
// so that every coordinator writes the same bytes.
//
// 0: it is at its tag, durably. Otherwise the sequence of an earlier checkpoint of ckptd's that has its
// place, in whole or half removed: remove it (shared_removal.h), and call again. If that one is not
// `replaces`, the manifest lacks the pointers that the save takes over from it, so find these first. An error
// of CheckMayReplace (commit_rules.h), as TAG_FOREIGN: what has its place stays; the save is in trash,
// durably, and no daemon can publish it any more. `pinned`: sequences of checkpoints that are. Other errors,
// such as those of the file system: not known; look with FindShared.
absl::StatusOr<int64_t> PublishShared(const SharedLayout& layout, const SharedInflight& save,
                                      const Manifest& manifest, int64_t term, int64_t replaces = 0,
                                      const std::set<int64_t>& pinned = {});

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_PUBLISH_H_
