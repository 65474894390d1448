// What several daemons decide of a run, in etcd: attempts, sequences, and what to resume from.
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

// The methods mean what those of Ledger mean, for all daemons of the run, and pass one suite with LocalLedger
// (tests/contract/ledger_contract_test.cc). The Ledger that the engine gets is NodesLedger, over all
// registrations of the node. Saves are decided elsewhere (save_admission.h, save_publication.h). Answers come
// later, and not after the end of this object; errors of etcd are those of daemon/etcd/etcd_errors.h.
//
// A decision reads keys of etcd, lets a LocalLedger decide from them, so that the rules are those of one
// node, and writes the keys that have changed, in a transaction that compares all that was read
// (CompareAndSwap). So it does not matter whether an answer was lost, or when a copy of a request arrives.
//
// Every answer is NODE_REPLACED once etcd no longer knows this daemon as its node: then nothing that it asks
// for is written. Make a new ledger with the next registration.
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

  void OnTick() { BeginRound(); }  // Several times a second.

  // Processes that join at the same time do so in one transaction. Nodes that join the same launch do not
  // wait for one another if their ranks are in different blocks (LedgerKeys::BlockOf).
  void Join(const Ledger::JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer);
  // It reaches the other nodes soon, by a watch.
  void ProcessEnded(const std::string& instance);

  // Ranks that activate at the same time do so in one transaction.
  void Activate(int64_t attempt, Answer<absl::Status> answer);
  // `changed` runs at once if it is known which attempt acts, else when etcd has answered.
  void WatchActiveAttempt(std::function<void(int64_t attempt)> changed);

  // A sequence whose answer was lost stays unused.
  void Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer);

  // A decision on a checkpoint that is marked as damaged (CheckpointDamage) is no decision, unless all ranks
  // have read their part of it: the next reader of the decision withdraws it. CHECKPOINT_DAMAGED if `newest`,
  // or what is to be agreed on, is marked: the mark is older than the answer.
  void DecideResume(int64_t attempt, const ResumeChoice& newest, Answer<absl::StatusOr<ResumeChoice>> answer);
  void DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer);
  void RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer);
  void AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer);
  void ResumeFailed(int64_t attempt, int64_t sequence, Answer<absl::Status> answer);
  // Each of these attempts has committed a checkpoint. Answers with the sequence up to which retention leaves
  // checkpoints alone (RunRecord::retained_through), as it is then; 0: there are none.
  void Committed(const std::set<int64_t>& attempts, Answer<absl::StatusOr<int64_t>> retained_through);

 private:
  // Lets `ask` ask a LocalLedger that has read these ranges, and answers with its answer once that is
  // written.
  template <typename T>
  void Decide(std::vector<CompareAndSwap::Range> ranges, const std::string& what,
              std::function<void(LocalLedger&, Answer<T>)> ask, Answer<T> answer);
  // Likewise, of what an attempt resumes from: the marks of damage are among the ranges.
  template <typename T>
  void DecideOnWhole(std::vector<CompareAndSwap::Range> ranges, const std::string& what,
                     std::function<void(LocalLedger&, const RunState&, Answer<T>)> ask, Answer<T> answer);
  void Swap(CompareAndSwap swap, absl::AnyInvocable<void(absl::Status)> done);
  std::string While(const std::string& what) const { return what + " of run " + options_.run; }
  void BeginRound();
  void Ask(const std::shared_ptr<JoinRound>& round);
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
  std::set<int64_t> joined_;     // Attempts that the last of them have joined.
  bool living_changed_ = false;  // Since the last round has begun.
  bool living_unknown_ = false;  // In etcd: the last round was not answered.
  bool round_under_way_ = false;
  Backoff round_backoff_{std::chrono::milliseconds(100), std::chrono::seconds(1)};
  std::set<std::string> ended_in_round_;

  std::map<int64_t, std::vector<Answer<absl::Status>>> activating_;
  int64_t active_ = -1;  // The newest one that was seen; -1: etcd has not said.
  std::function<void(int64_t)> active_changed_;
  std::unique_ptr<EtcdWatch> watch_;

  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_RUN_ETCD_LEDGER_H_
