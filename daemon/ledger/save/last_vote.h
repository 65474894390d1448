// The vote with which the last node of a save admits it.
#ifndef CKPTD_DAEMON_LEDGER_SAVE_LAST_VOTE_H_
#define CKPTD_DAEMON_LEDGER_SAVE_LAST_VOTE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/save/change_save.h"
#include "etcd/messages.pb.h"

namespace ckptd {

inline constexpr size_t kMostVoters = 32;

// An operation that writes `vote`, by which this node accepts the save of this sequence, which is OPEN in
// `open`; and that also names and admits the save, if the votes of all other nodes of its ranks stand, and
// all keys are as `guess` has them. Which vote is the last is known in etcd alone, so each of them is such an
// operation.
//
// It compares what the coordinator's decision compares (SaveAdmission::DecideOpen), but for the
// leadership: that a save which is OPEN is admitted follows from what is in etcd, and from nothing that the
// coordinator knows. The other votes are compared by value: each promises that its node has the memory now.
//
// nullopt: write the vote alone, and leave the decision to the coordinator. So it is with too many nodes, for
// each of them compares the votes of all others.
std::optional<etcdserverpb::RequestOp> VoteAndAdmit(const LedgerKeys& keys, const NodeIdentity& node,
                                                    int64_t sequence, const etcdserverpb::KeyValue& open,
                                                    const ledger::v1::NodeVote& vote, const SaveGuess& guess);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_LAST_VOTE_H_
