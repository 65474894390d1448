#include "daemon/cluster/coordinator/evictions.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

absl::Status NotCoordinator(const std::string& what, const std::string& run) {
  return MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kNotCoordinator,
                   absl::StrCat("this node does not coordinate run ", run, ", and does not ", what,
                                "; ask the node that does (ckptctl status)"));
}

Evictions::Evictions(Etcd* etcd, Clock* clock, SharedRootIo* root, CheckpointReaders::Options options,
                     CompareAndSwap::Held leadership)
    : clock_(clock),
      root_(root),
      run_(options.run),
      leadership_(std::move(leadership)),
      readers_(etcd, std::move(options)) {}

Evictions::~Evictions() {
  callbacks_.End();
  for (auto& [sequence, eviction] : std::exchange(evictions_, {})) {
    for (Eviction* each = &eviction; each != nullptr; each = each->next.get())
      each->done(NotCoordinator("remove its checkpoints any more", run_));
  }
}

void Evictions::Evict(const std::string& tag, int64_t sequence, std::set<int64_t> damaged,
                      std::shared_ptr<const std::set<int64_t>> listed, Done done) {
  // A checkpoint that the list no longer has need not be left out of its count any more.
  if (evictions_.empty()) std::erase_if(*leaving_, [&](int64_t gone) { return !listed->contains(gone); });
  leaving_->insert(sequence);
  Eviction eviction;
  eviction.victim = {sequence, tag, 0};
  eviction.count = {std::move(damaged), std::move(listed), leaving_};
  eviction.done = std::move(done);
  const auto [under_way, is_first] = evictions_.try_emplace(sequence, std::move(eviction));
  if (is_first) return Step(sequence);
  // The removal under way may be one that an earlier coordinator has decided. The directory that is at the
  // tag after it may be a copy that was put back.
  Eviction* last = &under_way->second;
  while (last->next != nullptr) last = last->next.get();
  last->next = std::make_unique<Eviction>(std::move(eviction));
}

void Evictions::ContinueRemoval(const CheckpointReaders::Victim& victim, std::set<int64_t> damaged,
                                Done done) {
  Eviction& eviction = evictions_[victim.sequence];
  eviction.victim = victim;
  eviction.checked = true;
  eviction.count = {std::move(damaged), nullptr, leaving_};
  eviction.done = std::move(done);
  Step(victim.sequence);
}

void Evictions::Finish(const CheckpointReaders::Victim& victim, Done done) {
  Eviction& eviction = evictions_[victim.sequence];
  eviction.victim = victim;
  eviction.checked = eviction.decided = true;
  eviction.done = std::move(done);
  Step(victim.sequence);
}

void Evictions::TermBegun() {
  term_begun_ = true;
  OnTick();
}

void Evictions::OnTick() {
  std::vector<int64_t> sequences;
  for (const auto& [sequence, eviction] : evictions_) sequences.push_back(sequence);
  for (const int64_t sequence : sequences) Step(sequence);
}

void Evictions::Step(int64_t sequence) {
  const auto found = evictions_.find(sequence);
  if (!term_begun_ || found == evictions_.end() || found->second.asking ||
      !found->second.backoff.IsOver(clock_->Now()))
    return;
  Eviction& eviction = found->second;
  if (!eviction.checked) {
    eviction.asking = true;
    return root_->CheckRemovable(eviction.victim.tag, sequence,
                                 callbacks_.Guard([this, sequence](const absl::StatusOr<uint64_t>& inode) {
                                   Checked(sequence, inode);
                                 }));
  }
  if (!eviction.decided) return Decide(sequence);
  eviction.asking = true;
  if (eviction.removed) {
    return readers_.EndEviction(eviction.victim, leadership_,
                                [this, sequence](const absl::Status& ended) { Ended(sequence, ended); });
  }
  root_->Remove(
      eviction.victim.tag, sequence, eviction.victim.inode,
      callbacks_.Guard([this, sequence](const absl::StatusOr<bool>& gone) { Removed(sequence, gone); }));
}

void Evictions::Checked(int64_t sequence, const absl::StatusOr<uint64_t>& inode) {
  Eviction& eviction = evictions_.at(sequence);
  eviction.asking = false;
  if (inode.ok()) {
    eviction.victim.inode = *inode;
    eviction.checked = true;
    eviction.backoff.Succeeded();
    return Step(sequence);
  }
  const std::string reason = ReasonOf(inode.status());
  if (reason == reason::kPointed || reason == reason::kPinned || reason == reason::kNoCheckpoint)
    return End(sequence, inode.status());
  Retry(eviction);
}

void Evictions::Decide(int64_t sequence) {
  if (deciding_) return;  // OnTick, or the end of that decision, tries again.
  Eviction& eviction = evictions_.at(sequence);
  eviction.asking = deciding_ = true;
  readers_.Evict(eviction.victim, eviction.count, leadership_, [this, sequence](const absl::Status& decided) {
    const CallbackScope::Observer here(callbacks_);
    deciding_ = false;
    Decided(sequence, decided);
    if (!here.ended()) OnTick();  // The next one.
  });
}

void Evictions::Decided(int64_t sequence, const absl::Status& decided) {
  Eviction& eviction = evictions_.at(sequence);
  eviction.asking = false;
  if (decided.ok()) {
    eviction.decided = true;
    eviction.backoff.Succeeded();
    return Step(sequence);
  }
  if (ReasonOf(decided) != reason::kBeingRead && !IsTransient(decided)) return End(sequence, decided);
  Retry(eviction);
}

bool Evictions::IsTransient(const absl::Status& error) {
  const std::string reason = ReasonOf(error);
  return reason == ledger_reason::kUnavailable || reason == ledger_reason::kFull;
}

void Evictions::Removed(int64_t sequence, const absl::StatusOr<bool>& gone) {
  Eviction& eviction = evictions_.at(sequence);
  eviction.asking = false;
  if (!gone.ok())
    return Retry(eviction);  // The decision stands: no node opens it, and the next coordinator continues.
  eviction.removed = *gone;
  Step(sequence);
}

// The decision is over: it does not hold for a checkpoint of this sequence that is put back later.
void Evictions::Ended(int64_t sequence, const absl::Status& ended) {
  Eviction& eviction = evictions_.at(sequence);
  eviction.asking = false;
  if (ended.ok() || !IsTransient(ended)) return End(sequence, absl::OkStatus());
  Retry(eviction);
}

void Evictions::Retry(Eviction& eviction) { eviction.backoff.Failed(clock_->Now()); }

void Evictions::End(int64_t sequence, const absl::Status& result) {
  Eviction ended = std::move(evictions_.at(sequence));
  evictions_.erase(sequence);
  if (ended.next != nullptr) {
    evictions_.emplace(sequence, std::move(*ended.next));
  } else if (!result.ok()) {
    leaving_->erase(sequence);
  }
  const CallbackScope::Observer here(callbacks_);
  ended.done(result);
  if (!here.ended()) Step(sequence);
}

}  // namespace ckptd
