// Save recovery: after a daemon has ended, this rank offers the next one the saves that were sealed and not
// committed. Their bytes lie in segments that are still mapped here. For the next daemon a recovered save is
// one that was begun with it. It is asked first whether it has the save: on disk, in its history, or from its
// predecessor. client/python/ckptd/_saving/save_recovery.py does the same.
#include "client/cpp/recovery.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/session/wire_errors.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::client {
namespace {

// How long no daemon may answer before a save counts as lost.
constexpr Duration kGiveUp = std::chrono::seconds(600);
// How long a recovered save waits to be admitted, at least: the other ranks have to notice the new daemon,
// too.
constexpr Duration kAdmission = std::chrono::seconds(30);
// Between two tries: there is no event to wait for.
constexpr Duration kPause = std::chrono::milliseconds(100);
constexpr Duration kAbortTimeout = std::chrono::seconds(5);

Duration ToDuration(const google::protobuf::Duration& value) {
  return std::chrono::seconds(value.seconds()) + std::chrono::nanoseconds(value.nanos());
}

// What a daemon knows of a save; nullopt: it does not know it. Does not wait for the save.
absl::StatusOr<std::optional<v1::Checkpoint>> Find(const Membership& membership, const StagedSave& save) {
  // Without a sequence: given one, a daemon answers that a save it does not know is lost.
  v1::WaitRequest request;
  *request.mutable_key() = save.begin.key();
  request.set_level(v1::COMMITTED);
  request.set_attempt(save.attempt);
  request.mutable_timeout();
  absl::StatusOr<v1::WaitResponse> found = membership.session->rpc().Wait(request, kCallTimeout);
  if (found.ok()) return std::optional<v1::Checkpoint>(found->checkpoint());
  if (ReasonOf(found.status()) == "UNKNOWN_SAVE") return std::optional<v1::Checkpoint>();
  return found.status();
}

// The sequence of the newest committed checkpoint; 0: there is none.
absl::StatusOr<int64_t> LatestSequence(const Membership& membership) {
  v1::GetCheckpointRequest request;
  request.set_name(absl::StrCat(membership.run, "/checkpoints/latest"));
  absl::StatusOr<v1::Checkpoint> latest = membership.session->rpc().GetCheckpoint(request, kCallTimeout);
  if (latest.ok()) return latest->sequence();
  if (ReasonOf(latest.status()) == "NO_CHECKPOINT") return int64_t{0};
  return latest.status();
}

}  // namespace

bool IsRecoverable(const StagedSave& save) {
  if (static_cast<int>(save.bytes.size()) != save.seal.files_size()) return false;
  for (const std::shared_ptr<Mapping>& segment : save.segments) {
    if (segment->borrower() != save.number) return false;  // Lent again: the save had ended.
  }
  for (const auto& file : save.bytes) {
    for (std::span<std::byte> piece : file) {
      if (!ArePresent(piece)) return false;
    }
  }
  return true;
}

absl::Status StagedLost(const StagedSave& save, const std::string& why) {
  const v1::SaveKey& key = save.begin.key();
  return MakeError(absl::StatusCode::kAborted, "STAGED_LOST",
                   absl::StrCat("the daemon ended before the save of ", key.tag(),
                                " was committed, and the next one does not have it: ", why, "; save again"),
                   {{"tag", key.tag()}, {"ranks", absl::StrCat(key.rank())}});
}

absl::Status LostBy(const StagedSave& save, const absl::Status& end) {
  const std::string reason = ReasonOf(end);
  for (const char* same : {"FENCED", "SUPERSEDED", "SAVE_ABORTED", "FILE_CONFLICT", "STAGED_LOST"}) {
    if (reason == same) return end;
  }
  ErrorDetails details = DetailsOf(end);
  details.emplace("tag", save.begin.key().tag());
  return MakeError(
      absl::StatusCode::kAborted, "STAGED_LOST",
      absl::StrCat(std::string(StagedLost(save, reason).message()), " (", std::string(end.message()), ")"),
      details);
}

// ---- what the trainer's threads call

void RunImpl::DropBytes(const Segments& retired) {
  MutexLock lock(mutex_);
  for (const auto& save : staged_) {
    const bool gone = std::any_of(save->segments.begin(), save->segments.end(), [&](const auto& segment) {
      return std::find(retired.begin(), retired.end(), segment) != retired.end();
    });
    if (!gone) continue;
    save->segments.clear();
    save->bytes.clear();
  }
}

absl::Status RunImpl::AwaitEarlier(int64_t number, Duration timeout) {
  const Instant deadline = SystemClock().Now() + timeout;
  MutexLock lock(mutex_);
  while (!pending_.empty() && pending_.front()->number < number) {
    const Duration left = TimeLeft(deadline);
    if (left == Duration(0)) {
      return absl::UnavailableError("no daemon has taken the earlier saves of this rank, which come first");
    }
    recovered_.WaitFor(mutex_, left);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RunImpl::AwaitRecovery(const std::shared_ptr<StagedSave>& save, Instant deadline) {
  MutexLock lock(mutex_);
  while (std::find(pending_.begin(), pending_.end(), save) != pending_.end()) {
    const Duration left = TimeLeft(deadline);
    if (left == Duration(0)) return false;
    recovered_.WaitFor(mutex_, left);
  }
  if (!save->lost.ok()) return save->lost;
  return true;
}

int64_t RunImpl::SequenceOf(const std::shared_ptr<StagedSave>& save) {
  MutexLock lock(mutex_);
  return save->sequence;
}

bool RunImpl::IsRecovered(const std::shared_ptr<StagedSave>& save) {
  MutexLock lock(mutex_);
  return save->recovered;
}

// ---- the thread

void RunImpl::AddPending(const std::string& daemon_instance) {
  for (const auto& save : staged_) {
    const bool pending = std::find(pending_.begin(), pending_.end(), save) != pending_.end();
    if (save->daemon_instance != daemon_instance && !pending) pending_.push_back(save);
  }
  std::sort(pending_.begin(), pending_.end(),
            [](const auto& a, const auto& b) { return a->number < b->number; });
  if (pending_.empty() || recovering_) return;
  recovering_ = true;
  // It ends with the run: the process no longer wants these saves.
  std::thread([run = weak_from_this()] { RecoverPending(run); }).detach();
}

void RunImpl::RecoverPending(const std::weak_ptr<RunImpl>& weak) {
  std::shared_ptr<StagedSave> last;
  Instant give_up;
  while (std::shared_ptr<RunImpl> run = weak.lock()) {
    const std::shared_ptr<StagedSave> save = run->NextPending();
    if (save == nullptr) return;
    if (save != last) give_up = SystemClock().Now() + kGiveUp;
    last = save;
    if (run->TryToRecover(save, give_up)) continue;
    run.reset();
    Pause(kPause);
  }
}

std::shared_ptr<StagedSave> RunImpl::NextPending() {
  MutexLock lock(mutex_);
  if (!pending_.empty()) return pending_.front();
  recovering_ = false;
  return nullptr;
}

// False if no daemon has answered; then it may be tried again.
bool RunImpl::TryToRecover(const std::shared_ptr<StagedSave>& save, Instant give_up) {
  const absl::StatusOr<bool> offered =
      Retry(Duration(0), [&](const std::shared_ptr<const Membership>& membership) -> absl::StatusOr<bool> {
        {
          // The daemon that had taken an earlier save may have ended since, or this one is orphaned now.
          MutexLock lock(mutex_);
          if (pending_.empty() || pending_.front() != save) return false;
        }
        CKPTD_RETURN_IF_ERROR(Recover(*membership, save));
        return true;
      });
  if (IsTransient(offered.status()) && SystemClock().Now() < give_up) return false;
  if (!offered.ok()) SetLost(save, StagedLost(*save, std::string(offered.status().message())));
  MutexLock lock(mutex_);
  if (!offered.ok() || *offered) std::erase(pending_, save);
  recovered_.SignalAll();
  return true;
}

// OK when the daemon has the save, or the save is lost. An error that is transient: once more, with the next
// daemon.
absl::Status RunImpl::Recover(const Membership& membership, const std::shared_ptr<StagedSave>& save) {
  const std::string& instance = membership.session->daemon().daemon_instance();
  CKPTD_ASSIGN_OR_RETURN(const std::optional<v1::Checkpoint> known, Find(membership, *save));
  if (known.has_value() && known->level() >= v1::STAGED) {
    Assign(save, instance, known->sequence());
    return absl::OkStatus();
  }
  absl::Status why = WhyNot(membership, save, !known.has_value());
  if (IsTransient(why)) return why;
  if (!why.ok()) {  // The other ranks may be about to offer their parts: the daemon tells them.
    v1::JoinRunRequest orphaned = JoinRequest(membership.run);
    *orphaned.add_orphaned() = save->begin.key();
    if (membership.attempt == save->attempt)
      CKPTD_RETURN_IF_ERROR(membership.session->rpc().JoinRun(orphaned, kCallTimeout).status());
    SetLost(save, why);
    return absl::OkStatus();
  }
  const absl::Status uploaded = UploadAgain(membership, save);
  // No answer is not a refusal: the part may be sealed there.
  if (uploaded.ok() || IsTransient(uploaded)) return uploaded;
  v1::AbortRequest abort;
  *abort.mutable_key() = save->begin.key();
  abort.set_message(FirstBytes(std::string(uploaded.message()), 1000));
  // Best effort: the daemon may have ended the save itself.
  membership.session->rpc().Abort(abort, kAbortTimeout).status().IgnoreError();
  SetLost(save, LostBy(*save, uploaded));
  return absl::OkStatus();
}

// Why a save must not be offered. `unknown`: no other rank has offered it yet, so it would get a new
// sequence.
absl::Status RunImpl::WhyNot(const Membership& membership, const std::shared_ptr<StagedSave>& save,
                             bool unknown) {
  if (membership.attempt != save->attempt)
    return StagedLost(*save, absl::StrCat("this process is of attempt ", membership.attempt, " now"));
  {
    MutexLock lock(mutex_);
    if (!IsRecoverable(*save)) return StagedLost(*save, "its memory has been given back or lent again");
  }
  if (!unknown) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const bool overtakes, WouldOvertake(membership, save));
  if (!overtakes) return absl::OkStatus();
  return StagedLost(*save, "a newer checkpoint is there already, which would no longer be the latest one");
}

// True if a new sequence would make the save newer than what was begun after it.
absl::StatusOr<bool> RunImpl::WouldOvertake(const Membership& membership,
                                            const std::shared_ptr<StagedSave>& save) {
  CKPTD_ASSIGN_OR_RETURN(const int64_t latest, LatestSequence(membership));
  if (latest > SequenceOf(save)) return true;
  std::vector<std::shared_ptr<StagedSave>> later;
  {
    MutexLock lock(mutex_);
    for (const auto& other : pending_) {
      if (other->number > save->number) later.push_back(other);
    }
  }
  for (const auto& other : later) {
    CKPTD_ASSIGN_OR_RETURN(const std::optional<v1::Checkpoint> found, Find(membership, *other));
    if (found.has_value() && found->level() >= v1::STAGED && found->level() < v1::FAILED) return true;
  }
  return false;
}

absl::Status RunImpl::UploadAgain(const Membership& membership, const std::shared_ptr<StagedSave>& save) {
  Session& session = *membership.session;
  v1::BeginRequest begin = save->begin;
  begin.mutable_key()->set_run(membership.run);
  const Duration admission =
      std::min(std::max(kAdmission, ToDuration(begin.timeout())), options_.commit_timeout);
  SetDuration(admission, begin.mutable_timeout());
  CKPTD_ASSIGN_OR_RETURN(v1::BeginResponse granted, session.rpc().Begin(begin, admission + kCallTimeout));
  session.Forget({granted.retired_segments().begin(), granted.retired_segments().end()});
  CKPTD_ASSIGN_OR_RETURN(
      Segments segments,
      session.Map({granted.segments().begin(), granted.segments().end()}, copy_threads(), kCallTimeout));
  if (granted.placements_size() != save->seal.files_size())
    return absl::InternalError("the daemon placed another number of files than were requested");
  Segments old;  // Keeps them mapped.
  std::vector<std::vector<std::span<std::byte>>> bytes;
  {
    MutexLock lock(mutex_);
    // Once more: a daemon that inherits memory frees it before it grants any.
    if (!IsRecoverable(*save)) return StagedLost(*save, "its memory has been given back");
    old = save->segments;
    bytes = save->bytes;
  }
  std::vector<std::vector<std::span<std::byte>>> places;
  std::vector<CopyStep> steps;
  for (int i = 0; i < granted.placements_size(); ++i) {
    CKPTD_ASSIGN_OR_RETURN(
        auto place, Locate(segments, granted.placements(i).offset(), save->seal.files(i).size_bytes()));
    PlanCopy(std::vector<std::span<const std::byte>>(bytes[i].begin(), bytes[i].end()), place, &steps);
    places.push_back(std::move(place));
  }
  RunCopy(CopyWay::kIntoSegment, steps, copy_threads());
  v1::SealRequest seal = save->seal;
  *seal.mutable_key() = begin.key();
  CKPTD_ASSIGN_OR_RETURN(v1::SealResponse sealed, session.rpc().Seal(seal, kCallTimeout));
  for (const std::shared_ptr<Mapping>& segment : segments) segment->LendTo(save->number);
  {
    MutexLock lock(mutex_);
    save->segments = std::move(segments);  // The old ones are unmapped: the bytes are in memory once again.
    save->bytes = std::move(places);
    save->recovered = true;
  }
  Assign(save, session.daemon().daemon_instance(), sealed.sequence());
  return absl::OkStatus();
}

void RunImpl::Assign(const std::shared_ptr<StagedSave>& save, const std::string& daemon_instance,
                     int64_t sequence) {
  MutexLock lock(mutex_);
  save->daemon_instance = daemon_instance;
  if (sequence != 0) save->sequence = sequence;
}

void RunImpl::SetLost(const std::shared_ptr<StagedSave>& save, const absl::Status& why) {
  MutexLock lock(mutex_);
  save->lost = why;
  save->segments.clear();
  save->bytes.clear();
  std::erase(staged_, save);
}

}  // namespace ckptd::client
