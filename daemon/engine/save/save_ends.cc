// How saves end.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/save/save_tracker.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

// Whether recovery may publish the save although it has failed: it is complete on disk, now or when the
// writes under way have ended.
bool MayBePublishedByRecovery(const Save& save) {
  const auto is_written = [](const auto& part) { return part.second.writing || part.second.durable; };
  return save.run->authority->next_daemon_continues() &&
         static_cast<int>(save.parts.size()) == save.world_size &&
         std::all_of(save.parts.begin(), save.parts.end(), is_written);
}

storage::v1::Outcome OutcomeOf(const Save& save, const v1::Checkpoint& checkpoint, int64_t now_unix_us) {
  storage::v1::Outcome outcome;
  outcome.set_tag(save.key.tag);
  outcome.set_ordinal(save.key.ordinal);
  outcome.set_attempt(save.key.attempt);
  outcome.set_sequence(std::max<int64_t>(save.sequence, 0));  // Negative: it has none.
  outcome.set_level(save.level());
  outcome.set_reason(checkpoint.error().reason());
  outcome.set_message(checkpoint.error().message());
  outcome.set_code(checkpoint.error().code());
  *outcome.mutable_ranks() = checkpoint.error().ranks();
  if (save.step) outcome.set_step(*save.step);
  outcome.set_time_us(now_unix_us);
  outcome.set_size_bytes(checkpoint.size_bytes());
  return outcome;
}

SaveSummary SummaryOf(const Save& save, v1::Checkpoint checkpoint, Instant now) {
  SaveSummary summary;
  summary.run = save.run->name;
  summary.run_id = save.run->ledger->record().run_id();
  summary.path = save.run->path;
  summary.root = KeyOf(*save.run);
  summary.checkpoint = std::move(checkpoint);
  const auto since_begin = [&save](Instant then) {
    return then == Instant() ? 0.0 : std::chrono::duration<double>(then - save.begun_at).count();
  };
  summary.stall_seconds = save.stall_seconds;
  summary.staged_seconds = since_begin(save.sealed_at);
  summary.written_seconds = since_begin(save.written_at);
  summary.slowest_rank = save.slowest_rank;
  if (save.level() == v1::COMMITTED) {
    summary.committed_seconds = since_begin(now);
    summary.publish_seconds = std::chrono::duration<double>(now - save.written_at).count();
  }
  return summary;
}

}  // namespace

// ---- failing

void SaveTracker::Fail(Save* save, const absl::Status& error) {
  if (save->life.GiveUp()) hooks_.give_up(save, error);
}

void SaveTracker::OnEnded(Save* save, const absl::Status& why) {
  if (!save->life.Fail(LevelOfEnd(why))) return;
  save->error = why;
  streams_->RevokeAll(save);
  hooks_.failing(save);
  const bool recoverable = MayBePublishedByRecovery(*save);
  FailReplies(save);
  if (!recoverable) {
    save->life.Reported();
    Report(save);
  }
  ContinueFailing(save);
}

void SaveTracker::FailReplies(Save* save) {
  for (auto& [rank, part] : save->parts) {
    for (auto& [reply, names_layout] : std::exchange(part.begin_replies, {})) {
      if (save->life.end_level() == v1::SKIPPED) {
        v1::BeginResponse response;
        response.set_sequence(save->sequence);
        response.set_level(v1::SKIPPED);
        response.mutable_error()->set_reason(reason::kSkipped);
        response.mutable_error()->set_message(std::string(save->error.message()));
        reply(std::move(response));
      } else {
        reply(save->error);
      }
    }
    for (auto& [request, reply] : std::exchange(part.extend_replies, {})) reply(save->error);
  }
}

// The directory of a failing save is moved away when nothing writes there, and the save ends after that.
void SaveTracker::ContinueFailing(Save* save) {
  if (save->phase() != SavePhase::kFailing) return;
  for (const auto& [rank, part] : save->parts) {
    if (part.writing) return;
  }
  if (save->node.files == PartFiles::kFinishing) return;
  if (save->IsPromised()) return;  // Continues when it is released.
  TakeBackMemory(save);
  if (save->node.files == PartFiles::kNone) return End(save, save->life.end_level());
  if (save->node.files == PartFiles::kOpen) Discard(save);  // Else it continues when the answer is there.
}

// A trainer that has not sealed may be in the middle of its copy, or wake up in it one day. So its segments
// are revoked, and never lent again.
void SaveTracker::TakeBackMemory(Save* save) {
  if (save->reservation == 0) return;
  for (const auto& [rank, part] : save->parts) {
    if (part.sealed) continue;
    for (const SegmentRef& segment : part.segments) pool_->Revoke(segment.id);
  }
  pool_->Release(std::exchange(save->reservation, 0));
}

void SaveTracker::Discard(Save* save) {
  save->node.files = PartFiles::kDiscarding;
  save->run->io->Discard(save->id, [this, id = save->id](absl::Status discarded) {
    if (Save* failing = saves_->Find(id)) OnDiscarded(failing, discarded);
  });
}

void SaveTracker::OnDiscarded(Save* save, const absl::Status& discarded) {
  Run* run = save->run;
  if (ReasonOf(discarded) == reason::kRootReadOnly) {  // Again after the scan: it must not stay behind.
    save->node.files = PartFiles::kOpen;
    return scanner_->AwaitScan(run);
  }
  if (!discarded.ok()) {
    observer_->OnWarning(absl::StrCat("the in-flight directory of ", save->key.tag, " in ", run->path,
                                      " could not be moved away: ", std::string(discarded.message())));
    // The move may be half done. The scan finds out, and moves what is left.
    scanner_->Scan(run);
    // Recovery could publish it: neither COMMITTED nor FAILED is certain.
    if (MayBePublishedByRecovery(*save)) {
      run->read_only = true;
      return End(save, v1::INDETERMINATE);
    }
  }
  trash_->Empty(run);  // Before the end, which lets the next save look for room: this makes some.
  End(save, save->life.end_level());
}

// ---- ended

void SaveTracker::End(Save* save, v1::Level level) {
  save->life.End(level);
  save->disk_reserved = 0;
  hooks_.releasing_memory(save);
  if (save->reservation != 0) pool_->Release(std::exchange(save->reservation, 0));
  hooks_.memory_released(*save);
  past_->Add(saves_->Remove(save));
  if (!save->remembered) Report(save);
  AnswerLateBegins(save);
  for (auto& [rank, part] : save->parts) {
    part.segments.clear();
    part.record.Clear();
  }
  hooks_.ended(save);
}

void SaveTracker::Report(Save* save) {
  save->remembered = true;
  v1::Checkpoint checkpoint = hooks_.describe(*save, v1::BASIC);
  past_->ForgetLost(save->run, save->key.attempt, save->key.tag);
  if (save->level() != v1::COMMITTED) past_->AddFailure(save->run, checkpoint);
  const storage::v1::Outcome outcome = OutcomeOf(*save, checkpoint, clock_->UnixMicros());
  hooks_.record(save->run, outcome);
  observer_->OnSaveEnded(SummaryOf(*save, std::move(checkpoint), clock_->Now()));
  hooks_.changed(*save);
  AnswerWaiters(save);
}

// Ranks that had sealed with an earlier daemon wait for the end.
void SaveTracker::AnswerLateBegins(Save* save) {
  for (auto& [rank, part] : save->parts) {
    for (auto& [reply, names_layout] : std::exchange(part.begin_replies, {})) {
      if (save->level() == v1::COMMITTED) {
        reply(CommittedAlready(save->key));
      } else {
        reply(save->error);
      }
    }
  }
}

}  // namespace ckptd
