// Public API and ticks.
#include "daemon/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/seams/validate.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

// Of a checkpoint's name; empty where it is none.
std::string RunOf(const std::string& checkpoint_name) {
  const auto parsed = ParseCheckpointName(checkpoint_name);
  return parsed ? parsed->first : "";
}

}  // namespace

void Engine::Impl::Notify(const Save& save) {
  v1::WatchResponse event;
  *event.mutable_checkpoint() = Describe(save, v1::BASIC);
  watches_.Notify(*save.run, std::move(event));
}

// ---- time

void Engine::Impl::Tick() {
  const Instant now = clock_->Now();
  ended_.OnTick();
  tracker_.OnTick(now);
  intake_.OnTick(now);
  publisher_.OnTick(now);
  for (const auto& [name, owned] : runs_.all()) {
    Run* run = owned.get();
    disk_.OnTick(run, now);
    scanner_.OnTick(run, now);
    files_.OnTick(run, now);
    history_.OnTick(run, now);
    trash_.OnTick(run, now);
    uploads_.OnTick(run, now);
    fetches_.OnTick(run, now);
    shared_fetches_.OnTick(run);
    UpdateDegraded(run, now);
    if (run->open) run->authority->OnTick();
    runs_.OnTick(run, now);
    scrubber_.OnTick(run, now);
  }
  earlier_.OnTick(now);
  resumes_.OnTick(now);
  adoptions_.OnTick(now);
  queue_.OnTick(now);
  recovery_.OnTick(now);
  runs_.CloseIdleRuns(now);
  FreeIdleMemory(now);
  std::vector<WatchHub::Progress> in_flight;
  for (const auto& [id, save] : saves_.all()) {
    in_flight.push_back({save->run, [this, save = save] {
                           v1::WatchResponse event;
                           *event.mutable_checkpoint() = Describe(*save, v1::BASIC);
                           return event;
                         }});
  }
  for (const auto& [run, sequence] : uploads_.UnderWay()) {
    in_flight.push_back({run, [this, run = run, sequence = sequence] {
                           v1::WatchResponse event;
                           if (const CommittedCheckpoint* committed = run->catalog.Find(sequence))
                             *event.mutable_checkpoint() = Describe(*run, *committed);
                           return event;
                         }});
  }
  watches_.OnTick(now, in_flight);
}

void Engine::Impl::UpdateDegraded(Run* run, Instant now) {
  const std::optional<Instant> since = run->io->pending_since();
  const bool degraded = since && now - *since > options_.degraded_after;
  if (degraded == run->degraded) return;
  run->degraded = degraded;
  observer_->OnWarning(absl::StrCat(
      "the root ", run->path,
      degraded ? " is DEGRADED: its file system has not answered for too long" : " answers again"));
  queue_.TryAdmitAll();
}

bool Engine::Impl::IsRetaining(const Run& run) const {
  return history_.IsWriting(run) || retention_.IsWorking(run) || trash_.IsEmptying(run);
}

void Engine::Impl::ForgetRun(Run* run) {
  sizes_.Forget(run);
  history_.Forget(run);
  trash_.Forget(run);
  retention_.Forget(run);
  uploads_.Forget(run);
  fetches_.Forget(run);
  shared_fetches_.Forget(run);
  disk_.Forget(run);
  scanner_.Forget(run);
  ended_.Forget(run);
  earlier_.Forget(run);
  residents_.OnRunClosed(run);
  prefetcher_.OnRunClosed(run);
  adoptions_.OnRunClosed(run);
  damage_.OnRunClosed(run);
  resumes_.OnRunClosed(run);
}

bool Engine::Impl::IsIdle(const Run& run) const {
  if (IsBusy(run) || scrubber_.IsReading(run) || adoptions_.IsActive(run) || !trash_.IsIdle(run) ||
      disk_.IsAsking(run) || uploads_.IsActive(run) || fetches_.IsActive(run) ||
      shared_fetches_.IsActive(run))
    return false;
  if (scanner_.IsRetryScheduled(run) || !history_.IsIdle(run) || !retention_.IsIdle(run)) return false;
  if (earlier_.IsWaiting(run)) return false;
  // What only this daemon knows: syncs that failed, damage that may not be written down.
  if (adoptions_.HasUnsynced(run) || !DamagedAfter(run, 0, DescribeHook()).empty()) return false;
  if (!damage_.IsIdle(run)) return false;
  return resumes_.IsIdle(run) && !watches_.IsWatched(run);
}

bool Engine::Impl::IsBusy(const Run& run) const {
  return run.read_only || run.degraded || run.scanning || !run.saves.empty() ||
         retention_.HasEvictions(run) || resumes_.HasWaiting(run) || prefetcher_.IsActive(run) ||
         leases_.HasAny(run);
}

void Engine::Impl::WithCheckpoint(
    const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply,
    absl::AnyInvocable<void(Run*, const std::string& tag, Reply<v1::Checkpoint>)> then) {
  runs_.WhenOpen<v1::Checkpoint>(
      caller, RunOf(name), std::move(reply),
      [this, caller, name, then = std::move(then)](Reply<v1::Checkpoint> awake) mutable {
        std::string tag;
        const absl::StatusOr<Run*> run = RunOfCheckpointName(caller, name, &tag);
        if (!run.ok()) return awake(run.status());
        then(*run, tag, std::move(awake));
      });
}

// ---- the public face

Engine::Engine(EngineOptions options, Clock* clock, SegmentPool* pool, EngineObserver* observer,
               SealJournal* journal)
    : impl_(std::make_unique<Impl>(std::move(options), clock, pool, observer, journal)) {}
Engine::~Engine() = default;

void Engine::Inherit(std::vector<storage::v1::SealedSave> saves) {
  impl_->recovery_.Inherit(std::move(saves));
}

void Engine::SessionOpened(const SessionInfo& info) { impl_->sessions_.Add(info); }
void Engine::SessionClosed(SessionId session, const std::string& why) { impl_->SessionClosed(session, why); }
void Engine::AttachRoot(SessionId session, RootAttachment attachment, Reply<std::string> root) {
  impl_->runs_.Attach(session, std::move(attachment), std::move(root));
}
void Engine::RecoverRoot(RootAttachment attachment, Reply<std::string> run) {
  impl_->runs_.Attach(0, std::move(attachment), std::move(run));
}
void Engine::JoinRun(const Caller& caller, const v1::JoinRunRequest& request,
                     Reply<v1::JoinRunResponse> reply) {
  if (!impl_->sessions_.IsOpen(caller.session)) {
    return reply(
        MakeError(absl::StatusCode::kUnauthenticated, reason::kUnknownToken, "JoinRun needs a session"));
  }
  absl::StatusOr<Run*> run = impl_->FindRun(caller, request.root());
  if (!run.ok()) return reply(run.status());
  impl_->joiner_.Join(caller.session, *run, request, std::move(reply));
}
void Engine::Begin(const Caller& caller, const v1::BeginRequest& request, Reply<v1::BeginResponse> reply) {
  impl_->Begin(caller, request, std::move(reply));
}
void Engine::Extend(const Caller& caller, const v1::ExtendRequest& request, Reply<v1::ExtendResponse> reply) {
  impl_->Extend(caller, request, std::move(reply));
}
void Engine::Seal(const Caller& caller, const v1::SealRequest& request, Reply<v1::SealResponse> reply) {
  impl_->Seal(caller, request, std::move(reply));
}
void Engine::Abort(const Caller& caller, const v1::AbortRequest& request, Reply<v1::AbortResponse> reply) {
  impl_->Abort(caller, request, std::move(reply));
}
void Engine::Wait(const Caller& caller, const v1::WaitRequest& request, Reply<v1::WaitResponse> reply) {
  impl_->Wait(caller, request, std::move(reply));
}
void Engine::GetCheckpoint(const Caller& caller, const v1::GetCheckpointRequest& request,
                           Reply<v1::Checkpoint> reply) {
  impl_->runs_.WhenOpen<v1::Checkpoint>(caller, RunOf(request.name()), std::move(reply),
                                        [this, caller, request](Reply<v1::Checkpoint> awake) {
                                          impl_->GetCheckpoint(caller, request, std::move(awake));
                                        });
}
void Engine::ListCheckpoints(const Caller& caller, const v1::ListCheckpointsRequest& request,
                             Reply<v1::ListCheckpointsResponse> reply) {
  impl_->runs_.WhenOpen<v1::ListCheckpointsResponse>(
      caller, request.parent(), std::move(reply),
      [this, caller, request](Reply<v1::ListCheckpointsResponse> awake) {
        impl_->ListCheckpoints(caller, request, std::move(awake));
      });
}
void Engine::Resume(const Caller& caller, const v1::ResumeRequest& request, Reply<v1::ResumeResponse> reply) {
  absl::StatusOr<Run*> run = impl_->FindRun(caller, request.run());
  if (!run.ok()) return reply(run.status());
  const Member* member = (*run)->members.Find(caller.session, request.rank());
  if (member == nullptr) return reply(NotJoined(request.run(), request.rank()));
  impl_->resumes_.Resume(*run, *member, request, std::move(reply));
}
void Engine::FinishResume(const Caller& caller, const v1::FinishResumeRequest& request,
                          Reply<v1::FinishResumeResponse> reply) {
  absl::StatusOr<Run*> run = impl_->FindRun(caller, request.run());
  if (!run.ok()) return reply(run.status());
  const Member* member = (*run)->members.Find(caller.session, request.rank());
  if (member == nullptr) return reply(NotJoined(request.run(), request.rank()));
  if (!request.failure().empty() || request.has_damage())
    impl_->restores_.OnFailed(**run, request.sequence(), request.rank(), request.failure(), request.damage());
  impl_->resumes_.FinishResume(*run, *member, request, std::move(reply));
}
void Engine::ReportDamage(const Caller& caller, const v1::ReportDamageRequest& request,
                          Reply<v1::ReportDamageResponse> reply) {
  std::string tag;
  absl::StatusOr<Run*> run = impl_->RunOfCheckpointName(caller, request.name(), &tag);
  if (!run.ok()) return reply(run.status());
  impl_->restores_.OnFailed(**run, request.sequence(), (*run)->members.RankOf(caller.session), "",
                            request.damage());
  impl_->damage_.Report(*run, tag, request, std::move(reply));
}
void Engine::OpenCheckpoint(const Caller& caller, const v1::OpenCheckpointRequest& request,
                            Reply<v1::OpenCheckpointResponse> reply) {
  impl_->runs_.WhenOpen<v1::OpenCheckpointResponse>(
      caller, RunOf(request.name()), std::move(reply),
      [this, caller, request](Reply<v1::OpenCheckpointResponse> awake) {
        impl_->OpenCheckpoint(caller, request, std::move(awake));
      });
}

void Engine::LocateFiles(const Caller& caller, const v1::LocateFilesRequest& request,
                         Reply<v1::LocateFilesResponse> reply) {
  impl_->LocateFiles(caller, request, std::move(reply));
}

void Engine::ReportReading(const Caller& caller, const v1::ReportReadingRequest& request,
                           Reply<v1::ReportReadingResponse> reply) {
  if (absl::Status wrong = impl_->leases_.Report(caller, request); !wrong.ok()) return reply(wrong);
  reply(v1::ReportReadingResponse());
}
void Engine::CloseCheckpoint(const Caller& caller, const v1::CloseCheckpointRequest& request,
                             Reply<v1::CloseCheckpointResponse> reply) {
  if (absl::Status wrong = impl_->leases_.Close(caller, request.lease()); !wrong.ok()) return reply(wrong);
  reply(v1::CloseCheckpointResponse());
}

absl::StatusOr<std::shared_ptr<CheckpointReader>> Engine::FindReader(const Caller& caller,
                                                                     const std::string& lease) {
  const absl::StatusOr<const Lease*> found = impl_->leases_.Find(caller, lease);
  if (!found.ok()) return found.status();
  return (*found)->reader;
}

absl::StatusOr<Engine::WriteTarget> Engine::BeginWrite(const Caller& caller, const v1::SaveKey& key,
                                                       const std::string& path,
                                                       std::function<void(const absl::Status&)> revoke) {
  return impl_->BeginWrite(caller, key, path, std::move(revoke));
}
void Engine::EndWrite(int64_t id) { impl_->streams_.Close(id); }

int64_t Engine::AddWatcher(const Caller& caller, const v1::WatchRequest& request,
                           std::function<bool(const v1::WatchResponse&)> event, absl::Status* refused) {
  *refused = absl::OkStatus();
  if (!request.parent().empty()) {
    if (absl::StatusOr<Run*> run = impl_->FindRun(caller, request.parent()); !run.ok()) {
      *refused = run.status();
      return 0;
    }
  }
  const absl::StatusOr<int64_t> id = impl_->watches_.Add(caller, request, std::move(event));
  *refused = id.status();
  return id.value_or(0);
}
void Engine::RemoveWatcher(int64_t id) { impl_->watches_.Remove(id); }

v1::Status Engine::GetStatus(const Caller& caller) {
  v1::Status status;
  status.set_daemon_version(impl_->options_.daemon_version);
  status.set_daemon_instance(impl_->options_.daemon_instance);
  SetTime(impl_->started_unix_us_, status.mutable_start_time());
  const PoolUsage usage = impl_->pool_->usage();
  v1::PoolStatus& pool = *status.mutable_pool();
  pool.set_total_bytes(usage.total_bytes);
  pool.set_used_bytes(usage.used_bytes);
  pool.set_lent_bytes(usage.lent_bytes);
  pool.set_ready_bytes(usage.ready_bytes);
  pool.set_resident_bytes(usage.resident_bytes);
  pool.set_pages(usage.pages);
  pool.set_segment_bytes(impl_->pool_->segment_bytes());
  bool degraded = false;
  for (const auto& [name, run] : impl_->runs_.all()) {
    if (!impl_->runs_.Sees(caller, *run)) continue;
    *status.add_runs() = impl_->Describe(*run);
    degraded |= run->degraded || run->read_only;
  }
  for (v1::Run& closed : impl_->runs_.ClosedRuns(caller)) *status.add_runs() = std::move(closed);
  status.set_sessions(impl_->sessions_.count());
  status.set_draining(impl_->draining_);
  status.set_written_bytes(impl_->disk_.WrittenBytes());
  status.set_state(impl_->draining_ ? "DRAINING" : degraded ? "DEGRADED" : "SERVING");
  if (!impl_->operator_drain_) return status;
  *status.mutable_drain() = impl_->DescribeDrain(caller);
  status.set_state(!impl_->draining_ && status.drain().drained() ? "DRAINED" : "DRAINING");
  return status;
}

v1::ListSessionsResponse Engine::ListSessions(const Caller& caller) { return impl_->ListSessions(caller); }

void Engine::Prefetch(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply) {
  impl_->WithCheckpoint(caller, name, std::move(reply),
                        [this](Run* run, const std::string& tag, Reply<v1::Checkpoint> then) {
                          impl_->prefetcher_.Prefetch(run, tag, std::move(then));
                        });
}
void Engine::SetPinned(const Caller& caller, const std::string& name, bool pinned,
                       Reply<v1::Checkpoint> reply) {
  impl_->WithCheckpoint(caller, name, std::move(reply),
                        [this, pinned](Run* run, const std::string& tag, Reply<v1::Checkpoint> then) {
                          impl_->SetPinned(run, tag, pinned, std::move(then));
                        });
}
void Engine::SetRetention(const Caller& caller, const v1::SetRetentionRequest& request,
                          Reply<v1::Run> reply) {
  if (absl::Status wrong = CheckRetention(request.policy()); !wrong.ok()) return reply(wrong);
  impl_->WithRun<v1::Run>(
      caller, request.run(), std::move(reply),
      [this, request](Run* run, Reply<v1::Run> then) { impl_->SetRetention(run, request, std::move(then)); });
}
void Engine::ExplainRetention(const Caller& caller, const v1::ExplainRetentionRequest& request,
                              Reply<v1::ExplainRetentionResponse> reply) {
  if (absl::Status wrong = CheckRetention(request.policy()); !wrong.ok()) return reply(wrong);
  impl_->WithRun<v1::ExplainRetentionResponse>(
      caller, request.run(), std::move(reply),
      [this, request](Run* run, Reply<v1::ExplainRetentionResponse> then) {
        impl_->ExplainRetention(run, request, std::move(then));
      });
}
void Engine::DeleteCheckpoint(const Caller& caller, const v1::DeleteCheckpointRequest& request,
                              Reply<v1::Checkpoint> reply) {
  impl_->WithCheckpoint(
      caller, request.name(), std::move(reply),
      [this, caller, force = request.force()](Run* run, const std::string& tag, Reply<v1::Checkpoint> then) {
        impl_->DeleteCheckpoint(run, tag, caller, force, std::move(then));
      });
}
void Engine::ListTrash(const Caller& caller, const v1::ListTrashRequest& request,
                       Reply<v1::ListTrashResponse> reply) {
  impl_->WithRun<v1::ListTrashResponse>(
      caller, request.run(), std::move(reply),
      [this](Run* run, Reply<v1::ListTrashResponse> then) { impl_->ListTrash(run, std::move(then)); });
}
void Engine::FindRoot(const Caller& caller, const std::string& run, Reply<RootKey> reply) {
  impl_->WithRun<RootKey>(caller, run, std::move(reply),
                          [](Run* found, Reply<RootKey> then) { then(KeyOf(*found)); });
}
void Engine::UndeleteCheckpoint(const Caller& caller, const v1::UndeleteCheckpointRequest& request,
                                Reply<v1::Checkpoint> reply) {
  impl_->WithCheckpoint(
      caller, request.name(), std::move(reply),
      [this, sequence = request.sequence()](Run* run, const std::string& tag, Reply<v1::Checkpoint> then) {
        impl_->UndeleteCheckpoint(run, tag, sequence, std::move(then));
      });
}
void Engine::ResolveSave(const Caller& caller, const v1::ResolveSaveRequest& request,
                         Reply<v1::ResolveSaveResponse> reply) {
  impl_->WithRun<v1::ResolveSaveResponse>(caller, RunOf(request.name()), std::move(reply),
                                          [this, caller, request](Run*, Reply<v1::ResolveSaveResponse> then) {
                                            impl_->ResolveSave(caller, request, std::move(then));
                                          });
}
void Engine::ClearDamage(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply) {
  impl_->WithCheckpoint(caller, name, std::move(reply),
                        [this](Run* run, const std::string& tag, Reply<v1::Checkpoint> then) {
                          impl_->damage_.Clear(run, tag, std::move(then));
                        });
}

int64_t Engine::AdoptCheckpoints(const Caller& caller, const v1::AdoptCheckpointsRequest& request,
                                 std::function<bool(const v1::AdoptCheckpointsResponse&)> event,
                                 std::function<void(const absl::Status&)> ended) {
  const absl::StatusOr<Run*> run = impl_->FindRun(caller, request.parent());
  if (run.ok()) return impl_->adoptions_.Start(*run, request, std::move(event), std::move(ended));
  ended(run.status());
  return 0;
}
void Engine::StopAdoption(int64_t id) { impl_->adoptions_.Stop(id); }

void Engine::Impl::FreeIdleMemory(Instant now) {
  const uint64_t uses = pool_->uses();
  if (std::exchange(pool_uses_, uses) != uses || pool_->usage().used_bytes > 0) pool_idle_since_ = now;
  if (options_.idle_pool <= Duration::zero() || now - pool_idle_since_ < options_.idle_pool) return;
  pool_idle_since_ = now;
  pool_->FreeUnused();
}

bool Engine::HasSealedSaves() const {
  return std::any_of(impl_->saves_.all().begin(), impl_->saves_.all().end(),
                     [](const auto& entry) { return entry.second->sealed(); });
}

bool Engine::HasUploads() const {
  const auto& runs = impl_->runs_.all();
  return std::any_of(runs.begin(), runs.end(),
                     [this](const auto& entry) { return impl_->uploads_.IsActive(*entry.second); });
}

void Engine::Tick() { impl_->Tick(); }

Instant Engine::NextDeadline() const {
  return std::min({impl_->intake_.NextDeadline(), impl_->queue_.NextDeadline(),
                   impl_->tracker_.NextDeadline(), impl_->resumes_.NextDeadline()});
}

}  // namespace ckptd
