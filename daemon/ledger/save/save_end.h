// Converts the end of a save without a checkpoint from an error to the form in etcd, and back.
#ifndef CKPTD_DAEMON_LEDGER_SAVE_SAVE_END_H_
#define CKPTD_DAEMON_LEDGER_SAVE_SAVE_END_H_

#include "absl/status/status.h"
#include "ckptd/ledger/v1/ledger.pb.h"

namespace ckptd {

// The end that this node reports for its own part: code, reason, message and ranks of an error.
ledger::v1::SaveEnd EndOf(const absl::Status& error);
// The error that ranks get on every node. The details "node" and "ranks" name where the cause lies, if known.
absl::Status ErrorOf(const ledger::v1::SaveEnd& end);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_SAVE_END_H_
