#include "daemon/engine/reading/lease_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/engine/reading/damage_marks.h"
#include "daemon/engine/seams/limits.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

absl::Status LeaseTable::CheckMayOpen(SessionId session, const Run& run, int64_t sequence) const {
  if (run.catalog.Find(sequence) == nullptr) {
    return MakeError(
        absl::StatusCode::kNotFound, reason::kNoCheckpoint,
        absl::StrCat("the checkpoint with sequence ", sequence, " is not in ", run.path, " any more"));
  }
  const SessionInfo* opener = sessions_->Find(session);
  if (opener == nullptr) {  // The session has ended meanwhile, and would never close the lease.
    return MakeError(absl::StatusCode::kAborted, reason::kSessionLost,
                     "the session ended before the checkpoint was opened");
  }
  const uid_t uid = opener->uid;
  const auto held = std::count_if(leases_.begin(), leases_.end(), [this, uid](const auto& entry) {
    return sessions_->IsOfUser(entry.second.session, uid);
  });
  if (held >= limits_.leases_per_uid)
    return UidLimitExceeded(uid, "leases", limits_.leases_per_uid, "leases_per_uid");
  return absl::OkStatus();
}

std::pair<const Run*, int64_t> LeaseTable::CheckpointOf(const Lease& lease) {
  return {lease.run, lease.sequence};
}

void LeaseTable::Open(SessionId session, Run* run, int64_t sequence, bool resumes, Opened done) {
  if (absl::Status may = CheckMayOpen(session, *run, sequence); !may.ok()) return done(may);
  // The lease exists before the checkpoint is open, so that retention leaves the checkpoint alone meanwhile.
  const std::string id = absl::StrCat("leases/", next_id_++);
  leases_.emplace(id, Lease{id, session, run, sequence, resumes, nullptr});
  ++counts_[CheckpointOf(leases_.at(id))];
  const std::string tag = run->catalog.Find(sequence)->summary.tag();
  run->io->OpenCheckpoint(tag, sequence,
                          [this, id, tag, done = std::move(done)](
                              absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) mutable {
                            ReaderOpened(id, tag, std::move(reader), std::move(done));
                          });
}

void LeaseTable::ReaderOpened(const std::string& id, const std::string& tag,
                              absl::StatusOr<std::shared_ptr<CheckpointReader>> reader, Opened done) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) {
    return done(MakeError(absl::StatusCode::kAborted, reason::kSessionLost,
                          "the session ended before the checkpoint was open"));
  }
  Lease& lease = found->second;
  if (!reader.ok()) {
    Run* run = lease.run;
    const int64_t sequence = lease.sequence;
    Release(found);
    absl::Status error = Annotate(reader.status(), absl::StrCat("opening checkpoint ", tag));
    if (!IndicatesDamage(*run, reader.status())) return done(error);
    return hooks_.mark_damaged(run, sequence, DamageFromError(reader.status()),
                               [error, done = std::move(done)](const absl::Status& marked) mutable {
                                 done(marked.ok() ? error : marked);
                               });
  }
  lease.reader = *std::move(reader);
  if (absl::Status fits = CountManifest(lease); !fits.ok()) {
    Release(found);
    return done(fits);
  }
  hooks_.opened(lease);
  done(std::pair(id, DescribeOpen(lease)));
}

v1::Checkpoint LeaseTable::DescribeOpen(const Lease& lease) const {
  const Manifest& manifest = lease.reader->manifest();
  CommittedCheckpoint evicted;
  evicted.summary = manifest.summary;
  const CommittedCheckpoint* known = lease.run->catalog.Find(lease.sequence);
  v1::Checkpoint checkpoint = hooks_.describe(*lease.run, known == nullptr ? evicted : *known);
  AddFiles(manifest, &checkpoint);
  return checkpoint;
}

// Counts the memory of the manifests of a user's open checkpoints, each manifest once.
absl::Status LeaseTable::CountManifest(Lease& lease) const {
  const uid_t uid = sessions_->Find(lease.session)->uid;
  std::map<const Manifest*, int64_t> open;
  for (const auto& [id, other] : leases_) {
    if (&other != &lease && other.reader != nullptr && sessions_->IsOfUser(other.session, uid))
      open.emplace(&other.reader->manifest(), other.manifest_bytes);
  }
  const Manifest* manifest = &lease.reader->manifest();
  const auto shared = open.find(manifest);
  lease.manifest_bytes =
      shared != open.end() ? shared->second : static_cast<int64_t>(manifest->body.SpaceUsedLong());
  if (shared != open.end()) return absl::OkStatus();
  int64_t bytes = lease.manifest_bytes;
  for (const auto& [other, size] : open) bytes += size;
  const int64_t most = limits_.manifest_bytes_per_uid;
  if (bytes <= most) return absl::OkStatus();
  return UidLimitExceeded(uid, "bytes for the lists of files of open checkpoints", most,
                          "manifest_bytes_per_uid");
}

absl::StatusOr<const Lease*> LeaseTable::Find(const Caller& caller, const std::string& id) const {
  const Lease* lease = Find(id);
  if (lease != nullptr && lease->reader != nullptr && lease->session == caller.session) return lease;
  return MakeError(absl::StatusCode::kNotFound, reason::kUnknownLease,
                   absl::StrCat("this session has no open lease \"", id, "\"; open the checkpoint first"));
}

const Lease* LeaseTable::Find(const std::string& id) const {
  const auto found = leases_.find(id);
  return found == leases_.end() ? nullptr : &found->second;
}

absl::Status LeaseTable::Close(const Caller& caller, const std::string& id) {
  const auto lease = leases_.find(id);
  if (lease == leases_.end()) return absl::OkStatus();  // A retry.
  if (lease->second.session != caller.session) {
    return MakeError(absl::StatusCode::kPermissionDenied, reason::kUnknownLease,
                     absl::StrCat("lease ", id, " belongs to another session"));
  }
  Release(lease);
  return absl::OkStatus();
}

absl::Status LeaseTable::Report(const Caller& caller, const v1::ReportReadingRequest& request) {
  const absl::StatusOr<const Lease*> found = Find(caller, request.lease());
  if (!found.ok()) return found.status();
  if (request.read_bytes() < 0 || request.total_bytes() < request.read_bytes()) {
    return InvalidArgument(
        absl::StrCat(request.read_bytes(), " bytes of ", request.total_bytes(), " cannot have been read"));
  }
  Lease& lease = leases_.at(request.lease());
  lease.read_bytes = request.read_bytes();
  lease.total_bytes = request.total_bytes();
  Notify(lease, /*ended=*/false);
  return absl::OkStatus();
}

void LeaseTable::Notify(const Lease& lease, bool ended) const {
  v1::WatchResponse event;
  v1::Restore& restore = *event.mutable_restore();
  const std::string& tag = lease.reader->manifest().summary.tag();
  restore.set_checkpoint(CheckpointName(*lease.run, tag));
  restore.set_tag(tag);
  restore.set_sequence(lease.sequence);
  restore.set_lease(lease.id);
  if (const int rank = lease.run->members.RankOf(lease.session); rank >= 0) restore.set_rank(rank);
  restore.set_read_bytes(lease.read_bytes);
  restore.set_total_bytes(lease.total_bytes);
  restore.set_ended(ended);
  hooks_.notify(*lease.run, std::move(event));
}

void LeaseTable::Release(Leases::iterator lease) {
  if (lease->second.total_bytes > 0) Notify(lease->second, /*ended=*/true);
  Lease released = std::move(lease->second);
  leases_.erase(lease);
  if (const auto count = counts_.find(CheckpointOf(released)); --count->second == 0) counts_.erase(count);
  released.reader.reset();  // Before retention runs: an open reader keeps its files in trash.
  hooks_.released(released);
}

int LeaseTable::Count(const Run& run, int64_t sequence) const {
  const auto found = counts_.find({&run, sequence});
  return found == counts_.end() ? 0 : found->second;
}

int LeaseTable::CountOf(SessionId session) const {
  return static_cast<int>(std::count_if(leases_.begin(), leases_.end(), [session](const auto& entry) {
    return entry.second.session == session;
  }));
}

bool LeaseTable::HasAny(const Run& run) const {
  return std::any_of(leases_.begin(), leases_.end(),
                     [&run](const auto& entry) { return entry.second.run == &run; });
}

std::vector<int64_t> LeaseTable::LeasedSequences(const Run& run) const {
  std::vector<int64_t> leased;
  for (const auto& [id, lease] : leases_) {
    if (lease.run == &run) leased.push_back(lease.sequence);
  }
  return leased;
}

std::vector<std::string> LeaseTable::ResumingFrom(const Run& run, int64_t sequence) const {
  std::vector<std::string> ids;
  for (const auto& [id, lease] : leases_) {
    if (lease.run == &run && lease.sequence == sequence && lease.resumes &&
        run.members.IsOfAttempt(lease.session, run.active_attempt))
      ids.push_back(id);
  }
  return ids;
}

void LeaseTable::OnSessionEnded(SessionId session) {
  std::vector<std::string> ended;
  for (const auto& [id, lease] : leases_) {
    if (lease.session == session) ended.push_back(id);
  }
  for (const std::string& id : ended) {
    if (const auto lease = leases_.find(id); lease != leases_.end()) Release(lease);
  }
}

}  // namespace ckptd
