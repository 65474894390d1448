// Runs: loading what a root holds, lost saves, fencing, the end of a session.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/retention/retention_policy.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/ledger/local_ledger.h"

namespace ckptd {
namespace {

// More outcomes cannot have been on their way to the history when a daemon was killed.
constexpr int kMaxMissing = 16;

// The newest attempt that has saved one of the checkpoints; 0: there is none.
int64_t HighestAttempt(const Catalog& catalog) {
  int64_t highest = 0;
  for (const auto& [sequence, checkpoint] : catalog.committed())
    highest = std::max(highest, checkpoint.summary.attempt());
  return highest;
}

// The newest attempt that the history names; 0: there is none.
int64_t HighestAttempt(const storage::v1::RunRecord& record) {
  int64_t highest = 0;
  for (const storage::v1::Outcome& outcome : record.outcomes())
    highest = std::max(highest, outcome.attempt());
  return highest;
}

std::set<int64_t> Sequences(const Catalog& catalog) {
  std::set<int64_t> sequences;
  for (const auto& [sequence, checkpoint] : catalog.committed()) sequences.insert(sequence);
  return sequences;
}

}  // namespace

absl::StatusOr<Run*> Engine::Impl::FindRun(const Caller& caller, const std::string& name) {
  return runs_.Find(caller, name);
}

absl::StatusOr<Run*> Engine::Impl::RunOfCheckpointName(const Caller& caller, const std::string& name,
                                                       std::string* tag) {
  return runs_.FindByCheckpoint(caller, name, tag);
}

// Loads what opening the root, or a scan of it, has found.
void Engine::Impl::LoadSnapshot(Run* run, RootSnapshot snapshot) {
  for (const RecoveredSave& save : snapshot.recovered) {
    observer_->OnInfo(absl::StrCat("recovery of ", run->path, ": ", save.tag, " (sequence ", save.sequence,
                                   ") ", save.published ? "published: " : "removed: ", save.why));
  }
  for (const DamagedCheckpoint& damaged : snapshot.damaged) {
    observer_->OnWarning(
        absl::StrCat("checkpoint ", run->path, "/", damaged.tag,
                     " is damaged and is not offered: ", std::string(damaged.status.message())));
  }
  run->probe = std::move(snapshot.probe);
  disk_.SetFreeBytes(run, run->probe.free_bytes);
  const std::set<int64_t> known = Sequences(run->catalog);
  run->catalog.Replace(std::move(snapshot.committed), std::move(snapshot.damaged), snapshot.leaving);
  trash_.SetBytes(run, snapshot.trash_bytes);
  retention_.SetPointers(run, std::move(snapshot.pointers));
  run->read_only = false;
  if (run->ledger != nullptr) {
    // A rescan: what the ledger knows is newer, but for a checkpoint that was moved in.
    if (!run->catalog.committed().empty())
      run->ledger->RaiseSequence(run->catalog.committed().rbegin()->first);
    run->ledger->RaiseAttempt(HighestAttempt(run->catalog));
    // A save whose outcome was not known is a checkpoint of its attempt. Retention asks the ledger what that
    // attempt has left of another model before it removes anything.
    for (const auto& [sequence, checkpoint] : run->catalog.committed()) {
      if (!known.contains(sequence)) run->ledger->Committed(checkpoint.summary.attempt());
    }
    return RecordFoundSaves(run);
  }
  if (Ledger* const kept = run->authority->ledger()) return UseLedger(run, kept);
  storage::v1::RunRecord record = std::move(snapshot.run_record);
  if (record.format_version() != 0) run->uid = static_cast<uid_t>(record.uid());
  record.set_uid(static_cast<int>(run->uid));
  record.set_path(run->path);
  retention_.SetPolicies(run, PoliciesAtStart(record));
  const bool none_given =
      record.last_sequence() == 0 && snapshot.highest_sequence == 0 && recovery_.HighestSequence(*run) == 0;
  adoptions_.ReserveSequences(*run, snapshot, none_given, record);
  for (const storage::v1::Outcome& outcome : record.outcomes()) {
    ended_.ForgetLost(run, outcome.attempt(), outcome.tag());
    if (outcome.level() >= v1::FAILED) ended_.AddFailure(run, ToWire(*run, outcome));
  }
  // The record may not know all attempts that have saved: it was moved away, or a checkpoint was moved in.
  // The attempt is part of a save's name, so a new save with the name of an old one would be refused as
  // committed already.
  const int64_t highest_attempt =
      std::max({HighestAttempt(run->catalog), HighestAttempt(record), recovery_.HighestAttempt(*run)});
  auto ledger = std::make_unique<LocalLedger>(
      std::move(record), std::max(snapshot.highest_sequence, recovery_.HighestSequence(*run)),
      [io = run->local_io](const storage::v1::RunRecord& what, absl::AnyInvocable<void(absl::Status)> done) {
        io->SaveRunRecord(what, std::move(done));
      });
  ledger->RaiseAttempt(highest_attempt);
  run->SetLedger(std::move(ledger));
  uploads_.Load(run);
  run->ledger->WatchActiveAttempt([run](int64_t attempt) { run->active_attempt = attempt; });
  RecordFoundSaves(run);
  RecordMissingOutcomes(run, snapshot.recovered);
  RecordLostSaves(run, snapshot.recovered);
}

// What is known of the run is in its ledger, and not in a record of the root.
void Engine::Impl::UseLedger(Run* run, Ledger* kept) {
  run->ledger = kept;
  retention_.SetPolicies(run, PoliciesAtStart(run->ledger->record()));
  run->ledger->WatchActiveAttempt([this, run](int64_t attempt) {
    run->active_attempt = attempt;
    FenceOff(run, attempt);  // Another node may have let it act.
    retention_.Apply(run);   // What it resumes from is known now.
  });
}

// A daemon that was killed may have published a checkpoint that its history does not have yet. Once retention
// or a re-save has taken it, a late rank would be told that it was lost. What the history has dropped in time
// is older than all that it has.
void Engine::Impl::RecordMissingOutcomes(Run* run, const std::vector<RecoveredSave>& recovered) {
  const auto was_dropped = [&](const storage::v1::ManifestSummary& summary) {
    if (summary.attempt() == run->active_attempt) return false;
    const auto& outcomes = run->ledger->record().outcomes();
    if (!outcomes.empty() && outcomes[0].sequence() < summary.sequence()) return false;
    return std::none_of(recovered.begin(), recovered.end(), [&](const RecoveredSave& save) {
      return save.published && save.sequence == summary.sequence();
    });
  };
  std::vector<storage::v1::Outcome> missing;
  int looked_at = 0;
  const auto& committed = run->catalog.committed();
  for (auto entry = committed.rbegin(); entry != committed.rend() && looked_at < kMaxMissing;
       ++entry, ++looked_at) {
    const storage::v1::ManifestSummary& summary = entry->second.summary;
    const auto& outcomes = run->ledger->record().outcomes();
    const bool is_known = std::any_of(
        outcomes.begin(), outcomes.end(),
        [&](const storage::v1::Outcome& outcome) { return outcome.sequence() == summary.sequence(); });
    if (is_known || !summary.adopted_from().empty() || was_dropped(summary)) continue;
    // It was brought back: what the run itself uploads is in the history before.
    if (uploads_.IsInBucket(*run, summary.sequence())) continue;
    storage::v1::Outcome& outcome = missing.emplace_back();
    outcome.set_tag(summary.tag());
    outcome.set_ordinal(summary.ordinal());
    outcome.set_attempt(summary.attempt());
    outcome.set_sequence(summary.sequence());
    outcome.set_level(v1::COMMITTED);
    if (summary.has_step()) outcome.set_step(summary.step());
    outcome.set_time_us(clock_->UnixMicros());
    outcome.set_size_bytes(summary.size_bytes());
  }
  for (auto outcome = missing.rbegin(); outcome != missing.rend(); ++outcome) RecordCommitted(run, *outcome);
}

// Saves that ended INDETERMINATE, and that a scan has found in the root: they are checkpoints, and count for uploads. Of
// a run that several nodes share, the coordinator finds out.
void Engine::Impl::RecordFoundSaves(Run* run) {
  if (run->authority->may_span_nodes()) return;
  const auto& outcomes = run->ledger->record().outcomes();
  std::vector<storage::v1::Outcome> found;
  for (const storage::v1::Outcome& outcome : outcomes) {
    const bool is_recorded =
        std::any_of(outcomes.begin(), outcomes.end(), [&](const storage::v1::Outcome& other) {
          return other.sequence() == outcome.sequence() && other.level() == v1::COMMITTED;
        });
    if (outcome.level() != v1::INDETERMINATE || is_recorded ||
        run->catalog.Find(outcome.sequence()) == nullptr)
      continue;
    storage::v1::Outcome& now = found.emplace_back(outcome);
    now.set_level(v1::COMMITTED);
    now.clear_reason();
    now.clear_message();
    now.clear_code();
    now.set_time_us(clock_->UnixMicros());
  }
  for (const storage::v1::Outcome& outcome : found) RecordCommitted(run, outcome);
}

// This daemon has not seen it being committed.
void Engine::Impl::RecordCommitted(Run* run, const storage::v1::Outcome& outcome) {
  // The record has neither: both are written together.
  uploads_.OnCommitted(run, run->catalog.Find(outcome.sequence())->summary);
  history_.Record(run, outcome);
  observer_->OnEarlierSaveEnded(SummaryOf(*run, outcome));
}

// What an earlier daemon had begun and neither it nor a service manager has kept is lost: the history says so
// even when no trainer is left to be told. A living trainer may offer the save again: its outcome then takes
// the place of this one (EndedSaves::ForgetLost).
void Engine::Impl::RecordLostSaves(Run* run, const std::vector<RecoveredSave>& recovered) {
  for (const RecoveredSave& save : recovered) {
    const auto& outcomes = run->ledger->record().outcomes();
    const bool is_known =
        std::any_of(outcomes.begin(), outcomes.end(),
                    [&](const storage::v1::Outcome& outcome) { return outcome.sequence() == save.sequence; });
    if (save.published || save.replaced || is_known || recovery_.Holds(*run, save.sequence)) continue;
    storage::v1::Outcome outcome;  // Its ordinal is not known: no key of a client names it.
    outcome.set_tag(save.tag);
    outcome.set_attempt(run->active_attempt);
    outcome.set_sequence(save.sequence);
    outcome.set_level(v1::FAILED);
    outcome.set_reason(reason::kStagedLost);
    outcome.set_code(static_cast<int>(absl::StatusCode::kAborted));
    outcome.set_message(absl::StrCat("the daemon ended before this save was on disk (", save.why,
                                     "), and nothing kept it for the next daemon; save again"));
    outcome.set_time_us(clock_->UnixMicros());
    ended_.AddFailure(run, ToWire(*run, outcome));
    history_.Record(run, outcome);
    observer_->OnEarlierSaveEnded(SummaryOf(*run, outcome));
  }
}

// The saves that the rank had staged with an earlier daemon, and that this one did not find complete on disk.
// On one node they have failed.
void Engine::Impl::ReportOrphans(Run* run, int64_t attempt, const v1::JoinRunRequest& request) {
  for (const v1::SaveKey& key : request.orphaned()) {
    const SaveId id{attempt, key.tag(), key.ordinal()};
    if (ended_.Past(*run, id)) continue;
    const std::string why = absl::StrCat("rank ", request.rank(), " had staged its part of ", id.tag,
                                         " with a daemon that has ended since; save again");
    if (Save* const save = run->FindSave(id)) {
      const Part* const part = save->FindPart(request.rank());
      // The rank sealed it with the old daemon; others have begun it anew with this one.
      if (part == nullptr || !part->begun) {
        tracker_.Fail(save, MakeError(absl::StatusCode::kAborted, reason::kStagedLost, why,
                                      {{"tag", id.tag}, {"ranks", absl::StrCat(request.rank())}}));
      }
      continue;
    }
    earlier_.Find(run, id, Instant::max(),
                  [this, run, id, rank = request.rank(), why](const std::optional<v1::Checkpoint>& end) {
                    // Other nodes may have committed what etcd has forgotten: a Wait says that.
                    if (!end && !run->authority->may_span_nodes()) ReportLost(run, id, rank, why);
                  });
  }
}

void Engine::Impl::ReportLost(Run* run, const SaveId& id, int rank, const std::string& why) {
  storage::v1::Outcome outcome;
  outcome.set_tag(id.tag);
  outcome.set_ordinal(id.ordinal);
  outcome.set_attempt(id.attempt);
  outcome.set_level(v1::FAILED);
  outcome.set_reason(reason::kStagedLost);
  outcome.set_code(static_cast<int>(absl::StatusCode::kAborted));
  outcome.set_message(why);
  outcome.add_ranks(rank);
  outcome.set_time_us(clock_->UnixMicros());
  outcome.set_sequence(ended_.ForgetLost(run, id.attempt, id.tag));
  if (outcome.sequence() == 0) observer_->OnEarlierSaveEnded(SummaryOf(*run, outcome));  // Else it was told.
  ended_.AddFailure(run, ToWire(*run, outcome));
  observer_->OnWarning(absl::StrCat("save of ", run->path, "/", id.tag, " failed: ", why));
  run->ledger->RecordOutcome(outcome, [](absl::Status) {});
}

// The authority has said how a save ended that an earlier daemon had taken part in.
void Engine::Impl::RecordEarlierEnd(Run* run, const storage::v1::Outcome& outcome) {
  observer_->OnEarlierSaveEnded(SummaryOf(*run, outcome));
  if (outcome.level() != v1::COMMITTED) ended_.AddFailure(run, ToWire(*run, outcome));
  run->ledger->RecordOutcome(outcome, [](absl::Status) {});
}

// From now on `active_attempt` acts: what older trainers have not fully sealed ends.
void Engine::Impl::FenceOff(Run* run, int64_t active_attempt) {
  std::vector<Save*> over;
  for (auto& entry : run->saves) {
    Save* save = entry.second.get();
    // A save whose ranks have all sealed here may be sealed on all nodes: if it is not, the authority ends
    // it.
    if (save->UnsealedRanks().empty()) continue;
    if (save->key.attempt < active_attempt && save->phase() != SavePhase::kFailing) over.push_back(save);
  }
  const std::string why = absl::StrCat("attempt ", active_attempt, " of this run has begun or resumed");
  for (Save* save : over) {
    tracker_.Fail(save, MakeError(absl::StatusCode::kFailedPrecondition, reason::kFenced, why,
                                  {{"tag", save->key.tag}}));
  }
  resumes_.OnFenced(run, active_attempt,
                    MakeError(absl::StatusCode::kFailedPrecondition, reason::kFenced, why));
}

// The saves that lose a part that their session has not sealed, with the rank.
std::vector<std::pair<Save*, int>> Engine::Impl::UnsealedSavesOf(SessionId session) const {
  std::vector<std::pair<Save*, int>> lost;
  for (const auto& [name, run] : runs_.all()) {
    for (const auto& [sequence, save] : run->saves) {
      for (const auto& [rank, part] : save->parts) {
        const bool unsealed = part.begun && !part.sealed && part.session == session;
        if (unsealed && save->phase() != SavePhase::kFailing && save->phase() != SavePhase::kEnded) {
          lost.emplace_back(save.get(), rank);
          break;
        }
      }
    }
  }
  return lost;
}

// The session leaves all runs. Returns its memberships.
std::vector<std::pair<Run*, Member>> Engine::Impl::LeaveRuns(const SessionInfo& session) {
  const bool instance_lives = sessions_.InstanceLives(session.client_instance);
  std::vector<std::pair<Run*, Member>> left;
  for (const auto& [name, run] : runs_.all()) {
    for (Member& member : run->members.Leave(session.id)) left.emplace_back(run.get(), std::move(member));
    if (!instance_lives && run->ledger != nullptr) run->ledger->ProcessEnded(session.client_instance);
  }
  return left;
}

void Engine::Impl::SessionClosed(SessionId session, const std::string& why) {
  const std::optional<SessionInfo> ended = sessions_.Remove(session);
  if (!ended) return;
  const std::vector<std::pair<Save*, int>> lost = UnsealedSavesOf(session);
  const std::vector<std::pair<Run*, Member>> left = LeaveRuns(*ended);
  runs_.OnSessionEnded(session);
  resumes_.OnSessionEnded(session, left);
  layouts_.OnSessionEnded(session);
  for (const auto& [save, rank] : lost) {
    tracker_.Fail(save, MakeError(absl::StatusCode::kAborted, reason::kSessionLost,
                                  absl::StrCat("the trainer of rank ", rank,
                                               " ended before it sealed its part (", why, ")"),
                                  {{"tag", save->key.tag}, {"ranks", absl::StrCat(rank)}}));
  }
  leases_.OnSessionEnded(session);
  residents_.ReleaseMappings(session);
  pool_->SessionEnded(session);
  residents_.OnSessionEnded(session);
  queue_.TryAdmitAll();
}

}  // namespace ckptd
