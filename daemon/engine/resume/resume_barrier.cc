#include "daemon/engine/resume/resume_barrier.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "daemon/engine/reading/damage_marks.h"
#include "daemon/engine/run/catalog.h"
#include "daemon/engine/seams/validate.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

// For how long other nodes are told that the ranks of this one cannot go on.
constexpr Duration kLongestReport = std::chrono::seconds(60);

absl::Status ResumeFailed(const std::string& tag, const std::vector<int>& ranks, const std::string& why) {
  return MakeError(absl::StatusCode::kAborted, reason::kResumeFailed,
                   absl::StrCat("not every rank can resume from ", tag, ": ", why, "; resume again"),
                   {{"tag", tag}, {"ranks", JoinRanks(ranks)}});
}

// What the ranks have agreed on stays so: those that were told train on.
bool IsWithdrawn(const Run& run, const Ledger::ResumeChoice& choice) {
  return run.catalog.IsDamaged(choice.sequence) && !choice.agreed;
}

// Nothing else takes a decision back.
absl::Status WithdrawnError(const std::string& path, int64_t sequence) {
  return MakeError(
      absl::StatusCode::kDataLoss, reason::kCheckpointDamaged,
      absl::StrCat("the checkpoint of sequence ", sequence, " in ", path,
                   " is damaged, as another rank has found; resume again for the next older one"),
      {{"sequence", absl::StrCat(sequence)}});
}

absl::Status SessionLost(const char* call) {
  return MakeError(absl::StatusCode::kAborted, reason::kSessionLost,
                   absl::StrCat("the session ended before ", call, " was answered"));
}

// Takes out of `pending` what `is_over` says.
template <typename Pending, typename IsOver>
std::vector<Pending> TakeIf(std::vector<Pending>& pending, IsOver is_over) {
  std::vector<Pending> over;
  for (auto each = pending.begin(); each != pending.end();) {
    if (!is_over(*each)) {
      ++each;
      continue;
    }
    over.push_back(std::move(*each));
    each = pending.erase(each);
  }
  return over;
}

}  // namespace

ResumeBarrier::Agreement* ResumeBarrier::FindAgreement(State& state, int64_t attempt) {
  const auto found = state.agreements.find(attempt);
  return found == state.agreements.end() ? nullptr : &found->second;
}

bool ResumeBarrier::IsOn(Run* run, int64_t attempt, int64_t sequence) {
  const Agreement* agreement = FindAgreement(states_.Of(run), attempt);
  return agreement != nullptr && agreement->sequence == sequence;
}

void ResumeBarrier::AskDecision(Run* run, int64_t attempt,
                                absl::AnyInvocable<void(absl::StatusOr<Decision>)> then) {
  ++states_.Of(run).asking;
  run->ledger->DecidedResume(attempt,
                             [this, run, then = std::move(then)](absl::StatusOr<Decision> decided) mutable {
                               --states_.Of(run).asking;
                               then(std::move(decided));
                             });
}

// ---- Resume

void ResumeBarrier::Resume(Run* run, const Member& member, const v1::ResumeRequest& request,
                           Reply<v1::ResumeResponse> reply) {
  absl::StatusOr<Duration> timeout =
      CheckDuration(request.has_timeout(), request.timeout(), "timeout", std::chrono::seconds(60),
                    std::chrono::milliseconds(1), std::chrono::seconds(86400));
  if (!timeout.ok()) return reply(timeout.status());
  PendingResume pending;
  pending.session = member.session;
  pending.rank = member.rank;
  pending.attempt = member.attempt;
  pending.strict = request.strict();
  pending.allow_suspect = request.allow_suspect();
  pending.deadline = clock_->Now() + *timeout;
  pending.reply = std::move(reply);
  run->ledger->Activate(member.attempt,
                        [this, name = run->name, pending = std::move(pending)](absl::Status active) mutable {
                          ResumeActivated(name, std::move(pending), active);
                        });
}

void ResumeBarrier::ResumeActivated(const std::string& run_name, PendingResume pending,
                                    const absl::Status& active) {
  Run* run = hooks_.find_run(run_name);
  if (run == nullptr || !active.ok()) return pending.reply(active);
  hooks_.activated(run, pending.attempt);
  const int64_t attempt = pending.attempt;
  pending.stage = Stage::kSettling;
  Again(run, std::move(pending));
  Settle(run, attempt);
}

// One question serves all ranks of the attempt: what is settled stays so.
void ResumeBarrier::Settle(Run* run, int64_t attempt) {
  State& state = states_.Of(run);
  if (!state.settling.insert(attempt).second) return;
  ++state.asking;
  run->authority->WhenSettled(attempt, [this, run, attempt](const absl::StatusOr<bool>& settled) {
    State& asked = states_.Of(run);
    --asked.asking;
    asked.settling.erase(attempt);
    Leave(run, Stage::kSettling, attempt, settled.status(), settled.ok() && *settled);
  });
}

void ResumeBarrier::Leave(Run* run, Stage stage, int64_t attempt, const absl::Status& status, bool scan) {
  State& state = states_.Of(run);
  std::vector<Reply<v1::ResumeResponse>> refused;
  for (auto pending = state.resumes.begin(); pending != state.resumes.end();) {
    const auto current = pending++;
    if ((attempt != 0 && current->second.attempt != attempt) || current->second.stage != stage) continue;
    current->second.stage = scan ? Stage::kScanning : Stage::kReady;
    if (status.ok()) continue;
    refused.push_back(std::move(current->second.reply));
    state.resumes.erase(current);
  }
  for (auto& reply : refused) reply(status);
  if (scan) return hooks_.scan(run);
  Continue(run);
}

void ResumeBarrier::OnFetched(Run* run, const absl::Status& fetched, bool is_new) {
  Leave(run, Stage::kFetching, /*attempt=*/0, fetched, is_new);
}

void ResumeBarrier::OnScanned(Run* run) {
  for (auto& [id, pending] : states_.Of(run).resumes) {
    if (pending.stage == Stage::kScanning) pending.stage = Stage::kReady;
  }
  Continue(run);
}

void ResumeBarrier::Again(Run* run, PendingResume pending) {
  State& state = states_.Of(run);
  pending.asking = false;
  state.resumes.emplace(state.next_resume++, std::move(pending));
  Continue(run);
}

void ResumeBarrier::Continue(Run* run) {
  if (run->read_only) return;  // What is committed is not known until the scan.
  State& state = states_.Of(run);
  std::vector<int64_t> ids;
  for (const auto& [id, pending] : state.resumes) {
    if (!pending.asking && pending.stage == Stage::kReady) ids.push_back(id);
  }
  for (int64_t id : ids) {
    const auto pending = state.resumes.find(id);
    if (pending == state.resumes.end() || pending->second.asking) continue;
    pending->second.asking = true;
    AskDecision(run, pending->second.attempt,
                [this, run, id](absl::StatusOr<Decision> decided) { ContinueOne(run, id, decided); });
  }
}

void ResumeBarrier::ContinueOne(Run* run, int64_t id, const absl::StatusOr<Decision>& decided) {
  State& state = states_.Of(run);
  const auto found = state.resumes.find(id);
  if (found == state.resumes.end()) return;  // Its time was up, or its session has ended.
  found->second.asking = false;
  if (run->read_only) return;
  const bool is_decided = decided.ok() && decided->has_value();
  if (decided.ok() && !is_decided && !hooks_.older_saves(*run, found->second.attempt).empty()) return;
  if (decided.ok() && !is_decided && !hooks_.is_fetched(*run, found->second.attempt)) {
    found->second.stage = Stage::kFetching;
    return hooks_.fetch(run, found->second.attempt);
  }
  // The scan may show a checkpoint that was brought into the root: without it the attempt could decide to begin from
  // nothing.
  if (decided.ok() && !is_decided && run->scanning) {
    found->second.stage = Stage::kScanning;
    return;
  }
  PendingResume pending = std::move(found->second);
  state.resumes.erase(found);
  if (!decided.ok()) return pending.reply(decided.status());
  Answer(run, std::move(pending), *decided);
}

void ResumeBarrier::Answer(Run* run, PendingResume pending, const Decision& decided) {
  if (Agreement* agreement = FindAgreement(states_.Of(run), pending.attempt)) {
    agreement->failed.erase(pending.rank);
    if (!agreement->writing) agreement->finished.erase(pending.rank);  // It reads it once more.
  }
  if (!decided || !IsWithdrawn(*run, *decided)) return Decide(run, std::move(pending), decided.has_value());
  ++states_.Of(run).asking;
  const int64_t attempt = pending.attempt;
  run->ledger->RejectResume(attempt, decided->sequence,
                            [this, run, pending = std::move(pending)](absl::Status rejected) mutable {
                              --states_.Of(run).asking;
                              if (!rejected.ok()) return pending.reply(rejected);
                              Decide(run, std::move(pending), /*is_decided=*/false);
                            });
}

void ResumeBarrier::Decide(Run* run, PendingResume pending, bool is_decided) {
  Ledger::ResumeChoice newest;
  const Catalog& catalog = run->catalog;
  if (const CommittedCheckpoint* checkpoint =
          pending.allow_suspect ? catalog.NewestWithSuspects() : catalog.Newest()) {
    newest.sequence = checkpoint->summary.sequence();
    newest.tag = checkpoint->summary.tag();
  }
  const std::vector<v1::Checkpoint> damaged = DamagedAfter(*run, newest.sequence, hooks_.describe);
  if (pending.strict && !damaged.empty()) {
    return pending.reply(DamagedError(*run, damaged, "a strict resume does not resume from an older one"));
  }
  // To begin from nothing because nothing can be read would throw the job's work away.
  if (newest.sequence == 0 && !damaged.empty() && !is_decided) {
    return pending.reply(DamagedError(
        *run, damaged,
        "there is no other to resume from; repair one, or move them away to begin from nothing"));
  }
  if (const CommittedCheckpoint* suspect = catalog.NewestWithSuspects();
      newest.sequence == 0 && suspect != nullptr && !is_decided) {
    return pending.reply(SuspectError(
        *suspect,
        "there is no other to resume from; allow suspect ones, or move them away to begin from nothing"));
  }
  hooks_.begin_decision(run, newest.sequence);
  const int64_t attempt = pending.attempt;
  run->ledger->DecideResume(attempt, newest,
                            [this, run, sequence = newest.sequence, pending = std::move(pending)](
                                absl::StatusOr<Ledger::ResumeChoice> choice) mutable {
                              hooks_.end_decision(run, sequence);
                              if (ReasonOf(choice.status()) == reason::kCheckpointDamaged)
                                return HearOfDamage(run, sequence, std::move(pending));
                              if (!choice.ok()) return pending.reply(choice.status());
                              Decided(run, *choice, std::move(pending));
                            });
}

// Another node has marked it. This one offers an older checkpoint once it knows that.
void ResumeBarrier::HearOfDamage(Run* run, int64_t sequence, PendingResume pending) {
  if (run->catalog.Find(sequence) != nullptr && !run->catalog.IsDamaged(sequence))
    pending.stage = Stage::kHearing;
  Again(run, std::move(pending));
}

void ResumeBarrier::Decided(Run* run, const Ledger::ResumeChoice& choice, PendingResume pending) {
  // It was found damaged since it was decided.
  if (IsWithdrawn(*run, choice)) return Again(run, std::move(pending));
  if (run->catalog.IsSuspect(choice.sequence) && !pending.allow_suspect) {
    return pending.reply(SuspectError(*run->catalog.Find(choice.sequence),
                                      "another rank resumes from it; allow that on all ranks, or on none"));
  }
  v1::ResumeResponse response;
  response.set_attempt(pending.attempt);
  for (v1::Checkpoint& passed : PassedOver(*run, choice.sequence, hooks_.describe))
    *response.add_passed_over() = std::move(passed);
  if (choice.sequence == 0) return pending.reply(std::move(response));
  Agreement& agreement = states_.Of(run).agreements[pending.attempt];
  agreement.decided = choice.sequence;
  agreement.told.insert(choice.sequence);
  if (agreement.tag.empty()) agreement.tag = choice.tag;
  const SessionId session = pending.session;
  leases_->Open(session, run, choice.sequence, /*resumes=*/true,
                [this, run, choice, response = std::move(response), pending = std::move(pending)](
                    absl::StatusOr<std::pair<std::string, v1::Checkpoint>> lease) mutable {
                  if (!lease.ok() && IsWithdrawn(*run, choice) && sessions_->IsOpen(pending.session))
                    return Again(run, std::move(pending));
                  if (!lease.ok()) return pending.reply(lease.status());
                  response.set_lease(lease->first);
                  *response.mutable_checkpoint() = std::move(lease->second);
                  pending.reply(std::move(response));
                });
}

// ---- FinishResume

void ResumeBarrier::FinishResume(Run* run, const Member& member, const v1::FinishResumeRequest& request,
                                 Reply<v1::FinishResumeResponse> reply) {
  absl::StatusOr<Duration> timeout =
      CheckDuration(request.has_timeout(), request.timeout(), "timeout", std::chrono::seconds(600),
                    std::chrono::milliseconds(1), std::chrono::seconds(86400));
  if (!timeout.ok()) return reply(timeout.status());
  if (absl::Status wrong = CheckDamage(request.damage()); !wrong.ok()) return reply(wrong);
  PendingFinish finish{member.session,    member.rank,        member.attempt,
                       member.world_size, member.local_ranks, clock_->Now() + *timeout,
                       std::move(reply)};
  run->ledger->Activate(member.attempt, [this, name = run->name, request,
                                         finish = std::move(finish)](absl::Status active) mutable {
    FinishActivated(name, request, std::move(finish), active);
  });
}

void ResumeBarrier::FinishActivated(const std::string& run_name, const v1::FinishResumeRequest& request,
                                    PendingFinish finish, const absl::Status& active) {
  if (!active.ok()) return finish.reply(active);
  if (!sessions_->IsOpen(finish.session)) return finish.reply(SessionLost("FinishResume"));
  Run* run = hooks_.find_run(run_name);
  if (request.has_damage()) {
    storage::v1::Damage damage = FromWire(request.damage());
    damage.set_message(absl::StrCat(damage.message(), " (found by rank ", finish.rank, ")"));
    return hooks_.mark_damaged(run, request.sequence(), std::move(damage),
                               [reply = std::move(finish.reply)](const absl::Status& marked) mutable {
                                 if (!marked.ok()) return reply(marked);
                                 reply(v1::FinishResumeResponse());
                               });
  }
  const int64_t attempt = finish.attempt;
  AskDecision(run, attempt,
              [this, run, request, finish = std::move(finish)](absl::StatusOr<Decision> decided) mutable {
                if (!decided.ok()) return finish.reply(decided.status());
                if (!sessions_->IsOpen(finish.session)) return finish.reply(SessionLost("FinishResume"));
                Finish(run, request, std::move(finish), *decided);
              });
}

void ResumeBarrier::Finish(Run* run, const v1::FinishResumeRequest& request, PendingFinish finish,
                           const Decision& decided) {
  const int64_t sequence = request.sequence(), attempt = finish.attempt;
  const bool stands = decided && decided->sequence == sequence;
  if (stands && decided->agreed) return finish.reply(v1::FinishResumeResponse());
  if (run->catalog.IsDamaged(sequence))
    return finish.reply(DamageError(*run->catalog.Find(sequence)->damage));
  if (const Agreement* told = FindAgreement(states_.Of(run), attempt);
      !stands && told != nullptr && told->told.contains(sequence))
    return finish.reply(WithdrawnError(run->path, sequence));
  if (!stands || sequence == 0) {
    return finish.reply(
        MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                  absl::StrCat("attempt ", attempt, " does not resume from sequence ", sequence)));
  }
  Agreement& agreement = states_.Of(run).agreements[attempt];
  if (agreement.sequence != sequence) {
    // Those that still wait for what was decided before.
    FailAgreement(run, attempt, WithdrawnError(run->path, agreement.sequence));
    agreement.sequence = sequence;
    agreement.tag = decided->tag;
    agreement.agreed = false;
    agreement.finished.clear();
    agreement.failed.clear();
  }
  if (request.failure().empty()) return Finished(run, sequence, std::move(finish));
  run->ledger->ResumeFailed(attempt, sequence);
  agreement.finished.erase(finish.rank);
  agreement.failed[finish.rank] = request.failure();
  finish.reply(v1::FinishResumeResponse());
  FailIfIncomplete(run, attempt);
}

// The rank has read its part.
void ResumeBarrier::Finished(Run* run, int64_t sequence, PendingFinish finish) {
  const int64_t attempt = finish.attempt;
  Agreement& agreement = states_.Of(run).agreements.at(attempt);
  agreement.failed.erase(finish.rank);
  agreement.finished.insert(finish.rank);
  const bool all = static_cast<int>(agreement.finished.size()) == finish.local_count();
  const Instant deadline = finish.deadline;
  agreement.waiting.push_back(std::move(finish));
  if (!all) return FailIfIncomplete(run, attempt);
  if (std::exchange(agreement.writing, true)) return;  // A retry: the same write answers it.
  const int64_t round = ++agreement.round;
  run->authority->FinishResume(attempt, sequence, absl::OkStatus(), deadline,
                               [this, run, attempt, sequence, round](const absl::Status& agreed) {
                                 const Agreement* asked = FindAgreement(states_.Of(run), attempt);
                                 if (asked != nullptr && asked->writing && asked->round == round)
                                   return Agreed(run, attempt, sequence, agreed);
                                 hooks_.released(run);  // The ranks have another answer.
                               });
}

void ResumeBarrier::Agreed(Run* run, int64_t attempt, int64_t sequence, const absl::Status& agreed) {
  Agreement* over = FindAgreement(states_.Of(run), attempt);
  if (over == nullptr || over->sequence != sequence) return;
  over->writing = false;
  over->agreed = agreed.ok();
  if (!agreed.ok()) over->finished.clear();  // They resume again.
  AnswerFinishes(run, attempt, agreed);
  if (agreed.ok()) hooks_.agreed(run, sequence);
  hooks_.released(run);
}

void ResumeBarrier::ReportFailure(Run* run, int64_t attempt, const absl::Status& error) {
  const Agreement* agreement = FindAgreement(states_.Of(run), attempt);
  if (agreement == nullptr || agreement->agreed) return;
  const int64_t sequence = agreement->sequence != 0 ? agreement->sequence : agreement->decided;
  if (sequence == 0) return;
  run->authority->FinishResume(attempt, sequence, error, clock_->Now() + kLongestReport,
                               [](const absl::Status&) {});
}

void ResumeBarrier::FailIfIncomplete(Run* run, int64_t attempt) {
  const Agreement* agreement = FindAgreement(states_.Of(run), attempt);
  if (agreement == nullptr) return;
  absl::Status error;
  if (!agreement->failed.empty()) {
    const auto& [rank, why] = *agreement->failed.begin();
    error = ResumeFailed(agreement->tag, {rank}, absl::StrCat("rank ", rank, " could not: ", why));
  } else if (!agreement->lost.empty()) {
    const std::vector<int> lost(agreement->lost.begin(), agreement->lost.end());
    error = ResumeFailed(agreement->tag, lost,
                         absl::StrCat("the trainers of ranks ", JoinRanks(lost), " have ended"));
  }
  if (error.ok()) return;
  ReportFailure(run, attempt, error);
  // Ranks that have all finished get the answer of the authority.
  const Agreement* still = FindAgreement(states_.Of(run), attempt);
  if (still != nullptr && !still->writing && !still->waiting.empty()) FailAgreement(run, attempt, error);
}

void ResumeBarrier::FailAgreement(Run* run, int64_t attempt, const absl::Status& error) {
  if (Agreement* agreement = FindAgreement(states_.Of(run), attempt)) {
    agreement->finished.clear();
    agreement->writing = false;
  }
  AnswerFinishes(run, attempt, error);
}

void ResumeBarrier::AnswerFinishes(Run* run, int64_t attempt, const absl::Status& status) {
  Agreement* agreement = FindAgreement(states_.Of(run), attempt);
  if (agreement == nullptr) return;
  for (PendingFinish& finish : std::exchange(agreement->waiting, {})) {
    if (status.ok()) {
      finish.reply(v1::FinishResumeResponse());
    } else {
      finish.reply(status);
    }
  }
}

// ---- events

void ResumeBarrier::OnDamageRecorded(Run* run, int64_t sequence) {
  bool is_known = false;
  for (auto& [id, pending] : states_.Of(run).resumes) {
    if (pending.stage != Stage::kHearing) continue;
    pending.stage = Stage::kReady;
    is_known = true;
  }
  if (run->catalog.IsDamaged(sequence)) {
    std::vector<int64_t> attempts;
    for (const auto& [attempt, agreement] : states_.Of(run).agreements) {
      if (agreement.sequence == sequence) attempts.push_back(attempt);
    }
    for (int64_t attempt : attempts) RejectDamaged(run, attempt, sequence);
  }
  if (is_known) Continue(run);
}

// Takes the decision back unless every rank has read its part of it, and tells the ranks that wait.
void ResumeBarrier::RejectDamaged(Run* run, int64_t attempt, int64_t sequence) {
  const absl::Status error = DamageError(*run->catalog.Find(sequence)->damage);
  AskDecision(run, attempt, [this, run, attempt, sequence, error](absl::StatusOr<Decision> decided) {
    if (!IsOn(run, attempt, sequence)) return;  // Its ranks were told when the first one finished anew.
    const bool stands = decided.ok() && decided->has_value();
    if (stands && (*decided)->sequence == sequence && !IsWithdrawn(*run, **decided))
      return;  // The ranks are told that all have read it.
    ReportFailure(run, attempt, error);
    if (!stands || (*decided)->agreed) return FailAgreement(run, attempt, error);
    ++states_.Of(run).asking;
    run->ledger->RejectResume(attempt, sequence, [this, run, attempt, sequence, error](const absl::Status&) {
      --states_.Of(run).asking;
      if (IsOn(run, attempt, sequence)) FailAgreement(run, attempt, error);
    });
  });
}

void ResumeBarrier::OnJoined(Run* run, int64_t attempt, int rank) {
  State& state = states_.Of(run);
  if (Agreement* agreement = FindAgreement(state, attempt)) agreement->lost.erase(rank);
  // Attempts that have ended before they agreed on anything.
  std::erase_if(state.agreements, [attempt](const auto& entry) {
    return entry.first < attempt && entry.second.sequence == 0 && entry.second.waiting.empty();
  });
}

void ResumeBarrier::OnFenced(Run* run, int64_t attempt, const absl::Status& error) {
  auto& agreements = states_.Of(run).agreements;
  while (!agreements.empty() && agreements.begin()->first < attempt) {
    FailAgreement(run, agreements.begin()->first, error);
    agreements.erase(agreements.begin());
  }
}

void ResumeBarrier::OnSessionEnded(SessionId session, const std::vector<std::pair<Run*, Member>>& left) {
  std::vector<Reply<v1::ResumeResponse>> resumes;
  std::vector<Reply<v1::FinishResumeResponse>> finishes;
  for (const auto& [run, member] : left) states_.Of(run).agreements[member.attempt].lost.insert(member.rank);
  for (auto& [run, state] : states_) {
    for (auto pending = state.resumes.begin(); pending != state.resumes.end();) {
      const auto current = pending++;
      if (current->second.session != session) continue;
      resumes.push_back(std::move(current->second.reply));
      state.resumes.erase(current);
    }
    for (auto& [attempt, agreement] : state.agreements) {
      const auto ended = [session](const PendingFinish& finish) { return finish.session == session; };
      for (PendingFinish& finish : TakeIf(agreement.waiting, ended))
        finishes.push_back(std::move(finish.reply));
    }
  }
  // The calls may be on another connection, which waits for their answers.
  for (auto& reply : resumes) reply(SessionLost("Resume"));
  for (auto& reply : finishes) reply(SessionLost("FinishResume"));
  for (const auto& [run, member] : left) FailIfIncomplete(run, member.attempt);
}

// ---- time

void ResumeBarrier::OnTick(Instant now) {
  std::vector<Run*> runs;
  for (const auto& [run, state] : states_) runs.push_back(run);
  for (Run* run : runs) {
    State& state = states_.Of(run);
    for (auto& [attempt, agreement] : state.agreements) {
      if (!agreement.writing) ExpireFinishes(agreement, now);
    }
    ExpireResumes(run, state, now);
  }
}

// A rank whose wait has expired is told to resume again, so it does not count any more: else the others could
// agree without it, and retention could remove what it is about to read. Once all ranks have finished, only
// the write decides: an agreement that is on disk cannot be taken back.
void ResumeBarrier::ExpireFinishes(Agreement& agreement, Instant now) {
  std::vector<PendingFinish> over =
      TakeIf(agreement.waiting, [now](const PendingFinish& finish) { return now >= finish.deadline; });
  for (PendingFinish& finish : over) {
    std::vector<int> missing;
    for (int rank = 0; rank < finish.world_size; ++rank) {
      if (finish.IsHere(rank) && !agreement.finished.contains(rank)) missing.push_back(rank);
    }
    finish.reply(MakeError(
        absl::StatusCode::kDeadlineExceeded, reason::kResumeIncomplete,
        absl::StrCat("ranks ", JoinRanks(missing), " have not finished reading ", agreement.tag, " in time"),
        {{"tag", agreement.tag}, {"ranks", JoinRanks(missing)}}));
  }
  for (const PendingFinish& finish : over) {
    const bool retried =
        std::any_of(agreement.waiting.begin(), agreement.waiting.end(),
                    [&finish](const PendingFinish& other) { return other.rank == finish.rank; });
    if (!retried) agreement.finished.erase(finish.rank);
  }
}

void ResumeBarrier::ExpireResumes(Run* run, State& state, Instant now) {
  std::vector<PendingResume> over;
  for (auto pending = state.resumes.begin(); pending != state.resumes.end();) {
    const auto current = pending++;
    if (now < current->second.deadline) continue;
    over.push_back(std::move(current->second));
    state.resumes.erase(current);
  }
  for (PendingResume& pending : over) {
    std::string waits_for =
        run->read_only || pending.stage == Stage::kScanning ? "the root to be scanned anew" : "";
    if (pending.stage == Stage::kHearing) {
      pending.reply(
          MakeError(absl::StatusCode::kDeadlineExceeded, reason::kResumeTimeout,
                    "what to resume from is not decided in time: another node has found damage, and "
                    "etcd has not told this node which"));
      continue;
    }
    if (pending.stage == Stage::kFetching) {
      pending.reply(MakeError(
          absl::StatusCode::kDeadlineExceeded, reason::kResumeTimeout,
          absl::StrCat("what to resume from is not decided in time; it waits for ", hooks_.fetching(*run),
                       ". That goes on: resume again, with a longer timeout")));
      continue;
    }
    if (pending.stage != Stage::kReady) absl::StrAppend(&waits_for, " the saves of other nodes");
    for (const std::string& tag : hooks_.older_saves(*run, pending.attempt))
      absl::StrAppend(&waits_for, " ", tag);
    pending.reply(MakeError(absl::StatusCode::kDeadlineExceeded, reason::kResumeTimeout,
                            absl::StrCat("what to resume from is not decided in time; it waits for",
                                         waits_for, " of an earlier attempt to be published or to fail")));
  }
}

Instant ResumeBarrier::NextDeadline() const {
  Instant next = Instant::max();
  for (const auto& [run, state] : states_) {
    for (const auto& [id, pending] : state.resumes) next = std::min(next, pending.deadline);
    for (const auto& [attempt, agreement] : state.agreements) {
      for (const PendingFinish& finish : agreement.waiting) next = std::min(next, finish.deadline);
    }
  }
  return next;
}

// ---- what others ask

bool ResumeBarrier::HasWaiting(const Run& run) const { return !states_.Of(&run).resumes.empty(); }

bool ResumeBarrier::IsIdle(const Run& run) const {
  const State& state = states_.Of(&run);
  return state.resumes.empty() && state.asking == 0 &&
         std::all_of(state.agreements.begin(), state.agreements.end(),
                     [](const auto& entry) { return entry.second.waiting.empty(); });
}

}  // namespace ckptd
