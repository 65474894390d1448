#include "tests/sim_nodes/oracle.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ckptd::sim_nodes {
namespace {

// Reasons with which a save does not end once ranks were told SEALED: it needs no trainer any more.
bool NeedsTrainers(const std::string& reason) {
  return reason == "FENCED" || reason == "SESSION_LOST" || reason == "RANKS_MISSING" ||
         reason == "SUPERSEDED" || reason == "ADMISSION_TIMEOUT" || reason == "SKIPPED";
}

// The node takes no part any longer, and does not know how the save ends.
bool IsOpenEnd(v1::Level level, const std::string& reason) {
  return level == v1::INDETERMINATE || reason == "LEDGER_UNAVAILABLE";
}

}  // namespace

std::string NameOf(const SaveId& save) {
  return absl::StrCat("attempt ", save.attempt, " ", save.tag, "#", save.ordinal);
}

// ---- restores of etcd

int64_t Oracle::IdOf(int64_t attempt) const {
  for (auto restore = restores_.rbegin(); restore != restores_.rend(); ++restore) {
    if (attempt > restore->first) return attempt + restore->second;
  }
  return attempt;
}

// Decisions that etcd has lost may be made differently: a save that had failed may be published, and a save
// that was to replace a checkpoint may not be. No checkpoint is lost by that.
void Oracle::EtcdRestored(int64_t newest, int64_t last, const std::set<int64_t>& known_damaged) {
  Fault();
  const int64_t raised = std::max(IdOf(newest), std::max(acted_, asked_)) - last;
  acted_ = std::min(acted_, IdOf(last));  // New processes may join the newest attempt of the backup.
  std::erase_if(restores_, [last](const auto& restore) { return restore.first >= last; });
  restores_.emplace_back(last, raised);
  for (auto& [id, save] : saves_) {
    save.of_backup = true;
    if (save.outcome != v1::COMMITTED) save.outcome.reset();
  }
  for (const auto& [tag, sequence] : replaced_) lost_to_others_.insert(sequence);
  replaced_.clear();
  pinned_.clear();
  std::erase_if(told_damaged_, [&](int64_t sequence) { return !known_damaged.contains(sequence); });
}

void Oracle::RootLost(int64_t newest) {
  newest_reported_ = last_published_ = newest;
  reported_ = {newest};
  damaged_.clear();
  told_damaged_.clear();
  lost_to_others_.clear();
  removed_.erase(newest);
}

// ---- attempts

void Oracle::TookEffect(int64_t attempt, int64_t acted_before, const std::string& by) {
  if (attempt < acted_before) {
    Violated(absl::StrCat(by, " of attempt ", attempt, " took effect, although attempt ", acted_before,
                          " had acted before it was sent"));
  }
  acted_ = std::max(acted_, attempt);
}

void Oracle::ToldFenced(int64_t attempt) {
  if (asked_ <= attempt)
    Violated(absl::StrCat("attempt ", attempt, " was told FENCED, but no later one has asked for anything"));
}

// ---- resume

void Oracle::ResumeSent(int64_t attempt) { resume_at_least_.try_emplace(attempt, newest_reported_); }

int64_t Oracle::NewestWhole(int64_t up_to) const {
  for (auto newest = reported_.rbegin(); newest != reported_.rend(); ++newest) {
    if (*newest <= up_to && !damaged_.contains(*newest) && !removed_.contains(*newest)) return *newest;
  }
  return 0;
}

void Oracle::Resumed(int64_t attempt, int64_t sequence, const std::string& tag,
                     const std::set<int64_t>& told_before, bool allows_suspect) {
  if (suspect_.contains(sequence) && !allows_suspect) {
    Violated(absl::StrCat("attempt ", attempt, " resumes from ", tag,
                          ", which is suspect, and has not asked for that"));
  }
  // A decision is withdrawn only because of damage.
  std::set<int64_t>& told = resumed_[attempt];
  told.insert(sequence);
  std::set<int64_t> whole = told;
  for (const int64_t damaged : damaged_) whole.erase(damaged);
  if (whole.size() > 1) {
    Violated(absl::StrCat("ranks of attempt ", attempt, " resume from sequence ", *whole.begin(),
                          " and from ", *whole.rbegin(), ", the last one from ", sequence, ", ", tag));
  }
  if (told_before.contains(sequence)) {
    Violated(absl::StrCat("attempt ", attempt, " resumes from sequence ", sequence,
                          ", of which a rank had been told before that it is damaged"));
  }
  // A committed checkpoint is removed only for a newer one, which may be damaged.
  const int64_t known = resume_at_least_[attempt];
  const bool may_be_gone = !damaged_.empty() || !lost_to_others_.empty();
  if (const int64_t newest = may_be_gone ? NewestWhole(known) : known; sequence < newest) {
    Violated(absl::StrCat("attempt ", attempt, " resumes from sequence ", sequence, ", but ", newest,
                          " was known to be committed when it asked"));
  }
  if (sequence != 0 && !published_.contains(sequence)) {
    Violated(absl::StrCat("attempt ", attempt, " resumes from sequence ", sequence,
                          ", which was never published"));
  }
}

void Oracle::CalledDamaged(const std::string& by, int64_t sequence) {
  if (damaged_.contains(sequence)) return;
  Violated(absl::StrCat(by, " calls sequence ", sequence, " damaged, which is whole"));
}

void Oracle::Agreed(int64_t attempt, int64_t sequence, int world_size) {
  const auto [agreed, is_first] = agreed_.try_emplace(attempt, sequence);
  if (!is_first && agreed->second != sequence) {
    Violated(
        absl::StrCat("attempt ", attempt, " has agreed on sequence ", agreed->second, " and on ", sequence));
  }
  if (static_cast<int>(finishes_[{attempt, sequence}].size()) == world_size) return;
  Violated(absl::StrCat("attempt ", attempt, " has agreed on sequence ", sequence,
                        ", but not all of its ranks have read it"));
}

// ---- saves

void Oracle::BeginSent(const SaveId& id, const std::set<int>& ranks) {
  const auto [save, is_new] = saves_.try_emplace(id);
  if (!is_new) return;
  save->second.ranks = ranks;
  save->second.faults_before = faults_;
  save->second.begun_late = acted_ > id.attempt;
}

void Oracle::Begun(const SaveId& id, int64_t sequence) {
  Save& save = saves_.at(id);
  if (save.begun_late) {
    Violated(absl::StrCat("the save of ", NameOf(id),
                          " was admitted, although a later attempt had acted before any rank began it"));
  }
  if (save.begun != 0 && save.begun != sequence) {
    Violated(absl::StrCat("ranks hear of the save of ", NameOf(id), " that it has sequence ", save.begun,
                          ", and ", sequence));
  }
  save.begun = sequence;
}

void Oracle::SealSent(const SaveId& id, int rank, const sim::Contents& contents) {
  Save& save = saves_.at(id);
  if (!save.sealed.contains(rank) && acted_ > id.attempt) save.sealed_late = true;
  save.sealed[rank] = contents;
}

void Oracle::ToldSealed(const SaveId& id) {
  Save& save = saves_.at(id);
  if (!IsSealed(save))
    Violated(
        absl::StrCat("the save of ", NameOf(id), " is reported as SEALED, but not all ranks have sealed"));
  save.told_sealed = true;
}

void Oracle::OutcomeReported(const SaveId& id, const std::string& rank, v1::Level level,
                             const std::string& reason, int64_t sequence) {
  Save& save = saves_.at(id);
  const bool committed = level == v1::COMMITTED;
  if (!IsOpenEnd(level, reason)) {
    if (save.outcome && (*save.outcome == v1::COMMITTED) != committed) {
      Violated(absl::StrCat(rank, " hears of the save of ", NameOf(id), " that it is ", v1::Level_Name(level),
                            " ", reason, ", another rank heard ", v1::Level_Name(*save.outcome)));
    }
    save.outcome = level;
  }
  if (!committed) return Failed(id, save, rank, level, reason);
  ++commits_;
  if (!save.suspect) {
    newest_reported_ = std::max(newest_reported_, sequence);
    reported_.insert(sequence);
  }
  if (save.published != sequence) {
    Violated(absl::StrCat("the save of ", NameOf(id), " is reported as COMMITTED with sequence ", sequence,
                          ", but was published with ", save.published));
  }
}

void Oracle::Failed(const SaveId& id, const Save& save, const std::string& rank, v1::Level level,
                    const std::string& reason) {
  const std::string what = absl::StrCat(rank, " hears ", v1::Level_Name(level), " ", reason,
                                        " of the save of ", NameOf(id), ", which ");
  if (save.published != 0 && !IsOpenEnd(level, reason)) Violated(absl::StrCat(what, "was published"));
  if (save.told_sealed && NeedsTrainers(reason)) Violated(absl::StrCat(what, "all ranks had sealed"));
  // Another program may have taken the tag long before, and no node knew that when the save began.
  const bool is_taken = reason == "TAG_FOREIGN" && taken_.contains(id.tag);
  const bool is_suspect = reason == "SUSPECT" && save.suspect;
  const bool is_aborted = reason == "SAVE_ABORTED";
  const bool is_pinned = reason == "PINNED" && pin_tags_.contains(id.tag);
  if (is_aborted && !aborted_.contains(id)) Violated(absl::StrCat(what, "no rank has aborted"));
  if (save.told_sealed && faults_ == save.faults_before && !is_taken && !is_suspect && !is_aborted &&
      !is_pinned)
    Violated(absl::StrCat(what, "all ranks had sealed, and which was hit by no fault"));
}

// ---- pins

int64_t Oracle::PinSent(const std::string& tag, int64_t sequence, bool pinned) {
  Unpins& unpins = unpins_[sequence];
  if (pinned) {
    pin_tags_.insert(tag);
    return unpins.unanswered == 0 ? unpins.sent : -1;
  }
  ++unpins.unanswered;
  pinned_.erase(sequence);
  return ++unpins.sent;
}

void Oracle::PinAnswered(int64_t sequence, bool pinned, int64_t sent) {
  Unpins& unpins = unpins_[sequence];
  if (!pinned) {
    --unpins.unanswered;
  } else if (unpins.sent == sent) {
    pinned_.insert(sequence);
  }
}

// ---- the disk

void Oracle::Published(const SaveId& id, const storage::v1::ManifestSummary& summary,
                       const std::map<int, sim::Contents>& contents) {
  const int64_t sequence = summary.sequence();
  const std::string what =
      absl::StrCat("the save of ", NameOf(id), ", sequence ", sequence, ", is published");
  const auto found = saves_.find(id);
  if (found == saves_.end()) return Violated(absl::StrCat(what, ", and nobody has begun it"));
  Save& save = found->second;
  if (!published_.insert(sequence).second || save.published != 0) Violated(absl::StrCat(what, " twice"));
  save.published = sequence;
  replaced_.erase(id.tag);
  if (save.suspect != !summary.suspect().empty()) {
    Violated(absl::StrCat(what, save.suspect ? " as good" : " as suspect",
                          ", which is not what its ranks have sealed"));
  }
  if (save.suspect) suspect_.insert(sequence);
  if (sequence <= last_published_ && !save.of_backup)
    Violated(absl::StrCat(what, " after sequence ", last_published_));
  last_published_ = std::max(last_published_, sequence);
  if (save.begun != 0 && save.begun != sequence)
    Violated(absl::StrCat(what, ", and its ranks have heard of sequence ", save.begun));
  if (save.sealed_late)
    Violated(absl::StrCat(what, ", although a later attempt had acted before all of its ranks sealed it"));
  if (save.outcome && *save.outcome != v1::COMMITTED)
    Violated(absl::StrCat(what, " after it was reported as ", v1::Level_Name(*save.outcome)));
  for (const int rank : save.ranks) {
    const auto sealed = save.sealed.find(rank);
    const auto written = contents.find(rank);
    if (sealed == save.sealed.end()) {
      Violated(absl::StrCat(what, ", and rank ", rank, " has not sealed it"));
    } else if (written == contents.end() || written->second != sealed->second) {
      Violated(absl::StrCat(what, ", and the bytes of rank ", rank, " are not what it sealed"));
    }
  }
  // A daemon makes an empty part for each rank of its node that has nothing to save.
  for (const auto& [rank, bytes] : contents) {
    if (!save.ranks.contains(rank) && !bytes.empty())
      Violated(absl::StrCat(what, " with bytes of rank ", rank, ", which has nothing to save"));
  }
}

void Oracle::TagTaken(const std::string& tag) {
  taken_.insert(tag);
  if (const auto replaced = replaced_.find(tag); replaced != replaced_.end())
    lost_to_others_.insert(replaced->second);
}

void Oracle::Removed(const std::string& tag, int64_t sequence, const std::map<int64_t, std::string>& left,
                     bool replaced) {
  const std::string what = absl::StrCat("the checkpoint ", tag, ", sequence ", sequence, ", is removed, ");
  removed_.insert(sequence);
  if (pinned_.contains(sequence)) Violated(absl::StrCat(what, "and an operator was told that it is pinned"));
  for (const auto& [lease, read] : leases_) {
    if (read == sequence && holds_(lease.first))
      Violated(absl::StrCat(what, "while a rank on node ", lease.first, " reads it"));
  }
  // A save of the same tag replaces it, a moment later.
  for (const auto& [id, save] : saves_) {
    if (id.tag == tag && save.published == 0 && IsSealed(save) && save.begun > sequence &&
        (!save.suspect || suspect_.contains(sequence))) {
      replaced_[tag] = sequence;
      return;
    }
  }
  if (replaced) Violated(absl::StrCat(what, "for a save, and none of its tag may replace it"));
  if (replaced_.empty() && (left.empty() || left.rbegin()->first < sequence))
    Violated(absl::StrCat(what, "and is the newest"));
  const auto good = std::count_if(left.begin(), left.end(),
                                  [this](const auto& other) { return !suspect_.contains(other.first); });
  if (!kept_ || (good + static_cast<int64_t>(replaced_.size()) < *kept_ && !suspect_.contains(sequence))) {
    Violated(absl::StrCat(what, "and leaves ", good, " good ones; the number to keep is ",
                          kept_ ? absl::StrCat(*kept_) : "all"));
  }
}

// ---- readers

void Oracle::LeasesLost(int node) {
  ++losses_[node];
  std::erase_if(leases_, [node](const auto& lease) { return lease.first.first == node; });
}

void Oracle::Latest(const std::string& daemon, int64_t sequence) {
  int64_t& latest = latest_[daemon];
  // It may have been replaced by a checkpoint that is damaged by now.
  const bool is_damaged = damaged_.lower_bound(latest) != damaged_.end();
  if (sequence < latest && !is_damaged && !lost_to_others_.contains(latest))
    Violated(absl::StrCat("latest of ", daemon, " went back from sequence ", latest, " to ", sequence));
  if (sequence != 0 && !published_.contains(sequence))
    Violated(absl::StrCat("latest of ", daemon, " is sequence ", sequence, ", which was never published"));
  if (suspect_.contains(sequence))
    Violated(absl::StrCat("latest of ", daemon, " is sequence ", sequence, ", which is suspect"));
  latest = sequence;
}

}  // namespace ckptd::sim_nodes
