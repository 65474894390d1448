// When a save that spans nodes is admitted. Nothing here knows etcd's calls.
#ifndef CKPTD_DAEMON_LEDGER_SAVE_ADMISSION_RULES_H_
#define CKPTD_DAEMON_LEDGER_SAVE_ADMISSION_RULES_H_

#include <string>

#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/ledger/state/save_view.h"

namespace ckptd {

// Changes a state that is PROPOSED to ADMITTED if all ranks of the attempt are on nodes that have accepted
// it, and whose daemons are those that have voted; to ENDED if the attempt is fenced, a node has rejected it,
// or two nodes name different retention policies (SAVE_CONFLICT). An admitted save has the policy of its
// votes. `inflight`: the directory for its files; empty: there is none yet, and the save is not admitted.
void DecideAdmission(const SaveView& view, const std::string& inflight, ledger::v1::SaveState* state);

// The end of a save that is not admitted in time, because of the ranks whose votes do not count: its message
// names these, their nodes and whether those are registered. LEDGER_UNAVAILABLE if there are none.
ledger::v1::SaveEnd EndByMissingRanks(const SaveView& view, const std::string& tag);

// The name of a save that a state, which is OPEN, gets: it is PROPOSED then.
void NameSave(const ledger::v1::SaveProposal& proposal, ledger::v1::SaveState* state);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_ADMISSION_RULES_H_
