// What a retention policy keeps of a run's committed checkpoints, and why. Pure functions.
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

// A checkpoint's sequence -> which parts of the policy keep it, in words: "last 3", "best 2 by lowest loss",
// ... A checkpoint that is not in the answer is kept by none. `committing`: as if one more good
// checkpoint that nothing is known of had just been committed. The policy does not count those up to
// `retained_through` (RunRecord), which stay.
std::map<int64_t, std::vector<std::string>> KeptByPolicy(const RetentionPolicy& policy,
                                                         const Catalog& catalog, int64_t now_unix_us,
                                                         bool committing, int64_t retained_through = 0);

// For the log: a launch that could not resume has saved a state of its own.
std::string SetAsideWarning(const std::string& path, int64_t retained_through);

// The policy that the commit of a save puts in force: the operator's, or else `of_save`. Unset keeps all.
RetentionPolicy PolicyAfterCommit(const storage::v1::RunRecord& record,
                                  const std::optional<RetentionPolicy>& of_save);
// The policies of a run whose last daemon may have been killed between a commit and its record. What at least
// one of them keeps must be kept.
std::vector<RetentionPolicy> PoliciesAtStart(const storage::v1::RunRecord& record);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RETENTION_RETENTION_POLICY_H_
