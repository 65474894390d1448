// Constructs the classes of the engine and connects their hooks: each to the method of another class, or to an
// event of Engine::Impl (events.cc), in which several classes have something to do.
//
// A hook refers to a member by its address, so a class may be connected to one that is constructed after it.
// No hook is called before the constructor has ended.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/engine_impl.h"

namespace ckptd {

namespace {

using std::bind_front;

SessionId SessionOfRank(const Run& run, int64_t attempt, int rank) {
  const Member* member = run.members.FindRank(attempt, rank);
  return member == nullptr ? SessionId() : member->session;
}

std::vector<AdoptionJobs::SaveInFlight> SavesInFlight(const Run& run) {
  std::vector<AdoptionJobs::SaveInFlight> saves;
  for (const auto& [sequence, save] : run.saves)
    saves.push_back({sequence, save->key.tag, save->begun_unix_us});
  return saves;
}

std::vector<std::string> TagsOfOlderSaves(const Run& run, int64_t attempt) {
  std::vector<std::string> tags;
  for (const auto& [sequence, save] : run.saves) {
    if (save->key.attempt < attempt) tags.push_back(save->key.tag);
  }
  return tags;
}

}  // namespace

Engine::Impl::Impl(EngineOptions options, Clock* clock, SegmentPool* pool, EngineObserver* observer,
                   SealJournal* journal)
    : options_(std::move(options)),
      clock_(clock),
      pool_(pool),
      observer_(observer),
      started_unix_us_(clock->UnixMicros()),
      runs_(RunTableOptions(), clock, observer, &sessions_,
            {.publish = bind_front(&Publisher::Publish, &publisher_),
             .opening = bind_front(&Impl::OnRootOpening, this),
             .load = bind_front(&Impl::LoadSnapshot, this),
             .opened = bind_front(&Impl::OnRootOpened, this),
             .accepted = bind_front(&Impl::OnRootAccepted, this),
             .is_idle = bind_front(&Impl::IsIdle, this),
             .describe = [this](const Run& run) { return Describe(run); },
             .closing = bind_front(&Impl::ForgetRun, this),
             .is_due = [this](const std::string& name) { return scrubber_.IsDue(name, clock_->Now()); },
             .reopen_failed = bind_front(&Scrubber::ForgetSchedule, &scrubber_)}),
      joiner_(options_.limits.ranks_per_run, options_.node, observer, &sessions_,
              {.find_run = bind_front(&Impl::RunOfName, this),
               .joined = bind_front(&Impl::OnJoined, this),
               .fence_off = bind_front(&Impl::FenceOff, this),
               .check_upload = bind_front(&Uploads::Check, &uploads_)}),
      placer_(options_.limits, options_.chunk_bytes),
      layouts_(options_.limits),
      history_(clock, observer,
               {.retention_may_continue = bind_front(&Retention::Apply, &retention_),
                .write_failed = bind_front(&Impl::OnHistoryFailed, this)}),
      trash_(options_.trash_grace, clock, observer,
             {.has_leases = bind_front(&LeaseTable::HasAny, &leases_),
              .room_changed = [this](Run* run) { disk_.NoteChange(*run); },
              .emptied = bind_front(&Impl::OnTrashEmptied, this),
              .undeleted = bind_front(&Retention::SetPointers, &retention_),
              .needs_scan = bind_front(&Impl::ScanBeforeChanges, this)}),
      uploads_(clock, observer,
               {.released = bind_front(&Retention::Apply, &retention_),
                .changed = bind_front(&Impl::OnUploadChanged, this)}),
      fetches_(clock, observer,
               {.listed = bind_front(&Impl::OnBucketListed, this),
                .fetched = bind_front(&Uploads::OnFetched, &uploads_),
                .ended = bind_front(&Impl::OnBucketFetched, this),
                .ask = bind_front(&SharedFetches::Ask, &shared_fetches_),
                .announce = bind_front(&Uploads::Announce, &uploads_)}),
      shared_fetches_({.scan = bind_front(&RootScanner::Scan, &scanner_),
                       .counted_through = bind_front(&Uploads::CountedThrough, &uploads_),
                       .begin = bind_front(&BucketFetches::Begin, &fetches_),
                       .drop = bind_front(&BucketFetches::Drop, &fetches_),
                       .set_done = bind_front(&BucketFetches::SetDone, &fetches_),
                       .ended = bind_front(&ResumeBarrier::OnFetched, &resumes_)}),
      retention_(clock, observer, &history_, &trash_,
                 {.leased_sequences = bind_front(&LeaseTable::LeasedSequences, &leases_),
                  .held_for_upload = bind_front(&Uploads::Held, &uploads_),
                  .evicted = bind_front(&ResidentCache::Prune, &residents_),
                  .needs_scan = bind_front(&RootScanner::Scan, &scanner_),
                  .settled = bind_front(&Impl::CheckDrained, this)}),
      disk_(clock, &runs_.all(), &saves_, &sizes_,
            {.may_free_room = bind_front(&Impl::MayFreeRoom, this),
             .empty_trash = bind_front(&TrashCollector::MakeRoom, &trash_),
             .give_up_uploads = bind_front(&Impl::GiveUpUploads, this),
             .room_changed = bind_front(&AdmissionQueue::TryAdmitAll, &queue_)}),
      scanner_(clock, observer,
               {.written_bytes = [this](const Run& run) { return disk_.WrittenBytes(run.device); },
                .load = bind_front(&Impl::LoadScan, this),
                .usable = bind_front(&Impl::OnScanned, this)}),
      shares_(pool, &saves_, &sizes_, options_.max_pool_percent_per_user,
              bind_front(&ResidentCache::HeldByReaders, &residents_)),
      queue_(clock, pool, &saves_, &sizes_, &shares_, &disk_, options_.over_share_grace,
             {.fail = bind_front(&SaveTracker::Fail, &tracker_),
              .accepted = bind_front(&SaveDriver::OnAccepted, &driver_),
              .session_of_rank = &SessionOfRank}),
      grants_(pool, &saves_, &sizes_, &shares_, &disk_, &placer_, bind_front(&SaveTracker::Fail, &tracker_)),
      intake_(options_, clock, observer, &saves_, &placer_, &layouts_, &queue_, &grants_, &disk_,
              {.find_run = bind_front(&Impl::RunOfName, this),
               .find_member = [](Run* run, SessionId session,
                                 int rank) { return run->members.Find(session, rank); },
               .fence_off = bind_front(&Impl::FenceOff, this),
               .answer_if_ended = bind_front(&Impl::AnswerIfEnded, this),
               .is_pinned = bind_front(&Retention::IsPinned, &retention_),
               .is_undeleting = bind_front(&TrashCollector::IsUndeleting, &trash_),
               .check_takes_saves = bind_front(&Impl::CheckTakesSaves, this),
               .fail = bind_front(&SaveTracker::Fail, &tracker_)}),
      ended_({.describe_save = [this](const Save& save) { return Describe(save, v1::BASIC); },
              .describe_committed = DescribeHook()}),
      earlier_(clock, &ended_, bind_front(&Impl::RecordEarlierEnd, this)),
      streams_(&saves_),
      files_(clock, &saves_, &sizes_, &scanner_, options_.chunk_bytes,
             {.fail = bind_front(&SaveTracker::Fail, &tracker_),
              .continue_failing = bind_front(&SaveTracker::ContinueFailing, &tracker_)}),
      publisher_(clock, observer, &saves_, &scanner_, options_.chunk_bytes),
      tracker_(clock, pool, observer, &saves_, &ended_, &streams_, &sizes_, &scanner_, &trash_,
               {.describe = [this](const Save& save, v1::View view) { return Describe(save, view); },
                .changed = bind_front(&Impl::Notify, this),
                .all_sealed = bind_front(&Impl::OnAllSealed, this),
                .sealed_here = bind_front(&SaveDriver::OnSealedHere, &driver_),
                .give_up = bind_front(&SaveDriver::OnGivingUp, &driver_),
                .part_sealed = bind_front(&MemberFiles::WriteSealedParts, &files_),
                .failing = bind_front(&SaveRecovery::Drop, &recovery_),
                .releasing_memory = bind_front(&Impl::OnReleasingMemory, this),
                .memory_released = bind_front(&Impl::OnMemoryReleased, this),
                .record = bind_front(&OutcomeHistory::Record, &history_),
                .ended = bind_front(&Impl::OnSaveEnded, this)}),
      driver_(clock, observer, &saves_,
              {.begun =
                   [this](const Run& run, const SaveId& id, const absl::StatusOr<int64_t>& sequence) {
                     intake_.OnSequence(run.name, id, sequence);
                   },
               .admitted = bind_front(&Impl::OnAdmitted, this),
               .sealed = bind_front(&SaveTracker::OnSealedEverywhere, &tracker_),
               .committed = bind_front(&Impl::OnCommitted, this),
               .committed_unread = bind_front(&Impl::OnCommittedUnread, this),
               .indeterminate = bind_front(&Impl::OnUnknown, this),
               .fail = bind_front(&SaveTracker::Fail, &tracker_),
               .ended = bind_front(&SaveTracker::OnEnded, &tracker_),
               .continue_failing = bind_front(&SaveTracker::ContinueFailing, &tracker_),
               .removed = bind_front(&Impl::OnRemovedByOthers, this),
               .damage_changed = bind_front(&DamageMarks::OnChanged, &damage_),
               .pin_changed = bind_front(&Impl::OnPinChanged, this),
               .delete_requested = bind_front(&Retention::Delete, &retention_),
               .restore_requested = bind_front(&SharedFetches::Serve, &shared_fetches_),
               .newest_committed = bind_front(&Retention::SetPolicyOf, &retention_),
               .root_changed = bind_front(&Impl::OnRootChanged, this),
               .leadership_changed = bind_front(&Retention::OnLeadershipChanged, &retention_)}),
      recovery_(clock, observer, pool, journal, &runs_.all(), &saves_, &sizes_, options_.chunk_bytes,
                {.past = bind_front(&EndedSaves::Past, &ended_),
                 .recovered = bind_front(&Impl::OnRecovered, this)}),
      watches_(clock, options_.limits.watches_per_uid, bind_front(&RunTable::Sees, &runs_)),
      damage_(clock, observer, DescribeHook(),
              {.marked = bind_front(&ResidentCache::Drop, &residents_),
               .pointers_changed = bind_front(&Retention::SetPointers, &retention_),
               .recorded = bind_front(&ResumeBarrier::OnDamageRecorded, &resumes_),
               .cleared = bind_front(&Retention::Apply, &retention_)}),
      leases_({options_.limits.leases_per_uid, options_.limits.manifest_bytes_per_uid}, &sessions_,
              {.describe = DescribeHook(),
               .mark_damaged = MarkDamagedHook(),
               .notify = bind_front(&WatchHub::Notify, &watches_),
               .released = bind_front(&Impl::OnLeaseReleased, this),
               .opened = bind_front(&Restores::OnOpened, &restores_)}),
      restores_(clock, observer, &leases_),
      residents_({options_.chunk_bytes, options_.max_reader_pool_percent_per_user}, pool, observer,
                 &sessions_, &leases_),
      prefetcher_(clock, pool, observer, &residents_,
                  {.describe = DescribeHook(), .mark_damaged = MarkDamagedHook()}),
      scrubber_({options_.scrub_period, options_.scrub_bytes_per_second}, clock, observer,
                {.is_busy = bind_front(&Impl::IsBusy, this),
                 .mark_damaged =
                     [this](Run* run, int64_t sequence, storage::v1::Damage damage) {
                       damage_.Mark(run, sequence, std::move(damage), [](const absl::Status&) {});
                     }}),
      adoptions_(options_.chunk_bytes, clock, observer,
                 {.describe = DescribeHook(),
                  .check_takes_work = bind_front(&Impl::CheckTakesSaves, this),
                  .saves_in_flight = &SavesInFlight,
                  .kept_last = bind_front(&Retention::KeptLast, &retention_),
                  .pointers_changed = bind_front(&Retention::SetPointers, &retention_),
                  .rescan = bind_front(&Impl::ScanBeforeChanges, this),
                  .ended = bind_front(&Retention::Apply, &retention_)}),
      resumes_(clock, &sessions_, &leases_,
               {.describe = DescribeHook(),
                .find_run = bind_front(&Impl::RunOfName, this),
                .activated = bind_front(&Impl::FenceOff, this),
                .older_saves = &TagsOfOlderSaves,
                .is_fetched = bind_front(&BucketFetches::IsDone, &fetches_),
                .fetch = bind_front(&BucketFetches::Start, &fetches_),
                .fetching = bind_front(&Impl::DescribeFetch, this),
                .mark_damaged = MarkDamagedHook(),
                .begin_decision = bind_front(&Retention::BeginResumeDecision, &retention_),
                .end_decision = bind_front(&Retention::EndResumeDecision, &retention_),
                .scan = bind_front(&RootScanner::Scan, &scanner_),
                .agreed = bind_front(&ResidentCache::MakeWayForSaves, &residents_),
                .released = bind_front(&Retention::Apply, &retention_)}) {
  pool_->OnRoom(bind_front(&AdmissionQueue::TryAdmitAll, &queue_));
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
