#include "storage/ledger/local_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/errors.h"
#include "storage/format/retention_record.h"

namespace ckptd {
namespace {

constexpr int kRememberedLaunches = 64;
constexpr int kRememberedOutcomes = 64;

absl::Status InUse(const std::string& running) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "RUN_IN_USE",
                   absl::StrCat(running,
                                " of another job still runs in this root; end it, or join with "
                                "takeover to fence it off, or use another root"));
}

absl::Status Fenced(int64_t attempt, int64_t active) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "FENCED",
                   absl::StrCat("attempt ", attempt, " is over: attempt ", active,
                                " of this run has begun a save or resumed since; this process must end"));
}

}  // namespace

LocalLedger::LocalLedger(storage::v1::RunRecord record, int64_t highest_sequence, Save save)
    : record_(std::move(record)), save_(std::move(save)) {
  record_.set_format_version(1);
  record_.set_last_sequence(std::max(record_.last_sequence(), highest_sequence));
  record_.set_last_sequence(std::max(record_.last_sequence(), record_.reserved_sequences()));
  for (const Launch& launch : record_.launches()) {
    if (launch.active()) acted_.insert(launch.attempt());
    if (launch.resume_agreed()) agreed_.insert(launch.attempt());
  }
}

LocalLedger::Launch* LocalLedger::Find(int64_t attempt) {
  for (Launch& launch : *record_.mutable_launches()) {
    if (launch.attempt() == attempt) return &launch;
  }
  return nullptr;
}

const LocalLedger::Launch* LocalLedger::Find(int64_t attempt) const {
  return const_cast<LocalLedger*>(this)->Find(attempt);
}

void LocalLedger::WatchActiveAttempt(std::function<void(int64_t attempt)> changed) {
  active_changed_ = std::move(changed);
  active_changed_(active_attempt());
}

// That the attempt acts is on disk.
void LocalLedger::Acted(int64_t attempt) {
  const int64_t before = active_attempt();
  acted_.insert(attempt);
  if (active_changed_ != nullptr && active_attempt() != before) active_changed_(active_attempt());
}

absl::Status LocalLedger::CheckNotFenced(int64_t attempt) const {
  const int64_t active = active_attempt();
  return attempt < active ? Fenced(attempt, active) : absl::OkStatus();
}

int64_t LocalLedger::newest_attempt() const {
  int64_t newest = 0;
  for (const Launch& launch : record_.launches()) newest = std::max(newest, launch.attempt());
  return newest;
}

LocalLedger::Launch& LocalLedger::AddLaunch(int64_t attempt) {
  while (record_.launches_size() >= kRememberedLaunches) record_.mutable_launches()->DeleteSubrange(0, 1);
  Launch& launch = *record_.add_launches();
  launch.set_attempt(attempt);
  return launch;
}

LocalLedger::Launch& LocalLedger::AddLaunch(const JoinSpec& spec, int generation) {
  Launch& launch = AddLaunch(newest_attempt() + 1);
  launch.set_launch_id(spec.launch_id);
  launch.set_generation(generation);
  launch.set_world_size(spec.world_size);
  return launch;
}

void LocalLedger::RaiseAttempt(int64_t found) {
  // The launch has no id: JoinNow takes no process for one of its own.
  if (found > newest_attempt()) AddLaunch(found);
}

absl::StatusOr<int64_t> LocalLedger::Bind(Launch& launch, const JoinSpec& spec) {
  if (launch.world_size() != spec.world_size) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "WORLD_SIZE_MISMATCH",
                     absl::StrCat("rank ", spec.rank, " says world_size ", spec.world_size, ", but attempt ",
                                  launch.attempt(), " has world_size ", launch.world_size(),
                                  "; it is fixed within an attempt"),
                     {{"ranks", absl::StrCat(spec.rank)}});
  }
  std::string& instance = (*launch.mutable_instances())[spec.rank];
  if (instance != spec.instance) ++bound_[launch.attempt()];
  instance = spec.instance;
  if (spec.takeover) {
    launch.set_takeover(true);
    record_.clear_retained_through();
  }
  return launch.attempt();
}

absl::StatusOr<int64_t> LocalLedger::JoinNow(const JoinSpec& spec) {
  // A process that reconnects gets its own attempt, fenced or not. Its next Begin says whether it is fenced.
  for (Launch& launch : *record_.mutable_launches()) {
    auto found = launch.instances().find(spec.rank);
    if (launch.launch_id() == spec.launch_id && found != launch.instances().end() &&
        found->second == spec.instance) {
      return Bind(launch, spec);
    }
  }
  Launch* newest_generation = nullptr;
  int64_t newest_attempt = 0;
  for (Launch& launch : *record_.mutable_launches()) {
    if (launch.launch_id().empty()) continue;  // Only its number is known. Its processes have ended.
    newest_attempt = std::max(newest_attempt, launch.attempt());
    if (launch.launch_id() == spec.launch_id) newest_generation = &launch;
  }
  if (newest_generation == nullptr) {
    const std::string running = spec.job.empty() || spec.takeover ? "" : RunningBeside(spec.job);
    return running.empty() ? Bind(AddLaunch(spec, 0), spec) : InUse(running);
  }

  auto holder = newest_generation->instances().find(spec.rank);
  const bool is_known = holder != newest_generation->instances().end();
  if (!is_known && newest_generation->attempt() > closed_through_) return Bind(*newest_generation, spec);
  if (is_known && IsHeldByOther(holder->second, spec)) {
    return MakeError(
        absl::StatusCode::kAlreadyExists, "RANK_TAKEN",
        absl::StrCat("rank ", spec.rank, " of attempt ", newest_generation->attempt(),
                     " belongs to another process that still runs; give each process its own rank"),
        {{"ranks", absl::StrCat(spec.rank)}});
  }
  // The rank's process has ended, or is forgotten. In the newest launch its successor starts a new attempt.
  // In an older launch it may do neither: a new attempt would fence the newer launch, and the old attempt may
  // have gone far beyond what it once resumed from.
  if (newest_generation->attempt() < newest_attempt) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "FENCED",
                     absl::StrCat("the process of rank ", spec.rank,
                                  " in this launch has ended, and another launch (attempt ", newest_attempt,
                                  ") has joined since; start the job as a new launch"),
                     {{"ranks", absl::StrCat(spec.rank)}});
  }
  return Bind(AddLaunch(spec, newest_generation->generation() + 1), spec);
}

bool LocalLedger::IsHeldByOther(const std::string& instance, const JoinSpec& spec) const {
  const auto holder = living_.find(instance);
  if (holder == living_.end()) return false;
  return spec.process.empty() || holder->second.process != spec.process;
}

// One process that has ended ends its whole launch, also where another one hangs.
bool LocalLedger::RunsBeside(const Launch& launch, const std::string& job) const {
  if (launch.instances().empty()) return false;
  return std::all_of(launch.instances().begin(), launch.instances().end(), [&](const auto& rank) {
    const auto holder = living_.find(rank.second);
    return holder != living_.end() && holder->second.job != job;
  });
}

std::string LocalLedger::RunningBeside(const std::string& job) const {
  for (const Launch& launch : record_.launches()) {
    if (launch.attempt() < active_attempt() || !RunsBeside(launch, job)) continue;
    const std::map<int32_t, std::string> ranks(launch.instances().begin(), launch.instances().end());
    return absl::StrCat(
        "attempt ", launch.attempt(), " (ranks ",
        absl::StrJoin(ranks, ",",
                      [](std::string* out, const auto& rank) { absl::StrAppend(out, rank.first); }),
        ")");
  }
  return "";
}

void LocalLedger::Join(const JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) {
  absl::StatusOr<int64_t> attempt = JoinNow(spec);
  if (attempt.ok() && spec.requested_attempt != 0 && spec.requested_attempt != *attempt) {
    attempt = MakeError(absl::StatusCode::kFailedPrecondition, "FENCED",
                        absl::StrCat("attempt ", spec.requested_attempt,
                                     " was asked for, but this launch is attempt ", *attempt));
  }
  if (attempt.ok()) {
    living_[spec.instance] = Holder{spec.process, spec.job};
    if (record_.run_id().empty()) record_.set_run_id(spec.run_id);
  }
  answer(std::move(attempt));
}

void LocalLedger::ProcessEnded(const std::string& instance) { living_.erase(instance); }

void LocalLedger::Persist(Answer<absl::Status> done) {
  waiting_.push_back(std::move(done));
  if (!writing_) Write();
}

// One write at a time serves all that wait for one: the ranks of an attempt begin to act together, and each
// of them waits for the disk.
void LocalLedger::Write() {
  writing_ = true;
  save_(record_, [this, served = std::exchange(waiting_, {})](absl::Status saved) mutable {
    for (auto& done : served) done(saved);  // What these change is in the next write.
    writing_ = false;
    if (!waiting_.empty()) Write();
  });
}

void LocalLedger::Activate(int64_t attempt, Answer<absl::Status> answer) {
  if (absl::Status fenced = CheckNotFenced(attempt); !fenced.ok()) return answer(fenced);
  Launch* launch = Find(attempt);
  if (launch == nullptr) {
    return answer(MakeError(absl::StatusCode::kFailedPrecondition, "NOT_JOINED",
                            absl::StrCat("attempt ", attempt, " is not known to this run; join it first")));
  }
  // The binding of this process must survive a restart, too. Otherwise this process would come back as a new
  // one and begin an attempt of its own.
  const int64_t bound = bound_[attempt];
  if (acted_.contains(attempt) && bound == bound_on_disk_[attempt]) return answer(absl::OkStatus());
  launch->set_active(true);
  ++activating_[attempt];
  Persist([this, attempt, bound, answer = std::move(answer)](absl::Status saved) mutable {
    if (--activating_[attempt] == 0) activating_.erase(attempt);
    Launch* written = Find(attempt);
    if (!saved.ok()) {
      // The attempt is not active after all: the next call tries again.
      if (written != nullptr && !acted_.contains(attempt) && !activating_.contains(attempt))
        written->set_active(false);
      return answer(Annotate(saved, "remembering the attempt"));
    }
    if (written != nullptr) written->set_active(true);
    Acted(attempt);
    bound_on_disk_[attempt] = std::max(bound_on_disk_[attempt], bound);
    answer(CheckNotFenced(attempt));  // A later attempt may have been written first.
  });
}

void LocalLedger::Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) {
  if (absl::Status fenced = CheckNotFenced(attempt); !fenced.ok()) return answer(fenced);
  record_.set_last_sequence(record_.last_sequence() + 1);
  answer(record_.last_sequence());
}

void LocalLedger::RaiseSequence(int64_t found) {
  record_.set_last_sequence(std::max(record_.last_sequence(), found));
}

// A free reserved sequence, spaced evenly because others may follow in between. 0: none is free.
int64_t LocalLedger::ReservedBetween(int64_t above, int64_t below, int64_t more) const {
  const int64_t first = std::max<int64_t>(above, 0) + 1;
  const int64_t end = std::min(below, record_.reserved_sequences() + 1);
  if (first >= end) return 0;
  const std::set<int64_t> given(record_.adopted_sequences().begin(), record_.adopted_sequences().end());
  const int64_t best = first + (end - first) / (more + 2);
  for (int64_t sequence = best; sequence < end; ++sequence) {
    if (!given.contains(sequence)) return sequence;
  }
  for (int64_t sequence = best - 1; sequence >= first; --sequence) {
    if (!given.contains(sequence)) return sequence;
  }
  return 0;
}

void LocalLedger::AdmitAdopted(int64_t above, int64_t below, int64_t more,
                               Answer<absl::StatusOr<int64_t>> answer) {
  // Before the first save the youngest one is among the reserved sequences, too, with room around it.
  const bool none_saved = below == 0 && record_.last_sequence() == record_.reserved_sequences();
  if (none_saved) below = record_.reserved_sequences() + 1;
  int64_t sequence = 0;
  if (below != 0) sequence = ReservedBetween(above, below, std::max<int64_t>(more, 0));
  if (below == 0 || (none_saved && sequence == 0)) {
    below = 0;
    sequence = record_.last_sequence() + 1;
  }
  if (sequence == 0) {
    return answer(MakeError(
        absl::StatusCode::kFailedPrecondition, "ADOPT_ORDER",
        absl::StrCat("no place is left in the run's order below the younger checkpoint of sequence ", below,
                     record_.reserved_sequences() == 0
                         ? ": ckptd has saved into this root before it held any of another program"
                         : "")));
  }
  if (below == 0) {
    record_.set_last_sequence(sequence);
  } else {
    record_.add_adopted_sequences(sequence);
  }
  Persist([sequence, answer = std::move(answer)](absl::Status saved) mutable {
    if (!saved.ok()) return answer(Annotate(saved, "remembering the sequence"));
    answer(sequence);
  });
}

std::optional<Ledger::ResumeChoice> LocalLedger::Decided(int64_t attempt) const {
  const Launch* launch = Find(attempt);
  if (launch == nullptr || !launch->resume_decided() || deciding_.contains(attempt)) return std::nullopt;
  return ResumeChoice{launch->resume_tag(), launch->resume_sequence(), agreed_.contains(attempt)};
}

void LocalLedger::DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer) {
  answer(Decided(attempt));
}

void LocalLedger::RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) {
  Launch* launch = Find(attempt);
  if (launch == nullptr || deciding_.contains(attempt) || launch->resume_sequence() != sequence)
    return answer(absl::OkStatus());
  // On disk the decision stands until the next one: a daemon that starts in between rejects it again.
  // That a rank could not go on from it stays known: the attempt may save without asking again.
  launch->set_resume_decided(false);
  launch->set_resume_agreed(false);
  agreed_.erase(attempt);
  answer(absl::OkStatus());
}

void LocalLedger::AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) {
  if (absl::Status fenced = CheckNotFenced(attempt); !fenced.ok()) return answer(fenced);
  const auto stands = [this, attempt, sequence] {
    const std::optional<ResumeChoice> decided = Decided(attempt);
    return decided && decided->sequence == sequence;
  };
  const auto gone = [attempt, sequence] {
    return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                     absl::StrCat("attempt ", attempt, " does not resume from sequence ", sequence));
  };
  if (!stands()) return answer(gone());
  if (agreed_.contains(attempt)) return answer(absl::OkStatus());
  Find(attempt)->set_resume_agreed(true);
  Persist([this, attempt, stands, gone, answer = std::move(answer)](absl::Status saved) mutable {
    if (!stands()) return answer(gone());
    if (!saved.ok()) Find(attempt)->set_resume_agreed(false);  // Otherwise the next write would store it.
    if (!saved.ok()) return answer(Annotate(saved, "remembering that every rank has read its part"));
    agreed_.insert(attempt);
    Find(attempt)->set_resume_failed(false);
    answer(absl::OkStatus());
  });
}

void LocalLedger::DecideResume(int64_t attempt, const ResumeChoice& newest,
                               Answer<absl::StatusOr<ResumeChoice>> answer) {
  if (absl::Status fenced = CheckNotFenced(attempt); !fenced.ok()) return answer(fenced);
  Launch* launch = Find(attempt);
  if (launch == nullptr) {
    return answer(MakeError(absl::StatusCode::kFailedPrecondition, "NOT_JOINED",
                            absl::StrCat("attempt ", attempt, " is not known to this run; join it first")));
  }
  if (auto first = deciding_.find(attempt); first != deciding_.end()) {
    first->second.push_back(std::move(answer));
    return;
  }
  if (const std::optional<ResumeChoice> decided = Decided(attempt)) return answer(*decided);
  launch->set_resume_decided(true);
  launch->set_resume_tag(newest.tag);
  launch->set_resume_sequence(newest.sequence);
  launch->set_resume_agreed(false);
  launch->set_resume_failed(false);
  deciding_[attempt].push_back(std::move(answer));
  // Answered only when it is on disk, so that after a restart the next rank gets the same answer. The ranks
  // that ask meanwhile are answered together with the first one: if the write fails, the next call decides
  // again.
  Persist([this, attempt, newest](absl::Status saved) {
    absl::StatusOr<ResumeChoice> choice = newest;
    if (!saved.ok()) {
      if (Launch* undecided = Find(attempt)) undecided->set_resume_decided(false);
      choice = Annotate(saved, "remembering what to resume from");
    } else if (absl::Status fenced = CheckNotFenced(attempt); !fenced.ok()) {
      choice = fenced;
    }
    auto waiting = deciding_.extract(attempt);
    for (auto& each : waiting.mapped()) each(choice);
  });
}

void LocalLedger::ResumeFailed(int64_t attempt, int64_t sequence) {
  const std::optional<ResumeChoice> decided = Decided(attempt);
  if (decided && decided->sequence == sequence && !decided->agreed) Find(attempt)->set_resume_failed(true);
}

void LocalLedger::Committed(int64_t attempt) {
  const Launch* launch = Find(attempt);
  if (launch == nullptr || !launch->resume_failed() || launch->takeover()) return;
  // A later takeover counts these checkpoints, whoever says of the earlier attempt afterwards that it has
  // saved.
  const bool taken_over =
      std::any_of(record_.launches().begin(), record_.launches().end(),
                  [attempt](const Launch& later) { return later.attempt() > attempt && later.takeover(); });
  if (taken_over) return;
  record_.set_retained_through(std::max(record_.retained_through(), launch->resume_sequence()));
}

void LocalLedger::RecordOutcome(const storage::v1::Outcome& outcome, Answer<absl::Status> recorded) {
  while (record_.outcomes_size() >= kRememberedOutcomes) record_.mutable_outcomes()->DeleteSubrange(0, 1);
  *record_.add_outcomes() = outcome;
  Persist(std::move(recorded));
}

void LocalLedger::SetRetention(const storage::v1::RetentionPolicy& in_force,
                               const std::vector<storage::v1::RetentionPolicy>& next) {
  StoreRetention(in_force, &record_);
  *record_.mutable_next_retentions() = {next.begin(), next.end()};
}

void LocalLedger::SetRetentionOverride(const std::optional<storage::v1::RetentionPolicy>& policy,
                                       Answer<absl::Status> set) {
  std::optional<storage::v1::RetentionPolicy> before;
  if (record_.has_retention_override()) before = record_.retention_override();
  StoreRetentionOverride(policy, &record_);
  Persist([this, before, set = std::move(set)](absl::Status saved) mutable {
    if (!saved.ok()) StoreRetentionOverride(before, &record_);
    set(std::move(saved));
  });
}

}  // namespace ckptd
