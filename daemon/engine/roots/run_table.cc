#include "daemon/engine/roots/run_table.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "absl/strings/str_cat.h"
#include "daemon/engine/seams/validate.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/format/run_name.h"

namespace ckptd {
namespace {

constexpr uid_t kOverflowUid = 65534;  // Stands for any unknown user: owns nothing.
constexpr Duration kLockRetry = std::chrono::milliseconds(50);

absl::Status WrongUid(const std::string& path, uid_t owner, uid_t uid) {
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kWrongUid,
                   absl::StrCat("the run in ", path, " belongs to uid ", owner, ", the caller is uid ", uid));
}

absl::Status NotAttached(const Run& run) {
  return MakeError(
      absl::StatusCode::kPermissionDenied, reason::kForeignNamespace,
      absl::StrCat("the caller is in another user or mount namespace than the daemon, and no session of that "
                   "namespace has attached the root of ",
                   run.name, "; attach it by a descriptor (AttachRoot) first"));
}

// By a daemon elsewhere.
bool IsTakenOver(const Run& run) { return run.local_io != nullptr && run.local_io->is_taken_over(); }

}  // namespace

RunTable::RunTable(Options options, Clock* clock, EngineObserver* observer, const SessionTable* sessions,
                   Hooks hooks)
    : options_(options), clock_(clock), observer_(observer), sessions_(sessions), hooks_(std::move(hooks)) {}

// ---- finding

bool RunTable::Sees(const Caller& caller, const Run& run) const {
  if (caller.tenant != 0) return caller.uid == run.uid && HasAttached(caller, run);
  return caller.privileged || caller.uid == run.uid;
}

bool RunTable::HasAttached(const Caller& caller, const Run& run) const {
  const std::set<SessionId>& tenants = states_.Of(&run).tenants;
  if (tenants.contains(caller.session)) return true;
  return caller.tenant > 0 && std::any_of(tenants.begin(), tenants.end(), [&](SessionId session) {
           const SessionInfo* other = sessions_->Find(session);
           return other != nullptr && other->tenant == caller.tenant;
         });
}

Run* RunTable::Find(const std::string& name) const {
  const auto found = runs_.find(name);
  return found == runs_.end() ? nullptr : found->second.get();
}

absl::StatusOr<Run*> RunTable::Find(const Caller& caller, const std::string& name) {
  Run* run = Find(name);
  if (run == nullptr) return FindClosed(caller, name);
  if (!run->open) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kUnknownRun,
                     absl::StrCat("the root ", run->path, " is being opened and recovered; try again"));
  }
  if (!Sees(caller, *run)) {
    return caller.uid == run->uid ? NotAttached(*run) : WrongUid(run->path, run->uid, caller.uid);
  }
  return run;
}

absl::StatusOr<Run*> RunTable::FindClosed(const Caller& caller, const std::string& name) {
  const auto closed = closed_.find(name);
  if (closed == closed_.end()) {
    return MakeError(absl::StatusCode::kNotFound, reason::kUnknownRun,
                     absl::StrCat("no run is called \"", name, "\"; its root has to be attached first"));
  }
  const std::string path = closed->second.description.path();
  if (!caller.privileged && caller.uid != closed->second.uid)
    return WrongUid(path, closed->second.uid, caller.uid);
  if (closed->second.waiting.empty()) Reopen(name, [](absl::StatusOr<std::string>) {});
  return MakeError(absl::StatusCode::kUnavailable, reason::kUnknownRun,
                   absl::StrCat("the root ", path, " was idle and is being opened again; try again"));
}

absl::StatusOr<Run*> RunTable::FindByCheckpoint(const Caller& caller, const std::string& name,
                                                std::string* tag) {
  auto parsed = ParseCheckpointName(name);
  if (!parsed) {
    return InvalidArgument(absl::StrCat("name is \"", name, "\"; it is runs/{run}/checkpoints/{tag}"));
  }
  *tag = parsed->second;
  return Find(caller, parsed->first);
}

std::vector<v1::Run> RunTable::ClosedRuns(const Caller& caller) const {
  std::vector<v1::Run> descriptions;
  for (const auto& [name, closed] : closed_) {
    const bool shown = caller.privileged || caller.uid == closed.uid;
    if (shown && !runs_.contains(name)) descriptions.push_back(closed.description);
  }
  return descriptions;
}

// ---- attaching

void RunTable::Attach(SessionId session, RootAttachment attachment, Reply<std::string> reply) {
  if (session != 0 && !sessions_->IsOpen(session)) {
    return reply(
        MakeError(absl::StatusCode::kUnauthenticated, reason::kUnknownToken, "the session has ended"));
  }
  const std::string name = NameOf(attachment);
  Run* run = Find(name);
  if (run != nullptr && IsTakenOver(*run) && IsUnused(*run)) {  // It is opened anew, which takes it back.
    Close(run);
    run = nullptr;
  }
  if (run != nullptr && run->open) return Accept(run, {session, std::move(attachment), std::move(reply)});
  if (attachment.uid == kOverflowUid) {
    return reply(MakeError(absl::StatusCode::kPermissionDenied, reason::kWrongUid,
                           absl::StrCat("uid ", kOverflowUid, " stands for unknown users and owns no run")));
  }
  const Instant deadline = session == 0 ? Instant::max() : clock_->Now() + options_.attach_timeout;
  if (run == nullptr) return Create(session, name, std::move(attachment), std::move(reply), deadline);
  // The owner of the run is known once it is open.
  states_.Of(run).waiting.push_back({session, std::move(attachment), std::move(reply), deadline});
}

// One directory is never two runs, nor one run two directories: it may be in two folders that several nodes share, and
// another file system may be mounted in such a folder.
std::string RunTable::NameOf(const RootAttachment& attachment) const {
  for (const auto& [name, run] : runs_) {
    if (run->device == attachment.device && run->inode == attachment.inode) return name;
  }
  const std::string folder =
      options_.shared_folder == nullptr ? "" : options_.shared_folder(attachment.own_path);
  const std::string shared = folder.empty() ? "" : SharedRunName(folder, attachment.inode);
  return shared.empty() || runs_.contains(shared) ? RunName(attachment.device, attachment.inode) : shared;
}

void RunTable::Create(SessionId session, const std::string& name, RootAttachment attachment,
                      Reply<std::string> reply, Instant deadline) {
  if (absl::Status room = session == 0 ? absl::OkStatus() : MakeRoomFor(attachment); !room.ok())
    return reply(room);
  auto owned = std::make_unique<Run>();
  Run* run = owned.get();
  run->name = name;
  run->path = attachment.path;
  run->device = attachment.device;
  run->inode = attachment.inode;
  run->uid = attachment.uid;
  run->own_path = attachment.own_path;
  absl::StatusOr<RootAccess> access = attachment.make_io();
  if (!access.ok()) return reply(Annotate(access.status(), absl::StrCat("opening the root ", run->path)));
  run->io = std::move(access->io);
  run->uploads = std::move(access->uploads);
  run->coordinator_io = access->coordinator_io;
  run->local_io = access->local_io;
  run->authority = std::move(access->authority);
  if (run->authority == nullptr)
    run->authority = std::make_unique<LocalAuthority>(run, std::bind_front(hooks_.publish, run));
  runs_.emplace(name, std::move(owned));
  State& state = states_.Of(run);
  state.opener = attachment.uid;
  state.waiting.push_back({session, std::move(attachment), std::move(reply), deadline});
  state.lock_deadline = clock_->Now() + options_.lock_timeout;
  Open(run);
}

// For a root that is open.
void RunTable::Accept(Run* run, PendingAttach attach) {
  const uid_t uid = attach.attachment.uid;
  if (uid != 0 && uid != run->uid) return attach.reply(WrongUid(run->path, run->uid, uid));
  State& state = states_.Of(run);
  const SessionInfo* session = sessions_->Find(attach.session);
  if (session != nullptr && session->tenant != 0) state.tenants.insert(attach.session);
  if (session != nullptr) state.attached.insert(attach.session);
  state.idle_since.reset();
  if (attach.attachment.reopen != nullptr) state.reopen = attach.attachment.reopen;
  if (attach.attachment.remember == nullptr) return attach.reply(run->name);
  ++state.remembering;  // The run stays open meanwhile.
  attach.attachment.remember([this, run, reply = std::move(attach.reply)](
                                 absl::StatusOr<std::shared_ptr<const void>> known) mutable {
    --states_.Of(run).remembering;
    if (!known.ok()) return reply(known.status());
    states_.Of(run).known.insert(*std::move(known));
    reply(run->name);
  });
}

// For a root that does not open because its file system hangs.
void RunTable::ExpireAttaches(const Run& run, State& state, Instant now) {
  std::vector<Reply<std::string>> over;
  for (PendingAttach& attach : state.waiting) {
    if (now >= attach.deadline) over.push_back(std::move(attach.reply));
  }
  std::erase_if(state.waiting, [now](const PendingAttach& attach) { return now >= attach.deadline; });
  for (auto& reply : over) {
    reply(MakeError(
        absl::StatusCode::kDeadlineExceeded, reason::kFileSystemHangs,
        absl::StrCat("the root ", run.path,
                     " is not open yet: its file system does not answer; look at its server or disk, "
                     "and attach again"),
        {{"path", run.path}}));
  }
}

void RunTable::OnSessionEnded(SessionId session) {
  for (auto& [run, state] : states_) {
    state.tenants.erase(session);
    state.attached.erase(session);
  }
}

// ---- opening

void RunTable::Open(Run* run) {
  states_.Of(run).open_again_at.reset();
  hooks_.opening(run);
  run->io->Open([this, run](absl::StatusOr<RootSnapshot> snapshot) { Opened(run, std::move(snapshot)); });
}

void RunTable::Opened(Run* run, absl::StatusOr<RootSnapshot> snapshot) {
  State& state = states_.Of(run);
  if (ReasonOf(snapshot.status()) == reason::kRootLocked && clock_->Now() < state.lock_deadline) {
    state.open_again_at = clock_->Now() + kLockRetry;
    return;
  }
  if (!snapshot.ok())
    return RefuseOpening(run, Annotate(snapshot.status(), absl::StrCat("opening the root ", run->path)));
  const storage::v1::RunRecord& record = snapshot->run_record;
  const auto owner = static_cast<uid_t>(record.uid());
  // The daemon must not work in another user's run with the rights of the user who attached it first.
  if (record.format_version() != 0 && state.opener != 0 && state.opener != owner)
    return RefuseOpening(run, WrongUid(run->path, owner, state.opener));
  std::vector<PendingAttach> waiting = std::exchange(state.waiting, {});
  hooks_.load(run, *std::move(snapshot));
  run->open = true;
  // Calls that wait for a closed run are answered by its attach, which still needs the entry.
  if (auto closed = closed_.find(run->name); closed != closed_.end() && closed->second.waiting.empty())
    closed_.erase(closed);
  hooks_.opened(run);
  for (PendingAttach& attach : waiting) Accept(run, std::move(attach));
  hooks_.accepted(run);
}

void RunTable::RefuseOpening(Run* run, const absl::Status& why) {
  observer_->OnWarning(std::string(why.message()));
  std::vector<PendingAttach> waiting = std::exchange(states_.Of(run).waiting, {});
  const uid_t opener = states_.Of(run).opener;
  hooks_.closing(run);
  states_.Forget(run);
  runs_.erase(run->name);  // The next attach tries anew.
  for (PendingAttach& attach : waiting) {
    if (attach.attachment.uid == opener) {
      attach.reply(why);
    } else {  // Another user may have the permission.
      Attach(attach.session, std::move(attach.attachment), std::move(attach.reply));
    }
  }
}

void RunTable::OnTick(Run* run, Instant now) {
  State& state = states_.Of(run);
  if (state.open_again_at && now >= *state.open_again_at) Open(run);
  ExpireAttaches(*run, state, now);
}

// ---- closing, and opening again

// Whether nothing on this node uses the run. Other nodes may still wait for it.
bool RunTable::IsUnused(const Run& run) const {
  const State& state = states_.Of(&run);
  if (!run.open || state.reopen == nullptr || state.remembering > 0 || run.io->has_pending()) return false;
  if (!state.attached.empty() || !run.members.empty() || !state.waiting.empty()) return false;
  // What is still to be done in a root that another daemon has taken over, such as a removal, never succeeds.
  return IsTakenOver(run) ? run.saves.empty() : hooks_.is_idle(run);
}

bool RunTable::IsIdle(const Run& run) const { return IsUnused(run) && run.authority->may_close(); }

void RunTable::Close(Run* run) {
  Closed& closed = closed_[run->name];
  closed.description = hooks_.describe(*run);
  closed.uid = run->uid;
  closed.reopen = std::move(states_.Of(run).reopen);
  hooks_.closing(run);
  states_.Forget(run);
  runs_.erase(run->name);
}

void RunTable::CloseIdleRuns(Instant now) {
  std::vector<Run*> over;
  std::vector<std::string> due;
  for (const auto& [name, run] : runs_) {
    std::optional<Instant>& idle_since = states_.Of(run.get()).idle_since;
    if (!IsUnused(*run)) {
      idle_since.reset();
    } else if (!idle_since) {
      idle_since = now;
    }
    const bool is_due = options_.idle_timeout > Duration::zero() && idle_since.has_value() &&
                        now - *idle_since >= options_.idle_timeout;
    const bool is_over = is_due || (idle_since.has_value() && IsTakenOver(*run));
    run->authority->SetIdle(is_over);
    if (is_over && run->authority->may_close()) over.push_back(run.get());
  }
  for (const auto& [name, closed] : closed_) {
    if (closed.waiting.empty() && hooks_.is_due(name)) due.push_back(name);
  }
  for (Run* run : over) Close(run);
  for (const std::string& name : due) Reopen(name, [](absl::StatusOr<std::string>) {});
}

std::vector<std::string> RunTable::CloseIdle(const std::function<bool(const Run&)>& which) {
  std::vector<Run*> idle;
  std::vector<std::string> in_use;
  for (const auto& [name, run] : runs_) {
    if (!which(*run)) continue;
    if (IsIdle(*run)) {
      idle.push_back(run.get());
    } else {
      in_use.push_back(run->path);
    }
  }
  for (Run* run : idle) Close(run);
  return in_use;
}

RunTable::Usage RunTable::UsageOf(uid_t uid, uint64_t device) {
  Usage usage;
  usage.devices.insert(device);
  const auto since = [this](const Run* run) { return states_.Of(run).idle_since.value_or(Instant::max()); };
  for (const auto& [name, run] : runs_) {
    if (run->uid != uid) continue;
    ++usage.roots;
    usage.devices.insert(run->device);
    if (!IsIdle(*run)) continue;
    if (usage.longest_idle == nullptr || since(run.get()) < since(usage.longest_idle))
      usage.longest_idle = run.get();
  }
  return usage;
}

absl::Status RunTable::MakeRoomFor(const RootAttachment& attachment) {
  while (true) {
    const Usage usage = UsageOf(attachment.uid, attachment.device);
    const bool too_many_roots = usage.roots > options_.roots_per_uid;
    if (!too_many_roots && static_cast<int>(usage.devices.size()) <= options_.file_systems_per_uid)
      return absl::OkStatus();
    if (usage.longest_idle == nullptr) {
      const std::string what =
          too_many_roots ? absl::StrCat(options_.roots_per_uid, " open roots")
                         : absl::StrCat("open roots on ", options_.file_systems_per_uid, " file systems");
      const char* const limit = too_many_roots ? "limits.roots_per_uid" : "limits.file_systems_per_uid";
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kLimitExceeded,
                       absl::StrCat("uid ", attachment.uid, " has ", what,
                                    ", and none of them is idle; end the jobs of some, or raise ", limit),
                       {{"path", attachment.path}, {"limit", limit}});
    }
    Close(usage.longest_idle);
  }
}

void RunTable::Reopen(const std::string& name, Reply<std::string> done) {
  Closed& closed = closed_.at(name);
  closed.waiting.push_back(std::move(done));
  if (closed.waiting.size() > 1) return;
  const auto reopen = closed.reopen;  // The entry may be erased meanwhile.
  reopen([this, name](absl::StatusOr<RootAttachment> attachment) {
    if (!attachment.ok()) return Reopened(name, attachment.status());
    Attach(0, *std::move(attachment),
           [this, name](const absl::StatusOr<std::string>& run) { Reopened(name, run); });
  });
}

void RunTable::Reopened(const std::string& name, const absl::StatusOr<std::string>& run) {
  const auto found = closed_.find(name);
  if (found == closed_.end()) return;
  std::vector<Reply<std::string>> waiting = std::exchange(found->second.waiting, {});
  if (run.ok()) {
    closed_.erase(found);
  } else {
    hooks_.reopen_failed(name);
  }
  for (auto& reply : waiting) reply(run);
}

}  // namespace ckptd
