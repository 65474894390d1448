// Which committed checkpoints of a run a retention policy keeps, and why. Pure functions.
#ifndef CKPTD_DAEMON_ENGINE_RETENTION_RETENTION_POLICY_H_
#define CKPTD_DAEMON_ENGINE_RETENTION_RETENTION_POLICY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/run/catalog.h"
#include "storage/ledger/retention_terms.h"

namespace ckptd {

using RetentionPolicy = storage::v1::RetentionPolicy;

// True only if `policy` never keeps a checkpoint that `other` does not keep.
bool KeepsNoMoreThan(const RetentionPolicy& policy, const RetentionPolicy& other);

// Maps the sequence of each kept checkpoint to the parts of the policy that keep it, in words: "last 3",
// "best 2 by lowest loss", ... `committing`: as if one more good checkpoint, about which nothing is known,
// had just been committed. The policy does not count the checkpoints up to `retained_through` (RunRecord),
// which stay.
std::map<int64_t, std::vector<std::string>> KeptByPolicy(const RetentionPolicy& policy,
                                                         const Catalog& catalog, int64_t now_unix_us,
                                                         bool committing, int64_t retained_through = 0);

// The log message for a launch that could not resume and has saved a state of its own.
std::string SetAsideWarning(const std::string& path, int64_t retained_through);

// The policy that the commit of a save puts in force: the operator's, or else `of_save`. Unset keeps all.
RetentionPolicy PolicyAfterCommit(const storage::v1::RunRecord& record,
                                  const std::optional<RetentionPolicy>& of_save);
// The policies of a run whose last daemon may have been killed between a commit and its record. A checkpoint
// that at least one of them keeps must be kept.
std::vector<RetentionPolicy> PoliciesAtStart(const storage::v1::RunRecord& record);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RETENTION_RETENTION_POLICY_H_
