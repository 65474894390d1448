// Turns a checkpoint of another program into one of ckptd's. The protocol and its crash argument are at the
// top of adopt.cc.
#ifndef CKPTD_STORAGE_COMMIT_LOCAL_ADOPT_H_
#define CKPTD_STORAGE_COMMIT_LOCAL_ADOPT_H_

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/checkpoint/foreign.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/local/layout.h"
#include "storage/commit/local/publish.h"

namespace ckptd {

// `summary` is SummaryOfForeign with the run's id and a sequence. kFailed: the checkpoint is still foreign
// and unchanged; the reason is FOREIGN_CHANGED, or one of WalkForeign.
Published AdoptForeign(const PublishContext& context, const ForeignSurvey& survey,
                       const storage::v1::ManifestSummary& summary);

// Syncs adoptions that an earlier daemon may not have synced. Called before they are reported as committed.
absl::Status SyncAdopted(const Layout& layout, const RootScan& scan);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_LOCAL_ADOPT_H_
