// Votes for prepared saves: the last vote also admits the save.
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

// Returns an operation that writes `vote`, with which this node accepts the save of this sequence. `open` is
// the save's state, which is OPEN. The operation also names and admits the save if etcd has the accepting
// votes of all other nodes of its ranks, and all keys are as in `guess`. Only etcd knows which vote is the
// last, so every vote is such an operation.
//
// The operation compares the keys that the coordinator's decision compares (SaveAdmission::DecideOpen),
// except the leadership: the admission of a save that is OPEN depends only on keys in etcd, and not on the
// coordinator's memory. It compares the other votes by value: each promises that its node has the memory now.
//
// nullopt: write the vote alone, and leave the decision to the coordinator. One case is a save with more than
// kMostVoters nodes, because each node compares the votes of all others.
std::optional<etcdserverpb::RequestOp> VoteAndAdmit(const LedgerKeys& keys, const NodeIdentity& node,
                                                    int64_t sequence, const etcdserverpb::KeyValue& open,
                                                    const ledger::v1::NodeVote& vote, const SaveGuess& guess);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_LAST_VOTE_H_
