// Which checkpoints of a run are pinned or known to be damaged, in the record of a root that several nodes share
// (storage/commit/shared/run/shared_record.h) or of one in a bucket (storage/commit/bucket).
#ifndef CKPTD_STORAGE_COMMIT_STEPS_RUN_MARKS_H_
#define CKPTD_STORAGE_COMMIT_STEPS_RUN_MARKS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

// Changes of a record, which is then to be stored.
void SetPinned(storage::v1::SharedRunRecord& record, const std::string& tag, int64_t sequence, bool pinned);
// An earlier mark stays. Nullopt removes it.
void SetDamage(storage::v1::SharedRunRecord& record, const std::string& tag, int64_t sequence,
               const std::optional<storage::v1::Damage>& damage);
// The checkpoint was removed.
void ForgetCheckpoint(storage::v1::SharedRunRecord& record, const std::string& tag, int64_t sequence);

// Fills in what the record says of each checkpoint.
void MarkCheckpoints(const storage::v1::SharedRunRecord& record,
                     std::map<int64_t, CommittedCheckpoint>& checkpoints);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_STEPS_RUN_MARKS_H_
