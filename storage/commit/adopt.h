// The step that makes a checkpoint of another program ours. The protocol and its crash argument are at the
// top of adopt.cc.
#ifndef CKPTD_STORAGE_COMMIT_ADOPT_H_
#define CKPTD_STORAGE_COMMIT_ADOPT_H_

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/foreign.h"
#include "storage/commit/layout.h"
#include "storage/commit/publish.h"
#include "storage/commit/scan.h"

namespace ckptd {

// `summary`: SummaryOfForeign, and the run's id and a sequence. kFailed: it is foreign still, and nothing of
// it was touched: reason FOREIGN_CHANGED, or as WalkForeign.
Published AdoptForeign(const PublishContext& context, const ForeignSurvey& survey,
                       const storage::v1::ManifestSummary& summary);

// Makes durable what an earlier daemon may have adopted and not synced: before it is called committed.
absl::Status SyncAdopted(const Layout& layout, const RootScan& scan);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_ADOPT_H_
