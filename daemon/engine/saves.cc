// Seal, Abort, Wait: how a save goes on and how it ends.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/validate.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kRememberedSaves = 256;    // Ended ones, for late questions.
constexpr size_t kMostMessageBytes = 1000;  // Of an Abort.

absl::Status Invalid(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT", message);
}

bool Reached(v1::Level level, v1::Level wanted) { return level >= v1::FAILED || level >= wanted; }

}  // namespace

Save* Engine::Impl::FindEnded(Run* run, const SaveId& key) {
  for (auto save = run->ended.rbegin(); save != run->ended.rend(); ++save) {
    if ((*save)->key == key) return save->get();
  }
  return nullptr;
}

// The save of one of the caller's ranks, in flight. NOT_FOUND when there is none; its own error when it has
// ended.
absl::StatusOr<Save*> Engine::Impl::FindSave(const Caller& caller, const v1::SaveKey& key, Member** member) {
  CKPTD_ASSIGN_OR_RETURN(Run * run, FindRun(caller, key.run()));
  Member* found = FindMember(run, caller.session, key.rank());
  if (found == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_JOINED",
                     absl::StrCat("this session has not joined ", key.run(), " as rank ", key.rank()));
  }
  if (member != nullptr) *member = found;
  const SaveId id{found->attempt, key.tag(), key.ordinal()};
  for (auto& entry : run->saves) {
    if (entry.second->key == id) return entry.second.get();
  }
  if (Save* ended = FindEnded(run, id); ended != nullptr && !ended->error.ok()) return ended->error;
  return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_SAVE",
                   absl::StrCat("no save of ", key.tag(), " (number ", key.ordinal(), " of attempt ",
                                found->attempt, ") is under way"),
                   {{"tag", key.tag()}});
}

// ---- Seal

absl::Status Engine::Impl::CheckSeal(Save* save, Part& part, const v1::SealRequest& request) {
  if (save->phase == SavePhase::kFailing) return save->error;
  if (!part.begun || !part.granted || part.open_writes > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "UNKNOWN_SAVE",
                     part.open_writes > 0
                         ? absl::StrCat("a WriteFile of rank ", part.rank, " has not ended yet")
                         : absl::StrCat("rank ", part.rank, " seals a part of ", save->key.tag,
                                        " before Begin was answered"));
  }
  CKPTD_RETURN_IF_ERROR(CheckFiles(request.files()));
  std::set<std::string> seen;
  for (const v1::FileSpec& file : request.files()) {
    auto placed = part.placed.find(file.path());
    if (placed == part.placed.end()) return Invalid(absl::StrCat("file ", file.path(), " was never placed"));
    if (file.size_bytes() > placed->second.size_bytes()) {
      return Invalid(absl::StrCat("file ", file.path(), " is sealed with ", file.size_bytes(), " bytes, but ",
                                  placed->second.size_bytes(), " were placed"));
    }
    if (!seen.insert(file.path()).second)
      return Invalid(absl::StrCat("file ", file.path(), " is sealed twice"));
  }
  return absl::OkStatus();
}

void Engine::Impl::Seal(const Caller& caller, const v1::SealRequest& request, Reply<v1::SealResponse> reply) {
  Member* member = nullptr;
  absl::StatusOr<Save*> found = FindSave(caller, request.key(), &member);
  if (!found.ok()) {
    // Sealed, and committed since: a retry whose first answer was lost.
    if (member != nullptr && ReasonOf(found.status()) == "UNKNOWN_SAVE") {
      Run* run = runs_.at(request.key().run()).get();
      const std::optional<v1::Checkpoint> past =
          PastSave(run, SaveId{member->attempt, request.key().tag(), request.key().ordinal()});
      if (past && past->level() == v1::COMMITTED) {
        v1::SealResponse response;
        response.set_level(past->level());
        response.set_sequence(past->sequence());
        return reply(std::move(response));
      }
    }
    return reply(found.status());
  }
  Save* save = *found;
  Part& part = save->PartOf(member->rank);
  v1::SealResponse response;
  response.set_sequence(save->sequence);
  if (part.begun && part.instance != member->instance) {
    return reply(MakeError(absl::StatusCode::kAlreadyExists, "RANK_TAKEN",
                           absl::StrCat("the part of rank ", part.rank, " of the save of ", save->key.tag,
                                        " is another process's"),
                           {{"tag", save->key.tag}, {"ranks", absl::StrCat(part.rank)}}));
  }
  // A retry, perhaps over a new session, perhaps of what an earlier daemon had sealed. A save that will fail
  // is not called failed before its directory is out of the way.
  if (part.sealed && (save->error.ok() || !save->remembered)) {
    response.set_level(std::max(save->level, v1::STAGED));
    return reply(std::move(response));
  }
  if (absl::Status wrong = CheckSeal(save, part, request); !wrong.ok()) return reply(wrong);
  part.sealed = true;
  part.files.assign(request.files().begin(), request.files().end());
  save->slowest_rank = part.rank;
  if (request.has_stall()) {
    const double stall = static_cast<double>(request.stall().seconds()) + request.stall().nanos() * 1e-9;
    save->stall_seconds = std::max(save->stall_seconds, stall);
  }
  int sealed = 0;
  for (const auto& entry : save->parts) sealed += entry.second.sealed;
  if (sealed == save->world_size) {
    save->level = v1::SEALED;
    save->sealed_at = clock_->Now();
    sizes_.Remember(*save);
    KeepSealed(save);
  }
  response.set_level(std::max(save->level, v1::STAGED));
  reply(std::move(response));
  Notify(*save);
  AnswerWaiters(save);
  WriteSealedParts(save);
}

// ---- ends

// The save will not become a checkpoint. What waits for it hears so at once when recovery could never bring
// it back, else when its directory is durably out of the way.
void Engine::Impl::FailSave(Save* save, absl::Status error, v1::Level end_level) {
  if (save->phase == SavePhase::kFailing || save->phase == SavePhase::kEnded) return;
  save->phase = SavePhase::kFailing;
  save->end_level = end_level;
  save->error = std::move(error);
  RevokeWrites(save);
  DropKept(save);
  bool all_written = static_cast<int>(save->parts.size()) == save->world_size;
  for (auto& entry : save->parts) {
    Part& part = entry.second;
    all_written &= part.writing || part.durable;
    for (auto& reply : std::exchange(part.begin_replies, {})) {
      if (end_level == v1::SKIPPED) {
        v1::BeginResponse response;
        response.set_sequence(save->sequence);
        response.set_level(v1::SKIPPED);
        response.mutable_error()->set_reason("SKIPPED");
        response.mutable_error()->set_message(std::string(save->error.message()));
        reply(std::move(response));
      } else {
        reply(save->error);
      }
    }
    for (auto& waiting : std::exchange(part.extend_replies, {})) waiting.second(save->error);
  }
  if (!all_written) {
    save->level = end_level;
    RememberEnd(save);
    Notify(*save);
    AnswerWaiters(save);
  }
  ContinueFailing(save);
}

void Engine::Impl::ContinueFailing(Save* save) {
  if (save->phase != SavePhase::kFailing) return;
  for (const auto& entry : save->parts) {
    if (entry.second.writing) return;
  }
  for (const auto& entry :
       save->parts) {  // Its trainer may be in the middle of its copy, or wake up in it one day.
    if (entry.second.sealed || save->reservation == 0) continue;
    for (const SegmentRef& segment : entry.second.segments) pool_->Revoke(segment.id);
  }
  if (save->reservation != 0) pool_->Release(std::exchange(save->reservation, 0));
  if (save->inflight_asked && !save->inflight_made) return;  // Comes back when it is made, or could not be.
  if (!save->inflight_made) return EndSave(save, save->end_level);
  save->inflight_made = false;
  save->inflight_asked = true;
  save->run->io->Discard(save->id, [this, id = save->id](absl::Status discarded) {
    Save* failing = saves_.Find(id);
    if (failing == nullptr) return;
    if (ReasonOf(discarded) == "ROOT_READ_ONLY") {  // Again after the scan: it must not stay behind.
      failing->inflight_made = true;
      return scanner_.AwaitScan(failing->run);
    }
    if (!discarded.ok()) {
      observer_->OnWarning(absl::StrCat("the in-flight directory of ", failing->key.tag, " in ",
                                        failing->run->path,
                                        " could not be moved away: ", std::string(discarded.message())));
      bool complete = static_cast<int>(failing->parts.size()) == failing->world_size;
      for (const auto& entry : failing->parts) complete &= entry.second.durable;
      // It may be half done; and what could not be moved is moved then.
      scanner_.Scan(failing->run);
      if (complete) {  // Recovery could bring it back: neither COMMITTED nor FAILED is true.
        failing->run->read_only = true;
        return EndSave(failing, v1::INDETERMINATE);
      }
    }
    trash_.Empty(failing->run);  // Before the end, which lets the next save look for room: this makes some.
    EndSave(failing, failing->end_level);
  });
}

// The last step of every save. The object stays in `ended` for late questions, soon without its parts.
void Engine::Impl::EndSave(Save* save, v1::Level level) {
  Run* run = save->run;
  save->level = level;
  save->phase = SavePhase::kEnded;
  save->disk_reserved = 0;
  placer_.Forget(*save);
  DropKept(save);
  if (save->reservation != 0 && level == v1::COMMITTED) KeepResident(save);
  if (save->reservation != 0) pool_->Release(std::exchange(save->reservation, 0));
  PruneResidents(run);
  disk_.OnSaveEnded(*save);
  run->ended.push_back(saves_.Remove(save));
  ended_whole_.push_back(save);
  if (!save->remembered) {
    RememberEnd(save);
    Notify(*save);
    AnswerWaiters(save);
  }
  for (auto& entry : save->parts) {  // Bytes of the part are gone; keep what late questions need.
    for (auto& begin : std::exchange(entry.second.begin_replies, {})) {
      // Of a rank that had sealed with an earlier daemon.
      begin(level == v1::COMMITTED
                ? MakeError(absl::StatusCode::kAlreadyExists, "SAVE_CONFLICT",
                            absl::StrCat("this save of ", save->key.tag, " is committed already"),
                            {{"tag", save->key.tag}})
                : save->error);
    }
    entry.second.segments.clear();
    entry.second.record.Clear();
  }
  while (run->ended.size() > kRememberedSaves) {
    std::erase(ended_whole_, run->ended.front().get());
    run->ended.pop_front();
  }
  for (auto& entry : run->saves) {  // A younger save of the same tag may have waited for this one.
    if (entry.second->key.tag == save->key.tag) {
      TryPublish(entry.second.get());
      break;
    }
  }
  ContinueResumes(run);
  queue_.TryAdmitAll();
  CheckDrained();
}

// What late questions need of saves that have ended is their summary, not their files. Not within EndSave:
// callers may still hold references to the parts.
void Engine::Impl::SummarizeEnded() {
  for (Save* save : std::exchange(ended_whole_, {})) {
    save->summary = std::make_unique<v1::Checkpoint>(Describe(*save, v1::BASIC));
    save->parts.clear();
    save->owner_of_path.clear();
    save->pointers.clear();
    save->metrics.clear();
  }
}

// History, log, metrics.
void Engine::Impl::RememberEnd(Save* save) {
  Run* run = save->run;
  save->remembered = true;
  SaveSummary summary;
  summary.run = run->name;
  summary.run_id = run->ledger->record().run_id();
  summary.path = run->path;
  summary.checkpoint = Describe(*save, v1::BASIC);
  const Instant now = clock_->Now();
  auto since = [save](Instant then) {
    return then == Instant() ? 0.0 : std::chrono::duration<double>(then - save->begun_at).count();
  };
  summary.stall_seconds = save->stall_seconds;
  summary.staged_seconds = since(save->sealed_at);
  summary.written_seconds = since(save->written_at);
  summary.slowest_rank = save->slowest_rank;
  if (save->level == v1::COMMITTED) {
    summary.committed_seconds = since(now);
    summary.publish_seconds = std::chrono::duration<double>(now - save->written_at).count();
  } else {
    RememberFailure(run, summary.checkpoint);
  }
  storage::v1::Outcome outcome;
  outcome.set_tag(save->key.tag);
  outcome.set_ordinal(save->key.ordinal);
  outcome.set_attempt(save->key.attempt);
  outcome.set_sequence(save->sequence);
  outcome.set_level(save->level);
  outcome.set_reason(summary.checkpoint.error().reason());
  outcome.set_message(summary.checkpoint.error().message());
  outcome.set_code(summary.checkpoint.error().code());
  *outcome.mutable_ranks() = summary.checkpoint.error().ranks();
  if (save->step) outcome.set_step(*save->step);
  outcome.set_time_us(clock_->UnixMicros());
  outcome.set_size_bytes(summary.checkpoint.size_bytes());
  history_.Record(run, outcome);
  observer_->OnSaveEnded(summary);
}

// How a save ended that this daemon has no Save of: committed by an earlier one, or in the history.
std::optional<v1::Checkpoint> Engine::Impl::PastSave(Run* run, const SaveId& key) {
  if (Save* ended = FindEnded(run, key)) return Describe(*ended, v1::BASIC);
  for (const auto& entry : run->committed) {
    const storage::v1::ManifestSummary& summary = entry.second.summary;
    if (summary.tag() == key.tag && summary.attempt() == key.attempt && summary.ordinal() == key.ordinal) {
      return Describe(*run, entry.second);
    }
  }
  const auto& outcomes = run->ledger->record().outcomes();
  for (auto outcome = outcomes.rbegin(); outcome != outcomes.rend(); ++outcome) {
    if (outcome->tag() != key.tag || outcome->attempt() != key.attempt || outcome->ordinal() != key.ordinal)
      continue;
    v1::Checkpoint checkpoint;
    checkpoint.set_name(absl::StrCat(run->name, "/checkpoints/", key.tag));
    checkpoint.set_run(run->name);
    checkpoint.set_tag(key.tag);
    checkpoint.set_sequence(outcome->sequence());
    checkpoint.set_attempt(key.attempt);
    checkpoint.set_ordinal(key.ordinal);
    checkpoint.set_level(static_cast<v1::Level>(outcome->level()));
    if (outcome->level() >= v1::FAILED) {
      checkpoint.mutable_error()->set_reason(outcome->reason());
      checkpoint.mutable_error()->set_message(outcome->message());
      checkpoint.mutable_error()->set_code(outcome->code());
      *checkpoint.mutable_error()->mutable_ranks() = outcome->ranks();
    }
    return checkpoint;
  }
  return std::nullopt;
}

void Engine::Impl::Abort(const Caller& caller, const v1::AbortRequest& request,
                         Reply<v1::AbortResponse> reply) {
  Save* save = nullptr;
  std::vector<int> ranks;
  std::string who = "an operator";
  if (!request.name().empty()) {
    std::string tag;
    absl::StatusOr<Run*> run = RunOfCheckpointName(caller, request.name(), &tag);
    if (!run.ok()) return reply(run.status());
    for (auto& entry : (*run)->saves) {
      if (entry.second->key.tag == tag) save = entry.second.get();
    }
    if (save == nullptr) {
      return reply(MakeError(absl::StatusCode::kNotFound, "UNKNOWN_SAVE",
                             absl::StrCat("no save of ", tag, " is under way in ", (*run)->path),
                             {{"tag", tag}}));
    }
  } else {
    Member* member = nullptr;
    absl::StatusOr<Save*> found = FindSave(caller, request.key(), &member);
    if (!found.ok()) {
      // It has ended already: then that is how it ended, and the abort has its effect.
      if (member != nullptr && ReasonOf(found.status()) != "UNKNOWN_SAVE") return reply(v1::AbortResponse());
      return reply(found.status());
    }
    save = *found;
    ranks.push_back(member->rank);
    who = absl::StrCat("rank ", member->rank);
  }
  if (save->phase == SavePhase::kPublishing) {
    return reply(
        MakeError(absl::StatusCode::kFailedPrecondition, "SEALED",
                  absl::StrCat("the save of ", save->key.tag, " is being published and can not be aborted"),
                  {{"tag", save->key.tag}}));
  }
  FailSave(save, MakeError(absl::StatusCode::kAborted, "SAVE_ABORTED",
                           absl::StrCat(who, " aborted the save", request.message().empty() ? "" : ": ",
                                        FirstBytes(request.message(), kMostMessageBytes)),
                           {{"tag", save->key.tag}, {"ranks", JoinRanks(ranks)}}));
  reply(v1::AbortResponse());
}

// ---- Wait

void Engine::Impl::Wait(const Caller& caller, const v1::WaitRequest& request, Reply<v1::WaitResponse> reply) {
  if (request.level() != v1::STAGED && request.level() != v1::SEALED && request.level() != v1::COMMITTED) {
    return reply(Invalid("level is STAGED, SEALED or COMMITTED"));
  }
  absl::StatusOr<Duration> timeout =
      CheckDuration(request.has_timeout(), request.timeout(), "timeout", std::chrono::seconds(60),
                    Duration(0), std::chrono::seconds(86400));
  if (!timeout.ok()) return reply(timeout.status());
  Save* save = nullptr;
  std::optional<v1::Checkpoint> past;
  int rank = -1;
  if (!request.name().empty()) {
    std::string tag;
    absl::StatusOr<Run*> run = RunOfCheckpointName(caller, request.name(), &tag);
    if (!run.ok()) return reply(run.status());
    for (auto& entry : (*run)->saves) {
      if (entry.second->key.tag == tag) save = entry.second.get();
    }
    for (auto ended = (*run)->ended.rbegin(); save == nullptr && !past && ended != (*run)->ended.rend();
         ++ended) {
      if ((*ended)->key.tag == tag) past = Describe(**ended, v1::BASIC);
    }
    for (const auto& entry : (*run)->committed) {
      if (save == nullptr && !past && entry.second.summary.tag() == tag) past = Describe(**run, entry.second);
    }
    if (save == nullptr && !past) {
      return reply(MakeError(absl::StatusCode::kNotFound, "UNKNOWN_SAVE",
                             absl::StrCat("no checkpoint ", tag, " is known in ", (*run)->path),
                             {{"tag", tag}}));
    }
  } else {
    absl::StatusOr<Run*> run = FindRun(caller, request.key().run());
    if (!run.ok()) return reply(run.status());
    Member* member = FindMember(*run, caller.session, request.key().rank());
    const int64_t attempt = request.attempt() != 0 ? request.attempt()
                            : member != nullptr    ? member->attempt
                                                   : 0;
    const SaveId key{attempt, request.key().tag(), request.key().ordinal()};
    rank = request.key().rank();
    for (auto& entry : (*run)->saves) {
      if (entry.second->key == key) save = entry.second.get();
    }
    if (save == nullptr) past = PastSave(*run, key);
    if (save == nullptr && !past && request.sequence() != 0) {
      // Begun with an earlier daemon, neither committed nor in its history: its memory is gone.
      past.emplace();
      past->set_name(absl::StrCat((*run)->name, "/checkpoints/", key.tag));
      past->set_run((*run)->name);
      past->set_tag(key.tag);
      past->set_sequence(request.sequence());
      past->set_attempt(attempt);
      past->set_ordinal(key.ordinal);
      past->set_level(v1::FAILED);
      past->mutable_error()->set_reason("STAGED_LOST");
      past->mutable_error()->set_code(static_cast<int>(absl::StatusCode::kAborted));
      past->mutable_error()->set_message(
          absl::StrCat("the daemon ended before the save of ", key.tag, " was committed; save again"));
    }
    if (save == nullptr && !past) {
      return reply(MakeError(absl::StatusCode::kNotFound, "UNKNOWN_SAVE",
                             absl::StrCat("no save of ", key.tag, " (number ", key.ordinal, " of attempt ",
                                          attempt, ") is known"),
                             {{"tag", key.tag}}));
    }
  }
  if (past) {
    v1::WaitResponse response;
    *response.mutable_checkpoint() = *std::move(past);
    return reply(std::move(response));
  }
  Waiter waiter;
  waiter.rank = rank;
  waiter.level = request.level();
  waiter.deadline = clock_->Now() + *timeout;
  waiter.reply = std::move(reply);
  save->waiters.push_back(std::move(waiter));
  AnswerWaiters(save);
}

// Those whose level is reached, whose save has ended, or whose time is up.
void Engine::Impl::AnswerWaiters(Save* save) {
  const Instant now = clock_->Now();
  std::vector<Waiter> still;
  for (Waiter& waiter : std::exchange(save->waiters, {})) {
    v1::Level level = save->level;
    auto part = save->parts.find(waiter.rank);
    if (level == v1::OPEN && part != save->parts.end() && part->second.sealed) level = v1::STAGED;
    if (!Reached(level, waiter.level) && now < waiter.deadline) {
      still.push_back(std::move(waiter));
      continue;
    }
    v1::WaitResponse response;
    *response.mutable_checkpoint() = Describe(*save, waiter.view);
    response.mutable_checkpoint()->set_level(level);
    waiter.reply(std::move(response));
  }
  for (Waiter& waiter : still) save->waiters.push_back(std::move(waiter));
}

// ---- WriteFile

absl::StatusOr<Engine::WriteTarget> Engine::Impl::BeginWrite(
    const Caller& caller, const v1::SaveKey& key, const std::string& path,
    std::function<void(const absl::Status&)> revoke) {
  Member* member = nullptr;
  CKPTD_ASSIGN_OR_RETURN(Save * save, FindSave(caller, key, &member));
  if (save->phase == SavePhase::kFailing) return save->error;
  Part& part = save->PartOf(member->rank);
  auto placed = part.placed.find(path);
  if (!part.granted || placed == part.placed.end()) {
    return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_FILE",
                     absl::StrCat("file ", path, " has no place in the part of rank ", member->rank),
                     {{"path", path}});
  }
  if (part.sealed) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "SEALED",
                     absl::StrCat("the part of rank ", member->rank, " is sealed and takes no more bytes"));
  }
  WriteTarget target;
  target.id = next_id_++;
  target.size = placed->second.size_bytes();
  int64_t offset = placed->second.offset(), left = target.size;
  for (const SegmentRef& segment : part.segments) {
    if (offset < segment.size && left > 0) {
      const int64_t run = std::min(left, segment.size - offset);
      target.runs.emplace_back(segment.data + offset, static_cast<size_t>(run));
      left -= run;
      offset = 0;
    } else {
      offset = std::max<int64_t>(0, offset - segment.size);
    }
  }
  ++part.open_writes;
  writes_.emplace(target.id, Write{save->id, part.rank, std::move(revoke)});
  return target;
}

void Engine::Impl::EndWrite(int64_t id) {
  auto write = writes_.find(id);
  if (write == writes_.end()) return;
  if (Save* save = saves_.Find(write->second.save)) --save->parts.at(write->second.rank).open_writes;
  writes_.erase(write);
}

// The memory of a save that fails is wanted back, whatever its clients' streams do.
void Engine::Impl::RevokeWrites(Save* save) {
  for (auto write = writes_.begin(); write != writes_.end();) {
    if (write->second.save != save->id) {
      ++write;
      continue;
    }
    --save->parts.at(write->second.rank).open_writes;
    const auto revoke = std::move(write->second.revoke);
    write = writes_.erase(write);
    revoke(save->error);
  }
}

}  // namespace ckptd
