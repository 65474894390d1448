// How records on disk store a run's retention policy. Used for RunRecord and SealedSave, which have the same
// two fields for it.
#ifndef CKPTD_STORAGE_FORMAT_RETENTION_RECORD_H_
#define CKPTD_STORAGE_FORMAT_RETENTION_RECORD_H_

#include <optional>

#include "ckptd/storage/v1/storage.pb.h"

namespace ckptd {

// The policy keeps the last ones and nothing else.
inline bool IsOnlyLast(const storage::v1::RetentionPolicy& policy) {
  return policy.has_last() && policy.best() == 0 && policy.every_steps() == 0 && policy.newer_than_us() == 0;
}

// False: a field is out of its range, so that the record is damaged.
inline bool IsValidRetention(const storage::v1::RetentionPolicy& policy) {
  return (!policy.has_last() || policy.last() >= 1) && policy.best() >= 0 && policy.every_steps() >= 0 &&
         policy.newer_than_us() >= 0 && (policy.best() > 0) == !policy.metric().empty();
}

// A policy of `last` alone is stored in num_kept_ckpts, which daemons before 0.2 read, too. They keep all
// checkpoints of a run with another policy. An empty policy, which keeps all, is stored as neither field.
template <typename Record>
void StoreRetention(const storage::v1::RetentionPolicy& policy, Record* record) {
  record->clear_num_kept_ckpts();
  record->clear_retention();
  if (IsOnlyLast(policy)) {
    record->set_num_kept_ckpts(policy.last());
  } else if (policy.ByteSizeLong() > 0) {
    *record->mutable_retention() = policy;
  }
}

// An empty policy keeps all.
template <typename Record>
storage::v1::RetentionPolicy LoadRetention(const Record& record) {
  storage::v1::RetentionPolicy policy = record.retention();
  if (record.has_num_kept_ckpts()) policy.set_last(record.num_kept_ckpts());
  return policy;
}

// Nullopt: the policies of the saves count.
inline void StoreRetentionOverride(const std::optional<storage::v1::RetentionPolicy>& policy,
                                   storage::v1::RunRecord* record) {
  record->clear_retention_override();
  if (policy) *record->mutable_retention_override() = *policy;
}

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FORMAT_RETENTION_RECORD_H_
