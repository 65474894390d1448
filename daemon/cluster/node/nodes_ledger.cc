#include "daemon/cluster/node/nodes_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/nodes/launch_roots.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/format/retention_record.h"

namespace ckptd {
namespace {

absl::Status NotAsked(const char* call) {
  return absl::InternalError(
      absl::StrCat(call, " was asked of the ledger of a run that several nodes share"));
}

}  // namespace

NodesLedger::NodesLedger(Etcd* etcd, Clock* clock, Options options)
    : etcd_(etcd),
      clock_(clock),
      options_(std::move(options)),
      calls_(clock, absl::StrCat("run ", options_.path), options_.why_unregistered) {}

// The key with this node's live processes was removed with the earlier registration, so they join again.
void NodesLedger::SetNode(const NodeIdentity* node) {
  node_.reset();
  ledger_ = nullptr;
  claims_.clear();
  claiming_.emplace();
  calls_.SetRegistered(false);
  if (node == nullptr) return;
  node_ = *node;
  ledger_ = std::make_unique<EtcdLedger>(etcd_, clock_,
                                         EtcdLedger::Options{options_.run_prefix, *node, options_.path});
  ledger_->WatchActiveAttempt([this](int64_t attempt) {
    if (attempt <= active_) return;
    active_ = attempt;
    if (active_changed_) active_changed_(attempt);
  });
  calls_.SetRegistered(true);
  for (const auto& [instance, spec] : living_) JoinAgain(spec);
}

void NodesLedger::OnTick() {
  calls_.OnTick();
  if (ledger_ != nullptr) ledger_->OnTick();
  while (!waiting_activations_.empty() && waiting_activations_.front().deadline <= clock_->Now()) {
    Activation late = std::move(waiting_activations_.front());
    waiting_activations_.pop_front();
    late.answer(
        MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                  absl::StrCat("etcd has not answered that a rank could not resume in ", options_.path,
                               ", which it must know before this node saves; look whether this node "
                               "can reach it")));
  }
}

template <typename T>
void NodesLedger::Ask(const std::string& what, std::function<void(EtcdLedger&, Answer<T>)> call,
                      Answer<T> answer) {
  calls_.Ask<T>(
      what, clock_->Now() + options_.patience,
      [this, call = std::move(call)](Answer<T> done) { call(*ledger_, std::move(done)); }, std::move(answer));
}

// ---- processes

void NodesLedger::Join(const JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) {
  using Result = absl::StatusOr<int64_t>;
  if (options_.check_use) {
    if (absl::Status use = options_.check_use(); !use.ok()) return answer(std::move(use));
  }
  calls_.Ask<Result>(
      "to join", clock_->Now() + options_.patience,
      [this, spec](Answer<Result> done) { ClaimAndJoin(spec, std::move(done)); },
      [this, spec, answer = std::move(answer)](Result attempt) mutable {
        if (attempt.ok()) Joined(spec, *attempt);
        if (!attempt.ok() || !spec.uploads || !options_.set_upload_policy) return answer(std::move(attempt));
        options_.set_upload_policy(*attempt, *spec.uploads,
                                   [attempt, answer = std::move(answer)](const absl::Status& set) mutable {
                                     answer(set.ok() ? std::move(attempt) : Result(set));
                                   });
      });
}

// Repeats the join until etcd knows that the process lives, or the process has ended: otherwise another job's
// launch could join beside it.
void NodesLedger::JoinAgain(const JoinSpec& spec) {
  using Result = absl::StatusOr<int64_t>;
  // LedgerCalls repeats a call that is under way with the new registration.
  if (!joining_again_.insert(spec.instance).second) return;
  calls_.Ask<Result>(
      "to join again", Instant::max(),
      [this, spec](Answer<Result> done) {
        if (!living_.contains(spec.instance)) return done(absl::CancelledError("the process has ended"));
        ClaimAndJoin(spec, std::move(done));
      },
      [this, instance = spec.instance](const Result& joined) {
        joining_again_.erase(instance);
        if (joined.ok() && !living_.contains(instance)) ledger_->ProcessEnded(instance);  // Meanwhile.
      });
}

void NodesLedger::ClaimAndJoin(const JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) {
  Claims& claims = claims_[spec.launch_id];
  claims.waiting.push_back({spec, std::move(answer)});
  if (!claims.under_way) Claim(spec.launch_id);
}

void NodesLedger::Claim(const std::string& launch_id) {
  Claims& claims = claims_.at(launch_id);
  claims.under_way = true;
  const LaunchRoot root = {options_.cluster_prefix, launch_id, options_.path, options_.run_id};
  ClaimRoot(etcd_, *node_, root,
            claiming_->Guard(
                [this, launch_id, joins = std::exchange(claims.waiting, {})](
                    const absl::Status& claimed) mutable { Claimed(launch_id, std::move(joins), claimed); }));
}

void NodesLedger::Claimed(const std::string& launch_id, std::vector<PendingJoin> joins,
                          const absl::Status& claimed) {
  const auto claims = claims_.find(launch_id);
  claims->second.under_way = false;
  if (claims->second.waiting.empty()) {
    claims_.erase(claims);
  } else {
    Claim(launch_id);
  }
  const CallbackScope::Observer here(*claiming_);
  for (PendingJoin& join : joins) {
    if (!claimed.ok()) {
      join.answer(claimed);
      if (here.ended()) return;
    } else {
      ledger_->Join(join.spec, std::move(join.answer));
    }
  }
}

void NodesLedger::Joined(const JoinSpec& spec, int64_t attempt) {
  living_[spec.instance] = spec;
  if (record_.run_id().empty()) record_.set_run_id(spec.run_id);
  storage::v1::Launch& launch = LaunchOf(attempt);
  launch.set_launch_id(spec.launch_id);
  launch.set_world_size(spec.world_size);
  (*launch.mutable_instances())[spec.rank] = spec.instance;
  if (options_.joined) options_.joined(attempt, spec.world_size);
}

storage::v1::Launch& NodesLedger::LaunchOf(int64_t attempt) {
  constexpr int kRememberedLaunches = 64;
  for (storage::v1::Launch& launch : *record_.mutable_launches()) {
    if (launch.attempt() == attempt) return launch;
  }
  while (record_.launches_size() >= kRememberedLaunches) record_.mutable_launches()->DeleteSubrange(0, 1);
  storage::v1::Launch& launch = *record_.add_launches();
  launch.set_attempt(attempt);
  return launch;
}

void NodesLedger::ProcessEnded(const std::string& instance) {
  living_.erase(instance);
  if (ledger_ != nullptr) ledger_->ProcessEnded(instance);
}

// ---- decisions

// Asks etcd once for each attempt: every later action of the attempt is compared with the active attempt
// anyway. So a Begin waits for etcd no longer than its own deadline.
void NodesLedger::Activate(int64_t attempt, Answer<absl::Status> answer) {
  if (failures_in_flight_ > 0)
    return waiting_activations_.push_back({attempt, clock_->Now() + options_.patience, std::move(answer)});
  if (attempt == activated_ && active_ <= attempt) return answer(absl::OkStatus());
  Ask<absl::Status>(
      absl::StrCat("to let attempt ", attempt, " act in"),
      [attempt](EtcdLedger& ledger, Answer<absl::Status> done) { ledger.Activate(attempt, std::move(done)); },
      [this, attempt, answer = std::move(answer)](absl::Status active) mutable {
        if (active.ok()) activated_ = std::max(activated_, attempt);
        answer(std::move(active));
      });
}

void NodesLedger::WatchActiveAttempt(std::function<void(int64_t attempt)> changed) {
  active_changed_ = std::move(changed);
  active_changed_(active_ = std::max<int64_t>(active_, 0));
}

void NodesLedger::DecideResume(int64_t attempt, const ResumeChoice& newest,
                               Answer<absl::StatusOr<ResumeChoice>> answer) {
  using Result = absl::StatusOr<ResumeChoice>;
  Ask<Result>(
      absl::StrCat("to decide what attempt ", attempt, " resumes from in"),
      [attempt, newest](EtcdLedger& ledger, Answer<Result> done) {
        ledger.DecideResume(attempt, newest, std::move(done));
      },
      [this, attempt, answer = std::move(answer)](Result choice) mutable {
        if (choice.ok()) RememberResume(attempt, *choice);
        answer(std::move(choice));
      });
}

// For retention, which keeps the checkpoint that an attempt resumes from.
void NodesLedger::RememberResume(int64_t attempt, const ResumeChoice& choice) {
  storage::v1::Launch& launch = LaunchOf(attempt);
  launch.set_resume_decided(true);
  launch.set_resume_sequence(choice.sequence);
  launch.set_resume_tag(choice.tag);
  launch.set_resume_agreed(choice.agreed);
}

void NodesLedger::DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer) {
  if (committed_.empty()) return AskDecided(attempt, std::move(answer));
  using Result = absl::StatusOr<int64_t>;
  // A transaction of etcd has 128 operations at most.
  constexpr size_t kMostAttempts = 100;
  while (committed_.size() > kMostAttempts) committed_.erase(committed_.begin());
  const std::set<int64_t> attempts = std::exchange(committed_, {});
  Ask<Result>(
      "which checkpoints retention leaves alone in",
      [attempts](EtcdLedger& ledger, Answer<Result> done) { ledger.Committed(attempts, std::move(done)); },
      [this, attempt, attempts, answer = std::move(answer)](const Result& through) mutable {
        if (!through.ok()) {
          committed_.insert(attempts.begin(), attempts.end());  // The next question tells etcd.
          return answer(through.status());
        }
        record_.set_retained_through(*through);
        AskDecided(attempt, std::move(answer));
      });
}

void NodesLedger::ResumeFailed(int64_t attempt, int64_t sequence) {
  ++failures_in_flight_;
  calls_.Ask<absl::Status>(
      "to say that a rank could not resume", Instant::max(),
      [this, attempt, sequence](Answer<absl::Status> done) {
        ledger_->ResumeFailed(attempt, sequence, std::move(done));
      },
      [this](const absl::Status&) {
        if (--failures_in_flight_ > 0) return;
        for (Activation& waiting : std::exchange(waiting_activations_, {}))
          Activate(waiting.attempt, std::move(waiting.answer));
      });
}

void NodesLedger::AskDecided(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer) {
  using Result = absl::StatusOr<std::optional<ResumeChoice>>;
  Ask<Result>(
      absl::StrCat("what attempt ", attempt, " resumes from in"),
      [attempt](EtcdLedger& ledger, Answer<Result> done) { ledger.DecidedResume(attempt, std::move(done)); },
      std::move(answer));
}

void NodesLedger::RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) {
  Ask<absl::Status>(
      absl::StrCat("to withdraw what attempt ", attempt, " resumes from in"),
      [attempt, sequence](EtcdLedger& ledger, Answer<absl::Status> done) {
        ledger.RejectResume(attempt, sequence, std::move(done));
      },
      [this, attempt, sequence, answer = std::move(answer)](absl::Status rejected) mutable {
        storage::v1::Launch& launch = LaunchOf(attempt);
        if (rejected.ok() && launch.resume_sequence() == sequence) launch.set_resume_decided(false);
        answer(std::move(rejected));
      });
}

void NodesLedger::AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) {
  Ask<absl::Status>(
      absl::StrCat("to say that all ranks have resumed from sequence ", sequence, " in"),
      [attempt, sequence](EtcdLedger& ledger, Answer<absl::Status> done) {
        ledger.AgreeResume(attempt, sequence, std::move(done));
      },
      [this, attempt, answer = std::move(answer)](absl::Status agreed) mutable {
        if (agreed.ok()) LaunchOf(attempt).set_resume_agreed(true);
        answer(std::move(agreed));
      });
}

// ---- decisions that NodesRun makes

void NodesLedger::Admit(int64_t, Answer<absl::StatusOr<int64_t>> answer) { answer(NotAsked("Admit")); }

void NodesLedger::AdmitAdopted(int64_t, int64_t, int64_t, Answer<absl::StatusOr<int64_t>> answer) {
  answer(MakeError(absl::StatusCode::kUnimplemented, reason::kSharedRootUnsupported,
                   absl::StrCat("this version of the daemon does not adopt checkpoints in ", options_.path,
                                ", a root that several nodes share; adopt them in a root of one node")));
}

// ---- state of this daemon alone

void NodesLedger::RecordOutcome(const storage::v1::Outcome& outcome, Answer<absl::Status> recorded) {
  constexpr int kRememberedOutcomes = 64;
  while (record_.outcomes_size() >= kRememberedOutcomes) record_.mutable_outcomes()->DeleteSubrange(0, 1);
  *record_.add_outcomes() = outcome;
  recorded(absl::OkStatus());
}

void NodesLedger::SetRetention(const storage::v1::RetentionPolicy& in_force,
                               const std::vector<storage::v1::RetentionPolicy>& next) {
  StoreRetention(in_force, &record_);
  *record_.mutable_next_retentions() = {next.begin(), next.end()};
}

}  // namespace ckptd
