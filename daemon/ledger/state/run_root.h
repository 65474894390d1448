// Records which directory is the root of a run. A file in the root cannot tell, because a copy has it, too.
#ifndef CKPTD_DAEMON_LEDGER_STATE_RUN_ROOT_H_
#define CKPTD_DAEMON_LEDGER_STATE_RUN_ROOT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"

namespace ckptd {

// Compares the root that a node has opened with the run's root, from the key LedgerKeys::Root. OK if there is
// no key yet. ROOT_COPIED if the run's root is another directory: PERMISSION_DENIED if another user owns that
// directory, else FAILED_PRECONDITION.
absl::Status CheckRunRoot(const std::string& run, const ledger::v1::RunRoot& here,
                          const std::vector<etcdserverpb::KeyValue>& found);
// After CheckRunRoot: the write that binds the run to this directory, which may have been renamed; nullopt:
// the key has this value already.
std::optional<etcdserverpb::RequestOp> BindRunRoot(const std::string& key, const ledger::v1::RunRoot& here,
                                                   const std::vector<etcdserverpb::KeyValue>& found);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_RUN_ROOT_H_
