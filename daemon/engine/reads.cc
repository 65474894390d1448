// What a job comes back from: Resume, open checkpoints, leases, pins.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "storage/base/errors.h"

namespace ckptd {

void Engine::Impl::Resume(const Caller& caller, const v1::ResumeRequest& request,
                          Reply<v1::ResumeResponse> reply) {
  absl::StatusOr<Run*> run = FindRun(caller, request.run());
  if (!run.ok()) return reply(run.status());
  Member* member = FindMember(*run, caller.session, request.rank());
  if (member == nullptr) {
    return reply(
        MakeError(absl::StatusCode::kFailedPrecondition, "NOT_JOINED",
                  absl::StrCat("this session has not joined ", request.run(), " as rank ", request.rank())));
  }
  absl::StatusOr<Duration> timeout =
      CheckDuration(request.has_timeout(), request.timeout(), "timeout", std::chrono::seconds(60),
                    std::chrono::milliseconds(1), std::chrono::seconds(86400));
  if (!timeout.ok()) return reply(timeout.status());
  PendingResume pending;
  pending.session = caller.session;
  pending.rank = member->rank;
  pending.attempt = member->attempt;
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
  for (PendingResume& pending : ready) {
    Ledger::ResumeChoice newest;
    if (!run->committed.empty()) {
      newest.sequence = run->committed.rbegin()->first;
      newest.tag = run->committed.rbegin()->second.summary.tag();
    }
    const int64_t attempt = pending.attempt;
    run->ledger->DecideResume(
        attempt, newest,
        [this, run, pending = std::move(pending)](absl::StatusOr<Ledger::ResumeChoice> choice) mutable {
          if (!choice.ok()) return pending.reply(choice.status());
          v1::ResumeResponse response;
          response.set_attempt(pending.attempt);
          if (choice->sequence == 0) return pending.reply(std::move(response));
          OpenLease(pending.session, run, choice->sequence,
                    [response, reply = std::move(pending.reply)](
                        absl::StatusOr<std::pair<std::string, v1::Checkpoint>> lease) mutable {
                      if (!lease.ok()) return reply(lease.status());
                      response.set_lease(lease->first);
                      *response.mutable_checkpoint() = std::move(lease->second);
                      reply(std::move(response));
                    });
        });
  }
}

void Engine::Impl::OpenLease(
    SessionId session, Run* run, int64_t sequence,
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
  // Leased before it is opened, so that retention leaves it alone meanwhile.
  const std::string id = absl::StrCat("leases/", next_id_++);
  leases_.emplace(id, Lease{id, session, run, sequence, nullptr});
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
          return done(Annotate(reader.status(), absl::StrCat("opening checkpoint ", tag)));
        }
        lease->second.reader = *std::move(reader);
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
  int64_t sequence = 0;
  for (const auto& entry : (*run)->committed) {
    if (tag == "latest" || entry.second.summary.tag() == tag) sequence = entry.first;
  }
  if (sequence == 0) {
    return reply(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                           tag == "latest"
                               ? absl::StrCat("nothing is committed in ", (*run)->path)
                               : absl::StrCat("no checkpoint ", tag, " is committed in ", (*run)->path),
                           {{"tag", tag}}));
  }
  OpenLease(caller.session, *run, sequence,
            [reply = std::move(reply)](absl::StatusOr<std::pair<std::string, v1::Checkpoint>> lease) mutable {
              if (!lease.ok()) return reply(lease.status());
              v1::OpenCheckpointResponse response;
              response.set_lease(lease->first);
              *response.mutable_checkpoint() = std::move(lease->second);
              reply(std::move(response));
            });
}

void Engine::Impl::CloseLease(std::map<std::string, Lease>::iterator lease) {
  Run* run = lease->second.run;
  leases_.erase(lease);
  Retain(run);  // It may have been all that kept a victim.
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
  if (pinned) run->pinning.insert(sequence);
  run->io->SetPinned(tag, sequence, pinned,
                     [this, run, sequence, pinned, reply = std::move(reply)](absl::Status set) mutable {
                       if (pinned) run->pinning.erase(run->pinning.find(sequence));
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
                       Retain(run);  // It may have been all that kept a victim.
                     });
}

}  // namespace ckptd
