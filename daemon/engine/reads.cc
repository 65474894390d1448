// What a job comes back from: Resume, open checkpoints, leases, pins.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/validate.h"
#include "storage/base/errors.h"

namespace ckptd {

void Engine::Impl::Resume(const Caller& caller, const v1::ResumeRequest& request,
                          Reply<v1::ResumeResponse> reply) {
  absl::StatusOr<Run*> run = FindRun(caller, request.run());
  if (!run.ok()) return reply(run.status());
  Member* member = FindMember(*run, caller.session, request.rank());
  if (member == nullptr) return reply(NotJoined(request.run(), request.rank()));
  absl::StatusOr<Duration> timeout =
      CheckDuration(request.has_timeout(), request.timeout(), "timeout", std::chrono::seconds(60),
                    std::chrono::milliseconds(1), std::chrono::seconds(86400));
  if (!timeout.ok()) return reply(timeout.status());
  PendingResume pending;
  pending.session = caller.session;
  pending.rank = member->rank;
  pending.attempt = member->attempt;
  pending.strict = request.strict();
  pending.deadline = clock_->Now() + *timeout;
  pending.reply = std::move(reply);
  (*run)->ledger->Activate(member->attempt, [this, name = (*run)->name,
                                             pending = std::move(pending)](absl::Status active) mutable {
    auto found = runs_.find(name);
    if (found == runs_.end() || !active.ok()) return pending.reply(active);
    Run* r = found->second.get();
    FenceOff(r, pending.attempt);
    r->resumes.push_back(std::move(pending));
    ContinueResumes(r);
  });
}

// Answers those for which every fully sealed checkpoint of earlier attempts is published or failed.
void Engine::Impl::ContinueResumes(Run* run) {
  if (run->read_only) return;  // What is committed is not known until the scan.
  std::vector<PendingResume> ready;
  for (auto pending = run->resumes.begin(); pending != run->resumes.end();) {
    const bool decided = run->ledger->DecidedResume(pending->attempt).has_value();
    const bool must_wait = std::any_of(run->saves.begin(), run->saves.end(), [&](const auto& entry) {
      return entry.second->key.attempt < pending->attempt;
    });
    if (must_wait && !decided) {
      ++pending;
      continue;
    }
    ready.push_back(std::move(*pending));
    pending = run->resumes.erase(pending);
  }
  for (PendingResume& pending : ready) AnswerResume(run, std::move(pending));
}

void Engine::Impl::AnswerResume(Run* run, PendingResume pending) {
  const int64_t attempt = pending.attempt;
  if (auto agreement = run->agreements.find(attempt); agreement != run->agreements.end()) {
    agreement->second.failed.erase(pending.rank);
    if (!agreement->second.writing) agreement->second.finished.erase(pending.rank);  // It reads it once more.
  }
  const auto decided = run->ledger->DecidedResume(attempt);
  if (decided && IsDamaged(*run, decided->sequence)) run->ledger->RejectResume(attempt, decided->sequence);
  Ledger::ResumeChoice newest;
  if (const CommittedCheckpoint* checkpoint = Newest(*run)) {
    newest.sequence = checkpoint->summary.sequence();
    newest.tag = checkpoint->summary.tag();
  }
  const std::vector<v1::Checkpoint> passed = PassedOver(*run, newest.sequence);
  if (pending.strict && !passed.empty()) {
    return pending.reply(DamagedError(*run, passed, "strict=True does not resume from an older one"));
  }
  // To begin from nothing because nothing can be read would throw the job's work away.
  if (newest.sequence == 0 && !passed.empty() && !run->ledger->DecidedResume(attempt)) {
    return pending.reply(DamagedError(
        *run, passed,
        "there is no other to resume from; repair one, or move them away to begin from nothing"));
  }
  retention_.BeginResumeDecision(run, newest.sequence);
  run->ledger->DecideResume(attempt, newest,
                            [this, run, sequence = newest.sequence, pending = std::move(pending)](
                                absl::StatusOr<Ledger::ResumeChoice> choice) mutable {
                              retention_.EndResumeDecision(run, sequence);
                              if (!choice.ok()) return pending.reply(choice.status());
                              GiveResume(run, *choice, std::move(pending));
                            });
}

void Engine::Impl::GiveResume(Run* run, const Ledger::ResumeChoice& choice, PendingResume pending) {
  const auto again = [this, run](PendingResume asked) {
    run->resumes.push_back(std::move(asked));
    ContinueResumes(run);
  };
  if (IsDamaged(*run, choice.sequence)) return again(std::move(pending));  // Since it was decided.
  v1::ResumeResponse response;
  response.set_attempt(pending.attempt);
  for (v1::Checkpoint& passed : PassedOver(*run, choice.sequence))
    *response.add_passed_over() = std::move(passed);
  if (choice.sequence == 0) return pending.reply(std::move(response));
  const SessionId session = pending.session;
  OpenLease(
      session, run, choice.sequence, /*resumes=*/true,
      [this, run, again, sequence = choice.sequence, response = std::move(response),
       pending = std::move(pending)](absl::StatusOr<std::pair<std::string, v1::Checkpoint>> lease) mutable {
        if (IsDamaged(*run, sequence) && !lease.ok() && sessions_.contains(pending.session))
          return again(std::move(pending));
        if (!lease.ok()) return pending.reply(lease.status());
        response.set_lease(lease->first);
        *response.mutable_checkpoint() = std::move(lease->second);
        pending.reply(std::move(response));
      });
}

void Engine::Impl::OpenLease(
    SessionId session, Run* run, int64_t sequence, bool resumes,
    absl::AnyInvocable<void(absl::StatusOr<std::pair<std::string, v1::Checkpoint>>)> done) {
  auto committed = run->committed.find(sequence);
  if (committed == run->committed.end()) {
    return done(MakeError(
        absl::StatusCode::kNotFound, "NO_CHECKPOINT",
        absl::StrCat("the checkpoint with sequence ", sequence, " is not in ", run->path, " any more")));
  }
  if (!sessions_.contains(session)) {  // While the ledger remembered the decision: nobody would close it.
    return done(MakeError(absl::StatusCode::kAborted, "SESSION_LOST",
                          "the session ended before the checkpoint was opened"));
  }
  const uid_t uid = sessions_.at(session).uid;
  const auto held = std::count_if(leases_.begin(), leases_.end(), [this, uid](const auto& entry) {
    const auto holder = sessions_.find(entry.second.session);
    return holder != sessions_.end() && holder->second.uid == uid;
  });
  if (held >= options_.limits.leases_per_uid)
    return done(UidLimitExceeded(uid, "leases", options_.limits.leases_per_uid, "leases_per_uid"));
  // Leased before it is opened, so that retention leaves it alone meanwhile.
  const std::string id = absl::StrCat("leases/", next_id_++);
  leases_.emplace(id, Lease{id, session, run, sequence, nullptr, 0, resumes});
  const std::string tag = committed->second.summary.tag();
  run->io->OpenCheckpoint(
      tag, sequence,
      [this, id, run, sequence, tag,
       done = std::move(done)](absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) mutable {
        auto lease = leases_.find(id);
        if (lease == leases_.end()) {
          return done(MakeError(absl::StatusCode::kAborted, "SESSION_LOST",
                                "the session ended before the checkpoint was open"));
        }
        if (!reader.ok()) {
          CloseLease(lease);
          absl::Status error = Annotate(reader.status(), absl::StrCat("opening checkpoint ", tag));
          if (!TellsOfDamage(*run, reader.status())) return done(error);
          return MarkDamaged(run, sequence, DamageOf(reader.status()),
                             [error, done = std::move(done)]() mutable { done(error); });
        }
        lease->second.reader = *std::move(reader);
        if (absl::Status fits = CountManifest(lease->second); !fits.ok()) {
          CloseLease(lease);
          return done(fits);
        }
        v1::Checkpoint checkpoint;
        if (auto known = run->committed.find(sequence); known != run->committed.end()) {
          checkpoint = Describe(*run, known->second);
        } else {
          CommittedCheckpoint gone;
          gone.summary = lease->second.reader->manifest().summary;
          checkpoint = Describe(*run, gone);
        }
        for (const storage::v1::FileRecord& file : lease->second.reader->manifest().body.files()) {
          v1::FileInfo& info = *checkpoint.add_files();
          info.set_path(file.path());
          info.set_size_bytes(file.size_bytes());
          info.set_rank(file.rank());
        }
        done(std::pair(id, std::move(checkpoint)));
      });
}

void Engine::Impl::OpenCheckpoint(const Caller& caller, const v1::OpenCheckpointRequest& request,
                                  Reply<v1::OpenCheckpointResponse> reply) {
  if (!sessions_.contains(caller.session)) {
    return reply(
        MakeError(absl::StatusCode::kUnauthenticated, "UNKNOWN_TOKEN", "OpenCheckpoint needs a session"));
  }
  std::string tag;
  absl::StatusOr<Run*> run = RunOfCheckpointName(caller, request.name(), &tag);
  if (!run.ok()) return reply(run.status());
  OpenCheckpoint(caller.session, *run, tag, request.strict(), std::move(reply));
}

void Engine::Impl::OpenCheckpoint(SessionId session, Run* run, const std::string& tag, bool strict,
                                  Reply<v1::OpenCheckpointResponse> reply) {
  const bool latest = tag == "latest";
  int64_t sequence = 0;
  if (const CommittedCheckpoint* newest = Newest(*run); latest && newest != nullptr)
    sequence = newest->summary.sequence();
  for (const auto& entry : run->committed) {
    if (entry.second.summary.tag() == tag) sequence = entry.first;
  }
  std::vector<v1::Checkpoint> passed;
  if (latest) passed = PassedOver(*run, sequence);
  if (strict && IsDamaged(*run, sequence)) passed.push_back(Describe(*run, run->committed.at(sequence)));
  if ((strict || sequence == 0) && !passed.empty()) {
    return reply(DamagedError(
        *run, passed,
        sequence == 0 ? "there is no other" : "strict=True opens neither it nor an older one in its place"));
  }
  if (sequence == 0) {
    return reply(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                           latest ? absl::StrCat("nothing is committed in ", run->path)
                                  : absl::StrCat("no checkpoint ", tag, " is committed in ", run->path),
                           {{"tag", tag}}));
  }
  OpenLease(session, run, sequence, /*resumes=*/false,
            [this, session, run, tag, strict, latest, sequence, passed = std::move(passed),
             reply = std::move(reply)](absl::StatusOr<std::pair<std::string, v1::Checkpoint>> lease) mutable {
              if (!lease.ok() && latest && IsDamaged(*run, sequence) && sessions_.contains(session))
                return OpenCheckpoint(session, run, tag, strict, std::move(reply));  // The next older one.
              if (!lease.ok()) return reply(lease.status());
              v1::OpenCheckpointResponse response;
              response.set_lease(lease->first);
              *response.mutable_checkpoint() = std::move(lease->second);
              for (v1::Checkpoint& each : passed) *response.add_passed_over() = std::move(each);
              reply(std::move(response));
            });
}

// What the manifests of a user's open checkpoints have in memory, each counted once.
absl::Status Engine::Impl::CountManifest(Lease& lease) {
  const uid_t uid = sessions_.at(lease.session).uid;
  std::map<const Manifest*, int64_t> open;
  for (const auto& entry : leases_) {
    const Lease& other = entry.second;
    const auto holder = sessions_.find(other.session);
    if (&other != &lease && other.reader != nullptr && holder != sessions_.end() && holder->second.uid == uid)
      open.emplace(&other.reader->manifest(), other.manifest_bytes);
  }
  const Manifest* manifest = &lease.reader->manifest();
  const auto shared = open.find(manifest);
  lease.manifest_bytes =
      shared != open.end() ? shared->second : static_cast<int64_t>(manifest->body.SpaceUsedLong());
  if (shared != open.end()) return absl::OkStatus();
  int64_t bytes = lease.manifest_bytes;
  for (const auto& entry : open) bytes += entry.second;
  const int64_t most = options_.limits.manifest_bytes_per_uid;
  if (bytes <= most) return absl::OkStatus();
  return UidLimitExceeded(uid, "bytes for the lists of files of open checkpoints", most,
                          "manifest_bytes_per_uid");
}

std::vector<int64_t> Engine::Impl::LeasedSequences(const Run* run) const {
  std::vector<int64_t> leased;
  for (const auto& entry : leases_) {
    if (entry.second.run == run) leased.push_back(entry.second.sequence);
  }
  return leased;
}

absl::StatusOr<Lease*> Engine::Impl::FindLease(const Caller& caller, const std::string& id) {
  auto found = leases_.find(id);
  const bool open = found != leases_.end() && found->second.reader != nullptr;
  if (open && found->second.session == caller.session) return &found->second;
  return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_LEASE",
                   absl::StrCat("this session has no open lease \"", id, "\"; open the checkpoint first"));
}

void Engine::Impl::ReportReading(const Caller& caller, const v1::ReportReadingRequest& request,
                                 Reply<v1::ReportReadingResponse> reply) {
  const absl::StatusOr<Lease*> lease = FindLease(caller, request.lease());
  if (!lease.ok()) return reply(lease.status());
  if (request.read_bytes() < 0 || request.total_bytes() < request.read_bytes()) {
    return reply(MakeError(
        absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
        absl::StrCat(request.read_bytes(), " bytes of ", request.total_bytes(), " cannot have been read")));
  }
  (*lease)->read_bytes = request.read_bytes();
  (*lease)->total_bytes = request.total_bytes();
  NotifyReading(**lease, /*ended=*/false);
  reply(v1::ReportReadingResponse());
}

void Engine::Impl::NotifyReading(const Lease& lease, bool ended) {
  v1::WatchResponse event;
  v1::Restore& restore = *event.mutable_restore();
  const std::string& tag = lease.reader->manifest().summary.tag();
  restore.set_checkpoint(absl::StrCat(lease.run->name, "/checkpoints/", tag));
  restore.set_tag(tag);
  restore.set_sequence(lease.sequence);
  restore.set_lease(lease.id);
  for (const Member& member : lease.run->members) {
    if (member.session == lease.session) restore.set_rank(member.rank);
  }
  restore.set_read_bytes(lease.read_bytes);
  restore.set_total_bytes(lease.total_bytes);
  restore.set_ended(ended);
  NotifyWatchers(*lease.run, std::move(event));
}

void Engine::Impl::CloseLease(std::map<std::string, Lease>::iterator lease) {
  if (lease->second.total_bytes > 0) NotifyReading(lease->second, /*ended=*/true);
  Run* run = lease->second.run;
  const auto [copy, session] = std::pair(lease->second.copy, lease->second.session);
  leases_.erase(lease);
  if (copy != 0) pool_->Unhold(copy, session);
  retention_.Apply(run);  // It may have been all that kept a victim.
}

void Engine::Impl::SetPinned(const Caller& caller, const std::string& name, bool pinned,
                             Reply<v1::Checkpoint> reply) {
  std::string tag;
  absl::StatusOr<Run*> found = RunOfCheckpointName(caller, name, &tag);
  if (!found.ok()) return reply(found.status());
  Run* run = *found;
  auto committed = std::find_if(run->committed.begin(), run->committed.end(),
                                [&tag](const auto& entry) { return entry.second.summary.tag() == tag; });
  if (committed == run->committed.end() || run->evicting.contains(committed->first)) {
    return reply(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                           absl::StrCat("no checkpoint ", tag, " is committed in ", run->path),
                           {{"tag", tag}}));
  }
  const int64_t sequence = committed->first;
  if (pinned) retention_.BeginPin(run, sequence);
  run->io->SetPinned(tag, sequence, pinned,
                     [this, run, sequence, pinned, reply = std::move(reply)](absl::Status set) mutable {
                       if (pinned) retention_.EndPin(run, sequence);
                       auto known = run->committed.find(sequence);
                       if (known == run->committed.end()) {
                         return reply(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                                                "it was replaced in the meantime"));
                       }
                       if (set.ok()) {
                         known->second.pinned = pinned;
                         reply(Describe(*run, known->second));
                       } else {
                         reply(set);
                       }
                       retention_.Apply(run);  // It may have been all that kept a victim.
                     });
}

}  // namespace ckptd
