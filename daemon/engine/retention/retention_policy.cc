#include "daemon/engine/retention/retention_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "storage/format/retention_record.h"

namespace ckptd {
namespace {

using Summary = storage::v1::ManifestSummary;
using KeptBy = std::map<int64_t, std::vector<std::string>>;

// Keeps every checkpoint from the N-th newest good one on, except suspect ones: a diverged job saves many of
// them. A damaged checkpoint is kept, because it may be repaired, but not counted. A checkpoint that is being
// removed is not counted either: if a newer one turns out to be damaged, an older one is kept in its place.
void KeepLast(const RetentionPolicy& policy, const Catalog& catalog, bool committing, int64_t above,
              KeptBy* kept) {
  int missing = LastOf(policy) - (committing ? 1 : 0);
  const auto& committed = catalog.committed();
  for (auto entry = committed.rbegin(); entry != committed.rend() && missing > 0; ++entry) {
    if (entry->first <= above) break;
    if (!entry->second.summary.suspect().empty() || catalog.IsLeaving(entry->first)) continue;
    (*kept)[entry->first].push_back(LastInWords(policy));
    if (!entry->second.damage) --missing;
  }
}

// The newest undamaged checkpoint, and the damaged ones that are newer, stay even if they are suspect: a user
// may want to find out what went wrong, and there may be no other checkpoints.
void KeepNewestSuspect(const Catalog& catalog, KeptBy* kept) {
  const auto& committed = catalog.committed();
  for (auto entry = committed.rbegin(); entry != committed.rend(); ++entry) {
    if (catalog.IsLeaving(entry->first)) continue;
    if (catalog.IsSuspect(entry->first)) (*kept)[entry->first].push_back("newest, suspect");
    if (!entry->second.damage) return;
  }
}

void KeepBest(const RetentionPolicy& policy, const Catalog& catalog, int64_t above, KeptBy* kept) {
  std::vector<std::pair<double, int64_t>> ranked;  // Of value and sequence; the largest are the best.
  for (const auto& [sequence, checkpoint] : catalog.committed()) {
    const auto& metrics = checkpoint.summary.metrics();
    const auto metric = metrics.find(policy.metric());
    if (sequence <= above || !IsGood(checkpoint) || catalog.IsLeaving(sequence)) continue;
    if (metric == metrics.end() || std::isnan(metric->second)) continue;
    ranked.emplace_back(policy.highest() ? metric->second : -metric->second, sequence);
  }
  std::sort(ranked.rbegin(), ranked.rend());
  if (ranked.size() > static_cast<size_t>(policy.best())) ranked.resize(policy.best());
  for (const auto& [value, sequence] : ranked) (*kept)[sequence].push_back(BestInWords(policy));
}

void KeepSteps(const RetentionPolicy& policy, const Catalog& catalog, KeptBy* kept) {
  for (const auto& [sequence, checkpoint] : catalog.committed()) {
    const Summary& summary = checkpoint.summary;
    if (IsGood(checkpoint) && summary.has_step() && summary.step() % policy.every_steps() == 0)
      (*kept)[sequence].push_back(StepsInWords(policy));
  }
}

void KeepNewer(const RetentionPolicy& policy, const Catalog& catalog, int64_t now_unix_us, KeptBy* kept) {
  for (const auto& [sequence, checkpoint] : catalog.committed()) {
    if (IsGood(checkpoint) && checkpoint.summary.commit_time_us() > now_unix_us - policy.newer_than_us())
      (*kept)[sequence].push_back(AgeInWords(policy));
  }
}

}  // namespace

bool KeepsNoMoreThan(const RetentionPolicy& policy, const RetentionPolicy& other) {
  if (KeepsAll(other) || IsSamePolicy(policy, other)) return true;
  if (KeepsAll(policy) || LastOf(policy) > LastOf(other)) return false;
  return policy.best() == 0 && policy.every_steps() == 0 && policy.newer_than_us() == 0;
}

std::string SetAsideWarning(const std::string& path, int64_t retained_through) {
  return absl::StrCat(
      "a launch could not resume from sequence ", retained_through, " of ", path,
      ", and has saved a state of its own: retention leaves the checkpoints up to that one alone; "
      "remove them with ckptctl delete, or join with takeover to have them counted");
}

KeptBy KeptByPolicy(const RetentionPolicy& policy, const Catalog& catalog, int64_t now_unix_us,
                    bool committing, int64_t retained_through) {
  KeptBy kept;
  for (const auto& [sequence, checkpoint] : catalog.committed()) {
    if (sequence > retained_through) break;
    kept[sequence].push_back("of a state that a later launch could not resume from");
  }
  if (KeepsAll(policy)) {
    for (const auto& [sequence, checkpoint] : catalog.committed()) kept[sequence].push_back("keeps all");
    return kept;
  }
  KeepLast(policy, catalog, committing, retained_through, &kept);
  if (!committing) KeepNewestSuspect(catalog, &kept);
  if (policy.best() > 0) KeepBest(policy, catalog, retained_through, &kept);
  if (policy.every_steps() > 0) KeepSteps(policy, catalog, &kept);
  if (policy.newer_than_us() > 0) KeepNewer(policy, catalog, now_unix_us, &kept);
  return kept;
}

RetentionPolicy PolicyAfterCommit(const storage::v1::RunRecord& record,
                                  const std::optional<RetentionPolicy>& of_save) {
  if (record.has_retention_override()) return record.retention_override();
  return of_save.value_or(RetentionPolicy());
}

std::vector<RetentionPolicy> PoliciesAtStart(const storage::v1::RunRecord& record) {
  std::vector<RetentionPolicy> policies = {LoadRetention(record)};
  for (const RetentionPolicy& next : record.next_retentions()) policies.push_back(next);
  if (record.has_retention_override()) policies.push_back(record.retention_override());
  return policies;
}

}  // namespace ckptd
