// Steps 4 and 5 of the commit: turns an in-flight directory whose parts are all on disk into <root>/<tag>.
// The protocol and its crash argument are at the top of publish.cc.
#ifndef CKPTD_STORAGE_COMMIT_LOCAL_PUBLISH_H_
#define CKPTD_STORAGE_COMMIT_LOCAL_PUBLISH_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/clock.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/local/layout.h"
#include "storage/commit/local/trash.h"
#include "storage/commit/steps/records.h"
#include "storage/commit/steps/types.h"
#include "storage/io/probe.h"

namespace ckptd {

// What publishing needs of the store, which owns all of it.
struct PublishContext {
  const Layout& layout;
  const ProbeResult& probe;
  const Pins& pins;
  Trash& trash;
  Clock& clock;
};

// What exists at the tag, if a save may replace it. Otherwise ALREADY_EXISTS, reason TAG_FOREIGN, or
// FAILED_PRECONDITION, reason PINNED.
absl::StatusOr<Target> CheckedTarget(const Layout& layout, const Pins& pins, const std::string& tag);

struct Published {
  PublishResult result;
  storage::v1::ManifestSummary summary;  // As written. Set with kCommitted.
  std::string left = {};  // Not empty: a directory in flight that the caller removes. Set with kFailed.
};
Published PublishInflight(const PublishContext& context, const Inflight& inflight,
                          const storage::v1::ManifestSummary& summary,
                          const std::vector<storage::v1::PartRecord>& parts);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_LOCAL_PUBLISH_H_
