// Roots, runs, joining, attempts.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/validate.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"
#include "storage/format/run_name.h"
#include "storage/ledger/local_ledger.h"

namespace ckptd {
namespace {

constexpr uid_t kOverflowUid = 65534;  // Stands for any unknown user: owns nothing.
constexpr int kMostRanks = 65536;
constexpr int kMostOrphans = 1000;
constexpr int kUnheard = 16;  // More cannot have been on their way to the history when a daemon was killed.
constexpr Duration kLockRetry = std::chrono::milliseconds(50);

v1::Checkpoint FromOutcome(const Run& run, const storage::v1::Outcome& outcome) {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(absl::StrCat(run.name, "/checkpoints/", outcome.tag()));
  checkpoint.set_run(run.name);
  checkpoint.set_tag(outcome.tag());
  if (outcome.has_step()) checkpoint.set_step(outcome.step());
  checkpoint.set_sequence(outcome.sequence());
  checkpoint.set_attempt(outcome.attempt());
  checkpoint.set_ordinal(outcome.ordinal());
  checkpoint.set_level(static_cast<v1::Level>(outcome.level()));
  checkpoint.set_size_bytes(outcome.size_bytes());
  checkpoint.mutable_create_time()->set_seconds(outcome.time_us() / 1'000'000);
  v1::SaveError& error = *checkpoint.mutable_error();
  error.set_reason(outcome.reason());
  error.set_message(outcome.message());
  error.set_code(outcome.code());
  *error.mutable_ranks() = outcome.ranks();
  return checkpoint;
}

absl::Status WrongUid(const Run& run, uid_t uid) {
  return MakeError(
      absl::StatusCode::kPermissionDenied, "WRONG_UID",
      absl::StrCat("the run in ", run.path, " belongs to uid ", run.uid, ", the caller is uid ", uid));
}

absl::Status NotAttached(const Run& run) {
  return MakeError(
      absl::StatusCode::kPermissionDenied, "FOREIGN_NAMESPACE",
      absl::StrCat("the caller is in another user or mount namespace than the daemon, and no session of that "
                   "namespace has attached the root of ",
                   run.name, "; attach it by a descriptor (AttachRoot) first"));
}

absl::Status Invalid(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT", message);
}

absl::Status CheckJoin(const v1::JoinRunRequest& request, int most_ranks) {
  if (request.world_size() < 1 || request.world_size() > kMostRanks) {
    return Invalid(absl::StrCat("world_size is ", request.world_size(), "; it is in [1, ", kMostRanks, "]"));
  }
  if (request.world_size() > most_ranks) {
    return LimitExceeded(absl::StrCat("a run with world_size ", request.world_size()), "ranks", most_ranks,
                         "ranks_per_run");
  }
  if (request.rank() < 0 || request.rank() >= request.world_size()) {
    return Invalid(absl::StrCat("rank is ", request.rank(), "; it is in [0, ", request.world_size(), ")"));
  }
  if (request.launch_id().empty() || request.launch_id().size() > 500) {
    return Invalid(
        absl::StrCat("launch_id has ", request.launch_id().size(), " characters; it has 1 to 500"));
  }
  if (request.run_id().size() > 200) {
    return Invalid(absl::StrCat("run_id has ", request.run_id().size(), " characters; at most 200"));
  }
  if (request.orphaned_size() > kMostOrphans) {
    return Invalid(
        absl::StrCat("orphaned names ", request.orphaned_size(), " saves; at most ", kMostOrphans));
  }
  for (const v1::SaveKey& key : request.orphaned()) CKPTD_RETURN_IF_ERROR(CheckTag(key.tag()));
  const int local = request.local_world_size();
  if (local < 0 || local > request.world_size()) {
    return Invalid(absl::StrCat("local_world_size is ", local, "; it is in [0, world_size]"));
  }
  if (local != 0 && local < request.world_size()) {
    return MakeError(absl::StatusCode::kUnimplemented, "MULTI_NODE_UNSUPPORTED",
                     absl::StrCat("world_size ", request.world_size(), " spans nodes (", local,
                                  " ranks are on this one); this version saves runs of one node only"));
  }
  return absl::OkStatus();
}

}  // namespace

bool Engine::Impl::Sees(const Caller& caller, const Run& run) const {
  if (caller.tenant != 0) return caller.uid == run.uid && HasAttached(caller, run);
  return caller.privileged || caller.uid == run.uid;
}

bool Engine::Impl::HasAttached(const Caller& caller, const Run& run) const {
  if (run.tenants.contains(caller.session)) return true;
  return caller.tenant > 0 && std::any_of(run.tenants.begin(), run.tenants.end(), [&](SessionId session) {
           const auto found = sessions_.find(session);
           return found != sessions_.end() && found->second.tenant == caller.tenant;
         });
}

absl::StatusOr<Run*> Engine::Impl::FindRun(const Caller& caller, const std::string& name, bool must_be_open) {
  auto found = runs_.find(name);
  if (const auto idle = idle_.find(name); found == runs_.end() && idle != idle_.end()) {
    if (!caller.privileged && caller.uid != idle->second.uid) {
      return MakeError(absl::StatusCode::kPermissionDenied, "WRONG_UID",
                       absl::StrCat("the run in ", idle->second.description.path(), " belongs to uid ",
                                    idle->second.uid, ", the caller is uid ", caller.uid));
    }
    const std::string path = idle->second.description.path();
    if (idle->second.waiting.empty()) WakeRun(name, [](absl::StatusOr<std::string>) {});
    return MakeError(absl::StatusCode::kUnavailable, "UNKNOWN_RUN",
                     absl::StrCat("the root ", path, " was idle and is being opened again; try again"));
  }
  if (found == runs_.end()) {
    return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_RUN",
                     absl::StrCat("no run is called \"", name, "\"; its root has to be attached first"));
  }
  Run* run = found->second.get();
  if (!run->open && must_be_open) {
    return MakeError(absl::StatusCode::kUnavailable, "UNKNOWN_RUN",
                     absl::StrCat("the root ", run->path, " is being opened and recovered; try again"));
  }
  if (run->open && !Sees(caller, *run)) {
    return caller.uid == run->uid ? NotAttached(*run) : WrongUid(*run, caller.uid);
  }
  return run;
}

absl::StatusOr<Run*> Engine::Impl::RunOfCheckpointName(const Caller& caller, const std::string& name,
                                                       std::string* tag) {
  auto parsed = ParseCheckpointName(name);
  if (!parsed) return Invalid(absl::StrCat("name is \"", name, "\"; it is runs/{run}/checkpoints/{tag}"));
  *tag = parsed->second;
  return FindRun(caller, parsed->first);
}

void Engine::Impl::AttachRoot(SessionId session, RootAttachment attachment, Reply<std::string> reply) {
  if (session != 0 && !sessions_.contains(session)) {
    return reply(MakeError(absl::StatusCode::kUnauthenticated, "UNKNOWN_TOKEN", "the session has ended"));
  }
  const std::string name = RunName(attachment.device, attachment.inode);
  auto found = runs_.find(name);
  if (found != runs_.end() && found->second->open)
    return AcceptAttach(found->second.get(), {session, std::move(attachment), std::move(reply)});
  if (attachment.uid == kOverflowUid) {
    return reply(MakeError(absl::StatusCode::kPermissionDenied, "WRONG_UID",
                           absl::StrCat("uid ", kOverflowUid, " stands for unknown users and owns no run")));
  }
  const Instant deadline = session == 0 ? Instant::max() : clock_->Now() + options_.attach_timeout;
  if (found == runs_.end()) {
    if (absl::Status room = session == 0 ? absl::OkStatus() : MakeWayForRoot(attachment); !room.ok())
      return reply(room);
    auto run = std::make_unique<Run>();
    run->name = name;
    run->path = attachment.path;
    run->device = attachment.device;
    run->inode = attachment.inode;
    run->uid = run->opener = attachment.uid;
    absl::StatusOr<std::unique_ptr<RootIo>> io = attachment.make_io();
    if (!io.ok()) return reply(Annotate(io.status(), absl::StrCat("opening the root ", run->path)));
    run->io = *std::move(io);
    Run* raw = run.get();
    found = runs_.emplace(name, std::move(run)).first;
    raw->waiting_for_open.push_back({session, std::move(attachment), std::move(reply), deadline});
    raw->lock_deadline = clock_->Now() + options_.root_lock_patience;
    return OpenRoot(raw);
  }
  // Whose it is, is known when it is open.
  found->second->waiting_for_open.push_back({session, std::move(attachment), std::move(reply), deadline});
}

// Of a root that is open.
void Engine::Impl::AcceptAttach(Run* run, PendingAttach attach) {
  const uid_t uid = attach.attachment.uid;
  if (uid != 0 && uid != run->uid) return attach.reply(WrongUid(*run, uid));
  const auto session = sessions_.find(attach.session);
  if (session != sessions_.end() && session->second.tenant != 0) run->tenants.insert(attach.session);
  if (session != sessions_.end()) run->attached.insert(attach.session);
  run->idle_since.reset();
  if (attach.attachment.reopen != nullptr) run->reopen = attach.attachment.reopen;
  if (attach.attachment.remember == nullptr) return attach.reply(run->name);
  ++run->remembering;  // So the run stays open.
  attach.attachment.remember(
      [run, reply = std::move(attach.reply)](absl::StatusOr<std::shared_ptr<const void>> known) mutable {
        --run->remembering;
        if (!known.ok()) return reply(known.status());
        run->known.insert(*std::move(known));
        reply(run->name);
      });
}

// Of a root that does not open because its file system hangs.
void Engine::Impl::ExpireAttaches(Run* run, Instant now) {
  std::vector<Reply<std::string>> over;
  for (PendingAttach& attach : run->waiting_for_open) {
    if (now >= attach.deadline) over.push_back(std::move(attach.reply));
  }
  std::erase_if(run->waiting_for_open, [now](const PendingAttach& attach) { return now >= attach.deadline; });
  for (auto& reply : over) {
    reply(MakeError(
        absl::StatusCode::kDeadlineExceeded, "FILE_SYSTEM_HANGS",
        absl::StrCat("the root ", run->path,
                     " is not open yet: its file system does not answer; look at its server or disk, "
                     "and attach again"),
        {{"path", run->path}}));
  }
}

// Whether nothing would be lost by closing the run, and nobody would notice.
bool Engine::Impl::IsIdle(const Run& run) const {
  if (!run.open || run.reopen == nullptr || run.remembering > 0 || run.io->has_pending()) return false;
  if (!run.attached.empty() || !run.members.empty() || !run.waiting_for_open.empty()) return false;
  if (IsBusy(run) || run.scrub || run.adoption || trash_.IsEmptying(run) || disk_.IsAsking(run)) return false;
  if (scanner_.IsRetryScheduled(run) || !history_.IsIdle(run) || !retention_.IsIdle(run)) return false;
  // What only this daemon knows: syncs that failed, damage that may not be written down.
  if (!run.unsynced.empty() || !PassedOver(run, 0).empty()) return false;
  for (const auto& entry : run.agreements) {
    if (!entry.second.waiting.empty()) return false;
  }
  return std::none_of(watchers_.begin(), watchers_.end(),
                      [&run](const auto& entry) { return entry.second.run == run.name; });
}

void Engine::Impl::CloseIdle(Run* run) {
  IdleRun& idle = idle_[run->name];
  idle.description = Describe(*run);
  idle.uid = run->uid;
  idle.reopen = std::move(run->reopen);
  idle.scrub_due = std::move(run->scrub_due);
  idle.scrubbed_unix_us = std::move(run->scrubbed_unix_us);
  while (!run->residents.empty()) DropResident(run, run->residents.begin()->first);
  ForgetRun(run);
  runs_.erase(run->name);
}

void Engine::Impl::CloseIdleRuns(Instant now) {
  std::vector<Run*> over;
  std::vector<std::string> due;  // For the scrubber.
  for (auto& entry : runs_) {
    Run& run = *entry.second;
    if (!IsIdle(run)) {
      run.idle_since.reset();
    } else if (!run.idle_since) {
      run.idle_since = now;
    } else if (options_.idle_root > Duration::zero() && now - *run.idle_since >= options_.idle_root) {
      over.push_back(&run);
    }
  }
  for (const auto& [name, idle] : idle_) {
    const bool is_due = std::any_of(idle.scrub_due.begin(), idle.scrub_due.end(),
                                    [now](const auto& entry) { return entry.second <= now; });
    if (options_.scrub_period > Duration::zero() && is_due && idle.waiting.empty()) due.push_back(name);
  }
  for (Run* run : over) CloseIdle(run);
  for (const std::string& name : due) WakeRun(name, [](absl::StatusOr<std::string>) {});
}

// Closes runs of the user that are idle, longest first, until he may have one more.
absl::Status Engine::Impl::MakeWayForRoot(const RootAttachment& attachment) {
  while (true) {
    int roots = 1;
    std::set<uint64_t> devices = {attachment.device};
    Run* oldest = nullptr;
    for (auto& entry : runs_) {
      Run& run = *entry.second;
      if (run.uid != attachment.uid) continue;
      ++roots;
      devices.insert(run.device);
      if (!IsIdle(run)) continue;
      const auto since = [](const Run& r) { return r.idle_since.value_or(Instant::max()); };
      if (oldest == nullptr || since(run) < since(*oldest)) oldest = &run;
    }
    const bool too_many_roots = roots > options_.roots_per_uid;
    if (!too_many_roots && static_cast<int>(devices.size()) <= options_.file_systems_per_uid)
      return absl::OkStatus();
    if (oldest == nullptr) {
      const std::string what =
          too_many_roots ? absl::StrCat(options_.roots_per_uid, " open roots")
                         : absl::StrCat("open roots on ", options_.file_systems_per_uid, " file systems");
      const char* const limit = too_many_roots ? "limits.roots_per_uid" : "limits.file_systems_per_uid";
      return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED",
                       absl::StrCat("uid ", attachment.uid, " has ", what,
                                    ", and none of them is idle; end the jobs of some, or raise ", limit),
                       {{"path", attachment.path}, {"limit", limit}});
    }
    CloseIdle(oldest);
  }
}

// Opens a run again that was closed for being idle.
void Engine::Impl::WakeRun(const std::string& name, Reply<std::string> done) {
  IdleRun& idle = idle_.at(name);
  idle.waiting.push_back(std::move(done));
  if (idle.waiting.size() > 1) return;
  const auto reopen = idle.reopen;  // The entry may go meanwhile.
  reopen([this, name](absl::StatusOr<RootAttachment> attachment) {
    const auto woken = [this, name](const absl::StatusOr<std::string>& run) {
      const auto found = idle_.find(name);
      if (found == idle_.end()) return;
      std::vector<Reply<std::string>> waiting = std::exchange(found->second.waiting, {});
      if (run.ok()) {
        idle_.erase(found);
      } else {  // The scrubber need not try it again and again.
        found->second.scrub_due.clear();
      }
      for (auto& reply : waiting) reply(run);
    };
    if (!attachment.ok()) return woken(attachment.status());
    AttachRoot(0, *std::move(attachment), woken);
  });
}

void Engine::Impl::OpenRoot(Run* run) {
  run->open_again_at.reset();
  disk_.SetWrittenBefore(run, disk_.WrittenBytes(run->device));
  run->io->Open(
      [this, run](absl::StatusOr<RootSnapshot> snapshot) { OnRootOpened(run, std::move(snapshot)); });
}

void Engine::Impl::OnRootOpened(Run* run, absl::StatusOr<RootSnapshot> snapshot) {
  if (ReasonOf(snapshot.status()) == "ROOT_LOCKED" && clock_->Now() < run->lock_deadline) {
    run->open_again_at = clock_->Now() + kLockRetry;
    return;
  }
  std::vector<PendingAttach> waiting = std::move(run->waiting_for_open);
  run->waiting_for_open.clear();
  const uid_t opener = run->opener;
  absl::Status why = absl::OkStatus();
  if (!snapshot.ok()) {
    why = Annotate(snapshot.status(), absl::StrCat("opening the root ", run->path));
  } else if (const storage::v1::RunRecord& record = snapshot->run_record;
             record.format_version() != 0 && opener != 0 && opener != static_cast<uid_t>(record.uid())) {
    run->uid = static_cast<uid_t>(record.uid());
    why = WrongUid(*run, opener);  // It is not to work with this user's rights.
  }
  if (!why.ok()) {
    observer_->OnWarning(std::string(why.message()));
    ForgetRun(run);
    runs_.erase(run->name);  // The next attach tries anew.
    for (PendingAttach& attach : waiting) {
      if (attach.attachment.uid == opener) {
        attach.reply(why);
      } else {  // What one user may not, another one may.
        AttachRoot(attach.session, std::move(attach.attachment), std::move(attach.reply));
      }
    }
    return;
  }
  Adopt(run, *std::move(snapshot));
  run->open = true;
  if (auto idle = idle_.find(run->name); idle != idle_.end()) {
    run->scrub_due = std::move(idle->second.scrub_due);
    run->scrubbed_unix_us = std::move(idle->second.scrubbed_unix_us);
    // Those who wait for it are answered by the attach that they wait for.
    if (idle->second.waiting.empty()) idle_.erase(idle);
  }
  observer_->OnRootOpened(run->name, run->path, run->probe);
  recovery_.OnRootOpened(run);
  for (PendingAttach& attach : waiting) AcceptAttach(run, std::move(attach));
  trash_.Empty(run);
  // The daemon before this one may have been killed between a commit and its evictions.
  retention_.Apply(run);
}

// Takes over what a scan of the root found.
void Engine::Impl::Adopt(Run* run, RootSnapshot snapshot) {
  for (const RecoveredSave& save : snapshot.recovered) {
    observer_->OnInfo(absl::StrCat("recovery of ", run->path, ": ", save.tag, " (sequence ", save.sequence,
                                   ") ", save.published ? "published: " : "removed: ", save.why));
  }
  for (const DamagedCheckpoint& damaged : snapshot.damaged) {
    observer_->OnWarning(
        absl::StrCat("checkpoint ", run->path, "/", damaged.tag,
                     " is damaged and is not offered: ", std::string(damaged.status.message())));
  }
  run->probe = std::move(snapshot.probe);
  disk_.SetFreeBytes(run, run->probe.free_bytes);
  for (const auto& [sequence, known] : run->committed) {  // Damage that could not be written down.
    const auto found = snapshot.committed.find(sequence);
    if (found != snapshot.committed.end() && !found->second.damage) found->second.damage = known.damage;
  }
  run->committed = std::move(snapshot.committed);
  for (int64_t sequence : std::exchange(run->perhaps_evicted, {})) run->evicting.erase(sequence);
  run->damaged = std::move(snapshot.damaged);
  trash_.SetBytes(run, snapshot.trash_bytes);
  retention_.SetPointers(run, std::move(snapshot.pointers));
  run->read_only = false;
  if (run->ledger != nullptr) return;  // A rescan: what the ledger knows is newer.
  storage::v1::RunRecord record = std::move(snapshot.run_record);
  if (record.format_version() != 0) run->uid = static_cast<uid_t>(record.uid());
  record.set_uid(static_cast<int>(run->uid));
  record.set_path(run->path);
  if (record.has_num_kept_ckpts()) retention_.SetNumKept(run, record.num_kept_ckpts());
  ReserveForAdoption(*run, snapshot, record);
  for (const storage::v1::Outcome& outcome : record.outcomes()) {
    if (outcome.level() >= v1::FAILED) ended_.AddFailure(run, FromOutcome(*run, outcome));
  }
  run->ledger = std::make_unique<LocalLedger>(
      std::move(record), std::max(snapshot.highest_sequence, recovery_.HighestSequence(*run)),
      [io = run->io.get()](const storage::v1::RunRecord& what, absl::AnyInvocable<void(absl::Status)> done) {
        io->SaveRunRecord(what, std::move(done));
      });
  RecordUnheard(run);
}

// A daemon that was killed may have published a checkpoint that its history does not have yet. Once retention
// or a re-save has taken it, a late rank would hear that it was lost.
void Engine::Impl::RecordUnheard(Run* run) {
  std::vector<storage::v1::Outcome> unheard;
  int looked_at = 0;
  for (auto entry = run->committed.rbegin(); entry != run->committed.rend() && looked_at < kUnheard;
       ++entry, ++looked_at) {
    const storage::v1::ManifestSummary& summary = entry->second.summary;
    const auto& outcomes = run->ledger->record().outcomes();
    const bool heard = std::any_of(
        outcomes.begin(), outcomes.end(),
        [&](const storage::v1::Outcome& outcome) { return outcome.sequence() == summary.sequence(); });
    if (heard || !summary.adopted_from().empty() || summary.attempt() != run->ledger->active_attempt())
      continue;
    storage::v1::Outcome& outcome = unheard.emplace_back();
    outcome.set_tag(summary.tag());
    outcome.set_ordinal(summary.ordinal());
    outcome.set_attempt(summary.attempt());
    outcome.set_sequence(summary.sequence());
    outcome.set_level(v1::COMMITTED);
    if (summary.has_step()) outcome.set_step(summary.step());
    outcome.set_time_us(clock_->UnixMicros());
    outcome.set_size_bytes(summary.size_bytes());
  }
  for (auto outcome = unheard.rbegin(); outcome != unheard.rend(); ++outcome) history_.Record(run, *outcome);
}

Member* Engine::Impl::FindMember(Run* run, SessionId session, int rank) {
  for (Member& member : run->members) {
    if (member.session == session && member.rank == rank) return &member;
  }
  return nullptr;
}

Member* Engine::Impl::FindRank(Run* run, int64_t attempt, int rank) {
  for (Member& member : run->members) {
    if (member.attempt == attempt && member.rank == rank) return &member;
  }
  return nullptr;
}

void Engine::Impl::JoinRun(const Caller& caller, const v1::JoinRunRequest& request,
                           Reply<v1::JoinRunResponse> reply) {
  auto session = sessions_.find(caller.session);
  if (session == sessions_.end()) {
    return reply(MakeError(absl::StatusCode::kUnauthenticated, "UNKNOWN_TOKEN", "JoinRun needs a session"));
  }
  absl::StatusOr<Run*> run = FindRun(caller, request.root());
  if (!run.ok()) return reply(run.status());
  if (absl::Status wrong = CheckJoin(request, options_.limits.ranks_per_run); !wrong.ok())
    return reply(wrong);
  const std::string& known_id = (*run)->ledger->record().run_id();
  if (!request.run_id().empty() && !known_id.empty() && request.run_id() != known_id) {
    return reply(MakeError(absl::StatusCode::kFailedPrecondition, "RUN_ID_MISMATCH",
                           absl::StrCat("run_id is \"", request.run_id(), "\", but the root ", (*run)->path,
                                        " holds run \"", known_id, "\"; use another root or that id")));
  }
  Ledger::JoinSpec spec;
  spec.rank = request.rank();
  spec.world_size = request.world_size();
  spec.launch_id = request.launch_id();
  spec.instance = session->second.client_instance;
  spec.requested_attempt = request.attempt();
  spec.run_id = request.run_id();
  (*run)->ledger->Join(spec, [this, id = caller.session, name = (*run)->name, request,
                              reply = std::move(reply)](absl::StatusOr<int64_t> attempt) mutable {
    Joined(id, name, request, std::move(attempt), std::move(reply));
  });
}

void Engine::Impl::Joined(SessionId session, const std::string& run_name, const v1::JoinRunRequest& request,
                          absl::StatusOr<int64_t> attempt, Reply<v1::JoinRunResponse> reply) {
  auto run = runs_.find(run_name);
  auto info = sessions_.find(session);
  if (run == runs_.end() || info == sessions_.end()) {
    return reply(MakeError(absl::StatusCode::kUnauthenticated, "UNKNOWN_TOKEN", "the session has ended"));
  }
  if (!attempt.ok()) return reply(attempt.status());
  Run* r = run->second.get();
  // A process that reconnects has a new session: the old one's membership is over.
  std::erase_if(r->members, [&](const Member& member) {
    return member.rank == request.rank() && member.instance == info->second.client_instance;
  });
  r->members.push_back(
      Member{session, info->second.client_instance, request.rank(), request.world_size(), *attempt});
  if (auto agreement = r->agreements.find(*attempt); agreement != r->agreements.end()) {
    agreement->second.lost.erase(request.rank());
  }
  // Attempts that have ended before they agreed on anything.
  std::erase_if(r->agreements, [&](const auto& entry) {
    return entry.first < *attempt && entry.second.sequence == 0 && entry.second.waiting.empty();
  });
  ReportOrphans(r, *attempt, request);
  v1::JoinRunResponse response;
  response.set_run(r->name);
  response.set_attempt(*attempt);
  response.set_run_id(request.run_id().empty() ? r->ledger->record().run_id() : request.run_id());
  reply(std::move(response));
}

// Saves that were staged with a daemon that is gone, and that its successor did not find complete on disk.
void Engine::Impl::ReportOrphans(Run* run, int64_t attempt, const v1::JoinRunRequest& request) {
  for (const v1::SaveKey& key : request.orphaned()) {
    const SaveId id{attempt, key.tag(), key.ordinal()};
    if (ended_.Past(*run, id)) continue;
    bool known = false;
    for (auto& entry : run->saves) {
      if (entry.second->key != id) continue;
      known = true;
      const Part* part = entry.second->FindPart(request.rank());
      // The rank sealed it with the old daemon; others have begun it anew with this one.
      if (part == nullptr || !part->begun) {
        tracker_.Fail(entry.second.get(),
                      MakeError(absl::StatusCode::kAborted, "STAGED_LOST",
                                absl::StrCat("rank ", request.rank(), " had staged its part of ", id.tag,
                                             " with a daemon that has ended since; save again"),
                                {{"tag", id.tag}, {"ranks", absl::StrCat(request.rank())}}));
      }
      break;
    }
    if (known) continue;
    storage::v1::Outcome outcome;
    outcome.set_tag(id.tag);
    outcome.set_ordinal(id.ordinal);
    outcome.set_attempt(attempt);
    outcome.set_level(v1::FAILED);
    outcome.set_reason("STAGED_LOST");
    outcome.set_code(static_cast<int>(absl::StatusCode::kAborted));
    outcome.set_message(absl::StrCat("rank ", request.rank(), " had staged its part of ", id.tag,
                                     " with a daemon that has ended since; save again"));
    outcome.add_ranks(request.rank());
    outcome.set_time_us(clock_->UnixMicros());
    ended_.AddFailure(run, FromOutcome(*run, outcome));
    observer_->OnWarning(absl::StrCat("save of ", run->path, "/", id.tag, " failed: ", outcome.message()));
    run->ledger->RecordOutcome(outcome, [](absl::Status) {});
  }
}

// From now on `active_attempt` acts: what older trainers have not fully sealed ends.
void Engine::Impl::FenceOff(Run* run, int64_t active_attempt) {
  std::vector<Save*> over;
  for (auto& entry : run->saves) {
    Save* save = entry.second.get();
    if (save->key.attempt < active_attempt && !save->sealed() && save->phase != SavePhase::kFailing) {
      over.push_back(save);
    }
  }
  const std::string why = absl::StrCat("attempt ", active_attempt, " of this run has begun or resumed");
  for (Save* save : over) {
    tracker_.Fail(save,
                  MakeError(absl::StatusCode::kFailedPrecondition, "FENCED", why, {{"tag", save->key.tag}}));
  }
  while (!run->agreements.empty() && run->agreements.begin()->first < active_attempt) {
    FailAgreement(run, run->agreements.begin()->first,
                  MakeError(absl::StatusCode::kFailedPrecondition, "FENCED", why));
    run->agreements.erase(run->agreements.begin());
  }
}

void Engine::Impl::SessionClosed(SessionId session, const std::string& why) {
  auto info = sessions_.find(session);
  if (info == sessions_.end()) return;
  const std::string instance = info->second.client_instance;
  sessions_.erase(info);
  bool instance_lives = false;
  for (const auto& other : sessions_) instance_lives |= other.second.client_instance == instance;

  std::vector<std::pair<Save*, int>> lost;
  std::vector<Reply<v1::ResumeResponse>> over;
  std::vector<Reply<v1::FinishResumeResponse>> unfinished;
  std::vector<std::pair<Run*, int64_t>> left;  // Attempts that it was a rank of.
  for (auto& entry : runs_) {
    Run* run = entry.second.get();
    run->tenants.erase(session);
    for (auto& item : run->saves) {
      Save* save = item.second.get();
      for (auto& part : save->parts) {
        const bool unsealed = part.second.begun && !part.second.sealed && part.second.session == session;
        if (unsealed && save->phase != SavePhase::kFailing && save->phase != SavePhase::kEnded) {
          lost.emplace_back(save, part.first);
          break;
        }
      }
    }
    for (const Member& member : run->members) {
      if (member.session != session) continue;
      run->agreements[member.attempt].lost.insert(member.rank);
      left.emplace_back(run, member.attempt);
    }
    std::erase_if(run->members, [session](const Member& member) { return member.session == session; });
    run->attached.erase(session);
    for (auto pending = run->resumes.begin(); pending != run->resumes.end();) {
      if (pending->session != session) {
        ++pending;
        continue;
      }
      over.push_back(std::move(pending->reply));
      pending = run->resumes.erase(pending);
    }
    for (auto& [attempt, agreement] : run->agreements) {
      for (auto finish = agreement.waiting.begin(); finish != agreement.waiting.end();) {
        if (finish->session != session) {
          ++finish;
          continue;
        }
        unfinished.push_back(std::move(finish->reply));
        finish = agreement.waiting.erase(finish);
      }
    }
    if (!instance_lives && run->ledger != nullptr) run->ledger->ProcessEnded(instance);
  }
  for (auto& reply : over) {  // Its call may be on another connection, which waits for an answer.
    reply(MakeError(absl::StatusCode::kAborted, "SESSION_LOST",
                    "the session ended before Resume was answered"));
  }
  for (auto& reply : unfinished) {
    reply(MakeError(absl::StatusCode::kAborted, "SESSION_LOST",
                    "the session ended before FinishResume was answered"));
  }
  for (auto& [run, attempt] : left) ExpectAllRanks(run, attempt);
  for (auto& [save, rank] : lost) {
    tracker_.Fail(save, MakeError(absl::StatusCode::kAborted, "SESSION_LOST",
                                  absl::StrCat("the trainer of rank ", rank,
                                               " ended before it sealed its part (", why, ")"),
                                  {{"tag", save->key.tag}, {"ranks", absl::StrCat(rank)}}));
  }
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    auto current = lease++;
    if (current->second.session == session) CloseLease(current);
  }
  for (ReservationId copy : std::exchange(mapped_[session], {})) pool_->Unhold(copy, session);
  mapped_.erase(session);
  pool_->SessionEnded(session);
  CheckResidentsOf(session);
  queue_.TryAdmitAll();
}

}  // namespace ckptd
