// Decisions about a run that several daemons make together, in etcd: attempts, sequences, and what to resume
// from.
#ifndef CKPTD_DAEMON_LEDGER_RUN_ETCD_LEDGER_H_
#define CKPTD_DAEMON_LEDGER_RUN_ETCD_LEDGER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/etcd/backoff.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/run/join_round.h"
#include "daemon/ledger/state/run_state.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"
#include "storage/ledger/ledger.h"
#include "storage/ledger/local_ledger.h"

namespace ckptd {

// The methods are those of Ledger, for all daemons of the run, and pass the same tests as LocalLedger
// (tests/contract/ledger_contract_test.cc). The engine calls NodesLedger, which uses one EtcdLedger for each
// registration of the node. Saves are decided in save_admission.h and save_publication.h. Answers come after
// the call has returned, and never after the destruction of this object; errors of etcd are those of
// daemon/etcd/etcd_errors.h.
//
// For each decision the ledger reads keys of etcd, lets a LocalLedger decide from them, so that the rules are
// those of a single node, and writes the changed keys in a transaction that compares all keys that were read
// (CompareAndSwap). So a lost answer or a late copy of a request does no harm.
//
// Once etcd no longer knows this daemon as its node, every answer is NODE_REPLACED and nothing is written.
// Make a new ledger with the next registration.
class EtcdLedger {
 public:
  template <typename T>
  using Answer = Ledger::Answer<T>;
  using ResumeChoice = Ledger::ResumeChoice;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;   // Its key of live processes is removed with its lease.
    std::string run;     // For messages.
  };
  // `etcd` and `clock` must outlive it.
  EtcdLedger(Etcd* etcd, Clock* clock, Options options);

  void OnTick() { BeginRound(); }  // Call it several times a second.

  // Processes that join at the same time do so in one transaction. Nodes that join the same launch do not
  // wait for one another if their ranks are in different blocks (LedgerKeys::BlockOf).
  void Join(const Ledger::JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer);
  // Removes the process from this node's key of live processes, which other nodes read when processes join.
  void ProcessEnded(const std::string& instance);

  // Ranks that activate at the same time do so in one transaction.
  void Activate(int64_t attempt, Answer<absl::Status> answer);
  // `changed` runs at once if the active attempt is known, else when etcd has answered; then for each later
  // one.
  void WatchActiveAttempt(std::function<void(int64_t attempt)> changed);

  // A sequence whose answer was lost stays unused.
  void Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer);

  // A decision for a checkpoint that is marked as damaged (CheckpointDamage) is void, unless all ranks have
  // read their parts of it: the next call that reads the decision withdraws it. CHECKPOINT_DAMAGED if
  // `newest`, or the checkpoint of AgreeResume, is marked; etcd has the mark before the answer comes.
  void DecideResume(int64_t attempt, const ResumeChoice& newest, Answer<absl::StatusOr<ResumeChoice>> answer);
  void DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer);
  void RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer);
  void AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer);
  void ResumeFailed(int64_t attempt, int64_t sequence, Answer<absl::Status> answer);
  // Records that each of these attempts has committed a checkpoint. Answers with the sequence up to which
  // retention then keeps all checkpoints (RunRecord::retained_through); 0: none.
  void Committed(const std::set<int64_t>& attempts, Answer<absl::StatusOr<int64_t>> retained_through);

 private:
  // Runs `ask` with a LocalLedger that is made from these ranges, and answers with the result of `ask` once
  // the changes are written.
  template <typename T>
  void Decide(std::vector<CompareAndSwap::Range> ranges, const std::string& what,
              std::function<void(LocalLedger&, Answer<T>)> ask, Answer<T> answer);
  // As Decide, for decisions that need the damage marks: these are among the ranges, and `ask` gets the
  // state.
  template <typename T>
  void DecideOnWhole(std::vector<CompareAndSwap::Range> ranges, const std::string& what,
                     std::function<void(LocalLedger&, const RunState&, Answer<T>)> ask, Answer<T> answer);
  void Swap(CompareAndSwap swap, absl::AnyInvocable<void(absl::Status)> done);
  std::string While(const std::string& what) const { return what + " of run " + options_.run; }
  void BeginRound();
  void Ask(const std::shared_ptr<JoinRound>& round);
  void PutOff(JoinRound& round);
  void EndRound(JoinRound& round, const absl::Status& written);
  void Activated(int64_t attempt, const absl::Status& result);
  void ReadActive();
  void WatchActive(int64_t from_revision);
  void SawActive(int64_t attempt);

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  const LedgerKeys keys_;

  RunState::Living living_;  // Of this node.
  std::vector<JoinRound::Join> joins_;
  std::set<int64_t> joined_;     // Attempts that the processes of the last round joined.
  bool living_changed_ = false;  // Since the last round began.
  bool living_unknown_ = false;  // The last round was not answered, or was refused.
  bool round_under_way_ = false;
  Backoff round_backoff_{std::chrono::milliseconds(100), std::chrono::seconds(1)};
  Instant begin_round_at_{};     // The next round lets another node begin its launch.
  int waits_ = 0;                // So often since a round ended.
  std::set<std::string> ended_;  // Processes that have ended since they were to join.

  std::map<int64_t, std::vector<Answer<absl::Status>>> activating_;
  int64_t active_ = -1;  // The newest attempt that was seen; -1: none was read yet.
  std::function<void(int64_t)> active_changed_;
  std::unique_ptr<EtcdWatch> watch_;

  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_RUN_ETCD_LEDGER_H_
