// When a save that spans nodes is admitted. Nothing here knows etcd's calls.
#ifndef CKPTD_DAEMON_LEDGER_ADMISSION_RULES_H_
#define CKPTD_DAEMON_LEDGER_ADMISSION_RULES_H_

#include <cstdint>
#include <map>
#include <string>

#include "ckptd/ledger/v1/ledger.pb.h"

namespace ckptd {

// What is known of a save's attempt and votes, at one moment. By node.
struct AdmissionView {
  std::map<std::string, ledger::v1::NodeVote> votes;
  std::map<std::string, ledger::v1::NodeRanks> ranks;  // Of the attempt.
  std::map<std::string, std::string> registrations;    // Of the nodes that live.
  int world_size = 0;                                  // Of the attempt.
  int64_t active = 0;                                  // The attempt that acts.
};

// Changes a state that is PROPOSED to ADMITTED if all ranks of the attempt are on nodes that have voted yes,
// and whose daemons are those that have voted; to ENDED if the attempt is fenced, or a node has voted no.
void DecideAdmission(const AdmissionView& view, ledger::v1::SaveState* state);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_ADMISSION_RULES_H_
