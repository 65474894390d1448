#include "daemon/engine/retention.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

// The checkpoint that the attempt resumes from; 0: none. It is kept until every rank has read its part,
// because recovery may publish a newer one meanwhile. For clients that do not report that, it is kept until
// the attempt has committed a checkpoint of its own.
int64_t ResumedSequence(const Run& run, int64_t attempt, const std::optional<Ledger::ResumeChoice>& decided) {
  if (!decided || decided->agreed) return 0;
  const auto& committed = run.catalog.committed();
  const bool has_own = std::any_of(committed.begin(), committed.end(), [attempt](const auto& entry) {
    return entry.second.summary.attempt() == attempt;
  });
  return has_own ? 0 : decided->sequence;
}

}  // namespace

Retention::Retention(EngineObserver* observer, const OutcomeHistory* history, TrashCollector* trash,
                     Hooks hooks)
    : observer_(observer), history_(history), trash_(trash), hooks_(std::move(hooks)) {}

// Every checkpoint that is older than the newest N undamaged ones and that nothing else keeps. A damaged
// checkpoint never counts as one of the N. `after_next_commit`: as if one more had been committed.
std::vector<int64_t> Retention::Victims(const Run& run, bool after_next_commit, int64_t resumed) const {
  std::vector<int64_t> victims;
  const auto& committed = run.catalog.committed();
  const State& state = states_.Of(&run);
  if (!state.num_kept_ckpts) return victims;
  const auto good = std::count_if(committed.begin(), committed.end(),
                                  [](const auto& entry) { return !entry.second.damage; });
  int64_t surplus = static_cast<int64_t>(good) - *state.num_kept_ckpts + (after_next_commit ? 1 : 0);
  if (surplus < 0) return victims;
  const std::set<int64_t> wanted = Wanted(run, after_next_commit, resumed);
  for (const auto& [sequence, checkpoint] : committed) {  // Oldest first.
    if (!checkpoint.damage && surplus-- <= 0) break;
    if (!checkpoint.pinned && !wanted.contains(sequence)) victims.push_back(sequence);
  }
  return victims;
}

// Sequences that something keeps, whatever the number of checkpoints; pins on disk are in the catalog.
std::set<int64_t> Retention::Wanted(const Run& run, bool after_next_commit, int64_t resumed) const {
  const State& state = states_.Of(&run);
  std::set<int64_t> wanted = state.pointed;
  // The next save most likely names the same pointers as the newest one, which is then free to go.
  const auto& committed = run.catalog.committed();
  if (after_next_commit && !committed.empty()) wanted.erase(committed.rbegin()->first);
  wanted.insert(resumed);
  wanted.insert(state.pinning.begin(), state.pinning.end());
  wanted.insert(state.deciding.begin(), state.deciding.end());
  for (int64_t sequence : hooks_.leased_sequences(run)) wanted.insert(sequence);
  return wanted;
}

std::vector<int64_t> Retention::PredictedVictims(const Run& run) const {
  return Victims(run, /*after_next_commit=*/true, /*resumed=*/0);
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
  for (int64_t sequence : Victims(run, /*after_next_commit=*/false, resumed)) leaving.insert(sequence);
  return leaving;
}

void Retention::Apply(Run* run) {
  if (!history_->IsOnDisk(*run)) return;
  ++states_.Of(run).asking;
  const int64_t attempt = run->active_attempt;
  run->ledger->DecidedResume(
      attempt, [this, run, attempt](absl::StatusOr<std::optional<Ledger::ResumeChoice>> decided) {
        --states_.Of(run).asking;
        // What the attempt resumes from is unknown: nothing is evicted.
        if (decided.ok()) EvictVictims(run, ResumedSequence(*run, attempt, *decided));
      });
}

void Retention::EvictVictims(Run* run, int64_t resumed) {
  for (int64_t sequence : Victims(*run, /*after_next_commit=*/false, resumed)) {
    if (run->catalog.BeginEviction(sequence)) Evict(run, sequence);
  }
  if (!HasEvictions(*run)) trash_->Empty(run);  // A re-save leaves its predecessor in the trash.
}

void Retention::Evict(Run* run, int64_t sequence) {
  const std::string tag = run->catalog.Find(sequence)->summary.tag();
  run->io->Evict(tag, sequence, [this, run, sequence, tag](absl::Status evicted) {
    OnEvicted(run, sequence, tag, evicted);
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

void Retention::SetPointers(const Run* run, PointerFiles pointers) {
  states_.Of(run).pointed = std::move(pointers.holders);
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
  return state.deciding.empty() && state.pinning.empty() && state.asking == 0 && !HasEvictions(run);
}

}  // namespace ckptd
