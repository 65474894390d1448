// Whether a decision may be due, as the watches show it. Each decision is a transaction, so the coordinator
// makes none for a vote that decides nothing.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_SAVE_NEEDS_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_SAVE_NEEDS_H_

#include <string>

#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/ledger/state/save_view.h"

namespace ckptd {

// Whether SaveAdmission::Decide may admit the save, or end it. `inflight`: its directory; empty: none yet.
bool NeedsAdmission(const ledger::v1::SaveState& state, const SaveView& view, const std::string& inflight);
// Whether SavePublication::Settle may seal the save, or end it.
bool NeedsSettling(const ledger::v1::SaveState& state, const SaveView& view);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_SAVE_NEEDS_H_
