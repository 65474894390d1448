#include "daemon/engine/retention/retention.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/wire.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

// Whether the attempt has saved this checkpoint. One that was moved in from another run may have the same
// attempt number: the run's history tells the two apart, unless each node records its own saves only. Then
// the number decides.
bool HasSaved(const Run& run, int64_t attempt, const storage::v1::ManifestSummary& summary) {
  if (summary.attempt() != attempt) return false;
  if (run.authority->may_span_nodes()) return true;
  const auto& outcomes = run.ledger->record().outcomes();
  return std::any_of(outcomes.begin(), outcomes.end(), [&](const storage::v1::Outcome& outcome) {
    return outcome.attempt() == attempt && outcome.sequence() == summary.sequence() &&
           outcome.level() == v1::COMMITTED;
  });
}

// The checkpoint that the attempt resumes from; 0: none. It is kept until every rank has read its part,
// because recovery may publish a newer one meanwhile. For clients that do not report that, it is kept until
// the attempt has committed a newer checkpoint. The decision itself may name a checkpoint of the attempt:
// ranks that began from nothing, because every checkpoint was damaged, may save before the others resume.
int64_t ResumedSequence(const Run& run, int64_t attempt, const std::optional<Ledger::ResumeChoice>& decided) {
  if (!decided || decided->agreed) return 0;
  const auto& committed = run.catalog.committed();
  const bool has_newer =
      std::any_of(committed.upper_bound(decided->sequence), committed.end(),
                  [&](const auto& entry) { return HasSaved(run, attempt, entry.second.summary); });
  return has_newer ? 0 : decided->sequence;
}

int64_t NewestSequence(const Catalog& catalog) {
  return catalog.committed().empty() ? 0 : catalog.committed().rbegin()->first;
}

int64_t RetainedThrough(const Run& run) {
  return run.ledger == nullptr ? 0 : run.ledger->record().retained_through();
}

// One node removes for all. Where other nodes commit, too, and this one does not know yet which attempt acts,
// it does not know either what that attempt resumes from: a checkpoint has been committed, so one acts.
bool MayRemove(const Run& run) {
  return run.authority->coordinates() && (run.active_attempt != 0 || !run.authority->may_span_nodes());
}

// The publisher tells the ledger which attempts of this node have committed. Where a checkpoint may be of any
// node's ranks, the coordinator tells it the attempts of all checkpoints after `told`: several launches may
// have saved since the ledger was asked last, by this coordinator or by an earlier one. The ledger updates
// record().retained_through() before its next answer. Returns the newest sequence; 0: there is none.
int64_t NoteCommitted(Run* run, int64_t told) {
  const auto& committed = run->catalog.committed();
  if (committed.empty()) return 0;
  if (!run->authority->may_span_nodes()) return committed.rbegin()->first;
  // The newest one is told each time, so that the ledger asks etcd each time.
  const int64_t newest = committed.rbegin()->first;
  for (auto each = committed.upper_bound(std::min(told, newest - 1)); each != committed.end(); ++each)
    run->ledger->Committed(each->second.summary.attempt());
  return newest;
}

// The checkpoints that nothing keeps, oldest first.
std::vector<int64_t> Without(const Run& run, const Retention::Keepers& keepers) {
  std::vector<int64_t> victims;
  for (const auto& [sequence, checkpoint] : run.catalog.committed()) {
    if (!keepers.contains(sequence)) victims.push_back(sequence);
  }
  return victims;
}

}  // namespace

Retention::Retention(Clock* clock, EngineObserver* observer, const OutcomeHistory* history,
                     TrashCollector* trash, Hooks hooks)
    : clock_(clock), observer_(observer), history_(history), trash_(trash), hooks_(std::move(hooks)) {}

void Retention::SetPolicies(const Run* run, std::vector<RetentionPolicy> policies) {
  states_.Of(run).policies = std::move(policies);
}

void Retention::SetPolicyOf(Run* run, int64_t sequence, const std::optional<RetentionPolicy>& of_save) {
  State& state = states_.Of(run);
  if (sequence <= state.policy_sequence) return;
  state.policy_sequence = sequence;
  state.policies = {PolicyAfterCommit(run->ledger->record(), of_save)};
  run->ledger->SetRetention(state.policies.front(), {});
  Apply(run);
}

// What keeps a checkpoint whatever the policy says. Pins on disk are in the catalog.
void Retention::AddUses(const Run& run, int64_t resumed, Keepers* keepers, bool also_held) const {
  const State& state = states_.Of(&run);
  const auto add = [keepers](const auto& sequences, const char* why) {
    for (int64_t sequence : sequences) (*keepers)[sequence].push_back(why);
  };
  for (const auto& [sequence, checkpoint] : run.catalog.committed()) {
    if (checkpoint.pinned) (*keepers)[sequence].push_back("pinned");
  }
  add(std::set<int64_t>(state.pinning.begin(), state.pinning.end()), "being pinned");
  add(std::set<int64_t>(state.deciding.begin(), state.deciding.end()), "resumed from");
  add(run.catalog.withdrawn(), "removed by another node, when a newer one is there");
  const std::vector<int64_t> leased = hooks_.leased_sequences(run);
  add(std::set<int64_t>(leased.begin(), leased.end()), "being read");
  if (hooks_.held_for_upload != nullptr && !also_held) add(hooks_.held_for_upload(run), "not uploaded yet");
  if (resumed != 0 && !state.deciding.contains(resumed)) add(std::set<int64_t>{resumed}, "resumed from");
}

RetentionPolicy Retention::NextPolicy(const Run& run) const {
  if (run.ledger != nullptr && run.ledger->record().has_retention_override())
    return run.ledger->record().retention_override();
  const std::vector<RetentionPolicy>& in_force = states_.Of(&run).policies;
  return in_force.empty() ? RetentionPolicy() : in_force.front();
}

std::optional<int> Retention::KeptLast(const Run& run) const {
  const std::vector<RetentionPolicy>& policies = states_.Of(&run).policies;
  if (policies.empty() || std::any_of(policies.begin(), policies.end(), KeepsAll)) return std::nullopt;
  int last = 0;
  for (const RetentionPolicy& policy : policies) last = std::max(last, LastOf(policy));
  return last;
}

std::vector<int64_t> Retention::PredictedVictims(const Run& run) const {
  const RetentionPolicy policy = NextPolicy(run);
  if (KeepsAll(policy)) return {};
  Keepers keepers =
      KeptByPolicy(policy, run.catalog, clock_->UnixMicros(), /*committing=*/true, RetainedThrough(run));
  AddUses(run, /*resumed=*/0, &keepers);
  // The next save most likely names the same pointers as the newest one, which is then free to go.
  std::set<int64_t> pointed = states_.Of(&run).pointed;
  if (const auto& committed = run.catalog.committed(); !committed.empty())
    pointed.erase(committed.rbegin()->first);
  for (int64_t sequence : pointed) keepers[sequence];
  return Without(run, keepers);
}

void Retention::AskResumed(Run* run, absl::AnyInvocable<void(absl::StatusOr<int64_t>)> answer) {
  ++states_.Of(run).asking;
  const int64_t attempt = run->active_attempt;
  const int64_t newest = NoteCommitted(run, states_.Of(run).retained_as_of);
  run->ledger->DecidedResume(
      attempt, [this, run, attempt, newest, retained = RetainedThrough(*run), answer = std::move(answer)](
                   absl::StatusOr<std::optional<Ledger::ResumeChoice>> decided) mutable {
        --states_.Of(run).asking;
        if (!decided.ok()) return answer(decided.status());
        states_.Of(run).retained_as_of = newest;
        if (const int64_t now = RetainedThrough(*run); now > retained)
          observer_->OnWarning(SetAsideWarning(run->path, now));
        answer(ResumedSequence(*run, attempt, *decided));
      });
}

std::set<int64_t> Retention::Leaving(const Run& run) const {
  std::set<int64_t> leaving = run.catalog.evicting();
  // These may have stayed on disk: the scan decides.
  for (int64_t sequence : run.catalog.perhaps_evicted()) leaving.erase(sequence);
  const bool will_apply = !history_->IsOnDisk(run) || states_.Of(&run).asking > 0;
  if (!will_apply) return leaving;
  int64_t resumed = 0;
  for (const storage::v1::Launch& launch : run.ledger->record().launches()) {
    if (launch.attempt() == run.active_attempt && launch.resume_decided()) resumed = launch.resume_sequence();
  }
  for (int64_t sequence : Victims(run, resumed)) leaving.insert(sequence);
  return leaving;
}

void Retention::OnScanned(Run* run) {
  State& state = states_.Of(run);
  for (Deletion& waiting : std::exchange(state.deletions_after_scan, {}))
    TryToDelete(run, std::move(waiting));
  if (std::exchange(state.apply_after_scan, false)) Apply(run);
}

void Retention::Apply(Run* run) {
  if (!history_->IsOnDisk(*run)) return;
  ContinueDeletions(run);
  if (!MayRemove(*run)) return;
  AskResumed(run, [this, run](absl::StatusOr<int64_t> resumed) {
    if (resumed.ok()) EvictVictims(run, *resumed);  // Otherwise nothing is evicted now.
  });
}

void Retention::EvictVictims(Run* run, int64_t resumed) {
  if (!MayRemove(*run)) return;
  // The ledger was asked before this one was there, whose launch may not have resumed from the others.
  if (NewestSequence(run->catalog) > states_.Of(run).retained_as_of) return Apply(run);
  for (int64_t sequence : Victims(*run, resumed)) {
    if (!run->catalog.BeginEviction(sequence)) continue;
    const auto removal = RemovalOf(*run, run->catalog.Find(sequence)->summary, /*by=*/std::nullopt);
    Evict(run, sequence, [this, removal](const absl::Status& evicted) {
      if (evicted.ok()) observer_->OnRemoved(removal);
    });
  }
  if (!HasEvictions(*run)) trash_->Empty(run);  // A re-save leaves its predecessor in the trash.
}

std::vector<int64_t> Retention::HeldForUploadAlone(const Run& run) const {
  if (hooks_.held_for_upload == nullptr) return {};
  const std::vector<int64_t> held = hooks_.held_for_upload(run);
  if (held.empty()) return {};
  std::vector<int64_t> victims = Victims(run, /*resumed=*/0, /*also_held=*/true);
  std::erase_if(victims,
                [&](int64_t each) { return std::find(held.begin(), held.end(), each) == held.end(); });
  return victims;
}

std::vector<int64_t> Retention::Victims(const Run& run, int64_t resumed, bool also_held) const {
  if (!KeptLast(run)) return {};
  const State& state = states_.Of(&run);
  if (!state.pointers_known) return {};
  // The policy and what the ledger leaves alone are those of the newest checkpoint. A node learns a policy
  // that another one has put in force before it reads the checkpoint: until then it would ask the ledger about
  // an older launch.
  const int64_t newest = NewestSequence(run.catalog);
  const bool is_known = newest == state.policy_sequence && newest <= state.retained_as_of;
  if (run.authority->may_span_nodes() && !is_known) return {};
  Keepers keepers;
  for (const RetentionPolicy& policy : state.policies)
    keepers.merge(
        KeptByPolicy(policy, run.catalog, clock_->UnixMicros(), /*committing=*/false, RetainedThrough(run)));
  AddUses(run, resumed, &keepers, also_held);
  for (int64_t sequence : state.pointed) keepers[sequence];
  return Without(run, keepers);
}

void Retention::Explain(Run* run, const RetentionPolicy& policy, Reply<Keepers> reply) {
  AskResumed(run, [this, run, policy, reply = std::move(reply)](absl::StatusOr<int64_t> resumed) mutable {
    if (!resumed.ok()) return reply(resumed.status());
    Keepers keepers =
        KeptByPolicy(policy, run->catalog, clock_->UnixMicros(), /*committing=*/false, RetainedThrough(*run));
    AddUses(*run, *resumed, &keepers);
    for (int64_t sequence : states_.Of(run).pointed) keepers[sequence].push_back("named by a pointer");
    for (const auto& [sequence, checkpoint] : run->catalog.committed()) keepers[sequence];
    reply(std::move(keepers));
  });
}

void Retention::SetOverride(Run* run, const std::optional<RetentionPolicy>& policy, Reply<bool> reply) {
  ++states_.Of(run).asking;
  run->ledger->SetRetentionOverride(policy,
                                    [this, run, reply = std::move(reply)](const absl::Status& set) mutable {
                                      --states_.Of(run).asking;
                                      if (set.ok()) return reply(true);
                                      reply(Annotate(set, "recording the retention policy"));
                                    });
}

// ---- deleting on request

absl::Status Retention::CheckDeletable(const Run& run, int64_t sequence, bool force, int64_t resumed) const {
  const CommittedCheckpoint* checkpoint = run.catalog.Find(sequence);
  if (checkpoint == nullptr || run.catalog.IsLeaving(sequence)) {
    return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                     absl::StrCat("the checkpoint has left ", run.path, " in the meantime"));
  }
  const std::string& tag = checkpoint->summary.tag();
  const auto kept = [&tag](const std::string& why) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kCheckpointKept,
                     absl::StrCat(tag, " is not deleted: ", why), {{"tag", tag}});
  };
  if (!history_->IsOnDisk(run)) return kept("the run's history could not be written; try again");
  const State& state = states_.Of(&run);
  const std::vector<int64_t> leased = hooks_.leased_sequences(run);
  if (std::find(leased.begin(), leased.end(), sequence) != leased.end()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kBeingRead,
        absl::StrCat(tag, " is not deleted: it is being read; try again when the reader has ended"),
        {{"tag", tag}});
  }
  if (sequence == resumed || state.deciding.contains(sequence))
    return kept("the job resumes from it; try again when all ranks have read their parts");
  if (const CommittedCheckpoint* newest = run.catalog.Newest();
      newest != nullptr && newest->summary.sequence() == sequence)
    return kept(
        "it is the newest checkpoint that is neither damaged nor suspect, from which the job would resume");
  if (!force && IsPinned(run, sequence)) return kept("it is pinned; unpin it first, or force the deletion");
  if (!force && !state.pointers_known)
    return kept("this node has just become the coordinator, and reads the pointer files; try again");
  if (!force && state.pointed.contains(sequence))
    return kept(
        "a pointer file in the root names it; delete it once a newer checkpoint names that file, or force "
        "the "
        "deletion");
  return absl::OkStatus();
}

void Retention::ContinueDeletions(Run* run) {
  for (Deletion& waiting : std::exchange(states_.Of(run).deletions, {})) TryToDelete(run, std::move(waiting));
}

void Retention::Delete(Run* run, int64_t sequence, bool force, Callback<absl::Status> deleted) {
  TryToDelete(run, {sequence, force, std::move(deleted)});
}

void Retention::TryToDelete(Run* run, Deletion deletion) {
  if (history_->IsWriting(*run)) return states_.Of(run).deletions.push_back(std::move(deletion));
  AskResumed(run, [this, run, deletion = std::move(deletion)](absl::StatusOr<int64_t> resumed) mutable {
    if (!resumed.ok()) return deletion.deleted(resumed.status());
    const int64_t sequence = deletion.sequence;
    if (MayBeUnseen(*run, deletion)) {
      deletion.has_scanned = true;
      states_.Of(run).deletions_after_scan.push_back(std::move(deletion));
      return hooks_.needs_scan(run);
    }
    if (absl::Status kept = CheckDeletable(*run, sequence, deletion.force, *resumed); !kept.ok())
      return deletion.deleted(kept);
    run->catalog.BeginEviction(sequence);
    if (states_.Of(run).pointed.contains(sequence))
      return ReleaseAndEvict(run, sequence, std::move(deletion.deleted));
    UnpinAndEvict(run, sequence, std::move(deletion.deleted));
  });
}

// The node that asks may list a checkpoint before this one, which coordinates, does.
bool Retention::MayBeUnseen(const Run& run, const Deletion& deletion) const {
  return run.authority->may_span_nodes() && !deletion.has_scanned &&
         run.catalog.Find(deletion.sequence) == nullptr;
}

void Retention::ReleaseAndEvict(Run* run, int64_t sequence, Callback<absl::Status> deleted) {
  run->io->ReleasePointers(
      run->catalog.Find(sequence)->summary.tag(), sequence,
      [this, run, sequence, deleted = std::move(deleted)](absl::StatusOr<PointerFiles> released) mutable {
        if (released.ok()) {
          SetPointers(run, *std::move(released));
          return UnpinAndEvict(run, sequence, std::move(deleted));
        }
        run->catalog.EndEviction(sequence);
        deleted(released.status());
        hooks_.settled();
      });
}

void Retention::UnpinAndEvict(Run* run, int64_t sequence, Callback<absl::Status> deleted) {
  if (!IsPinned(*run, sequence)) return EvictAndAnswer(run, sequence, std::move(deleted));
  const std::string tag = run->catalog.Find(sequence)->summary.tag();
  run->authority->SetPinned(
      tag, sequence, false,
      [this, run, sequence, deleted = std::move(deleted)](const absl::Status& unpinned) mutable {
        if (unpinned.ok()) return EvictAndAnswer(run, sequence, std::move(deleted));
        run->catalog.EndEviction(sequence);
        deleted(unpinned);
        hooks_.settled();
      });
}

void Retention::EvictAndAnswer(Run* run, int64_t sequence, Callback<absl::Status> deleted) {
  Evict(run, sequence,
        [deleted = std::move(deleted)](const absl::Status& evicted) mutable { deleted(evicted); });
}

// ---- evicting

void Retention::Evict(Run* run, int64_t sequence, absl::AnyInvocable<void(const absl::Status&)> done) {
  const std::string tag = run->catalog.Find(sequence)->summary.tag();
  run->coordinator_io->Evict(
      tag, sequence, [this, run, sequence, tag, done = std::move(done)](absl::Status evicted) mutable {
        OnEvicted(run, sequence, tag, evicted);
        done(evicted);
      });
}

void Retention::OnEvicted(Run* run, int64_t sequence, const std::string& tag, const absl::Status& evicted) {
  if (evicted.ok()) {
    run->catalog.EndEviction(sequence);
    if (const CommittedCheckpoint* evicted_one = run->catalog.Find(sequence)) {
      trash_->AddBytes(run, evicted_one->summary.size_bytes());
      run->catalog.Remove(sequence);
      hooks_.evicted(run);
    }
  } else {
    run->catalog.EvictionIsUncertain(sequence);
    observer_->OnWarning(absl::StrCat("retention could not remove ", run->path, "/", tag, ": ",
                                      std::string(evicted.message()),
                                      "; it is tried again after the next save"));
    hooks_.needs_scan(run);
  }
  if (!HasEvictions(*run)) trash_->Empty(run);
  hooks_.settled();
}

void Retention::OnLeadershipChanged(Run* run) {
  states_.Of(run).pointers_known = false;
  Apply(run);
}

void Retention::SetPointers(const Run* run, PointerFiles pointers) {
  State& state = states_.Of(run);
  state.pointers_known = pointers.known;
  state.pointed = std::move(pointers.holders);
  for (const std::string& warning : pointers.warnings)
    observer_->OnWarning(absl::StrCat("in the root ", run->path, " ", warning));
}

void Retention::BeginPin(const Run* run, int64_t sequence) { states_.Of(run).pinning.insert(sequence); }

void Retention::EndPin(const Run* run, int64_t sequence) {
  std::multiset<int64_t>& pinning = states_.Of(run).pinning;
  pinning.erase(pinning.find(sequence));
}

void Retention::BeginResumeDecision(const Run* run, int64_t sequence) {
  states_.Of(run).deciding.insert(sequence);
}

void Retention::EndResumeDecision(const Run* run, int64_t sequence) {
  std::multiset<int64_t>& deciding = states_.Of(run).deciding;
  deciding.erase(deciding.find(sequence));
}

bool Retention::IsPinned(const Run& run, int64_t sequence) const {
  const CommittedCheckpoint* checkpoint = run.catalog.Find(sequence);
  return (checkpoint != nullptr && checkpoint->pinned) || states_.Of(&run).pinning.contains(sequence);
}

bool Retention::IsWorking(const Run& run) const {
  return run.catalog.evicting().size() > run.catalog.perhaps_evicted().size();
}

bool Retention::IsIdle(const Run& run) const {
  const State& state = states_.Of(&run);
  return state.deciding.empty() && state.pinning.empty() && state.asking == 0 && state.deletions.empty() &&
         state.deletions_after_scan.empty() && !HasEvictions(run);
}

}  // namespace ckptd
