// Processes that join an attempt together, and what must be read to decide about them.
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

// LocalLedger decides; it is given no more than it looks at, because all that is read is compared, and nodes
// that join at once should not wait for one another. What it looks at depends on what is there:
//
//   - The launches, and which processes have had the rank in the launch: the blocks of the joining ranks.
//   - If another process has it: whether that process lives, which the node on which it ran reports.
//   - In a launch that no rank has joined: whether another job's launch runs, or a part of this one under
//     another id, for which it needs all ranks of the attempts that may still act, and all living processes.
//
// So it is read in steps, until what was read shows that nothing else is needed.
class JoinRound {
 public:
  struct Join {
    Ledger::JoinSpec spec;
    absl::AnyInvocable<void(absl::StatusOr<int64_t>)> answer;
  };

  // Takes as many of `joins` as one transaction has room for. `living`: of this node, before.
  JoinRound(LedgerKeys keys, NodeIdentity node, RunState::Living living, std::vector<Join>* joins);
  // Writes the living processes also if they are there already, so that what an earlier round has asked for,
  // and may still be under way, finds them changed.
  void RewriteLiving() { rewrite_living_ = true; }

  // Attempts that these processes probably join, such as that of an earlier round: it saves a reading.
  void Expect(std::set<int64_t> attempts) { needs_.attempts = std::move(attempts); }
  const std::set<int64_t>& attempts() const { return needs_.attempts; }
  std::vector<CompareAndSwap::Range> Ranges() const;
  // What to write; nothing, and `incomplete`, if other ranges must be read for that.
  std::vector<etcdserverpb::RequestOp> Decide(const CompareAndSwap::Found& found);
  bool incomplete() const { return incomplete_; }

  std::vector<Join>& joins() { return joins_; }
  // For each of the joins, after the last Decide.
  const std::vector<absl::StatusOr<int64_t>>& results() const { return results_; }

 private:
  struct Needs {
    std::set<int64_t> attempts;     // Which of this node's ranks are known.
    std::set<std::string> holders;  // Nodes that say whether a process lives.
    bool others = false;            // Whether other launches run, from `acting` on.
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

// What a node says of a process that lives.
ledger::v1::LivingProcesses::Process ProcessOf(const Ledger::JoinSpec& spec, int64_t attempt);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_RUN_JOIN_ROUND_H_
