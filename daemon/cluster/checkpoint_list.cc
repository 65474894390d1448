#include "daemon/cluster/checkpoint_list.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/cluster/node/node_save.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::SaveState;

// ---- etcd

void CheckpointList::OnCommitted(int64_t sequence, const std::string& tag) {
  if (IsBeingRemoved(sequence)) return;
  known_[sequence] = tag;
  sequences_ = nullptr;
}

void CheckpointList::OnCommittedHere(int64_t sequence, const std::string& tag) {
  OnCommitted(sequence, tag);
  shown_[sequence] = tag;
}

void CheckpointList::OnRemoval(int64_t sequence, const etcdserverpb::KeyValue& key) {
  const std::string& value = key.value();
  ledger::v1::Evicting decision;
  if (!decision.ParseFromString(value)) return;
  if (!decision.replaced_by()) highest_evicted_ = std::max(highest_evicted_, sequence);
  if (const auto over = ended_removals_->find(sequence);
      over != ended_removals_->end() && over->second == value)
    return;
  ended_removals_->erase(sequence);
  Removal& removal = removals_[sequence];
  const bool is_new = removal.value.empty() || removal.decision.number() != decision.number() ||
                      removal.decision.replaced_by() != decision.replaced_by();
  if (is_new) removal.over_since.reset();
  if (decision.ended() && !removal.over_since) removal.over_since = clock_->Now();
  removal.decision = decision;
  removal.value = value;
  removal.revision = key.mod_revision();
  const auto known = known_.extract(sequence);
  if (!decision.tag().empty()) removal.tag = decision.tag();
  if (removal.tag.empty() && !known.empty()) removal.tag = known.mapped();
  // It was decided before this node has listed the root, so what was listed may be a copy that was put back.
  if (!removals_known_ && !known.empty()) removal.hidden = true;
  sequences_ = nullptr;
  if (is_new) hooks_.removed(sequence);
}

// Decisions that are over concern no checkpoint any more. This node may see a directory for a while after it
// is gone: until then it is not one that was put back.
void CheckpointList::OnTick() {
  const Instant now = clock_->Now();
  bool changed = false;
  for (auto each = removals_.begin(); each != removals_.end();) {
    auto& [sequence, removal] = *each;
    const int64_t replaced_by = removal.decision.replaced_by();
    bool stays = false;
    if (!removal.over_since && replaced_by != 0) {
      const std::optional<bool> replaced = HasReplaced(removal);
      stays = replaced.has_value() && !*replaced;
      if (replaced.value_or(false)) removal.over_since = now;
    }
    if (!stays && (!removal.over_since || now - *removal.over_since < longest_look_)) {
      ++each;
      continue;
    }
    changed = changed || stays || removal.hidden;
    (*ended_removals_)[sequence] = removal.value;
    each = removals_.erase(each);
  }
  if (changed) hooks_.root_changed();
}

// Whether the save that replaces what is being removed is a checkpoint; nullopt: that is not known yet. Etcd
// forgets a save only after its end: then the decision is over, and whether the save is a checkpoint does not
// matter, because what is still at the tag is listed.
std::optional<bool> CheckpointList::HasReplaced(const Removal& removal) const {
  const std::optional<SaveState> state = hooks_.save_state(removal.decision.replaced_by());
  if (!state && hooks_.saves_revision() >= removal.revision) return true;
  if (!state || !HasEnded(*state)) return std::nullopt;
  if (state->phase() == SaveState::COMMITTED) return true;
  if (state->end().reason() != reason::kIndeterminate) return false;
  if (state->found() == SaveState::NOT_KNOWN) return std::nullopt;
  return state->found() == SaveState::IS_CHECKPOINT;
}

// The last save that has not ended and whose tag is being made free; 0: there is none. Until it is there, the
// root may have nothing that this node could list in the place of what is being removed.
int64_t CheckpointList::LastReplacing() const {
  int64_t last = 0;
  for (const auto& [sequence, removal] : removals_) {
    const int64_t replaced_by = removal.decision.replaced_by();
    if (replaced_by != 0 && !HasReplaced(removal)) last = std::max(last, replaced_by);
  }
  return last;
}

// ---- scans

void CheckpointList::Apply(RootSnapshot* root) {
  if (!removals_known_) KeepKnown(root);
  TakeOutRemoved(root);
  NoticePutBack(*root);
  sequences_ = nullptr;
  const int64_t replacing = LastReplacing();
  for (auto going = removals_.begin(); going != removals_.lower_bound(replacing); ++going)
    root->leaving.insert(going->first);
  shown_.clear();
  for (const auto& [sequence, checkpoint] : root->committed) {
    shown_.emplace_hint(shown_.end(), sequence, checkpoint.summary.tag());
    latest_begin_us_ = std::max(latest_begin_us_, checkpoint.summary.create_time_us());
  }
}

// What is gone may be about to be replaced, of which this node cannot know yet. The root is looked at again
// when this node is told of the saves.
void CheckpointList::KeepKnown(RootSnapshot* root) const {
  for (const auto& [sequence, tag] : known_) {
    if (!root->committed.contains(sequence)) root->leaving.insert(sequence);
  }
}

void CheckpointList::TakeOutRemoved(RootSnapshot* root) {
  for (auto checkpoint = root->committed.begin(); checkpoint != root->committed.end();) {
    const auto removal = removals_.find(checkpoint->first);
    if (removal == removals_.end()) {
      ++checkpoint;
      continue;
    }
    removal->second.tag = checkpoint->second.summary.tag();
    removal->second.hidden = removal->second.hidden || removal->second.over_since.has_value();
    checkpoint = root->committed.erase(checkpoint);
  }
}

// Also what etcd does not call committed yet: what was shown once stays.
void CheckpointList::NoticePutBack(const RootSnapshot& root) {
  for (const auto& [sequence, checkpoint] : root.committed) {
    const std::string& tag = checkpoint.summary.tag();
    const bool is_new = known_.insert_or_assign(sequence, tag).second;
    if (!is_new || !ended_removals_->contains(sequence)) continue;
    hooks_.noticed(
        absl::StrCat("the checkpoint ", tag, ", sequence ", sequence,
                     ", is listed again: it was put back after its removal, or the save that was to "
                     "replace it has failed"));
  }
}

bool CheckpointList::IsStale(const RootSnapshot& root, Instant begun) {
  const int64_t missing = MissingIn(root);
  if (missing == 0) {
    missing_.reset();
    return false;
  }
  if (!missing_ || missing_->first != missing) missing_ = {missing, clock_->Now()};
  return begun - missing_->second < longest_look_;
}

// What this node ought to see in the root, and does not; 0: nothing.
int64_t CheckpointList::MissingIn(const RootSnapshot& root) const {
  const auto is_damaged = [&root](const std::string& tag) {
    return std::any_of(root.damaged.begin(), root.damaged.end(),
                       [&tag](const auto& each) { return each.tag == tag; });
  };
  int64_t newest = known_.empty() ? 0 : known_.rbegin()->first;
  // Retention removes only what a newer checkpoint follows; this node may be told of that one later.
  if (highest_evicted_ > 0) newest = std::max(newest, highest_evicted_ + 1);
  const bool shown =
      std::any_of(root.committed.lower_bound(newest), root.committed.end(),
                  [this](const auto& checkpoint) { return !IsBeingRemoved(checkpoint.first); });
  if (newest != 0 && !shown && (known_.empty() || !is_damaged(known_.rbegin()->second))) return newest;
  // A save that replaces a checkpoint moves it away, and this node may be told of that later. That was the
  // latest one, where all newer ones are suspect.
  int64_t latest = 0;
  for (const auto& [sequence, checkpoint] : root.committed) {
    if (checkpoint.summary.suspect().empty() && !IsBeingRemoved(sequence)) latest = sequence;
  }
  for (auto each = shown_.upper_bound(latest); each != shown_.end(); ++each) {
    const auto& [sequence, tag] = *each;
    if (!root.committed.contains(sequence) && !IsBeingRemoved(sequence) && !is_damaged(tag)) return sequence;
  }
  return 0;
}

// ---- what others ask

std::shared_ptr<const std::set<int64_t>> CheckpointList::sequences() {
  if (sequences_ == nullptr) {
    auto sequences = std::make_shared<std::set<int64_t>>();
    for (const auto& [sequence, tag] : known_) sequences->insert(sequences->end(), sequence);
    sequences_ = std::move(sequences);
  }
  return sequences_;
}

}  // namespace ckptd
