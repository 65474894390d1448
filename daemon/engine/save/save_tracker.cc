// Seal, Abort, Wait and deadlines. save_ends.cc has the ends.
#include "daemon/engine/save/save_tracker.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/engine/run/part_layout.h"
#include "daemon/engine/seams/validate.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kMaxMessageBytes = 1000;  // Of an Abort.
constexpr std::chrono::seconds kWarnOfRanksAfter(10);

bool IsReached(v1::Level level, v1::Level wanted) { return level >= v1::FAILED || level >= wanted; }

bool AwaitsRoom(const Save& save) {
  return save.phase() == SavePhase::kTarget || save.phase() == SavePhase::kGathering ||
         save.phase() == SavePhase::kQueued;
}

// Whether the file system has not said for too long whether the tag is free, or how much room there is.
bool AwaitsFileSystem(const Save& save, Instant now) {
  if (save.phase() == SavePhase::kTarget) return now >= save.begun_at + kLongestSilenceForSkip;
  if (save.phase() != SavePhase::kQueued || save.waits_for != WaitsFor::kDisk) return false;
  const std::optional<Instant> since = save.run->io->pending_since();
  return since && now >= *since + kLongestSilenceForSkip;
}

absl::Status RanksMissing(const Save& save, const std::vector<int>& ranks, const std::string& what) {
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kRanksMissing,
                   absl::StrCat("ranks ", JoinRanks(ranks), what),
                   {{"tag", save.key.tag}, {"ranks", JoinRanks(ranks)}});
}

// The files that a Seal names.
absl::StatusOr<std::vector<SealedFile>> FilesOf(const Part& part, const v1::SealRequest& request) {
  std::vector<SealedFile> files;
  files.reserve(static_cast<size_t>(request.files_size()));
  for (const v1::FileSpec& file : request.files()) {
    const PlacedFile* const placed = part.placed->Find(file.path(), files.size());
    if (placed == nullptr) return InvalidArgument(absl::StrCat("file ", file.path(), " was never placed"));
    if (file.size_bytes() > placed->size) {
      return InvalidArgument(absl::StrCat("file ", file.path(), " is sealed with ", file.size_bytes(),
                                          " bytes, but ", placed->size, " were placed"));
    }
    files.push_back({placed, file.size_bytes()});
  }
  std::vector<const PlacedFile*> seen;
  seen.reserve(files.size());
  for (const SealedFile& file : files) seen.push_back(file.placed);
  std::sort(seen.begin(), seen.end());
  if (const auto twice = std::adjacent_find(seen.begin(), seen.end()); twice != seen.end())
    return InvalidArgument(absl::StrCat("file ", (*twice)->path, " is sealed twice"));
  return files;
}

}  // namespace

SaveTracker::SaveTracker(Clock* clock, SegmentPool* pool, EngineObserver* observer, SaveTable* saves,
                         EndedSaves* past, WriteStreams* streams, const ExpectedSizes* sizes,
                         RootScanner* scanner, TrashCollector* trash, Hooks hooks)
    : clock_(clock),
      pool_(pool),
      observer_(observer),
      saves_(saves),
      past_(past),
      streams_(streams),
      sizes_(sizes),
      scanner_(scanner),
      trash_(trash),
      hooks_(std::move(hooks)) {}

// ---- Seal

absl::StatusOr<std::vector<SealedFile>> SaveTracker::CheckSeal(const Save& save, const Part& part,
                                                               const v1::SealRequest& request) const {
  if (save.phase() == SavePhase::kFailing) return save.error;
  if (!part.begun || !part.granted || part.open_writes > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kUnknownSave,
                     part.open_writes > 0
                         ? absl::StrCat("a WriteFile of rank ", part.rank, " has not ended yet")
                         : absl::StrCat("rank ", part.rank, " seals a part of ", save.key.tag,
                                        " before Begin was answered"));
  }
  CKPTD_RETURN_IF_ERROR(CheckSealRequest(request));
  std::vector<SealedFile> files;
  if (request.as_placed()) {
    files = part.placed->Sealed();
  } else {
    CKPTD_ASSIGN_OR_RETURN(files, FilesOf(part, request));
  }
  const int64_t memory = MemoryBytes(part.segments);
  for (const SealedFile& file : files) {
    if (file.size > 0 && file.placed->offset + file.size > memory)
      return InvalidArgument(
          absl::StrCat("file ", file.placed->path,
                       " is sealed and has no memory yet: wait for the answer of Extend first"));
  }
  return files;
}

void SaveTracker::Seal(Save* save, const Member& member, const v1::SealRequest& request,
                       Reply<v1::SealResponse> reply) {
  Part& part = save->PartOf(member.rank);
  if (part.begun && part.instance != member.instance) {
    return reply(MakeError(absl::StatusCode::kAlreadyExists, reason::kRankTaken,
                           absl::StrCat("the part of rank ", part.rank, " of the save of ", save->key.tag,
                                        " is another process's"),
                           {{"tag", save->key.tag}, {"ranks", absl::StrCat(part.rank)}}));
  }
  // A retry, perhaps from a new session, perhaps for a part that was sealed with an earlier daemon. A save
  // that fails and is not reported yet may still be published by recovery.
  const bool is_retry = part.sealed && (save->error.ok() || !save->remembered);
  const v1::Level before = save->level();
  if (!is_retry) {
    absl::StatusOr<std::vector<SealedFile>> files = CheckSeal(*save, part, request);
    if (!files.ok()) return reply(files.status());
    part.files = *std::move(files);
    SealPart(save, part, request);
  }
  v1::SealResponse response;
  response.set_sequence(save->sequence);
  response.set_level(std::max(save->level(), v1::STAGED));
  reply(std::move(response));
  if (is_retry) return;
  if (save->level() == before) {  // Else OnSealedEverywhere has told them.
    hooks_.changed(*save);
    AnswerWaiters(save);
  }
  hooks_.part_sealed(save);
}

void SaveTracker::SealPart(Save* save, Part& part, const v1::SealRequest& request) {
  part.sealed = true;
  save->slowest_rank = part.rank;
  if (save->suspect.empty()) save->suspect = request.suspect();
  if (request.has_stall()) {
    const double stall = static_cast<double>(request.stall().seconds()) + request.stall().nanos() * 1e-9;
    save->stall_seconds = std::max(save->stall_seconds, stall);
  }
  if (!save->UnsealedRanks().empty()) return;
  if (save->phase() == SavePhase::kAdmitted) hooks_.sealed_here(save);
}

void SaveTracker::OnSealedEverywhere(Save* save) {
  save->life.Sealed();
  save->sealed_at = clock_->Now();
  hooks_.all_sealed(save);
  hooks_.changed(*save);
  AnswerWaiters(save);
}

absl::Status SaveTracker::Abort(Save* save, const std::vector<int>& ranks, const std::string& message) {
  if (save->phase() == SavePhase::kPublishing || save->phase() == SavePhase::kLoading) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kSealed,
        absl::StrCat("the save of ", save->key.tag, " is being published and can not be aborted"),
        {{"tag", save->key.tag}});
  }
  const std::string who = ranks.empty() ? "an operator" : absl::StrCat("rank ", ranks.front());
  Fail(save, MakeError(absl::StatusCode::kAborted, reason::kSaveAborted,
                       absl::StrCat(who, " aborted the save", message.empty() ? "" : ": ",
                                    FirstBytes(message, kMaxMessageBytes)),
                       {{"tag", save->key.tag}, {"ranks", JoinRanks(ranks)}}));
  return absl::OkStatus();
}

// ---- Wait

void SaveTracker::Wait(Save* save, Waiter waiter) {
  save->waiters.push_back(std::move(waiter));
  AnswerWaiters(save);
}

void SaveTracker::AnswerWaiters(Save* save) {
  const Instant now = clock_->Now();
  std::vector<Waiter> still;
  for (Waiter& waiter : std::exchange(save->waiters, {})) {
    v1::Level level = save->level();
    const Part* part = save->FindPart(waiter.rank);
    if (level == v1::OPEN && part != nullptr && part->sealed) level = v1::STAGED;
    if (!IsReached(level, waiter.level) && now < waiter.deadline) {
      still.push_back(std::move(waiter));
      continue;
    }
    v1::WaitResponse response;
    *response.mutable_checkpoint() = hooks_.describe(*save, waiter.view);
    response.mutable_checkpoint()->set_level(level);
    waiter.reply(std::move(response));
  }
  for (Waiter& waiter : still) save->waiters.push_back(std::move(waiter));
}

// ---- deadlines

void SaveTracker::OnTick(Instant now) {
  std::vector<Save*> late, skipped;
  for (const auto& [id, save] : saves_->all()) {
    AnswerWaiters(save);
    if (save->busy == v1::SKIP && AwaitsFileSystem(*save, now)) skipped.push_back(save);
    WarnOfDifferentTags(save, now);
    // A node of a shared run says what it has waited for. One that has accepted the save waits for the
    // others, and the nodes end it together.
    const bool awaits_room = AwaitsRoom(*save);
    const bool open = save->phase() == SavePhase::kAdmitted && !save->sealed();
    // A commit_timeout that is shorter than the timeout of the admission bounds that, too.
    if (awaits_room && now >= std::min(save->admission_deadline, save->commit_deadline)) late.push_back(save);
    if (open && now >= save->commit_deadline && !save->UnsealedRanks().empty()) late.push_back(save);
  }
  for (Save* save : skipped) {
    Fail(save, MakeError(absl::StatusCode::kAborted, reason::kSkipped,
                         absl::StrCat("the file system of ", save->run->path, " has not answered for ",
                                      kLongestSilenceForSkip / std::chrono::seconds(1), " s"),
                         {{"tag", save->key.tag}}));
  }
  // Each says what the others are, before the first one is gone.
  std::vector<absl::Status> errors;
  for (Save* save : late) errors.push_back(DeadlineError(*save));
  for (size_t i = 0; i < late.size(); ++i) {
    // The end of another late save may have ended it, too.
    if (!errors[i].ok() && !DeadlineError(*late[i]).ok()) Fail(late[i], errors[i]);
  }
}

// Which saves have the pool's memory: those of the same user by root, the others in one sum, because no user
// may learn of another's roots.
std::string SaveTracker::HoldersOfMemory(const Save& save) const {
  std::map<std::string, int64_t> held;
  for (const auto& [id, other] : saves_->all()) {
    const bool own = other->run->uid == save.run->uid;
    if (other->reservation != 0)
      held[own ? other->run->path : "other users"] += pool_->Count(other->reservation);
  }
  const int64_t mib = pool_->segment_bytes() >> 20;
  return absl::StrJoin(held, ", ", [mib](std::string* out, const auto& holder) {
    absl::StrAppend(out, holder.first, " ", holder.second * mib, " MiB");
  });
}

// Which ranks wait in another save for a rank that waits for them in this one; in words, empty: none. They
// were given another tag, or another root. Only saves of the same user count: no user may learn of another's
// roots.
std::string SaveTracker::SavesInstead(const Save& save) const {
  std::vector<std::string> found;
  const auto waits_for = [](const Save& waiting, int rank) {
    const Part* part = waiting.FindPart(rank);
    return waiting.Contributes(rank) && (part == nullptr || !part->begun);
  };
  for (const auto& entry : saves_->all()) {
    const Save* const other = entry.second;
    if (other == &save || other->run->uid != save.run->uid || other->world_size != save.world_size) continue;
    const bool is_waited_for = std::any_of(save.parts.begin(), save.parts.end(), [&](const auto& part) {
      return part.second.begun && waits_for(*other, part.first);
    });
    if (!is_waited_for) continue;
    for (const auto& [rank, part] : other->parts) {
      if (!part.begun || part.sealed || !waits_for(save, rank)) continue;
      found.push_back(absl::StrCat("rank ", rank, " saves ", other->key.tag,
                                   other->run == save.run ? "" : " in the root " + other->run->path));
    }
  }
  if (found.empty()) return "";
  return absl::StrCat("; in its place ", absl::StrJoin(found, ", "),
                      ": give all ranks the same root and tag");
}

void SaveTracker::WarnOfDifferentTags(Save* save, Instant now) {
  if (save->warned_of_ranks || now < save->begun_at + kWarnOfRanksAfter) return;
  if (save->phase() != SavePhase::kGathering && save->phase() != SavePhase::kAdmitted) return;
  const std::string instead = SavesInstead(*save);
  if (instead.empty()) return;
  save->warned_of_ranks = true;
  observer_->OnWarning(absl::StrCat("the save of ", save->key.tag, " in the root ", save->run->path,
                                    " waits for ranks ", JoinRanks(save->UnsealedRanks()), instead));
}

// OK if the save has ended since.
absl::Status SaveTracker::DeadlineError(const Save& save) const {
  if (save.phase() == SavePhase::kQueued || save.phase() == SavePhase::kTarget) {
    std::string what = save.phase() == SavePhase::kTarget
                           ? absl::StrCat("an answer of the file system of ", save.run->path)
                           : save.waits_for_words;
    const std::string holders = HoldersOfMemory(save);
    if (save.waits_for == WaitsFor::kMemory && !holders.empty())
      absl::StrAppend(&what, "; saves in flight hold it: ", holders);
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kAdmissionTimeout,
                     absl::StrCat("no room for the save of ", save.key.tag, " in time; it waited for ", what),
                     {{"tag", save.key.tag}});
  }
  if (save.phase() == SavePhase::kGathering) {
    return RanksMissing(save, sizes_->UnknownRanks(save),
                        absl::StrCat(" have not begun the save of ", save.key.tag,
                                     " in time; every rank of the launch begins every save, one that has "
                                     "nothing to save with no files, unless the save names its ranks",
                                     save.run->authority->may_span_nodes()
                                         ? "; a process that counts ranks of other nodes as its own "
                                           "node's waits for them here: set LOCAL_WORLD_SIZE"
                                         : "",
                                     SavesInstead(save)));
  }
  if (save.phase() == SavePhase::kAdmitted) {
    return RanksMissing(save, save.UnsealedRanks(),
                        absl::StrCat(" have not sealed their part of ", save.key.tag,
                                     " in time (commit_timeout)", SavesInstead(save)));
  }
  return absl::OkStatus();
}

Instant SaveTracker::NextDeadline() const {
  Instant next = Instant::max();
  for (const auto& [id, save] : saves_->all()) {
    next = std::min({next, save->admission_deadline, save->commit_deadline});
    for (const Waiter& waiter : save->waiters) next = std::min(next, waiter.deadline);
  }
  return next;
}

}  // namespace ckptd
