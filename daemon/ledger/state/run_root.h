// Which directory is the root of a run. No file inside it can tell, because a copy holds the same file.
#ifndef CKPTD_DAEMON_LEDGER_STATE_RUN_ROOT_H_
#define CKPTD_DAEMON_LEDGER_STATE_RUN_ROOT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"

namespace ckptd {

// Compares the root that a node has opened with that of the run, as found under LedgerKeys::Root; nothing
// found: it is the first. ROOT_COPIED, if the run's is another directory: FAILED_PRECONDITION, or
// PERMISSION_DENIED if that is another user's.
absl::Status CheckRunRoot(const std::string& run, const ledger::v1::RunRoot& here,
                          const std::vector<etcdserverpb::KeyValue>& found);
// After CheckRunRoot: what binds the run to this directory, which may have been renamed; nullopt: it is
// bound.
std::optional<etcdserverpb::RequestOp> BindRunRoot(const std::string& key, const ledger::v1::RunRoot& here,
                                                   const std::vector<etcdserverpb::KeyValue>& found);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_RUN_ROOT_H_
