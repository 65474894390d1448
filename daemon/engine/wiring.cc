// The wiring of the engine's classes: who tells whom what has happened.
//
// The hooks refer to members by `this`, so a class may be wired to one that is constructed after it. No hook
// is called before the constructor has ended.
#include <utility>

#include "daemon/engine/engine_impl.h"

namespace ckptd {

Engine::Impl::Impl(EngineOptions options, Clock* clock, SegmentPool* pool, EngineObserver* observer,
                   SealJournal* journal)
    : options_(std::move(options)),
      clock_(clock),
      pool_(pool),
      observer_(observer),
      started_unix_us_(clock->UnixMicros()),
      runs_({options_.root_lock_timeout, options_.attach_timeout, options_.idle_root, options_.roots_per_uid,
             options_.file_systems_per_uid},
            clock, observer, &sessions_,
            {.opening = [this](Run* run) { disk_.SetWrittenBefore(run, disk_.WrittenBytes(run->device)); },
             .load = [this](Run* run, RootSnapshot snapshot) { LoadSnapshot(run, std::move(snapshot)); },
             .opened =
                 [this](Run* run) {
                   observer_->OnRootOpened(run->name, run->path, run->probe);
                   driver_.Start(run);
                   recovery_.OnRootOpened(run);
                 },
             .accepted =
                 [this](Run* run) {
                   trash_.Empty(run);
                   // The daemon before this one may have been killed between a commit and its evictions.
                   retention_.Apply(run);
                 },
             .is_idle = [this](const Run& run) { return IsIdle(run); },
             .describe = [this](const Run& run) { return Describe(run); },
             .closing = [this](Run* run) { ForgetRun(run); },
             .is_due = [this](const std::string& name) { return scrubber_.IsDue(name, clock_->Now()); },
             .reopen_failed = [this](const std::string& name) { scrubber_.ForgetSchedule(name); }}),
      joiner_(options_.limits.ranks_per_run, options_.node, observer, &sessions_,
              {.find_run = [this](const std::string& name) { return runs_.Find(name); },
               .joined =
                   [this](Run* run, int64_t attempt, const v1::JoinRunRequest& request) {
                     resumes_.OnJoined(run, attempt, request.rank());
                     ReportOrphans(run, attempt, request);
                   },
               .fence_off = [this](Run* run, int64_t attempt) { FenceOff(run, attempt); }}),
      placer_(options_.limits, options_.chunk_bytes),
      history_(clock, observer,
               {.retention_may_continue = [this](Run* run) { retention_.Apply(run); },
                .write_failed =
                    [this](Run* run, bool retention_waits) {
                      retention_.OnHistoryFailed(run);
                      CheckDrained();
                      if (retention_waits) return queue_.TryAdmitAll();
                      disk_.MakeRoom(run, 1);  // The disk is full.
                    }}),
      trash_(
          options_.trash_grace, clock, observer,
          {.has_leases = [this](const Run& run) { return leases_.HasAny(run); },
           .room_changed = [this](Run* run) { disk_.NoteChange(*run); },
           .emptied =
               [this](Run* run, bool for_room) {
                 CheckDrained();
                 disk_.AskAfterChange(run, /*for_next=*/!for_room && trash_.HasInGrace(*run));
               },
           .undeleted = [this](Run* run,
                               PointerFiles pointers) { retention_.SetPointers(run, std::move(pointers)); },
           .needs_scan =
               [this](Run* run) {
                 run->read_only = true;
                 scanner_.Scan(run);
               }}),
      retention_(clock, observer, &history_, &trash_,
                 {.leased_sequences = [this](const Run& run) { return leases_.LeasedSequences(run); },
                  .evicted = [this](Run* run) { residents_.Prune(run); },
                  .needs_scan = [this](Run* run) { scanner_.Scan(run); },
                  .settled = [this] { CheckDrained(); }}),
      disk_(clock, &runs_.all(), &saves_, &sizes_,
            {.may_free_room =
                 [this](const Run& run) {
                   return retention_.HasEvictions(run) || trash_.MayFreeRoom(run) ||
                          history_.MayFreeRoom(run);
                 },
             .empty_trash = [this](Run* run, int64_t bytes) { return trash_.MakeRoom(run, bytes); },
             .room_changed = [this] { queue_.TryAdmitAll(); }}),
      scanner_(clock, observer,
               {.written_bytes = [this](const Run& run) { return disk_.WrittenBytes(run.device); },
                .load =
                    [this](Run* run, RootSnapshot snapshot, int64_t written_bytes) {
                      LoadSnapshot(run, std::move(snapshot));
                      disk_.SetWrittenBefore(run, written_bytes);
                    },
                .usable =
                    [this](Run* run) {
                      publisher_.OnScanned(run);
                      resumes_.OnScanned(run);
                      trash_.Empty(run);
                      retention_.OnScanned(run);
                      queue_.TryAdmitAll();
                    }}),
      shares_(pool, &saves_, &sizes_, options_.max_pool_percent_per_user,
              [this] { return residents_.HeldByReaders(); }),
      queue_(clock, pool, &saves_, &sizes_, &shares_, &disk_, options_.over_share_grace,
             {.fail = [this](Save* save, const absl::Status& error) { tracker_.Fail(save, error); },
              .accepted = [this](Save* save) { driver_.OnAccepted(save); },
              .session_of_rank =
                  [](const Run& run, int64_t attempt, int rank) {
                    const Member* member = run.members.FindRank(attempt, rank);
                    return member == nullptr ? SessionId() : member->session;
                  }}),
      grants_(pool, &saves_, &sizes_, &shares_, &disk_, &placer_,
              [this](Save* save, const absl::Status& error) { tracker_.Fail(save, error); }),
      intake_(options_, clock, observer, &saves_, &placer_, &queue_, &grants_, &disk_,
              {.find_run = [this](const std::string& name) { return runs_.Find(name); },
               .find_member = [](Run* run, SessionId session,
                                 int rank) { return run->members.Find(session, rank); },
               .fence_off = [this](Run* run, int64_t attempt) { FenceOff(run, attempt); },
               .answer_if_ended = [this](Run* run, const SaveId& key) { return AnswerIfEnded(run, key); },
               .is_pinned = [this](const Run& run,
                                   int64_t sequence) { return retention_.IsPinned(run, sequence); },
               .is_undeleting = [this](const Run& run,
                                       const std::string& tag) { return trash_.IsUndeleting(run, tag); },
               .fail = [this](Save* save, const absl::Status& error) { tracker_.Fail(save, error); }}),
      ended_({.describe_save = [this](const Save& save) { return Describe(save, v1::BASIC); },
              .describe_committed =
                  [this](const Run& run, const CommittedCheckpoint& committed) {
                    return Describe(run, committed);
                  }}),
      streams_(&saves_),
      publisher_(clock, observer, &saves_, &sizes_, &scanner_, options_.chunk_bytes,
                 {.fail = [this](Save* save, const absl::Status& error) { tracker_.Fail(save, error); },
                  .continue_failing = [this](Save* save) { tracker_.ContinueFailing(save); },
                  .shared_part_written = [this](Save* save) { driver_.OnPartWritten(save); },
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
                 // The next daemon would have to take over this node's part of a shared save, with its
                 // registration. It does not yet: a restart loses the save, and NODE_LOST ends it.
                 if (save->run->shared == nullptr) recovery_.Keep(save);
               },
           .sealed_here = [this](Save* save) { driver_.OnSealedHere(save); },
           .give_up = [this](Save* save, const absl::Status& why) { driver_.OnGivingUp(save, why); },
           .part_sealed = [this](Save* save) { publisher_.WriteSealedParts(save); },
           .failing = [this](Save* save) { recovery_.Drop(save); },
           .releasing_memory =
               [this](Save* save) {
                 recovery_.Drop(save);
                 const bool committed = save->level() == v1::COMMITTED;
                 if (save->reservation != 0 && committed && residents_.Keep(*save)) save->reservation = 0;
               },
           .memory_released =
               [this](const Save& save) {
                 residents_.Prune(save.run);
                 placer_.Forget(save);
                 disk_.OnSaveEnded(save);
               },
           .record = [this](Run* run, const storage::v1::Outcome& outcome) { history_.Record(run, outcome); },
           .ended =
               [this](Save* save) {
                 publisher_.OnSaveEnded(*save);
                 resumes_.Continue(save->run);
                 queue_.TryAdmitAll();
                 CheckDrained();
               }}),
      driver_(clock, observer, &saves_,
              {.begun =
                   [this](const Run& run, const SaveId& id, const absl::StatusOr<int64_t>& sequence) {
                     intake_.OnSequence(run.name, id, sequence);
                   },
               .admitted =
                   [this](Save* save) {
                     publisher_.Start(save);
                     grants_.OnAdmitted(save);
                   },
               .sealed = [this](Save* save) { tracker_.OnSealedEverywhere(save); },
               .committed =
                   [this](Save* save, CommittedCheckpoint committed, PointerFiles pointers) {
                     OnCommitted(save, std::move(committed), std::move(pointers));
                   },
               .committed_unread =
                   [this](Save* save) {
                     Run* run = save->run;
                     tracker_.End(save, v1::COMMITTED);
                     retention_.ApplyAfterScan(run);
                     scanner_.Scan(run);
                   },
               .indeterminate = [this](Save* save,
                                       const absl::Status& why) { publisher_.SetIndeterminate(save, why); },
               .fail = [this](Save* save, const absl::Status& error) { tracker_.Fail(save, error); },
               .ended = [this](Save* save, const absl::Status& why) { tracker_.OnEnded(save, why); },
               .continue_failing = [this](Save* save) { tracker_.ContinueFailing(save); },
               .removed =
                   [this](Run* run, int64_t sequence) {
                     run->catalog.Withdraw(sequence);
                     residents_.Prune(run);
                   },
               .damage_changed =
                   [this](Run* run, int64_t sequence, const std::optional<storage::v1::Damage>& damage) {
                     damage_.OnChanged(run, sequence, damage);
                   },
               .newest_committed =
                   [this](Run* run, int64_t sequence, const std::optional<RetentionPolicy>& retention) {
                     retention_.SetPolicyOf(run, sequence, retention);
                   },
               .root_changed =
                   [this](Run* run) {
                     retention_.ApplyAfterScan(run);
                     scanner_.Scan(run);
                   },
               .leadership_changed = [this](Run* run) { retention_.OnLeadershipChanged(run); }}),
      recovery_(clock, observer, pool, journal, &runs_.all(), &saves_, &sizes_, options_.chunk_bytes,
                {.past = [this](const Run& run, const SaveId& key) { return ended_.Past(run, key); },
                 .recovered =
                     [this](Save* save) {
                       publisher_.Start(save);
                       Notify(*save);
                     }}),
      watches_(clock, options_.limits.watches_per_uid,
               [this](const Caller& caller, const Run& run) { return runs_.Sees(caller, run); }),
      damage_(
          clock, observer, DescribeHook(),
          {.marked = [this](Run* run, int64_t sequence) { residents_.Drop(run, sequence); },
           .pointers_changed =
               [this](Run* run, PointerFiles pointers) { retention_.SetPointers(run, std::move(pointers)); },
           .recorded = [this](Run* run, int64_t sequence) { resumes_.OnDamageRecorded(run, sequence); },
           .cleared = [this](Run* run) { retention_.Apply(run); }}),
      leases_({options_.limits.leases_per_uid, options_.limits.manifest_bytes_per_uid}, &sessions_,
              {.describe = DescribeHook(),
               .mark_damaged = MarkDamagedHook(),
               .notify = [this](const Run& run,
                                v1::WatchResponse event) { watches_.Notify(run, std::move(event)); },
               .released =
                   [this](const Lease& lease) {
                     residents_.OnLeaseReleased(lease);
                     retention_.Apply(lease.run);  // It may have been all that kept a victim.
                   }}),
      residents_({options_.chunk_bytes, options_.max_reader_pool_percent_per_user}, pool, observer,
                 &sessions_, &leases_),
      prefetcher_(clock, pool, observer, &residents_,
                  {.describe = DescribeHook(), .mark_damaged = MarkDamagedHook()}),
      scrubber_({options_.scrub_period, options_.scrub_bytes_per_second}, clock, observer,
                {.is_busy = [this](const Run& run) { return IsBusy(run); },
                 .mark_damaged =
                     [this](Run* run, int64_t sequence, storage::v1::Damage damage) {
                       damage_.Mark(run, sequence, std::move(damage), [](const absl::Status&) {});
                     }}),
      adoptions_(
          options_.chunk_bytes, clock, observer,
          {.describe = DescribeHook(),
           .is_draining = [this] { return draining_; },
           .saves_in_flight =
               [](const Run& run) {
                 std::vector<AdoptionJobs::SaveInFlight> saves;
                 for (const auto& [sequence, save] : run.saves)
                   saves.push_back({sequence, save->key.tag, save->begun_unix_us});
                 return saves;
               },
           .kept_last = [this](const Run& run) { return retention_.KeptLast(run); },
           .pointers_changed =
               [this](Run* run, PointerFiles pointers) { retention_.SetPointers(run, std::move(pointers)); },
           .rescan =
               [this](Run* run) {
                 run->read_only = true;
                 scanner_.Scan(run);
               },
           .ended = [this](Run* run) { retention_.Apply(run); }}),
      resumes_(clock, &sessions_, &leases_,
               {.describe = DescribeHook(),
                .find_run = [this](const std::string& name) { return runs_.Find(name); },
                .activated = [this](Run* run, int64_t attempt) { FenceOff(run, attempt); },
                .older_saves =
                    [](const Run& run, int64_t attempt) {
                      std::vector<std::string> tags;
                      for (const auto& [sequence, save] : run.saves) {
                        if (save->key.attempt < attempt) tags.push_back(save->key.tag);
                      }
                      return tags;
                    },
                .mark_damaged = MarkDamagedHook(),
                .begin_decision = [this](Run* run,
                                         int64_t sequence) { retention_.BeginResumeDecision(run, sequence); },
                .end_decision = [this](Run* run,
                                       int64_t sequence) { retention_.EndResumeDecision(run, sequence); },
                .scan = [this](Run* run) { scanner_.Scan(run); },
                .agreed = [this](Run* run, int64_t sequence) { residents_.MakeWayForSaves(run, sequence); },
                .released = [this](Run* run) { retention_.Apply(run); }}) {
  pool_->OnRoom([this] { queue_.TryAdmitAll(); });
}

DescribeCheckpoint Engine::Impl::DescribeHook() const {
  return [this](const Run& run, const CommittedCheckpoint& committed) { return Describe(run, committed); };
}

MarkAsDamaged Engine::Impl::MarkDamagedHook() {
  return [this](Run* run, int64_t sequence, storage::v1::Damage damage, DamageMarked done) {
    damage_.Mark(run, sequence, std::move(damage), std::move(done));
  };
}

}  // namespace ckptd
