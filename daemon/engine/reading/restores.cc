#include "daemon/engine/reading/restores.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "storage/base/reasons.h"

namespace ckptd {

void Restores::OnOpened(const Lease& lease) {
  const auto [found, is_first] = open_.try_emplace({lease.run, lease.sequence});
  Reading& reading = found->second;
  if (is_first) {
    const storage::v1::ManifestSummary& checkpoint = lease.reader->manifest().summary;
    reading.begun_at = clock_->Now();
    reading.summary.run = lease.run->name;
    reading.summary.root = KeyOf(*lease.run);
    reading.summary.tag = checkpoint.tag();
    if (checkpoint.has_step()) reading.summary.step = checkpoint.step();
    reading.summary.sequence = lease.sequence;
    reading.summary.attempt = lease.run->active_attempt;
  }
  // A session that ends has left the run before its leases are released.
  reading.ranks[lease.id] = lease.run->members.RankOf(lease.session);
}

void Restores::OnReleased(const Lease& lease) {
  const auto found = open_.find({lease.run, lease.sequence});
  if (found == open_.end()) return;  // It was never open.
  Reading& reading = found->second;
  RestoreSummary& summary = reading.summary;
  if (const auto rank = reading.ranks.find(lease.id); rank != reading.ranks.end()) {
    reading.is_restore |= lease.resumes || lease.total_bytes > 0;
    ++summary.readers;
    summary.read_bytes += lease.read_bytes;
    summary.total_bytes += lease.total_bytes;
    summary.slowest_rank = rank->second;
  }
  if (leases_->Count(*lease.run, lease.sequence) > 0) return;
  summary.seconds = std::chrono::duration<double>(clock_->Now() - reading.begun_at).count();
  const Reading ended = std::move(reading);
  open_.erase(found);
  if (ended.is_restore) observer_->OnRestoreEnded(ended.summary);
}

void Restores::OnFailed(const Run& run, int64_t sequence, int rank, const std::string& failure,
                        const v1::Damage& damage) {
  const auto found = open_.find({&run, sequence});
  if (found == open_.end() || !found->second.summary.reason.empty()) return;
  RestoreSummary& summary = found->second.summary;
  summary.reason = failure.empty() ? reason::kCheckpointDamaged : reason::kResumeFailed;
  const std::string who = rank < 0 ? "a reader" : absl::StrCat("rank ", rank);
  summary.message = failure.empty() ? absl::StrCat(who, " has found damage in ",
                                                   damage.path().empty() ? "the checkpoint" : damage.path(),
                                                   damage.message().empty() ? "" : ": ", damage.message())
                                    : absl::StrCat(who, " could not go on: ", failure);
  found->second.is_restore = true;
}

}  // namespace ckptd
