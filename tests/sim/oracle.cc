#include "tests/sim/oracle.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ckptd::sim {
namespace {

// True for reasons with which a save that all ranks have sealed must not fail: it needs no trainer any more.
bool NeedsTrainers(const std::string& reason) {
  return reason == "FENCED" || reason == "SESSION_LOST" || reason == "RANKS_MISSING" ||
         reason == "SUPERSEDED" || reason == "ADMISSION_TIMEOUT" || reason == "SKIPPED";
}

}  // namespace

std::string SaveName::ToString() const {
  return absl::StrCat("run ", run, " attempt ", attempt, " ", tag, "#", ordinal);
}

void Oracle::DaemonStarted() { ++daemon_; }

void Oracle::DaemonGone() {
  lent_early_.clear();
  ended_.clear();
  owners_.clear();
  mapped_.clear();
  for (auto& run : runs_) {
    run.second.begun.clear();
    // The checkpoints that a save of another model sets aside are recorded on disk only after its commit.
    run.second.retained_through = 0;
    run.second.other_models.clear();
  }
  uses_.clear();
  found_.clear();
}

void Oracle::AllLeasesEnded() {
  for (auto& run : runs_) run.second.leases.clear();
}

void Oracle::Granted(const SaveName& save, int rank, int64_t sequence, int64_t session,
                     const std::vector<int64_t>& segments) {
  runs_[save.run].begun.insert(sequence);
  for (int64_t segment : segments) {
    if (mapped_.contains(segment))
      Violated(absl::StrCat("segment ", segment, ", mapped by a reader, is lent to ", save.ToString()));
    auto [known, fresh] = owners_.try_emplace(segment);
    Owner& owner = known->second;
    const bool same = owner.run == save.run && owner.sequence == sequence && owner.rank == rank;
    if (!fresh && owner.session != session) {
      Violated(
          absl::StrCat("segment ", segment, " of session ", owner.session, " is lent to session ", session));
    }
    if (!fresh && !same && !ended_.contains({owner.run, owner.sequence})) {
      lent_early_.try_emplace(
          std::tuple(owner.run, owner.sequence, owner.rank),
          absl::StrCat("segment ", segment, " of the save with sequence ", owner.sequence, " of run ",
                       owner.run, ", still in flight, is lent to ", save.ToString()),
          step_);
    }
    for (const auto& use : uses_) {
      if (!fresh && !same && use.second.run == owner.run && use.second.sequence == owner.sequence &&
          use.second.rank == owner.rank) {
        Violated(absl::StrCat("segment ", segment, " is lent to ", save.ToString(),
                              " while an I/O of sequence ", owner.sequence, " still uses it"));
      }
    }
    owner = {session, save.run, sequence, rank};
  }
}

void Oracle::EndStep() {
  ++step_;
  std::erase_if(lent_early_, [this](const auto& part) {
    return ended_.contains({std::get<0>(part.first), std::get<1>(part.first)});
  });
}

void Oracle::SaveEnded(int run, int64_t sequence, bool committed) {
  ended_.emplace(run, sequence);
  // Within the step in which a save ends, its memory may be lent again just before the end is reported.
  for (const auto& part : lent_early_) {
    if (committed && step_ != part.second.second && std::get<0>(part.first) == run &&
        std::get<1>(part.first) == sequence)
      Violated(part.second.first);
  }
}

int64_t Oracle::BeginUse(std::vector<std::span<const std::byte>> memory, int run, int64_t sequence,
                         int rank) {
  if (auto early = lent_early_.find({run, sequence, rank}); early != lent_early_.end())
    Violated(early->second.first);
  uses_.emplace(next_use_, Use{std::move(memory), run, sequence, rank});
  return next_use_++;
}

void Oracle::EndUse(int64_t use) { uses_.erase(use); }

bool Oracle::InUse(const std::byte* data, int64_t size) const {
  for (const auto& use : uses_) {
    for (const auto& span : use.second.memory) {
      if (!span.empty() && span.data() < data + size && data < span.data() + span.size()) return true;
    }
  }
  return false;
}

// ---- Attempts

void Oracle::RequestSent(int run, int64_t attempt) { runs_[run].asked = std::max(runs_[run].asked, attempt); }

void Oracle::RequestTookEffect(int run, int64_t attempt, const FenceState& before, const std::string& by) {
  Run& r = runs_[run];
  if (attempt < before.acted) {
    Violated(absl::StrCat(by, " of attempt ", attempt, " of run ", run, " took effect, although attempt ",
                          before.acted, " had acted before it was sent"));
  }
  if (attempt <= before.told_fenced) {
    Violated(absl::StrCat(by, " of attempt ", attempt, " of run ", run, " took effect, although attempt ",
                          before.told_fenced, " was told that it is fenced"));
  }
  r.acted = std::max(r.acted, attempt);
}

void Oracle::ToldFenced(int run, int64_t attempt) {
  Run& r = runs_[run];
  if (r.asked <= attempt && r.takeovers == 0) {
    Violated(
        absl::StrCat("attempt ", attempt, " of run ", run, " was told FENCED, but no later one has acted"));
  }
  r.told_fenced = std::max(r.told_fenced, attempt);
}

void Oracle::Joined(int run, int64_t attempt, int rank, const std::string& process) {
  Run& r = runs_[run];
  const auto acting = r.acting.find({attempt, rank});
  const bool other_acted = acting != r.acting.end() && acting->second != process;
  const auto [before, daemon] = std::exchange(r.joined[{attempt, rank}], {process, daemon_});
  if (before.empty() || before == process) return;
  if (other_acted || daemon == daemon_) {
    Violated(absl::StrCat(process, " becomes rank ", rank, " of attempt ", attempt, " of run ", run,
                          ", which ", before, " was before", other_acted ? ", and has acted" : ""));
  }
  // The attempt begins again: answers about its saves to ranks of an earlier launch do not count, either.
  const auto is_forgotten = [&](int told) {
    const auto joiner = r.joined.find({attempt, told});
    const bool by_earlier_daemon = joiner != r.joined.end() && joiner->second.second != daemon_;
    return told == rank || (by_earlier_daemon && !r.acting.contains({attempt, told}));
  };
  for (auto& [name, save] : saves_) {
    const bool is_of_attempt = name.run == run && name.attempt == attempt;
    if (is_of_attempt && std::erase_if(save.told, is_forgotten) > 0 && save.told.empty())
      save.outcome.reset();
  }
}

void Oracle::ResumeSent(int run, int64_t attempt) {
  Run& r = runs_[run];
  r.resume_at_least.try_emplace(attempt, r.newest_reported);
}

void Oracle::Resumed(int run, int64_t attempt, int64_t sequence, const std::string& tag,
                     bool allows_suspect) {
  Run& r = runs_[run];
  if (r.suspect.contains(sequence) && !allows_suspect) {
    Violated(absl::StrCat("attempt ", attempt, " of run ", run, " resumes from ", tag,
                          ", which is suspect, and has not asked for that"));
  }
  // An attempt may resume from a second checkpoint only in place of a damaged one.
  r.resumed[attempt].insert(sequence);
  // The ledger remembers that a rank could not go on until the attempt decides on another checkpoint.
  if (const auto other = r.other_models.find(attempt);
      other != r.other_models.end() && other->second != sequence)
    r.other_models.erase(other);
  int whole = 0;
  for (int64_t chosen : r.resumed[attempt]) whole += !r.damaged.contains(chosen);
  if (whole > 1) {
    Violated(absl::StrCat("ranks of attempt ", attempt, " of run ", run, " resume from sequence ",
                          absl::StrJoin(r.resumed[attempt], " and from "), ", and ", tag, " is the last"));
  }
  // A damaged checkpoint may have replaced, or may be, the one that was known.
  const bool damaged = r.damaged.lower_bound(r.resume_at_least[attempt]) != r.damaged.end();
  if (sequence < r.resume_at_least[attempt] && !damaged) {
    Violated(absl::StrCat("attempt ", attempt, " of run ", run, " resumes from sequence ", sequence, ", but ",
                          r.resume_at_least[attempt], " was known to be committed"));
  }
  if (sequence != 0 && !r.published.contains(sequence)) {
    Violated(absl::StrCat("attempt ", attempt, " of run ", run, " resumes from sequence ", sequence,
                          ", which was never published"));
  }
}

void Oracle::Agreed(int run, int64_t attempt, int64_t sequence) {
  const auto [first, is_first] = runs_[run].agreed.try_emplace(attempt, sequence);
  if (!is_first && first->second != sequence) {
    Violated(absl::StrCat("ranks of attempt ", attempt, " of run ", run, " have agreed on sequence ",
                          first->second, " and on ", sequence));
  }
}

void Oracle::MarkedDamaged(int run, int64_t sequence) {
  if (runs_[run].damaged.contains(sequence)) return;
  Violated(absl::StrCat("sequence ", sequence, " of run ", run, " is marked as damaged, which nobody found"));
}

void Oracle::RootLost(int run, int64_t newest) {
  Run& before = runs_[run];
  Run after;
  after.kept = before.kept;
  after.every_steps = before.every_steps;
  after.newest_reported = newest;
  after.published.insert(newest);
  before = std::move(after);
  // Attempts are counted from 1 again. What the ranks have sealed still counts for those who read it.
  std::map<SaveName, Save> kept;
  for (auto& [name, save] : saves_) {
    SaveName renamed = name;
    if (name.run == run) renamed.attempt = -name.attempt;
    kept.emplace(renamed, std::move(save));
  }
  saves_ = std::move(kept);
}

// ---- Saves

void Oracle::BeginSent(const SaveName& save) {
  Save& s = saves_[save];
  if (!s.known_before) s.known_before = runs_[save.run].known_moved_in;
}

void Oracle::Begun(const SaveName& save, int64_t sequence) {
  const int64_t known = saves_[save].known_before.value_or(0);
  if (sequence == 0 || sequence > known) return;
  Violated(absl::StrCat(save.ToString(), " has sequence ", sequence,
                        ", and begins after the daemon has found sequence ", known));
}

void Oracle::SealSent(const SaveName& save, int rank, int world_size, Contents contents) {
  Save& s = saves_[save];
  s.world_size = world_size;
  s.sealed[rank] = std::move(contents);
}

void Oracle::SealOk(const SaveName& save, int rank, const FenceState& before, bool repeated,
                    v1::Level level) {
  Save& s = saves_[save];
  if (s.seal_daemon != daemon_) {
    s.seal_daemon = daemon_;
    s.seal_ok.clear();
  }
  if (!repeated && save.attempt < before.acted && level < v1::SEALED) {
    Violated(absl::StrCat("the seal of rank ", rank, " of ", save.ToString(),
                          " took effect, although attempt ", before.acted, " had acted before it was sent"));
  }
  s.seal_ok.insert(rank);
  if (level >= v1::SEALED && static_cast<int>(s.sealed.size()) < s.world_size) {
    Violated(absl::StrCat(save.ToString(), " is reported as SEALED, but not all ranks have sealed"));
  }
}

void Oracle::Excuse(const SaveName& save) { saves_[save].excused = true; }

void Oracle::OutcomeReported(const SaveName& save, int rank, v1::Level level, const std::string& reason,
                             int64_t sequence) {
  Save& s = saves_[save];
  const bool committed = level == v1::COMMITTED;
  if (s.outcome && (*s.outcome == v1::COMMITTED) != committed && *s.outcome != v1::INDETERMINATE &&
      level != v1::INDETERMINATE) {
    Violated(absl::StrCat("rank ", rank, " of ", save.ToString(), " hears ", v1::Level_Name(level), " ",
                          reason, ", another heard ", v1::Level_Name(*s.outcome)));
  }
  if (!s.outcome || *s.outcome == v1::INDETERMINATE) s.outcome = level;
  s.told.insert(rank);
  if (committed) {
    Run& r = runs_[save.run];
    ++commits_;
    if (s.published == 0) {
      Violated(absl::StrCat(save.ToString(), " is reported as COMMITTED, but was never published"));
    }
    if (!s.suspect) r.newest_reported = std::max(r.newest_reported, sequence);
    r.known_moved_in = std::max(r.known_moved_in, s.moved_in_before);
    if (const auto other = r.other_models.find(save.attempt); other != r.other_models.end())
      r.retained_through = std::max(r.retained_through, other->second);
    return;
  }
  if (s.published != 0 && level != v1::INDETERMINATE &&
      !may_be_reported_lost_.contains({save.run, s.published})) {
    Violated(absl::StrCat(save.ToString(), " is published, but rank ", rank, " hears ", v1::Level_Name(level),
                          " ", reason));
  }
  // A scan publishes every complete save, also one whose abort failed. An older generation of the tag then
  // has nothing to replace.
  if (reason == "SUPERSEDED" && runs_[save.run].newest_of_tag[save.tag] > sequence) return;
  const bool sealed = s.world_size > 0 && static_cast<int>(s.seal_ok.size()) == s.world_size;
  if (sealed && s.seal_daemon == daemon_ && NeedsTrainers(reason)) {
    Violated(absl::StrCat(save.ToString(), " was sealed by all ranks, and ended ", v1::Level_Name(level), " ",
                          reason));
  }
  if (sealed && s.seal_daemon == daemon_ && !s.excused && !excused_.contains({save.run, sequence})) {
    Violated(absl::StrCat(save.ToString(), " was sealed by all ranks and hit by no fault, but ended ",
                          v1::Level_Name(level), " ", reason));
  }
}

// ---- The disk

void Oracle::PartOnDisk(const SaveName& save, int rank, const Contents& contents) {
  const Save& s = saves_[save];
  auto sealed = s.sealed.find(rank);
  if (sealed == s.sealed.end()) {
    return Violated(
        absl::StrCat("rank ", rank, " of ", save.ToString(), " is written, but was never sealed"));
  }
  if (sealed->second != contents) {
    Violated(absl::StrCat("the bytes written for rank ", rank, " of ", save.ToString(),
                          " differ from what it sealed"));
  }
}

void Oracle::Published(int run, const storage::v1::ManifestSummary& summary,
                       const std::map<int, Contents>& contents) {
  Run& r = runs_[run];
  const SaveName name{run, summary.attempt(), summary.tag(), summary.ordinal()};
  Save& s = saves_[name];
  if (!r.published.insert(summary.sequence()).second) {
    Violated(absl::StrCat("sequence ", summary.sequence(), " of run ", run, " is published twice"));
  }
  if (s.outcome && *s.outcome != v1::INDETERMINATE && *s.outcome != v1::COMMITTED) {
    Violated(
        absl::StrCat(name.ToString(), " was reported ", v1::Level_Name(*s.outcome), " but was published"));
  }
  s.published = summary.sequence();
  s.moved_in_before = r.moved_in;
  if (s.suspect != !summary.suspect().empty()) {
    Violated(absl::StrCat(name.ToString(), " is published ", s.suspect ? "as good" : "as suspect",
                          ", which is not what its ranks sealed"));
  }
  if (s.suspect) r.suspect.insert(summary.sequence());
  int64_t& newest = r.newest_of_tag[summary.tag()];
  newest = std::max(newest, summary.sequence());
  if (static_cast<int>(contents.size()) != summary.world_size()) {
    Violated(absl::StrCat(name.ToString(), " is published with ", contents.size(), " parts"));
  }
  for (const auto& part : contents) PartOnDisk(name, part.first, part.second);
}

void Oracle::MovedIn(int run, const storage::v1::ManifestSummary& summary) {
  Run& r = runs_[run];
  r.published.insert(summary.sequence());
  if (!summary.suspect().empty()) r.suspect.insert(summary.sequence());
  r.moved_in = std::max(r.moved_in, summary.sequence());
  r.moved_in_attempts.insert(summary.attempt());
}

void Oracle::Adopted(int run, const storage::v1::ManifestSummary& summary, const Contents& contents,
                     const std::vector<storage::v1::ManifestSummary>& beside) {
  Run& r = runs_[run];
  const int64_t sequence = summary.sequence();
  const std::string what = absl::StrCat(summary.tag(), " is adopted in run ", run, " as sequence ", sequence);
  if (!r.published.insert(sequence).second || r.begun.contains(sequence))
    Violated(absl::StrCat(what, ", which was used before"));
  r.adopted[sequence] = contents;
  int64_t& newest = r.newest_of_tag[summary.tag()];
  newest = std::max(newest, sequence);
  for (const auto& other : beside) {
    if (other.commit_time_us() > summary.commit_time_us() && other.sequence() < sequence)
      Violated(absl::StrCat(what, ", above ", other.tag(), " with sequence ", other.sequence(),
                            ", which is newer"));
  }
}

void Oracle::Evicted(int run, const storage::v1::ManifestSummary& evicted, const std::vector<int64_t>& left,
                     bool pinned) {
  const Run& r = runs_[run];
  const int64_t sequence = evicted.sequence();
  const std::string what = absl::StrCat("retention evicts sequence ", sequence, " of run ", run, ", ");
  if (pinned) Violated(absl::StrCat(what, "which is pinned"));
  if (sequence <= r.retained_through)
    Violated(absl::StrCat(what, "although later saves, of another model, have not begun from it"));
  const bool suspect = r.suspect.contains(sequence);
  if (r.every_steps > 0 && evicted.has_step() && evicted.step() % r.every_steps == 0 &&
      !r.damaged.contains(sequence) && !suspect) {
    Violated(absl::StrCat(what, "of step ", evicted.step(), ", although every ", r.every_steps,
                          " steps are kept"));
  }
  if (left.empty() || *std::max_element(left.begin(), left.end()) < sequence) {
    Violated(absl::StrCat(what, "which is the newest"));
  }
  const auto good =
      std::count_if(left.begin(), left.end(), [&r](int64_t other) { return !r.suspect.contains(other); });
  if (!r.kept || (good < *r.kept && !suspect)) {
    Violated(absl::StrCat(what, "and leaves ", good, " good ones; the number to keep is ",
                          r.kept ? absl::StrCat(*r.kept) : "all"));
  }
  for (const auto& lease : r.leases) {
    if (lease.second == sequence) Violated(absl::StrCat(what, "which ", lease.first, " reads"));
  }
}

void Oracle::TrashRemoved(int run, int64_t sequence) {
  for (const auto& lease : runs_[run].leases) {
    if (lease.second == sequence) {
      Violated(absl::StrCat("sequence ", sequence, " of run ", run, " is deleted, while ", lease.first,
                            " reads it"));
    }
  }
}

int64_t Oracle::CountLeases(int run) {
  std::set<int64_t> read;
  for (const auto& lease : runs_[run].leases) read.insert(lease.second);
  return static_cast<int64_t>(read.size());
}

void Oracle::ReadFromMemory(int run, int64_t sequence, int rank, const Contents& contents) {
  const auto adopted = runs_[run].adopted.find(sequence);
  if (adopted != runs_[run].adopted.end() && adopted->second != contents)
    Violated(absl::StrCat("the resident copy of adopted sequence ", sequence, " of run ", run,
                          " differs from what the other program wrote"));
  for (const auto& [name, save] : saves_) {
    if (name.run != run || save.published != sequence) continue;
    const auto sealed = save.sealed.find(rank);
    if (sealed != save.sealed.end() && sealed->second != contents)
      Violated(absl::StrCat("the resident copy of rank ", rank, " of ", name.ToString(),
                            " differs from what it sealed"));
  }
}

void Oracle::Latest(int run, int64_t sequence) {
  Run& r = runs_[run];
  if (sequence < r.latest && !r.damaged.contains(r.latest)) {
    Violated(absl::StrCat("latest of run ", run, " went back from sequence ", r.latest, " to ", sequence));
  }
  if (sequence != 0 && !r.published.contains(sequence)) {
    Violated(absl::StrCat("latest of run ", run, " is sequence ", sequence, ", which was never published"));
  }
  if (r.suspect.contains(sequence))
    Violated(absl::StrCat("latest of run ", run, " is sequence ", sequence, ", which is suspect"));
  r.latest = sequence;
}

}  // namespace ckptd::sim
