// Begin and Extend: sizes, room, order. A checkpoint is admitted once for all its ranks, memory and disk
// together, before a byte is copied, so that two half-admitted ones cannot block each other; within a run in
// the order of sequence.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

constexpr int64_t kDiskSlack = 1 << 20;  // Directories, manifest, part records.
constexpr Duration kRoomRetry = std::chrono::milliseconds(250);
constexpr int64_t kNameOfOneFile =
    256;  // A file with a longer name counts as one more for each so many bytes.

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
  // A longer one is refused and not shortened: the caller would rely on it.
  const auto check = [](bool set, const google::protobuf::Duration& value, const char* field,
                        Duration otherwise, Duration most, const char* bound) -> absl::StatusOr<Duration> {
    absl::StatusOr<Duration> checked =
        CheckDuration(set, value, field, std::min(otherwise, most), std::chrono::milliseconds(1), most);
    if (checked.ok()) return checked;
    return MakeError(checked.status().code(), ReasonOf(checked.status()),
                     absl::StrCat(std::string(checked.status().message()), "; the daemon's ", bound,
                                  " sets the upper bound"));
  };
  CKPTD_ASSIGN_OR_RETURN(const Duration timeout,
                         check(request.has_timeout(), request.timeout(), "timeout", seconds(30),
                               options_.max_admission_timeout, "limits.max_admission_timeout_seconds"));
  CKPTD_ASSIGN_OR_RETURN(
      const Duration commit_timeout,
      check(request.has_commit_timeout(), request.commit_timeout(), "commit_timeout", seconds(600),
            options_.max_commit_timeout, "limits.max_commit_timeout_seconds"));
  const auto in_flight = std::count_if(saves_by_id_.begin(), saves_by_id_.end(), [run](const auto& entry) {
    return entry.second->run->uid == run->uid;
  });
  if (in_flight >= options_.limits.saves_per_uid)
    return UidLimitExceeded(run->uid, "saves in flight", options_.limits.saves_per_uid, "saves_per_uid");
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
  Part& part = save->PartOf(member.rank);
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

// Before a file gets its place: the daemon keeps some 700 bytes for it until the save has ended, and the
// manifest has to list it.
absl::Status Engine::Impl::CountFile(Save* save, const Part& part, const v1::FileSpec& file) {
  const EngineLimits& limits = options_.limits;
  const uid_t uid = save->run->uid;
  const auto exceeded = [&](absl::Status limit) {
    ErrorDetails details = DetailsOf(limit);
    details["tag"] = save->key.tag;
    details["ranks"] = absl::StrCat(part.rank);
    return MakeError(limit.code(), ReasonOf(limit), std::string(limit.message()), details);
  };
  if (static_cast<int64_t>(part.placed.size()) >= limits.files_per_part) {
    return exceeded(LimitExceeded(absl::StrCat("the part of rank ", part.rank, " of ", save->key.tag),
                                  "files", limits.files_per_part, "files_per_part"));
  }
  const int64_t count = 1 + static_cast<int64_t>(file.path().size()) / kNameOfOneFile;
  int64_t& in_flight = files_in_flight_[uid];
  if (in_flight + count > limits.files_per_uid) {
    return exceeded(
        UidLimitExceeded(uid, "files in saves that are in flight", limits.files_per_uid, "files_per_uid"));
  }
  const int64_t chunks = file.size_bytes() / options_.chunk_bytes + 1;
  const int64_t listed = save->list_bytes + static_cast<int64_t>(file.path().size()) + 40 + 4 * chunks;
  if (listed > kMaxManifestBytes - kManifestHeadBytes ||
      save->owner_of_path.size() >= static_cast<size_t>(kMaxManifestFiles)) {
    return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED",
                     absl::StrCat("the checkpoint ", save->key.tag,
                                  " has more files or chunks than a manifest "
                                  "may list: ",
                                  kMaxManifestFiles, " files, ", kMaxManifestBytes,
                                  " bytes; save fewer files, with shorter names, or raise io.chunk_bytes"),
                     {{"tag", save->key.tag}});
  }
  in_flight += count;
  save->counted_files += count;
  save->list_bytes = listed;
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
    CKPTD_RETURN_IF_ERROR(CountFile(save, part, file));
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

bool Engine::Impl::SizeKnown(const Save& save, int rank) const {
  const Part* part = save.FindPart(rank);
  return (part != nullptr && part->begun) ||
         (save.run->last_world_size == save.world_size && save.run->last_part_bytes.contains(rank));
}

std::vector<int> Engine::Impl::RanksOfUnknownSize(const Save& save) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < save.world_size; ++rank) {
    if (!SizeKnown(save, rank)) ranks.push_back(rank);
  }
  return ranks;
}

int64_t Engine::Impl::ExpectedPartBytes(const Save& save, int rank) const {
  const Part* part = save.FindPart(rank);
  if (part != nullptr && part->begun && !part->growing) return part->end;
  int64_t last = 0;
  if (save.run->last_world_size == save.world_size) {
    if (auto found = save.run->last_part_bytes.find(rank); found != save.run->last_part_bytes.end()) {
      last = found->second;
    }
  }
  return std::max(part == nullptr ? 0 : part->end, last);
}

// Of all ranks.
int64_t Engine::Impl::ExpectedBytes(const Save& save) const {
  int64_t expected = 0;
  for (int rank = 0; rank < save.world_size; ++rank) expected += ExpectedPartBytes(save, rank);
  return expected;
}

void Engine::Impl::Gather(Save* save) {
  const std::vector<int> missing = RanksOfUnknownSize(*save);
  if (!missing.empty()) {
    save->waits_for = absl::StrCat("the sizes of ", missing.size(), " ranks");
    return;
  }
  save->phase = SavePhase::kQueued;
  save->waits_for = "older saves of this run";
  TryAdmitAll();
}

// Saves that wait for room get it in this order:
//   - Within a run and within a user the oldest first: a younger one gets no memory that an older one waits
//   for.
//   - Between users: saves that leave their user within the share (SharesOfMemory) before those that do not.
//     They do not wait for one another: there is a share for everybody.
//   - Of the saves beyond the share the oldest first. So that these do not wait forever while small saves of
//     others come and go, one of them at a time has a turn: for over_share_grace nobody else gets memory.
//     After a turn there is none for as long.
//   - A save that cannot have memory before its own run or its own user gives some back makes nobody else
//   wait;
//     nor does one that waits for the disk, or whose root hangs.
void Engine::Impl::TryAdmitAll() {
  if (admitting_) {  // An end in the middle of it gave room: once more when this turn is over.
    admit_again_ = true;
    return;
  }
  admitting_ = true;
  do {
    admit_again_ = false;
    admit_at_.reset();
    AdmitSome();
  } while (admit_again_);
  admitting_ = false;
}

// One walk over the saves that wait. When a save was admitted or has ended the walk is over, and is begun
// anew.
void Engine::Impl::AdmitSome() {
  EndTurnWhenOver();
  const MemoryShares shares = SharesOfMemory();
  std::set<Run*> runs;    // An older save of theirs waits.
  std::set<uid_t> users;  // An older save of theirs waits for memory.
  std::vector<Save*> beyond, held_back;
  bool memory_waited_for = false;       // By a save that goes before all that are beyond the share.
  const auto tried = [&](Save* save) {  // False: the walk is over.
    const int64_t id = save->id;
    if (TryAdmitSave(save, shares) || FindSaveById(id) == nullptr || save->phase != SavePhase::kQueued)
      admit_again_ = true;
    return !admit_again_;
  };
  if (turn_) {
    Save* first = FindSaveById(turn_->save);
    if (!tried(first)) return;
    runs.insert(first->run);
    users.insert(first->run->uid);
  }
  for (auto& entry : saves_by_id_) {
    Save* save = entry.second;
    Run* run = save->run;
    if (save->phase == SavePhase::kTarget || save->phase == SavePhase::kGathering) runs.insert(run);
    if (save->phase != SavePhase::kQueued || (turn_ && turn_->save == save->id)) continue;
    if (runs.contains(run) || users.contains(run->uid)) {
      held_back.push_back(save);
      continue;
    }
    if (turn_ && save->busy != v1::SKIP) {
      users.insert(run->uid);
      held_back.push_back(save);
      continue;
    }
    if (shares.Held(run->uid) + NeededSegments(*save) > shares.share) {
      const bool has_disk = ReserveDisk(save);
      if (save->phase != SavePhase::kQueued) {
        admit_again_ = true;
        return;
      }
      save->disk_reserved = 0;  // Reserved anew when there is memory.
      runs.insert(run);
      if (!has_disk) continue;
      if (!run->degraded && WaitsFor(*save, shares) != Scope::kRun) users.insert(run->uid);
      beyond.push_back(save);
      continue;
    }
    if (!tried(save)) return;
    runs.insert(run);
    if (!save->waits_for.starts_with("memory") || run->degraded) continue;
    const Scope scope = WaitsFor(*save, shares);
    if (scope != Scope::kRun) users.insert(run->uid);
    memory_waited_for |= scope == Scope::kAll;
  }
  std::stable_sort(beyond.begin(), beyond.end(), [this](const Save* a, const Save* b) {
    const auto last = [this](const Save* save) {
      auto turn = last_turn_.find(save->run->uid);
      return turn == last_turn_.end() ? Instant() : turn->second;
    };
    return last(a) < last(b);
  });
  std::vector<Save*> waiting;
  const bool small_ones_wait = memory_waited_for;
  for (Save* save : beyond) {
    const bool waits_for_others = WaitsFor(*save, shares) == Scope::kAll;
    if (waits_for_others && (memory_waited_for || turn_)) {
      held_back.push_back(save);
      continue;
    }
    if (!tried(save)) return;
    if (!waits_for_others || save->run->degraded || !save->waits_for.starts_with("memory")) continue;
    memory_waited_for = true;
    waiting.push_back(save);
  }
  if (!small_ones_wait && shares.users > 1) GiveTurn(waiting);
  for (Save* save : held_back) {
    if (save->busy == v1::SKIP) {  // There is no room for it before others have theirs, and it does not wait.
      FailSave(save,
               MakeError(absl::StatusCode::kAborted, "SKIPPED", "older saves wait for room, too",
                         {{"tag", save->key.tag}}),
               v1::SKIPPED);
      admit_again_ = true;
      return;
    }
    if (!runs.contains(save->run)) save->waits_for = "memory: other saves are before it";
  }
}

void Engine::Impl::AdmitAgainAt(Instant when) {
  if (!admit_at_ || when < *admit_at_) admit_at_ = when;
}

void Engine::Impl::EndTurnWhenOver() {
  if (!turn_) return;
  const Instant now = clock_->Now();
  const Save* save = FindSaveById(turn_->save);
  if (save != nullptr && save->phase == SavePhase::kQueued && now < turn_->until)
    return AdmitAgainAt(turn_->until);
  last_turn_[turn_->uid] = now;
  next_turn_at_ = now + options_.over_share_grace;
  turn_.reset();
}

// `waiting`: saves beyond the share that wait for memory of others, in their order.
void Engine::Impl::GiveTurn(const std::vector<Save*>& waiting) {
  if (turn_ || waiting.empty()) return;
  const Instant now = clock_->Now();
  if (now < next_turn_at_) return AdmitAgainAt(next_turn_at_);
  turn_ = Turn{waiting.front()->id, waiting.front()->run->uid, now + options_.over_share_grace};
  AdmitAgainAt(turn_->until);
}

int64_t Engine::Impl::NeededSegments(const Save& save) const {
  int64_t need = 0;
  for (int rank = 0; rank < save.world_size; ++rank)
    need += pool_->SegmentsFor(ExpectedPartBytes(save, rank));
  return need;
}

int64_t Engine::Impl::MostPerUser() const {
  return std::max<int64_t>(1, int64_t{pool_->capacity()} * options_.max_pool_percent_per_user / 100);
}

// Memory that readers of a user keep others from having.
std::map<uid_t, int64_t> Engine::Impl::HeldByReaders() const {
  std::map<uid_t, std::set<ReservationId>> copies;
  const auto add = [&](SessionId session, ReservationId copy) {
    auto reader = sessions_.find(session);
    if (copy != 0 && reader != sessions_.end()) copies[reader->second.uid].insert(copy);
  };
  for (const auto& entry : leases_) add(entry.second.session, entry.second.copy);
  for (const auto& [session, held] : mapped_) {
    for (ReservationId copy : held) add(session, copy);
  }
  for (const auto& entry : runs_) {
    const Run& run = *entry.second;
    if (run.prefetch && run.prefetch->resident.copy != 0) copies[run.uid].insert(run.prefetch->resident.copy);
  }
  std::map<uid_t, int64_t> held;
  for (const auto& [uid, set] : copies) {
    for (ReservationId copy : set) held[uid] += pool_->Count(copy);
  }
  return held;
}

// Nobody can take memory from a reader, so a user's readers hold no more than a part of the pool. `segments`:
// what they would hold in addition; nothing, when they hold `copy` already.
absl::Status Engine::Impl::MayRead(uid_t uid, ReservationId copy, int64_t segments) const {
  for (const auto& entry : leases_) {
    auto reader = sessions_.find(entry.second.session);
    const bool ours = reader != sessions_.end() && reader->second.uid == uid;
    if (copy != 0 && ours && entry.second.copy == copy) return absl::OkStatus();
  }
  const std::map<uid_t, int64_t> readers = HeldByReaders();
  const auto found = readers.find(uid);
  const int64_t held = found == readers.end() ? 0 : found->second;
  const int64_t most = int64_t{pool_->capacity()} * options_.max_reader_pool_percent_per_user / 100;
  if (held + segments <= most) return absl::OkStatus();
  const int64_t mib = pool_->segment_bytes() >> 20;
  return MakeError(
      absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
      absl::StrCat("readers of uid ", uid, " hold ", held * mib, " MiB of memory and would hold ",
                   (held + segments) * mib, "; they may hold ", most * mib,
                   " (limits.max_reader_pool_percent_per_user): read the disk, or raise that"));
}

// Each user's share: as much as every user wants, where that fits into the pool; else so much that those who
// want no more than it get what they want, and the others all get the same (max-min fairness). What a user
// wants is what its saves and readers hold and what its saves in the queue need.
MemoryShares Engine::Impl::SharesOfMemory() const {
  MemoryShares shares;
  shares.held = HeldByReaders();
  std::map<uid_t, int64_t> wanted = shares.held;
  int64_t held_by_all = 0;
  for (const auto& entry : saves_by_id_) {
    const Save& save = *entry.second;
    int64_t count = 0;
    if (save.reservation != 0) {
      count = pool_->Count(save.reservation);
      shares.held[save.run->uid] += count;
    } else if (save.phase == SavePhase::kQueued) {
      count = NeededSegments(save);
    }
    if (count > 0) wanted[save.run->uid] += count;
  }
  for (const auto& entry : shares.held) held_by_all += entry.second;
  const int64_t used = pool_->usage().used_bytes / pool_->segment_bytes();
  int64_t left = pool_->capacity() - std::max<int64_t>(0, used - held_by_all);  // Saves of an earlier daemon.
  shares.share = left;
  std::vector<int64_t> demands;
  for (const auto& entry : wanted) demands.push_back(entry.second);
  std::sort(demands.begin(), demands.end());
  shares.users = static_cast<int>(demands.size());
  for (size_t i = 0; i < demands.size(); ++i) {
    const int64_t equal = left / static_cast<int64_t>(demands.size() - i);
    if (demands[i] > equal) {
      shares.share = equal;
      break;
    }
    left -= demands[i];
  }
  return shares;
}

// Who has to give memory back before this save can have it.
Engine::Impl::Scope Engine::Impl::WaitsFor(const Save& save, const MemoryShares& shares) const {
  const int64_t need = NeededSegments(save), held = shares.Held(save.run->uid);
  int64_t held_by_run = 0;
  for (const auto& entry : save.run->saves) {
    if (entry.second->reservation != 0) held_by_run += pool_->Count(entry.second->reservation);
  }
  if (held_by_run + need > MostPerUser()) return Scope::kRun;
  return held + need > MostPerUser() ? Scope::kUser : Scope::kAll;
}

// Ends saves of other users that hold more than their share, unsealed and for longer than the grace, where
// that makes room for `save`; the youngest first, and of no user more than what it has beyond the share, or
// beyond what the user of `save` would then have.
bool Engine::Impl::EndOverShare(Save* save, const MemoryShares& shares) {
  const uid_t uid = save->run->uid;
  const int64_t need = NeededSegments(*save);
  const int64_t least = std::max(shares.share, shares.Held(uid) + need);
  const PoolUsage usage = pool_->usage();
  int64_t room = (usage.total_bytes - usage.used_bytes) / pool_->segment_bytes();
  for (const auto& entry : saves_by_id_) {  // What is on its way back.
    const Save& ending = *entry.second;
    if (ending.phase == SavePhase::kFailing && ending.reservation != 0 && !ending.run->degraded)
      room += pool_->Count(ending.reservation);
  }
  if (room >= need) return false;
  std::map<uid_t, int64_t> held = shares.held;
  std::vector<Save*> over;
  std::optional<Instant> due;
  for (auto entry = saves_by_id_.rbegin(); entry != saves_by_id_.rend() && room < need; ++entry) {
    Save* other = entry->second;
    const bool open = other->phase == SavePhase::kAdmitted && !other->sealed() && other->reservation != 0;
    if (!open || other->run->uid == uid || held[other->run->uid] <= least) continue;
    const Instant ends = other->admitted_at + options_.over_share_grace;
    if (clock_->Now() < ends) {
      due = std::min(due.value_or(ends), ends);
      continue;
    }
    const int64_t count = pool_->Count(other->reservation);
    held[other->run->uid] -= count;
    room += count;
    over.push_back(other);
  }
  if (room < need) {
    if (due) AdmitAgainAt(*due);
    return false;
  }
  const int64_t mib = pool_->segment_bytes() >> 20;
  for (Save* other : over) {
    const int64_t users = shares.Held(other->run->uid);
    FailSave(other,
             MakeError(absl::StatusCode::kAborted, "OVER_SHARE",
                       absl::StrCat("the saves of uid ", other->run->uid, " held ", users * mib,
                                    " MiB of memory, others waited for some of it, and the share of each "
                                    "user is ",
                                    shares.share * mib, " MiB; ranks ", JoinRanks(MissingRanks(*other)),
                                    " had not sealed their part of ", other->key.tag, " in time"),
                       {{"tag", other->key.tag}, {"ranks", JoinRanks(MissingRanks(*other))}}));
  }
  return true;
}

// True: admitted. False: it stays queued, or has ended.
bool Engine::Impl::TryAdmitSave(Save* save, const MemoryShares& shares) {
  if (!ReserveDisk(save)) return false;
  const int64_t need = NeededSegments(*save), held = shares.Held(save->run->uid), most = MostPerUser();
  const int64_t mib = pool_->segment_bytes() >> 20;
  absl::Status memory;
  if (most < pool_->capacity() && need > most) {
    memory = MakeError(absl::StatusCode::kResourceExhausted, "POOL_TOO_SMALL",
                       absl::StrCat("the checkpoint needs ", need * mib,
                                    " MiB of memory, but one user may hold ", most * mib,
                                    " MiB; raise limits.max_pool_percent_per_user or pool.bytes, or "
                                    "save less on this node"));
  } else if (most < pool_->capacity() && held + need > most) {
    memory = MakeError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
                       absl::StrCat("the checkpoint needs ", need * mib, " MiB of memory now, uid ",
                                    save->run->uid, " holds ", held * mib, " MiB, and may hold ", most * mib,
                                    " (limits.max_pool_percent_per_user)"));
  } else {
    memory = ReserveMemory(save);
    if (ReasonOf(memory) == "POOL_EXHAUSTED" && EndOverShare(save, shares)) {
      admit_again_ = true;  // The saves have changed.
      memory = ReserveMemory(save);
    }
  }
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

// A part needs more than was reserved for it. It takes nothing that a save of another user waits for, beyond
// its own user's share.
absl::Status Engine::Impl::MayGrow(const Save& save, int64_t segments) const {
  const MemoryShares shares = SharesOfMemory();
  const int64_t grown = shares.Held(save.run->uid) + segments, most = MostPerUser();
  const int64_t mib = pool_->segment_bytes() >> 20;
  if (most < pool_->capacity() && grown > most) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
        absl::StrCat("uid ", save.run->uid, " would hold ", grown * mib, " MiB of memory, and may hold ",
                     most * mib, " (limits.max_pool_percent_per_user)"));
  }
  const bool others_wait = std::any_of(saves_by_id_.begin(), saves_by_id_.end(), [&](const auto& entry) {
    const Save& other = *entry.second;
    return other.phase == SavePhase::kQueued && other.run->uid != save.run->uid &&
           other.waits_for.starts_with("memory");
  });
  if (grown <= shares.share || !others_wait) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
                   absl::StrCat("uid ", save.run->uid, " would hold ", grown * mib,
                                " MiB of memory while others wait for some; the share of each user is ",
                                shares.share * mib, " MiB"));
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
  int64_t need = kDiskSlack + ExpectedBytes(save);
  for (const auto& entry : save.parts) need += kPage * static_cast<int64_t>(entry.second.placed.size());
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
    // Retention evicts only when the history is on disk; a write of it that failed is repeated.
    if (run.outcomes_recorded != run.outcomes) return true;
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
  // The sizes of all ranks are known: each of them has begun, or has sealed the save before.
  for (int rank = 0; rank < save->world_size; ++rank) {
    Part& part = save->PartOf(rank);
    part.reserved = pool_->SegmentsFor(ExpectedPartBytes(*save, rank));
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
  save->admitted_at = clock_->Now();
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
  const int needed = pool_->SegmentsFor(part.growing ? ExpectedPartBytes(*save, part.rank) : part.end);
  if (needed > part.reserved) {
    absl::Status grown = MayGrow(*save, needed - part.reserved);
    if (grown.ok())
      grown = pool_->Grow(save->reservation, SegmentDemand{part.reserved_for, needed - part.reserved});
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
  Part& part = save->PartOf(member->rank);
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
