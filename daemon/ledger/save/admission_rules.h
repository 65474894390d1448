// The rules by which a save that spans nodes is admitted, without I/O.
#ifndef CKPTD_DAEMON_LEDGER_SAVE_ADMISSION_RULES_H_
#define CKPTD_DAEMON_LEDGER_SAVE_ADMISSION_RULES_H_

#include <string>

#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/ledger/state/save_view.h"

namespace ckptd {

// Changes a state that is PROPOSED to ADMITTED if the nodes of all ranks of the save have accepted it and
// still have the registrations with which they voted; to ENDED if the attempt is fenced, a node has rejected
// the save, or two nodes name different retention policies (SAVE_CONFLICT). An admitted save gets the policy
// of its votes. `inflight`: the directory for its files; empty: there is none yet, so the save is not
// admitted.
void DecideAdmission(const SaveView& view, const std::string& inflight, ledger::v1::SaveState* state);

// The end of a save that was not admitted in time because ranks are missing: their nodes have no vote that
// counts. The message names these ranks, their nodes, and whether these are registered. LEDGER_UNAVAILABLE if
// no rank is missing.
ledger::v1::SaveEnd EndByMissingRanks(const SaveView& view, const std::string& tag);

// Gives a state that is OPEN the name of a save, which makes it PROPOSED.
void NameSave(const ledger::v1::SaveProposal& proposal, ledger::v1::SaveState* state);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_ADMISSION_RULES_H_
