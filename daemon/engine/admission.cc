// Begin and Extend: sizes, room, order. A checkpoint is admitted once for all its ranks, memory and disk
// together, before a byte is copied; in the order of sequence, so that two half-admitted ones cannot block
// each other.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

constexpr int64_t kDiskSlack = 1 << 20;  // Directories, manifest, part records.
constexpr Duration kRoomRetry = std::chrono::milliseconds(250);

absl::Status Conflict(const std::string& message, const Save& save) {
  return MakeError(absl::StatusCode::kAlreadyExists, "SAVE_CONFLICT", message, {{"tag", save.key.tag}});
}

v1::BeginResponse Skipped(const Save& save) {
  v1::BeginResponse response;
  response.set_sequence(save.sequence);
  response.set_level(v1::SKIPPED);
  v1::SaveError& error = *response.mutable_error();
  error.set_reason("SKIPPED");
  error.set_code(static_cast<int>(absl::StatusCode::kAborted));
  error.set_message(std::string(save.error.message()));
  return response;
}

}  // namespace

void Engine::Impl::Begin(const Caller& caller, const v1::BeginRequest& request,
                         Reply<v1::BeginResponse> reply) {
  absl::StatusOr<Run*> run = FindRun(caller, request.key().run());
  if (!run.ok()) return reply(run.status());
  Member* member = FindMember(*run, caller.session, request.key().rank());
  if (member == nullptr) {
    return reply(MakeError(absl::StatusCode::kFailedPrecondition, "NOT_JOINED",
                           absl::StrCat("this session has not joined ", request.key().run(), " as rank ",
                                        request.key().rank(), "; call JoinRun first")));
  }
  if (absl::Status wrong = CheckBegin(request, member->world_size); !wrong.ok()) return reply(wrong);
  if (draining_) {
    return reply(MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                           "the daemon is ending and takes no new saves; try again when it is back"));
  }
  if ((*run)->read_only) {
    return reply(
        MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_READ_ONLY",
                  absl::StrCat("the root ", (*run)->path,
                               " is read-only after a failed directory sync, until it is scanned anew")));
  }
  (*run)->ledger->Activate(
      member->attempt, [this, session = caller.session, request, name = (*run)->name,
                        attempt = member->attempt, reply = std::move(reply)](absl::Status active) mutable {
        if (!active.ok()) return reply(active);
        if (auto found = runs_.find(name); found != runs_.end()) FenceOff(found->second.get(), attempt);
        BeginActivated(session, request, std::move(reply));
      });
}

void Engine::Impl::BeginActivated(SessionId session, const v1::BeginRequest& request,
                                  Reply<v1::BeginResponse> reply) {
  Run* run = runs_.at(request.key().run()).get();
  Member* member = FindMember(run, session, request.key().rank());
  if (member == nullptr) {
    return reply(
        MakeError(absl::StatusCode::kAborted, "SESSION_LOST", "the session ended before Begin was answered"));
  }
  const SaveId key{member->attempt, request.key().tag(), request.key().ordinal()};
  for (auto& entry : run->saves) {
    if (entry.second->key == key) return BeginPart(entry.second.get(), *member, request, std::move(reply));
  }
  if (Save* ended = FindEnded(run, key)) {
    if (ended->level == v1::SKIPPED) return reply(Skipped(*ended));
    if (ended->level != v1::COMMITTED) return reply(ended->error);
    return reply(Conflict(absl::StrCat("this save of ", key.tag, " is committed already"), *ended));
  }
  if (std::optional<v1::Checkpoint> past = PastSave(run, key)) {
    const v1::SaveError& error = past->error();
    return reply(MakeError(
        past->level() == v1::COMMITTED ? absl::StatusCode::kAlreadyExists
                                       : static_cast<absl::StatusCode>(error.code()),
        past->level() == v1::COMMITTED ? "SAVE_CONFLICT" : error.reason(),
        past->level() == v1::COMMITTED ? absl::StrCat("this save of ", key.tag, " is committed already")
                                       : error.message(),
        {{"tag", key.tag}, {"ranks", JoinRanks({error.ranks().begin(), error.ranks().end()})}}));
  }
  absl::StatusOr<Save*> save = NewSave(run, *member, request);
  if (!save.ok()) return reply(save.status());
  BeginPart(*save, *member, request, std::move(reply));
  if ((*save)->phase == SavePhase::kTarget) AskTarget(*save);
}

absl::StatusOr<Save*> Engine::Impl::NewSave(Run* run, const Member& member, const v1::BeginRequest& request) {
  using std::chrono::seconds;
  CKPTD_ASSIGN_OR_RETURN(const Duration timeout,
                         CheckDuration(request.has_timeout(), request.timeout(), "timeout", seconds(30),
                                       std::chrono::milliseconds(1), seconds(86400)));
  CKPTD_ASSIGN_OR_RETURN(
      const Duration commit_timeout,
      CheckDuration(request.has_commit_timeout(), request.commit_timeout(), "commit_timeout", seconds(600),
                    std::chrono::milliseconds(1), seconds(7 * 86400)));
  absl::StatusOr<int64_t> sequence = absl::InternalError("the ledger has not answered");
  run->ledger->Admit(member.attempt,
                     [&sequence](absl::StatusOr<int64_t> answer) { sequence = std::move(answer); });
  if (!sequence.ok()) return sequence.status();

  auto owned = std::make_unique<Save>();
  Save* save = owned.get();
  save->id = next_id_++;
  save->run = run;
  save->key = SaveId{member.attempt, request.key().tag(), request.key().ordinal()};
  save->sequence = *sequence;
  if (request.has_step()) save->step = request.step();
  save->world_size = member.world_size;
  save->busy = request.busy() == v1::BUSY_POLICY_UNSPECIFIED ? v1::WAIT : request.busy();
  save->begun_at = clock_->Now();
  save->begun_unix_us = clock_->UnixMicros();
  save->admission_deadline = save->begun_at + timeout;
  save->commit_deadline = save->begun_at + commit_timeout;
  for (int rank = 0; rank < save->world_size; ++rank) save->parts[rank].rank = rank;
  if (!run->committed.empty() && save->step) {
    const auto& newest = run->committed.rbegin()->second.summary;
    if (newest.has_step() && *save->step < newest.step()) {
      observer_->OnInfo(absl::StrCat("run ", run->path, " goes back: step ", *save->step, " (", save->key.tag,
                                     ") is saved after step ", newest.step(), " (", newest.tag(), ")"));
    }
  }
  run->saves.emplace(save->sequence, std::move(owned));
  saves_by_id_.emplace(save->id, save);
  return save;
}

// One rank joins a save that exists.
void Engine::Impl::BeginPart(Save* save, const Member& member, const v1::BeginRequest& request,
                             Reply<v1::BeginResponse> reply) {
  if (save->phase == SavePhase::kFailing && save->remembered) {
    if (save->end_level == v1::SKIPPED) return reply(Skipped(*save));
    return reply(save->error);
  }
  const std::optional<int64_t> step = request.has_step() ? std::optional(request.step()) : std::nullopt;
  if (step != save->step) {
    auto words = [](std::optional<int64_t> s) {
      return s ? absl::StrCat("step ", *s) : std::string("no step");
    };
    return reply(Conflict(absl::StrCat("rank ", member.rank, " saves ", save->key.tag, " as ", words(step),
                                       ", but it was begun as ", words(save->step)),
                          *save));
  }
  Part& part = save->parts.at(member.rank);
  const bool keeps = request.has_num_kept_ckpts();
  if (!part.begun && keeps &&
      save->num_kept_ckpts.value_or(request.num_kept_ckpts()) != request.num_kept_ckpts()) {
    return reply(Conflict(absl::StrCat("rank ", member.rank, " saves ", save->key.tag,
                                       " with num_kept_ckpts ", request.num_kept_ckpts(),
                                       ", but it was begun with num_kept_ckpts ", *save->num_kept_ckpts),
                          *save));
  }
  if (part.begun) {
    if (part.sealed && part.session == 0 && part.instance == member.instance) {
      // Sealed with an earlier daemon, whose answer it has not got: it hears how the save ends.
      part.begin_replies.push_back(std::move(reply));
      return;
    }
    if (part.session != member.session) {
      return reply(MakeError(absl::StatusCode::kAlreadyExists, "RANK_TAKEN",
                             absl::StrCat("rank ", member.rank, " of the save of ", save->key.tag,
                                          " was begun by another process"),
                             {{"tag", save->key.tag}, {"ranks", absl::StrCat(member.rank)}}));
    }
    part.begin_replies.push_back(std::move(reply));  // A retry.
    return AnswerBegins(save, part);
  }
  if (absl::Status named = NamePointers(save, member, request); !named.ok()) return reply(named);
  part.begun = true;
  part.session = member.session;
  part.instance = member.instance;
  part.growing = request.growing();
  part.asked.assign(request.files().begin(), request.files().end());
  part.begin_replies.push_back(std::move(reply));
  if (save->metrics.empty() || (member.rank == 0 && !request.metrics().empty())) {
    save->metrics = {request.metrics().begin(), request.metrics().end()};
  }
  if (keeps) save->num_kept_ckpts = request.num_kept_ckpts();  // A rank that names none follows the others.
  if (absl::Status placed = Place(save, part, part.asked); !placed.ok()) return FailSave(save, placed);
  if (save->phase == SavePhase::kGathering) return Gather(save);
  if (save->phase != SavePhase::kAdmitted) return;
  if (absl::Status fits = FitReservation(save, part); !fits.ok()) return FailSave(save, fits);
  DrawFor(save, part);
}

// The pointers of all ranks together count. A save of which nothing is promised yet is asked about as a
// whole; one that is under way fails when a late rank names a pointer whose place is taken.
absl::Status Engine::Impl::NamePointers(Save* save, const Member& member, const v1::BeginRequest& request) {
  std::map<std::string, std::string> all = save->pointers;
  std::vector<std::string> added;
  for (const auto& named : request.pointers()) {
    const auto [place, fresh] = all.emplace(named.first, named.second);
    if (fresh) {
      added.push_back(named.first);
    } else if (place->second != named.second) {
      return Conflict(absl::StrCat("rank ", member.rank, " saves ", save->key.tag, " with the pointer ",
                                   named.first, " = \"", named.second, "\", but it was begun with ",
                                   named.first, " = \"", place->second, "\""),
                      *save);
    }
  }
  CKPTD_RETURN_IF_ERROR(CheckPointers(save->key.tag, all));
  save->pointers = std::move(all);
  if (added.empty() || !save->target_asked) return absl::OkStatus();
  save->run->io->CheckTarget(save->key.tag, std::move(added), [this, id = save->id](absl::Status target) {
    Save* asked = FindSaveById(id);
    if (asked != nullptr && !asked->sealed() && !target.ok()) FailSave(asked, target);
  });
  return absl::OkStatus();
}

// Gives files their places in the part. A path belongs to one rank.
absl::Status Engine::Impl::Place(Save* save, Part& part, const std::vector<v1::FileSpec>& files) {
  for (const v1::FileSpec& file : files) {
    auto placed = part.placed.find(file.path());
    if (placed != part.placed.end()) {
      if (placed->second.size_bytes() == file.size_bytes()) continue;  // A retry.
      return Conflict(absl::StrCat("file ", file.path(), " was placed with ", placed->second.size_bytes(),
                                   " bytes, now it has ", file.size_bytes()),
                      *save);
    }
    // Another rank's file, or one whose path would have to be both a file and a directory.
    int owner = -1;
    std::string taken = file.path();
    if (auto claimed = save->owner_of_path.find(taken); claimed != save->owner_of_path.end())
      owner = claimed->second;
    for (const std::string& parent : ParentDirectories(file.path())) {
      if (auto claimed = save->owner_of_path.find(parent);
          owner < 0 && claimed != save->owner_of_path.end()) {
        owner = claimed->second;
        taken = parent;
      }
    }
    const std::string below = file.path() + "/";
    if (auto claimed = save->owner_of_path.lower_bound(below);
        owner < 0 && claimed != save->owner_of_path.end() && claimed->first.starts_with(below)) {
      owner = claimed->second;
      taken = claimed->first;
    }
    if (owner >= 0) {
      return MakeError(absl::StatusCode::kAlreadyExists, "FILE_CONFLICT",
                       absl::StrCat("ranks ", std::min(owner, part.rank), " and ", std::max(owner, part.rank),
                                    " both claim the file ", taken, "; one file name belongs to one rank"),
                       {{"tag", save->key.tag},
                        {"path", taken},
                        {"ranks", JoinRanks({std::min(owner, part.rank), std::max(owner, part.rank)})}});
    }
    v1::FilePlacement placement;
    placement.set_path(file.path());
    placement.set_size_bytes(file.size_bytes());
    placement.set_offset(part.end);
    part.end += RoundUp(file.size_bytes());
    part.placed.emplace(file.path(), std::move(placement));
    save->owner_of_path.emplace(file.path(), part.rank);
  }
  return absl::OkStatus();
}

// May the tag be used, and how much room has the disk? Asked before anything is promised.
void Engine::Impl::AskTarget(Save* save) {
  save->target_asked = true;
  bool is_resave = false;
  for (const auto& entry : save->run->committed) {
    if (entry.second.summary.tag() != save->key.tag) continue;
    is_resave = true;
    if (!save->run->Pinned(entry)) break;
    return FailSave(save,
                    MakeError(absl::StatusCode::kFailedPrecondition, "PINNED",
                              absl::StrCat("checkpoint ", save->key.tag,
                                           " is pinned and is not replaced; unpin it or use another tag"),
                              {{"tag", save->key.tag}}));
  }
  if (is_resave && save->pointers.empty()) return AskFreeBytes(save);  // The tag's place is ours.
  std::vector<std::string> pointers;
  for (const auto& pointer : save->pointers) pointers.push_back(pointer.first);
  save->run->io->CheckTarget(save->key.tag, std::move(pointers), [this, id = save->id](absl::Status target) {
    Save* asked = FindSaveById(id);
    if (asked == nullptr || asked->phase != SavePhase::kTarget) return;
    if (!target.ok()) return FailSave(asked, target);
    AskFreeBytes(asked);
  });
}

void Engine::Impl::AskFreeBytes(Save* save) {
  const int64_t changes = room_changes_[save->run->device];
  save->run->io->FreeBytes([this, id = save->id, changes,
                            before = WrittenDiskBytes(save->run->device)](absl::StatusOr<int64_t> free) {
    Save* waiting = FindSaveById(id);
    if (waiting == nullptr || waiting->phase != SavePhase::kTarget) return;
    if (!free.ok()) return FailSave(waiting, free.status());
    waiting->run->free_bytes = *free;
    waiting->run->written_before = before;
    waiting->run->room_changes_asked = changes;
    waiting->phase = SavePhase::kGathering;
    Gather(waiting);
  });
}

bool Engine::Impl::SizeKnown(const Save& save, const Part& part) const {
  return part.begun ||
         (save.run->last_world_size == save.world_size && save.run->last_part_bytes.contains(part.rank));
}

int64_t Engine::Impl::ExpectedPartBytes(const Save& save, const Part& part) const {
  if (part.begun && !part.growing) return part.end;
  int64_t last = 0;
  if (save.run->last_world_size == save.world_size) {
    if (auto found = save.run->last_part_bytes.find(part.rank); found != save.run->last_part_bytes.end()) {
      last = found->second;
    }
  }
  return std::max(part.end, last);
}

void Engine::Impl::Gather(Save* save) {
  std::vector<int> missing;
  for (const auto& entry : save->parts) {
    if (!SizeKnown(*save, entry.second)) missing.push_back(entry.first);
  }
  if (!missing.empty()) {
    save->waits_for = absl::StrCat("the sizes of ranks ", JoinRanks(missing));
    return;
  }
  save->phase = SavePhase::kQueued;
  save->waits_for = "older saves of this run";
  TryAdmitAll();
}

// Saves that wait for room, oldest first over all runs. A younger one gets nothing that an older one waits
// for; but a root that hangs or is full holds up only its own run.
void Engine::Impl::TryAdmitAll() {
  if (admitting_) {  // An end in the middle of it gave room: once more when this turn is over.
    admit_again_ = true;
    return;
  }
  admitting_ = true;
  do {
    admit_again_ = false;
    std::set<Run*> blocked;
    bool memory_waited_for = false;
    for (auto& entry : saves_by_id_) {
      Save* save = entry.second;
      Run* run = save->run;
      if (save->phase == SavePhase::kTarget || save->phase == SavePhase::kGathering) blocked.insert(run);
      if (save->phase != SavePhase::kQueued) continue;
      if (blocked.contains(run) || memory_waited_for) {
        if (save->busy != v1::SKIP) continue;
        // There is no room for it before others have theirs, and it does not wait for them.
        FailSave(save,
                 MakeError(absl::StatusCode::kAborted, "SKIPPED", "older saves wait for room, too",
                           {{"tag", save->key.tag}}),
                 v1::SKIPPED);
        admit_again_ = true;
        break;
      }
      if (!TryAdmitSave(save)) {
        if (save->phase == SavePhase::kQueued) {
          blocked.insert(run);
          memory_waited_for |= save->waits_for.starts_with("memory") && !run->degraded;
        } else {  // It ended: the map has changed.
          admit_again_ = true;
          break;
        }
      }
    }
  } while (admit_again_);
  admitting_ = false;
}

// True: admitted. False: it stays queued, or has ended.
bool Engine::Impl::TryAdmitSave(Save* save) {
  if (!ReserveDisk(save)) return false;
  absl::Status memory = ReserveMemory(save);
  if (memory.ok()) {
    Admitted(save);
    return true;
  }
  save->disk_reserved = 0;
  if (ReasonOf(memory) != "POOL_EXHAUSTED") {
    FailSave(save, memory);
    return false;
  }
  save->waits_for = absl::StrCat("memory: ", std::string(memory.message()));
  if (save->busy == v1::SKIP) {
    FailSave(save,
             MakeError(absl::StatusCode::kAborted, "SKIPPED", save->waits_for, {{"tag", save->key.tag}}),
             v1::SKIPPED);
    return false;
  }
  if (save->busy == v1::SUPERSEDE) {
    for (auto& entry : save->run->saves) {
      Save* older = entry.second.get();
      if (older->sequence >= save->sequence) break;
      if (older->sealed() || older->phase == SavePhase::kFailing) continue;
      FailSave(older,
               MakeError(absl::StatusCode::kAborted, "SUPERSEDED",
                         absl::StrCat("the younger save of ", save->key.tag, " took its place"),
                         {{"tag", older->key.tag}}),
               v1::SUPERSEDED);
      return false;  // Its memory comes back through OnRoom.
    }
  }
  return false;
}

int64_t Engine::Impl::OutstandingDiskBytes(uint64_t device, const Save* but) const {
  int64_t outstanding = 0;
  for (const auto& entry : saves_by_id_) {
    const Save* save = entry.second;
    if (save == but || save->run->device != device || save->phase == SavePhase::kEnded) continue;
    outstanding += std::max<int64_t>(0, save->disk_reserved - save->written->load(std::memory_order_relaxed));
  }
  return outstanding;
}

// What this daemon has written there since it started. Grows.
int64_t Engine::Impl::WrittenDiskBytes(uint64_t device) const {
  const auto spent = spent_.find(device);
  int64_t written = spent == spent_.end() ? 0 : spent->second;
  for (const auto& entry : saves_by_id_) {
    if (entry.second->run->device == device)
      written += entry.second->written->load(std::memory_order_relaxed);
  }
  return written;
}

// What nobody has been promised: as last asked, less what was written since and what is still to be written.
int64_t Engine::Impl::FreeDiskBytes(const Run& run, const Save* but) const {
  const int64_t since = WrittenDiskBytes(run.device) - run.written_before;
  return run.free_bytes - since - OutstandingDiskBytes(run.device, but);
}

int64_t Engine::Impl::NeededDiskBytes(const Save& save) const {
  int64_t need = kDiskSlack;
  for (const auto& entry : save.parts) {
    need += ExpectedPartBytes(save, entry.second) + kPage * static_cast<int64_t>(entry.second.placed.size());
  }
  return need;
}

// Whether anything on the save's device may free room that has not been counted yet, in any run: trash that
// is being emptied, evictions under way or about to begin, and saves that hold room, for they may fail. A
// save that itself waits for room holds none: two of these must not wait for each other.
bool Engine::Impl::RoomMayCome(const Save& save) const {
  const uint64_t device = save.run->device;
  for (const auto& entry : runs_) {
    const Run& run = *entry.second;
    if (run.device != device || !run.open) continue;
    if (!run.evicting.empty() || run.trash_bytes > 0 || run.emptying_trash || run.making_room > 0)
      return true;
  }
  return std::any_of(saves_by_id_.begin(), saves_by_id_.end(), [&](const auto& entry) {
    const Save* other = entry.second;
    return other != &save && other->run->device == device && other->disk_reserved > 0;
  });
}

// Asks how much room the root's file system has by now.
void Engine::Impl::AskRoom(Run* run) {
  ++run->making_room;
  run->room_changes_asked = room_changes_[run->device];
  run->io->FreeBytes([this, run, before = WrittenDiskBytes(run->device)](absl::StatusOr<int64_t> free) {
    --run->making_room;
    if (free.ok()) {
      run->free_bytes = *free;
      run->written_before = before;
    }
    TryAdmitAll();
  });
}

// Room on disk, on paper. Space in trash counts as coming.
bool Engine::Impl::ReserveDisk(Save* save) {
  Run* run = save->run;
  const int64_t need = NeededDiskBytes(*save), free = FreeDiskBytes(*run, save);
  if (need <= free) {
    save->disk_reserved = need;
    return true;
  }
  const std::string lack = absl::StrCat("disk: the checkpoint needs ", need, " bytes, the file system of ",
                                        run->path, " has ", std::max<int64_t>(0, free), " free");
  const bool room_may_come = RoomMayCome(*save);
  if (!room_may_come && run->room_changes_asked != room_changes_[run->device]) {
    // Another run of the device has freed some since this one asked.
    save->waits_for = lack;
    AskRoom(run);
    return false;
  }
  if (!room_may_come) {
    FailSave(save,
             MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE",
                       absl::StrCat(lack, "; free some space or keep fewer checkpoints (num_kept_ckpts)"),
                       {{"tag", save->key.tag}}));
    return false;
  }
  save->waits_for = lack;
  if (save->busy == v1::SKIP) {
    FailSave(save, MakeError(absl::StatusCode::kAborted, "SKIPPED", lack, {{"tag", save->key.tag}}),
             v1::SKIPPED);
    return false;
  }
  // What we free ourselves is noticed when it is freed; what others do is asked for, and not in a circle.
  if (!run->ask_room_again_at) {
    run->ask_room_again_at = clock_->Now() + kRoomRetry;
    EmptyTrash(run);
  }
  return false;
}

absl::Status Engine::Impl::ReserveMemory(Save* save) {
  std::vector<SegmentDemand> demands;
  for (auto& entry : save->parts) {
    Part& part = entry.second;
    part.reserved = pool_->SegmentsFor(ExpectedPartBytes(*save, part));
    part.reserved_for = part.session;
    if (!part.begun) {
      if (Member* member = FindRank(save->run, save->key.attempt, part.rank))
        part.reserved_for = member->session;
    }
    demands.push_back(SegmentDemand{part.reserved_for, part.reserved});
  }
  absl::StatusOr<ReservationId> reservation = pool_->Reserve(demands);
  if (!reservation.ok()) {
    for (auto& entry : save->parts) entry.second.reserved = 0;
    return reservation.status();
  }
  save->reservation = *reservation;
  return absl::OkStatus();
}

void Engine::Impl::Admitted(Save* save) {
  save->phase = SavePhase::kAdmitted;
  save->waits_for.clear();
  StartInflight(save);
  for (auto& entry : save->parts) {
    if (!entry.second.begun || save->phase != SavePhase::kAdmitted) continue;
    DrawFor(save, entry.second);
  }
}

// Makes the reservation of one rank what its files need now.
absl::Status Engine::Impl::FitReservation(Save* save, Part& part) {
  const int64_t more = NeededDiskBytes(*save) - save->disk_reserved;
  const int64_t free = FreeDiskBytes(*save->run, nullptr);
  if (more > std::max<int64_t>(0, free)) {
    return MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE",
                     absl::StrCat("rank ", part.rank, " needs ", more,
                                  " bytes more than was expected, the disk has ", std::max<int64_t>(0, free)),
                     {{"tag", save->key.tag}, {"ranks", absl::StrCat(part.rank)}});
  }
  save->disk_reserved += more;
  const int needed = pool_->SegmentsFor(part.growing ? ExpectedPartBytes(*save, part) : part.end);
  if (needed > part.reserved) {
    absl::Status grown =
        pool_->Grow(save->reservation, SegmentDemand{part.reserved_for, needed - part.reserved});
    if (!grown.ok()) {
      return MakeError(grown.code(), ReasonOf(grown),
                       absl::StrCat("rank ", part.rank, " needs ", needed, " segments, ", part.reserved,
                                    " were reserved for it: ", std::string(grown.message())),
                       {{"tag", save->key.tag}, {"ranks", absl::StrCat(part.rank)}});
    }
    part.reserved = needed;
  } else if (needed < part.reserved && !part.growing) {
    pool_->Shrink(save->reservation, part.reserved_for, part.reserved - needed);
    part.reserved = needed;
  }
  return absl::OkStatus();
}

void Engine::Impl::DrawFor(Save* save, Part& part) {
  if (part.drawing) return;
  const int missing = pool_->SegmentsFor(part.end) - static_cast<int>(part.segments.size());
  if (missing <= 0) {
    AnswerBegins(save, part);
    return AnswerExtends(part);
  }
  part.drawing = true;
  pool_->Draw(save->reservation, part.reserved_for, part.session, missing,
              [this, id = save->id, rank = part.rank](absl::StatusOr<std::vector<SegmentRef>> segments) {
                Drawn(id, rank, std::move(segments));
              });
}

void Engine::Impl::Drawn(int64_t save_id, int rank, absl::StatusOr<std::vector<SegmentRef>> segments) {
  Save* save = FindSaveById(save_id);
  if (save == nullptr) return;
  Part& part = save->parts.at(rank);
  part.drawing = false;
  if (save->phase != SavePhase::kAdmitted) return;
  if (!segments.ok())
    return FailSave(save, Annotate(segments.status(), absl::StrCat("memory for rank ", rank)));
  part.segments.insert(part.segments.end(), segments->begin(), segments->end());
  DrawFor(save, part);
}

v1::BeginResponse Engine::Impl::GrantOf(Save* save, const Part& part) {
  v1::BeginResponse response;
  response.set_sequence(save->sequence);
  response.set_level(v1::OPEN);
  for (const SegmentRef& segment : part.segments) {
    v1::Segment& granted = *response.add_segments();
    granted.set_id(segment.id);
    granted.set_size_bytes(segment.size);
  }
  for (const v1::FileSpec& file : part.asked) *response.add_placements() = part.placed.at(file.path());
  for (SegmentId id : pool_->TakeRetired(part.session)) response.add_retired_segments(id);
  return response;
}

void Engine::Impl::AnswerBegins(Save* save, Part& part) {
  if (save->phase != SavePhase::kAdmitted && !save->sealed()) return;
  if (pool_->SegmentsFor(part.end) > static_cast<int>(part.segments.size())) return;
  part.granted = true;
  for (auto& reply : std::exchange(part.begin_replies, {})) reply(GrantOf(save, part));
}

void Engine::Impl::AnswerExtends(Part& part) {
  for (auto& [request, reply] : std::exchange(part.extend_replies, {})) {
    v1::ExtendResponse response;
    for (const SegmentRef& segment : part.segments) {
      v1::Segment& granted = *response.add_segments();
      granted.set_id(segment.id);
      granted.set_size_bytes(segment.size);
    }
    for (const v1::FileSpec& file : request.files()) *response.add_placements() = part.placed.at(file.path());
    reply(std::move(response));
  }
}

void Engine::Impl::Extend(const Caller& caller, const v1::ExtendRequest& request,
                          Reply<v1::ExtendResponse> reply) {
  Member* member = nullptr;
  absl::StatusOr<Save*> found = FindSave(caller, request.key(), &member);
  if (!found.ok()) return reply(found.status());
  Save* save = *found;
  Part& part = save->parts.at(member->rank);
  if (save->phase != SavePhase::kAdmitted || !part.begun || part.session != caller.session) {
    return reply(save->error.ok() || !save->remembered
                     ? MakeError(absl::StatusCode::kFailedPrecondition, "UNKNOWN_SAVE",
                                 absl::StrCat("rank ", member->rank, " has no room in the save of ",
                                              save->key.tag, " yet; wait for Begin's answer"))
                     : save->error);
  }
  if (part.sealed || !part.growing) {
    return reply(MakeError(
        absl::StatusCode::kFailedPrecondition, "SEALED",
        absl::StrCat("the part of rank ", member->rank,
                     part.sealed ? " is sealed" : " was not begun as growing", " and takes no more files"),
        {{"tag", save->key.tag}}));
  }
  if (request.files().empty()) {
    return reply(MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                           "files is empty; name at least one"));
  }
  if (absl::Status wrong = CheckFiles(request.files()); !wrong.ok()) return reply(wrong);
  part.extend_replies.emplace_back(request, std::move(reply));
  absl::Status fits = Place(save, part, {request.files().begin(), request.files().end()});
  if (fits.ok()) fits = FitReservation(save, part);
  if (!fits.ok()) return FailSave(save, fits);
  DrawFor(save, part);
}

}  // namespace ckptd
