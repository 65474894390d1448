// Processes that join attempts in one transaction, and the ranges that must be read to decide about them.
#ifndef CKPTD_DAEMON_LEDGER_RUN_JOIN_ROUND_H_
#define CKPTD_DAEMON_LEDGER_RUN_JOIN_ROUND_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/state/run_state.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// LocalLedger decides. A round reads only the keys that LocalLedger needs, because the transaction compares
// all keys that were read, and nodes that join at the same time should not conflict. Which keys it needs
// depends on their values:
//
//   - The launches, and the processes that have had the rank in the launch: the blocks of the joining ranks.
//   - If another process has the rank: whether that process lives, from the key of the node where it ran.
//   - In a launch that no rank has joined: whether another job's launch runs, or a part of this one under
//     another id. That needs all ranks of the attempts that may still act, and all live processes.
//
// So the round reads in steps, until the keys that it has read show that it needs no others.
//
// The nodes of a large job join at once. If all of them read all that a new launch needs, and tried to begin it, each
// would read the ranks of all others twice, and all but one for nothing. So a node without rank 0 lets the one that has
// it begin the launch, and begins the launch itself only if that takes long.
class JoinRound {
 public:
  struct Join {
    Ledger::JoinSpec spec;
    absl::AnyInvocable<void(absl::StatusOr<int64_t>)> answer;
  };

  // Takes as many of `joins` as one transaction has room for. `living`: this node's live processes before.
  JoinRound(LedgerKeys keys, NodeIdentity node, RunState::Living living, std::vector<Join>* joins);
  // Writes the live processes even if etcd has them already, so that a late copy of an earlier round's
  // request finds their key changed, and writes nothing.
  void RewriteLiving() { rewrite_living_ = true; }

  // The attempts that these processes probably join, such as those of an earlier round. Saves a reading.
  void Expect(std::set<int64_t> attempts) { needs_.attempts = std::move(attempts); }
  const std::set<int64_t>& attempts() const { return needs_.attempts; }
  std::vector<CompareAndSwap::Range> Ranges() const;
  // Returns what to write. Returns nothing and sets incomplete() if other ranges must be read first.
  std::vector<etcdserverpb::RequestOp> Decide(const CompareAndSwap::Found& found);
  bool incomplete() const { return incomplete_; }
  // While incomplete: a process is the first one of its launch, which another node probably begins now.
  bool OtherBegins() const;

  std::vector<Join>& joins() { return joins_; }
  // For each of the joins, after the last Decide.
  const std::vector<absl::StatusOr<int64_t>>& results() const { return results_; }

 private:
  struct Needs {
    std::set<int64_t> attempts;     // Whose ranks on this node must be read.
    std::set<std::string> holders;  // Nodes whose live processes must be read.
    bool others = false;            // All attempts from `acting` on, and all live processes, must be read.
    int64_t acting = 0;

    bool operator==(const Needs&) const = default;
  };
  Needs NeedsOf(const RunState& state) const;

  const LedgerKeys keys_;
  const NodeIdentity node_;
  const RunState::Living living_;
  std::vector<Join> joins_;
  std::set<int> blocks_;
  Needs needs_;
  bool rewrite_living_ = false;
  bool incomplete_ = false;
  std::vector<absl::StatusOr<int64_t>> results_;
};

// A node's record of a live process.
ledger::v1::LivingProcesses::Process ProcessOf(const Ledger::JoinSpec& spec, int64_t attempt);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_RUN_JOIN_ROUND_H_
