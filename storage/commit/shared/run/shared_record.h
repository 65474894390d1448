// What must be remembered of a run of several nodes and is neither in a manifest nor in the ledger: pins,
// marks of damage, retention settings, history. The coordinator writes one record of it.
//
//   <root>/.ckptd/shared/record.<term>   SharedRunRecord
//
// The name has the term of the coordinator that wrote it, and the record of the highest term counts. So a
// coordinator that was paused for longer than its lease writes over no record of a later one.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_RECORD_H_
#define CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_RECORD_H_

#include <compare>
#include <cstdint>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/shared/run/shared_layout.h"

namespace ckptd {

struct RecordVersion {
  int64_t term = 0;
  int64_t number = 0;  // Rises with each record that a daemon writes, over all terms.
  auto operator<=>(const RecordVersion&) const = default;
};

class SharedRecords {
 public:
  // `layout` must outlive it.
  explicit SharedRecords(const SharedLayout* layout) : layout_(*layout) {}

  // On any node. `at_least`: what the ledger says was written; {0, 0}: nothing was. LOOK_AGAIN if this node
  // sees only what is older. An empty record if nothing was written. FAILED_PRECONDITION, reason
  // ROOT_UNREADABLE, if the record cannot be read: an older one does not take its place.
  absl::StatusOr<storage::v1::SharedRunRecord> Load(RecordVersion at_least);

  // By the coordinator of `term`, which has loaded the record since it has the leadership. Durable on return, but
  // it counts only if the ledger then accepts its version from a coordinator of this term: otherwise a later
  // coordinator may have read the record before it changed. After an error the record was written or not.
  absl::StatusOr<RecordVersion> Store(storage::v1::SharedRunRecord record, int64_t term);

 private:
  const SharedLayout& layout_;
  int64_t number_ = 0;  // The highest that was read, or that a Store has tried.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_RECORD_H_
