// The public face, sessions, looking and watching.
#include "daemon/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/validate.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

// Of a checkpoint's name; empty where it is none.
std::string RunOf(const std::string& checkpoint_name) {
  const auto parsed = ParseCheckpointName(checkpoint_name);
  return parsed ? parsed->first : "";
}

}  // namespace

Engine::Impl::Impl(EngineOptions options, Clock* clock, SegmentPool* pool, EngineObserver* observer,
                   SealJournal* journal)
    : options_(std::move(options)),
      clock_(clock),
      pool_(pool),
      observer_(observer),
      started_unix_us_(clock->UnixMicros()),
      placer_(options_.limits, options_.chunk_bytes),
      history_(clock, observer,
               {.retention_may_continue = [this](Run* run) { retention_.Apply(run); },
                .write_failed =
                    [this](Run*, bool retention_waits) {
                      CheckDrained();
                      if (retention_waits) queue_.TryAdmitAll();
                    }}),
      trash_(clock, observer,
             {.has_leases = [this](const Run& run) { return !LeasedSequences(&run).empty(); },
              .room_changed = [this](Run* run) { disk_.NoteChange(*run); },
              .emptied =
                  [this](Run* run) {
                    CheckDrained();
                    disk_.AskAfterChange(run);
                  }}),
      retention_(observer, &history_, &trash_,
                 {.leased_sequences = [this](const Run& run) { return LeasedSequences(&run); },
                  .evicted = [this](Run* run) { PruneResidents(run); },
                  .needs_scan = [this](Run* run) { scanner_.Scan(run); },
                  .settled = [this] { CheckDrained(); }}),
      disk_(clock, &runs_, &saves_, &sizes_,
            {.may_free_room =
                 [this](const Run& run) {
                   return retention_.HasEvictions(run) || trash_.MayFreeRoom(run) ||
                          history_.MayFreeRoom(run);
                 },
             .empty_trash = [this](Run* run) { trash_.Empty(run); },
             .room_changed = [this] { queue_.TryAdmitAll(); }}),
      scanner_(clock, observer,
               {.written_bytes = [this](const Run& run) { return disk_.WrittenBytes(run.device); },
                .load =
                    [this](Run* run, RootSnapshot snapshot, int64_t written_bytes) {
                      Adopt(run, std::move(snapshot));
                      disk_.SetWrittenBefore(run, written_bytes);
                    },
                .usable =
                    [this](Run* run) {
                      publisher_.OnScanned(run);
                      ContinueResumes(run);
                      trash_.Empty(run);
                      queue_.TryAdmitAll();
                    }}),
      shares_(pool, &saves_, &sizes_, options_.max_pool_percent_per_user, [this] { return HeldByReaders(); }),
      queue_(clock, pool, &saves_, &sizes_, &shares_, &disk_, options_.over_share_grace,
             {.fail = [this](Save* save, absl::Status error,
                             v1::Level level) { tracker_.Fail(save, std::move(error), level); },
              .admitted =
                  [this](Save* save) {
                    publisher_.Start(save);
                    grants_.OnAdmitted(save);
                  },
              .session_of_rank =
                  [this](const Run& run, int64_t attempt, int rank) {
                    const Member* member = FindRank(const_cast<Run*>(&run), attempt, rank);
                    return member == nullptr ? SessionId() : member->session;
                  }}),
      grants_(pool, &saves_, &sizes_, &shares_, &disk_, &placer_,
              [this](Save* save, absl::Status error) { tracker_.Fail(save, std::move(error)); }),
      intake_(options_, clock, observer, &saves_, &placer_, &queue_, &grants_, &disk_,
              {.find_run =
                   [this](const std::string& name) {
                     const auto found = runs_.find(name);
                     return found == runs_.end() ? nullptr : found->second.get();
                   },
               .find_member = [this](Run* run, SessionId session,
                                     int rank) { return FindMember(run, session, rank); },
               .fence_off = [this](Run* run, int64_t attempt) { FenceOff(run, attempt); },
               .answer_if_ended = [this](Run* run, const SaveId& key) { return AnswerIfEnded(run, key); },
               .is_pinned = [this](const Run& run,
                                   int64_t sequence) { return retention_.IsPinned(run, sequence); },
               .fail = [this](Save* save, absl::Status error) { tracker_.Fail(save, std::move(error)); }}),
      ended_({.describe_save = [this](const Save& save) { return Describe(save, v1::BASIC); },
              .describe_committed =
                  [this](const Run& run, const CommittedCheckpoint& committed) {
                    return Describe(run, committed);
                  }}),
      streams_(&saves_),
      publisher_(clock, observer, &saves_, &sizes_, &scanner_, options_.chunk_bytes,
                 {.fail = [this](Save* save, absl::Status error) { tracker_.Fail(save, std::move(error)); },
                  .continue_failing = [this](Save* save) { tracker_.ContinueFailing(save); },
                  .committed =
                      [this](Save* save, CommittedCheckpoint committed, PointerFiles pointers) {
                        OnCommitted(save, std::move(committed), std::move(pointers));
                      },
                  .indeterminate = [this](Save* save) { tracker_.End(save, v1::INDETERMINATE); }}),
      tracker_(
          clock, pool, observer, &saves_, &ended_, &streams_, &sizes_, &scanner_, &trash_,
          {.describe = [this](const Save& save, v1::View view) { return Describe(save, view); },
           .changed = [this](const Save& save) { Notify(save); },
           .all_sealed =
               [this](Save* save) {
                 sizes_.Remember(*save);
                 recovery_.Keep(save);
               },
           .part_sealed = [this](Save* save) { publisher_.WriteSealedParts(save); },
           .failing = [this](Save* save) { recovery_.Drop(save); },
           .releasing_memory =
               [this](Save* save) {
                 recovery_.Drop(save);
                 if (save->reservation != 0 && save->level == v1::COMMITTED) KeepResident(save);
               },
           .memory_released =
               [this](const Save& save) {
                 PruneResidents(save.run);
                 placer_.Forget(save);
                 disk_.OnSaveEnded(save);
               },
           .record = [this](Run* run, const storage::v1::Outcome& outcome) { history_.Record(run, outcome); },
           .ended =
               [this](Save* save) {
                 publisher_.OnSaveEnded(*save);
                 ContinueResumes(save->run);
                 queue_.TryAdmitAll();
                 CheckDrained();
               }}),
      recovery_(clock, observer, pool, journal, &runs_, &saves_, &sizes_, options_.chunk_bytes,
                {.past = [this](const Run& run, const SaveId& key) { return ended_.Past(run, key); },
                 .recovered =
                     [this](Save* save) {
                       publisher_.Start(save);
                       Notify(*save);
                     }}) {
  pool_->OnRoom([this] { queue_.TryAdmitAll(); });
}

// ---- describing

v1::Checkpoint Engine::Impl::Describe(const Save& save, v1::View view) const {
  if (save.summary != nullptr) {
    v1::Checkpoint checkpoint = *save.summary;
    DescribeCommit(*save.run, save.sequence, checkpoint);
    return checkpoint;
  }
  v1::Checkpoint checkpoint;
  checkpoint.set_name(absl::StrCat(save.run->name, "/checkpoints/", save.key.tag));
  checkpoint.set_run(save.run->name);
  checkpoint.set_tag(save.key.tag);
  if (save.step) checkpoint.set_step(*save.step);
  checkpoint.set_sequence(save.sequence);
  checkpoint.set_attempt(save.key.attempt);
  checkpoint.set_ordinal(save.key.ordinal);
  checkpoint.set_level(save.level);
  checkpoint.set_world_size(save.world_size);
  checkpoint.set_directory(absl::StrCat(save.run->path, "/", save.key.tag));
  int64_t bytes = 0;
  int files = 0;
  for (const auto& entry : save.parts) {
    const Part& part = entry.second;
    auto add = [&](const std::string& path, int64_t size) {
      bytes += size;
      ++files;
      if (view != v1::FULL) return;
      v1::FileInfo& info = *checkpoint.add_files();
      info.set_path(path);
      info.set_size_bytes(size);
      info.set_rank(part.rank);
    };
    if (part.sealed) {
      for (const v1::FileSpec& file : part.files) add(file.path(), file.size_bytes());
      if (save.level < v1::COMMITTED) checkpoint.add_staged_ranks(part.rank);
    } else {
      for (const auto& placed : part.placed) add(placed.first, placed.second.size_bytes());
    }
  }
  for (int rank : save.UnsealedRanks()) checkpoint.add_missing_ranks(rank);
  checkpoint.set_size_bytes(bytes);
  checkpoint.set_file_count(files);
  checkpoint.set_written_bytes(
      save.level == v1::COMMITTED ? bytes : std::min(bytes, save.written->load(std::memory_order_relaxed)));
  for (const auto& metric : save.metrics) (*checkpoint.mutable_metrics())[metric.first] = metric.second;
  SetTime(save.begun_unix_us, checkpoint.mutable_create_time());
  DescribeCommit(*save.run, save.sequence, checkpoint);
  if (!save.error.ok() && save.level >= v1::FAILED) {
    v1::SaveError& error = *checkpoint.mutable_error();
    error.set_reason(ReasonOf(save.error));
    error.set_message(std::string(save.error.message()));
    error.set_code(static_cast<int>(save.error.code()));
    const ErrorDetails details = DetailsOf(save.error);
    if (auto ranks = details.find("ranks"); ranks != details.end()) {
      for (int rank : SplitRanks(ranks->second)) error.add_ranks(rank);
    }
  }
  return checkpoint;
}

// What may change of a save after its end.
void Engine::Impl::DescribeCommit(const Run& run, int64_t sequence, v1::Checkpoint& checkpoint) const {
  checkpoint.clear_commit_time();
  checkpoint.clear_pinned();
  checkpoint.clear_resident();
  const auto committed = run.committed.find(sequence);
  if (committed == run.committed.end()) return;
  SetTime(committed->second.summary.commit_time_us(), checkpoint.mutable_commit_time());
  checkpoint.set_pinned(committed->second.pinned);
  checkpoint.set_resident(IsResident(run, sequence));
}

v1::Checkpoint Engine::Impl::Describe(const Run& run, const CommittedCheckpoint& committed) const {
  const storage::v1::ManifestSummary& summary = committed.summary;
  v1::Checkpoint checkpoint;
  checkpoint.set_name(absl::StrCat(run.name, "/checkpoints/", summary.tag()));
  checkpoint.set_run(run.name);
  checkpoint.set_tag(summary.tag());
  if (summary.has_step()) checkpoint.set_step(summary.step());
  checkpoint.set_sequence(summary.sequence());
  checkpoint.set_attempt(summary.attempt());
  checkpoint.set_ordinal(summary.ordinal());
  checkpoint.set_level(v1::COMMITTED);
  checkpoint.set_world_size(summary.world_size());
  checkpoint.set_size_bytes(summary.size_bytes());
  checkpoint.set_written_bytes(summary.size_bytes());
  checkpoint.set_file_count(summary.file_count());
  *checkpoint.mutable_metrics() = summary.metrics();
  SetTime(summary.create_time_us(), checkpoint.mutable_create_time());
  SetTime(summary.commit_time_us(), checkpoint.mutable_commit_time());
  checkpoint.set_pinned(committed.pinned);
  checkpoint.set_adopted_from(summary.adopted_from());
  checkpoint.set_directory(absl::StrCat(run.path, "/", summary.tag()));
  if (committed.damage) ToWire(*committed.damage, checkpoint.mutable_damage());
  int leases = 0;
  for (const auto& entry : leases_) {
    leases += entry.second.run == &run && entry.second.sequence == summary.sequence();
  }
  checkpoint.set_leases(leases);
  checkpoint.set_resident(IsResident(run, summary.sequence()));
  if (auto scrubbed = run.scrubbed_unix_us.find(summary.sequence()); scrubbed != run.scrubbed_unix_us.end())
    SetTime(scrubbed->second, checkpoint.mutable_scrub_time());
  return checkpoint;
}

v1::Run Engine::Impl::Describe(const Run& run) const {
  v1::Run description;
  description.set_name(run.name);
  description.set_path(run.path);
  description.set_uid(static_cast<int>(run.uid));
  description.set_degraded(run.degraded);
  description.set_read_only(run.read_only);
  if (!run.open) return description;
  description.set_run_id(run.ledger->record().run_id());
  description.set_attempt(run.ledger->active_attempt());
  for (const storage::v1::Launch& launch : run.ledger->record().launches()) {
    if (launch.attempt() == description.attempt()) description.set_world_size(launch.world_size());
  }
  if (const CommittedCheckpoint* newest = Newest(run)) *description.mutable_latest() = Describe(run, *newest);
  for (v1::Checkpoint& damaged : PassedOver(run, 0)) *description.add_damaged() = std::move(damaged);
  for (const auto& entry : run.saves) {
    if (!entry.second->remembered) *description.add_in_flight() = Describe(*entry.second, v1::BASIC);
  }
  if (const auto& failures = ended_.failures(run); !failures.empty())
    *description.mutable_last_failure() = failures.back();
  for (int64_t victim : retention_.PredictedVictims(run)) {
    description.add_predicted_victims(run.committed.at(victim).summary.tag());
  }
  description.set_checkpoint_count(static_cast<int>(run.committed.size()));
  if (const std::optional<int> kept = retention_.num_kept_ckpts(run)) description.set_num_kept_ckpts(*kept);
  description.set_trash_bytes(trash_.bytes(run));
  v1::RootProbe& probe = *description.mutable_probe();
  probe.set_file_system(run.probe.file_system);
  probe.set_io_backend(run.probe.io_backend);
  probe.set_io_backend_cause(run.probe.io_backend_cause);
  probe.set_direct_io(run.probe.direct_io);
  probe.set_fallocate(run.probe.fallocate);
  probe.set_rename_exchange(run.probe.rename_exchange);
  probe.set_directory_sync(run.probe.directory_sync);
  probe.set_locks(run.probe.locks);
  probe.set_free_bytes(disk_.measured_free_bytes(run));
  for (const std::string& warning : run.probe.warnings) probe.add_warnings(warning);
  return description;
}

// ---- looking

void Engine::Impl::GetCheckpoint(const Caller& caller, const v1::GetCheckpointRequest& request,
                                 Reply<v1::Checkpoint> reply) {
  std::string tag;
  absl::StatusOr<Run*> found = RunOfCheckpointName(caller, request.name(), &tag);
  if (!found.ok()) return reply(found.status());
  Run* run = *found;
  if (tag != "latest") {
    for (auto save = run->saves.rbegin(); save != run->saves.rend(); ++save) {
      if (save->second->key.tag == tag) return reply(Describe(*save->second, request.view()));
    }
  }
  const CommittedCheckpoint* committed = tag == "latest" ? Newest(*run) : nullptr;
  for (const auto& entry : run->committed) {
    if (entry.second.summary.tag() == tag) committed = &entry.second;
  }
  if (committed == nullptr) {
    const std::deque<v1::Checkpoint>& failures = ended_.failures(*run);
    for (auto failure = failures.rbegin(); failure != failures.rend(); ++failure) {
      if (failure->tag() == tag) return reply(*failure);
    }
    return reply(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                           tag == "latest"
                               ? absl::StrCat("nothing that is not damaged is committed in ", run->path)
                               : absl::StrCat("no checkpoint ", tag, " is known in ", run->path),
                           {{"tag", tag}}));
  }
  v1::Checkpoint checkpoint = Describe(*run, *committed);
  if (request.view() != v1::FULL) return reply(std::move(checkpoint));
  run->io->OpenCheckpoint(checkpoint.tag(), checkpoint.sequence(),
                          [this, run, caller, request, checkpoint, reply = std::move(reply)](
                              absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) mutable {
                            if (!reader.ok() && checkpoint.has_damage()) return reply(std::move(checkpoint));
                            if (!reader.ok() && TellsOfDamage(*run, reader.status())) {
                              return MarkDamaged(run, checkpoint.sequence(), DamageOf(reader.status()),
                                                 [this, caller, request, reply = std::move(reply)]() mutable {
                                                   GetCheckpoint(caller, request, std::move(reply));
                                                 });
                            }
                            if (!reader.ok()) return reply(reader.status());
                            for (const storage::v1::FileRecord& file : (*reader)->manifest().body.files()) {
                              v1::FileInfo& info = *checkpoint.add_files();
                              info.set_path(file.path());
                              info.set_size_bytes(file.size_bytes());
                              info.set_rank(file.rank());
                            }
                            reply(std::move(checkpoint));
                          });
}

void Engine::Impl::ListCheckpoints(const Caller& caller, const v1::ListCheckpointsRequest& request,
                                   Reply<v1::ListCheckpointsResponse> reply) {
  absl::StatusOr<Run*> found = FindRun(caller, request.parent());
  if (!found.ok()) return reply(found.status());
  Run* run = *found;
  if (request.page_size() < 0 || request.page_size() > 1000) {
    return reply(MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                           absl::StrCat("page_size is ", request.page_size(), "; it is in [0, 1000]")));
  }
  int64_t below = INT64_MAX;  // The page token is the last sequence of the page before.
  if (!request.page_token().empty() && (!absl::SimpleAtoi(request.page_token(), &below) || below < 1)) {
    return reply(MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                           "page_token is not one that this method answered"));
  }
  std::map<int64_t, v1::Checkpoint> all;
  for (const auto& entry : run->committed) all.emplace(entry.first, Describe(*run, entry.second));
  if (request.show_all()) {
    for (const v1::Checkpoint& failure : ended_.failures(*run)) all.emplace(failure.sequence(), failure);
    for (const auto& entry : run->saves)
      all.insert_or_assign(entry.first, Describe(*entry.second, request.view()));
  }
  const int page_size = request.page_size() == 0 ? 100 : request.page_size();
  v1::ListCheckpointsResponse response;
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    if (entry->first >= below) continue;
    if (response.checkpoints_size() == page_size) {
      response.set_next_page_token(absl::StrCat(response.checkpoints(page_size - 1).sequence()));
      break;
    }
    *response.add_checkpoints() = std::move(entry->second);
  }
  if (request.show_foreign() && response.next_page_token().empty())
    return ListForeign(run, std::move(response), std::move(reply));
  reply(std::move(response));
}

void Engine::Impl::Notify(const Save& save) {
  v1::WatchResponse event;
  *event.mutable_checkpoint() = Describe(save, v1::BASIC);
  NotifyWatchers(*save.run, std::move(event));
}

void Engine::Impl::NotifyWatchers(const Run& run, v1::WatchResponse event) {
  SetTime(clock_->UnixMicros(), event.mutable_time());
  std::vector<int64_t> over;
  for (auto& entry : watchers_) {
    Watcher& watcher = entry.second;
    if (!Sees(watcher.caller, run) || (!watcher.run.empty() && watcher.run != run.name)) continue;
    if (!watcher.event(event)) over.push_back(entry.first);
  }
  for (int64_t id : over) watchers_.erase(id);
}

// ---- time

void Engine::Impl::Tick() {
  const Instant now = clock_->Now();
  ended_.OnTick();
  tracker_.OnTick(now);
  for (auto& entry : runs_) {
    Run* run = entry.second.get();
    if (run->open_again_at && now >= *run->open_again_at) OpenRoot(run);
    disk_.OnTick(run, now);
    scanner_.OnTick(run, now);
    publisher_.OnTick(run, now);
    history_.OnTick(run, now);
    trash_.OnTick(run, now);
    UpdateDegraded(run, now);
    ExpireFinishes(run, now);
    ExpireAttaches(run, now);
    Scrub(run, now);
    ShowAdoption(run, now);
    std::vector<PendingResume> over;
    for (auto pending = run->resumes.begin(); pending != run->resumes.end();) {
      if (now < pending->deadline) {
        ++pending;
        continue;
      }
      over.push_back(std::move(*pending));
      pending = run->resumes.erase(pending);
    }
    for (PendingResume& pending : over) {
      std::string waits_for = run->read_only ? "the root to be scanned anew" : "";
      for (const auto& save : run->saves) {
        if (save.second->key.attempt < pending.attempt)
          absl::StrAppend(&waits_for, " ", save.second->key.tag);
      }
      pending.reply(MakeError(absl::StatusCode::kDeadlineExceeded, "RESUME_TIMEOUT",
                              absl::StrCat("what to resume from is not decided in time; it waits for",
                                           waits_for, " of an earlier attempt to be published or to fail")));
    }
  }
  queue_.OnTick(now);
  recovery_.OnTick(now);
  CloseIdleRuns(now);
  std::vector<int64_t> gone;
  for (auto& entry : watchers_) {
    Watcher& watcher = entry.second;
    if (now < watcher.next) continue;
    watcher.next = now + watcher.interval;
    for (const auto& item : saves_.all()) {
      Save* save = item.second;
      if (!Sees(watcher.caller, *save->run) || (!watcher.run.empty() && watcher.run != save->run->name))
        continue;
      v1::WatchResponse event;
      *event.mutable_checkpoint() = Describe(*save, v1::BASIC);
      SetTime(clock_->UnixMicros(), event.mutable_time());
      if (!watcher.event(event)) {
        gone.push_back(entry.first);
        break;
      }
    }
  }
  for (int64_t id : gone) watchers_.erase(id);
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

void Engine::Impl::OnCommitted(Save* save, CommittedCheckpoint committed, PointerFiles pointers) {
  Run* run = save->run;
  std::erase_if(run->committed,
                [save](const auto& entry) { return entry.second.summary.tag() == save->key.tag; });
  run->committed.emplace(save->sequence, std::move(committed));
  retention_.SetNumKept(run, save->num_kept_ckpts);
  run->ledger->SetRetention(save->num_kept_ckpts);
  retention_.SetPointers(run, std::move(pointers));
  tracker_.End(save, v1::COMMITTED);  // Retention follows when the history is on disk.
}

bool Engine::Impl::IsRetaining(const Run& run) const {
  return history_.IsWriting(run) || retention_.IsWorking(run) || trash_.IsEmptying(run);
}

void Engine::Impl::ForgetRun(Run* run) {
  sizes_.Forget(run);
  history_.Forget(run);
  trash_.Forget(run);
  retention_.Forget(run);
  disk_.Forget(run);
  scanner_.Forget(run);
  ended_.Forget(run);
}

void Engine::Impl::CheckDrained() {
  if (!draining_) return;
  for (const auto& entry : saves_.all()) {
    if (entry.second->sealed()) return;
  }
  for (const auto& entry : runs_) {
    if (IsRetaining(*entry.second)) return;
  }
  for (auto& done : std::exchange(drained_, {})) done();
}

// ---- the public face

Engine::Engine(EngineOptions options, Clock* clock, SegmentPool* pool, EngineObserver* observer,
               SealJournal* journal)
    : impl_(std::make_unique<Impl>(std::move(options), clock, pool, observer, journal)) {}
Engine::~Engine() = default;

void Engine::Inherit(std::vector<storage::v1::SealedSave> saves) {
  impl_->recovery_.Inherit(std::move(saves));
}

void Engine::SessionOpened(const SessionInfo& info) { impl_->sessions_.emplace(info.id, info); }
void Engine::SessionClosed(SessionId session, const std::string& why) { impl_->SessionClosed(session, why); }
void Engine::AttachRoot(SessionId session, RootAttachment attachment, Reply<std::string> root) {
  impl_->AttachRoot(session, std::move(attachment), std::move(root));
}
void Engine::RecoverRoot(RootAttachment attachment, Reply<std::string> run) {
  impl_->AttachRoot(0, std::move(attachment), std::move(run));
}
void Engine::JoinRun(const Caller& caller, const v1::JoinRunRequest& request,
                     Reply<v1::JoinRunResponse> reply) {
  impl_->JoinRun(caller, request, std::move(reply));
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
  impl_->WhenAwake<v1::Checkpoint>(caller, RunOf(request.name()), std::move(reply),
                                   [this, caller, request](Reply<v1::Checkpoint> awake) {
                                     impl_->GetCheckpoint(caller, request, std::move(awake));
                                   });
}
void Engine::ListCheckpoints(const Caller& caller, const v1::ListCheckpointsRequest& request,
                             Reply<v1::ListCheckpointsResponse> reply) {
  impl_->WhenAwake<v1::ListCheckpointsResponse>(
      caller, request.parent(), std::move(reply),
      [this, caller, request](Reply<v1::ListCheckpointsResponse> awake) {
        impl_->ListCheckpoints(caller, request, std::move(awake));
      });
}
void Engine::Resume(const Caller& caller, const v1::ResumeRequest& request, Reply<v1::ResumeResponse> reply) {
  impl_->Resume(caller, request, std::move(reply));
}
void Engine::FinishResume(const Caller& caller, const v1::FinishResumeRequest& request,
                          Reply<v1::FinishResumeResponse> reply) {
  impl_->FinishResume(caller, request, std::move(reply));
}
void Engine::ReportDamage(const Caller& caller, const v1::ReportDamageRequest& request,
                          Reply<v1::ReportDamageResponse> reply) {
  impl_->ReportDamage(caller, request, std::move(reply));
}
void Engine::OpenCheckpoint(const Caller& caller, const v1::OpenCheckpointRequest& request,
                            Reply<v1::OpenCheckpointResponse> reply) {
  impl_->WhenAwake<v1::OpenCheckpointResponse>(
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
  impl_->ReportReading(caller, request, std::move(reply));
}
void Engine::CloseCheckpoint(const Caller& caller, const v1::CloseCheckpointRequest& request,
                             Reply<v1::CloseCheckpointResponse> reply) {
  auto lease = impl_->leases_.find(request.lease());
  // Closed before: a retry.
  if (lease != impl_->leases_.end()) {
    if (lease->second.session != caller.session) {
      return reply(MakeError(absl::StatusCode::kPermissionDenied, "UNKNOWN_LEASE",
                             absl::StrCat("lease ", request.lease(), " belongs to another session")));
    }
    impl_->CloseLease(lease);
  }
  reply(v1::CloseCheckpointResponse());
}

absl::StatusOr<std::shared_ptr<CheckpointReader>> Engine::FindReader(const Caller& caller,
                                                                     const std::string& lease) {
  const absl::StatusOr<Lease*> found = impl_->FindLease(caller, lease);
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
  absl::StatusOr<Duration> interval =
      CheckDuration(request.has_interval(), request.interval(), "interval", std::chrono::milliseconds(500),
                    std::chrono::milliseconds(100), std::chrono::seconds(60));
  if (!interval.ok()) {
    *refused = interval.status();
    return 0;
  }
  const int most = impl_->options_.limits.watches_per_uid;
  const auto watches =
      std::count_if(impl_->watchers_.begin(), impl_->watchers_.end(),
                    [&](const auto& entry) { return entry.second.caller.uid == caller.uid; });
  if (watches >= most) {
    *refused = UidLimitExceeded(caller.uid, "watches", most, "watches_per_uid");
    return 0;
  }
  const int64_t id = impl_->next_id_++;
  impl_->watchers_.emplace(
      id, Impl::Watcher{caller, request.parent(), *interval, impl_->clock_->Now(), std::move(event)});
  return id;
}
void Engine::RemoveWatcher(int64_t id) { impl_->watchers_.erase(id); }

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
  for (const auto& entry : impl_->runs_) {
    if (!impl_->Sees(caller, *entry.second)) continue;
    *status.add_runs() = impl_->Describe(*entry.second);
    degraded |= entry.second->degraded || entry.second->read_only;
  }
  for (const auto& [name, idle] : impl_->idle_) {
    const bool shown = caller.privileged || caller.uid == idle.uid;
    if (shown && !impl_->runs_.contains(name)) *status.add_runs() = idle.description;
  }
  status.set_sessions(static_cast<int>(impl_->sessions_.size()));
  status.set_draining(impl_->draining_);
  status.set_state(impl_->draining_ ? "DRAINING" : degraded ? "DEGRADED" : "SERVING");
  return status;
}

void Engine::Prefetch(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply) {
  impl_->WhenAwake<v1::Checkpoint>(
      caller, RunOf(name), std::move(reply),
      [this, caller, name](Reply<v1::Checkpoint> awake) { impl_->Prefetch(caller, name, std::move(awake)); });
}
void Engine::SetPinned(const Caller& caller, const std::string& name, bool pinned,
                       Reply<v1::Checkpoint> reply) {
  impl_->WhenAwake<v1::Checkpoint>(caller, RunOf(name), std::move(reply),
                                   [this, caller, name, pinned](Reply<v1::Checkpoint> awake) {
                                     impl_->SetPinned(caller, name, pinned, std::move(awake));
                                   });
}

void Engine::ClearDamage(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply) {
  impl_->WhenAwake<v1::Checkpoint>(caller, RunOf(name), std::move(reply),
                                   [this, caller, name](Reply<v1::Checkpoint> awake) {
                                     impl_->ClearDamage(caller, name, std::move(awake));
                                   });
}

int64_t Engine::AdoptCheckpoints(const Caller& caller, const v1::AdoptCheckpointsRequest& request,
                                 std::function<bool(const v1::AdoptCheckpointsResponse&)> event,
                                 std::function<void(const absl::Status&)> ended) {
  return impl_->StartAdoption(caller, request, std::move(event), std::move(ended));
}
void Engine::StopAdoption(int64_t id) { impl_->StopAdoption(id); }

void Engine::Drain(absl::AnyInvocable<void()> done) {
  impl_->draining_ = true;
  impl_->drained_.push_back(std::move(done));
  impl_->CheckDrained();
}

bool Engine::HasSealedSaves() const {
  return std::any_of(impl_->saves_.all().begin(), impl_->saves_.all().end(),
                     [](const auto& entry) { return entry.second->sealed(); });
}

void Engine::Tick() { impl_->Tick(); }

Instant Engine::NextDeadline() const {
  Instant next = std::min(impl_->queue_.NextDeadline(), impl_->tracker_.NextDeadline());
  for (const auto& entry : impl_->runs_) {
    for (const PendingResume& pending : entry.second->resumes) next = std::min(next, pending.deadline);
    for (const auto& agreement : entry.second->agreements) {
      for (const PendingFinish& finish : agreement.second.waiting) next = std::min(next, finish.deadline);
    }
  }
  return next;
}

}  // namespace ckptd
