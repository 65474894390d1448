// Begin, Extend, Seal, Abort, Wait, WriteFile: finds what a request is about, and hands it to the class that
// does it.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/seams/validate.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

Save* FindByTag(const Run& run, const std::string& tag) {
  Save* found = nullptr;
  for (const auto& [sequence, save] : run.saves) {
    if (save->key.tag == tag) found = save.get();
  }
  return found;
}

absl::Status UnknownSave(const SaveId& key) {
  return MakeError(absl::StatusCode::kNotFound, reason::kUnknownSave,
                   absl::StrCat("no save of ", key.tag, " (number ", key.ordinal, " of attempt ", key.attempt,
                                ") is known"),
                   {{"tag", key.tag}});
}

// A save that was begun with an earlier daemon, and of which neither this daemon nor the authority knows the
// end. On one node its memory is gone. Of several nodes, another one may have committed it before the authority
// forgot it.
v1::Checkpoint Lost(const Run& run, const SaveId& key, int64_t sequence) {
  v1::Checkpoint lost;
  lost.set_name(absl::StrCat(run.name, "/checkpoints/", key.tag));
  lost.set_run(run.name);
  lost.set_tag(key.tag);
  lost.set_sequence(sequence);
  lost.set_attempt(key.attempt);
  lost.set_ordinal(key.ordinal);
  const bool may_be_committed = run.authority->may_span_nodes();
  lost.set_level(may_be_committed ? v1::INDETERMINATE : v1::FAILED);
  lost.mutable_error()->set_reason(may_be_committed ? reason::kIndeterminate : reason::kStagedLost);
  lost.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kAborted));
  lost.mutable_error()->set_message(
      may_be_committed
          ? absl::StrCat(
                "the daemon ended before this node was told how the save of ", key.tag,
                " ended, and etcd has forgotten it. If it is a checkpoint, it is listed (ckptctl list)")
          : absl::StrCat("the daemon ended before the save of ", key.tag, " was committed; save again"));
  return lost;
}

}  // namespace

// The save in flight of one of the caller's ranks. UNKNOWN_SAVE if there is none; its own error if it has
// ended.
absl::StatusOr<Save*> Engine::Impl::FindSave(const Caller& caller, const v1::SaveKey& key,
                                             const Member** member) {
  CKPTD_ASSIGN_OR_RETURN(Run * run, FindRun(caller, key.run()));
  const Member* found = run->members.Find(caller.session, key.rank());
  if (found == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotJoined,
                     absl::StrCat("this session has not joined ", key.run(), " as rank ", key.rank()));
  }
  if (member != nullptr) *member = found;
  const SaveId id{found->attempt, key.tag(), key.ordinal()};
  if (Save* const save = run->FindSave(id)) return save;
  if (const Save* ended = ended_.Find(run, id); ended != nullptr && !ended->error.ok()) return ended->error;
  return MakeError(absl::StatusCode::kNotFound, reason::kUnknownSave,
                   absl::StrCat("no save of ", key.tag(), " (number ", key.ordinal(), " of attempt ",
                                found->attempt, ") is under way"),
                   {{"tag", key.tag()}});
}

// ---- Begin, Extend

void Engine::Impl::Begin(const Caller& caller, const v1::BeginRequest& request,
                         Reply<v1::BeginResponse> reply) {
  absl::StatusOr<Run*> run = FindRun(caller, request.key().run());
  if (!run.ok()) return reply(run.status());
  const Member* member = (*run)->members.Find(caller.session, request.key().rank());
  if (member == nullptr) {
    return reply(MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotJoined,
                           absl::StrCat("this session has not joined ", request.key().run(), " as rank ",
                                        request.key().rank(), "; call JoinRun first")));
  }
  if (absl::Status wrong = CheckBegin(request, member->world_size); !wrong.ok()) return reply(wrong);
  if (draining_) return reply(CheckTakesSaves());
  if ((*run)->read_only) {
    return reply(
        MakeError(absl::StatusCode::kFailedPrecondition, reason::kRootReadOnly,
                  absl::StrCat("the root ", (*run)->path,
                               " is read-only after a failed directory sync, until it is scanned anew")));
  }
  intake_.Begin(*run, *member, request, std::move(reply));
}

std::optional<absl::StatusOr<v1::BeginResponse>> Engine::Impl::AnswerIfEnded(Run* run, const SaveId& key) {
  const absl::Status committed = CommittedAlready(key);
  if (const Save* ended = ended_.Find(run, key)) {
    if (ended->level() == v1::SKIPPED) return SkippedResponse(*ended);
    return ended->level() == v1::COMMITTED ? committed : ended->error;
  }
  const std::optional<v1::Checkpoint> past = ended_.Past(*run, key);
  if (!past) return std::nullopt;
  const v1::SaveError& error = past->error();
  const std::string ranks = JoinRanks({error.ranks().begin(), error.ranks().end()});
  if (past->level() == v1::COMMITTED) {
    return MakeError(committed.code(), ReasonOf(committed), std::string(committed.message()),
                     {{"tag", key.tag}, {"ranks", ranks}});
  }
  return MakeError(static_cast<absl::StatusCode>(error.code()), error.reason(), error.message(),
                   {{"tag", key.tag}, {"ranks", ranks}});
}

void Engine::Impl::Extend(const Caller& caller, const v1::ExtendRequest& request,
                          Reply<v1::ExtendResponse> reply) {
  const Member* member = nullptr;
  absl::StatusOr<Save*> found = FindSave(caller, request.key(), &member);
  if (!found.ok()) return reply(found.status());
  Save* save = *found;
  Part& part = save->PartOf(member->rank);
  if (save->phase() != SavePhase::kAdmitted || !part.begun || part.session != caller.session) {
    return reply(save->error.ok() || !save->remembered
                     ? MakeError(absl::StatusCode::kFailedPrecondition, reason::kUnknownSave,
                                 absl::StrCat("rank ", member->rank, " has no room in the save of ",
                                              save->key.tag, " yet; wait for Begin's answer"))
                     : save->error);
  }
  if (part.sealed || !part.growing) {
    return reply(MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kSealed,
        absl::StrCat("the part of rank ", member->rank,
                     part.sealed ? " is sealed" : " was not begun as growing", " and takes no more files"),
        {{"tag", save->key.tag}}));
  }
  if (request.files().empty()) {
    return reply(InvalidArgument("files is empty; name at least one"));
  }
  if (absl::Status wrong = CheckFiles(request.files()); !wrong.ok()) return reply(wrong);
  grants_.Extend(save, part, request, std::move(reply));
}

// ---- Seal, Abort

absl::Status Engine::Impl::PlaceUnasked(Save* save, const Member& member, const v1::SealRequest& request) {
  Part& part = save->PartOf(member.rank);
  const bool may_place = save->phase() == SavePhase::kAdmitted && part.granted && !part.sealed;
  if (!may_place || part.session != member.session) return absl::OkStatus();  // The tracker says why not.
  CKPTD_RETURN_IF_ERROR(CheckFiles(request.files()));
  return grants_.PlaceUnasked(save, part, request);
}

void Engine::Impl::Seal(const Caller& caller, const v1::SealRequest& request, Reply<v1::SealResponse> reply) {
  const Member* member = nullptr;
  absl::StatusOr<Save*> found = FindSave(caller, request.key(), &member);
  if (found.ok()) {
    if (absl::Status placed = PlaceUnasked(*found, *member, request); !placed.ok()) return reply(placed);
    return tracker_.Seal(*found, *member, request, std::move(reply));
  }
  if (member == nullptr || ReasonOf(found.status()) != reason::kUnknownSave) return reply(found.status());
  // Perhaps the save was sealed, and committed since: then this is a retry whose first answer was lost.
  const Run& run = *runs_.Find(request.key().run());
  const std::optional<v1::Checkpoint> past =
      ended_.Past(run, SaveId{member->attempt, request.key().tag(), request.key().ordinal()});
  if (!past || past->level() != v1::COMMITTED) return reply(found.status());
  v1::SealResponse response;
  response.set_level(past->level());
  response.set_sequence(past->sequence());
  reply(std::move(response));
}

absl::StatusOr<Save*> Engine::Impl::FindSaveByName(const Caller& caller, const std::string& name) {
  std::string tag;
  CKPTD_ASSIGN_OR_RETURN(const Run* run, RunOfCheckpointName(caller, name, &tag));
  if (Save* save = FindByTag(*run, tag)) return save;
  return MakeError(absl::StatusCode::kNotFound, reason::kUnknownSave,
                   absl::StrCat("no save of ", tag, " is under way in ", run->path), {{"tag", tag}});
}

void Engine::Impl::Abort(const Caller& caller, const v1::AbortRequest& request,
                         Reply<v1::AbortResponse> reply) {
  const Member* member = nullptr;
  const absl::StatusOr<Save*> save = request.name().empty() ? FindSave(caller, request.key(), &member)
                                                            : FindSaveByName(caller, request.name());
  // A save that has ended stays as it ended: the abort has its effect already.
  const bool has_ended = member != nullptr && ReasonOf(save.status()) != reason::kUnknownSave;
  if (!save.ok() && has_ended) return reply(v1::AbortResponse());
  if (!save.ok()) return reply(save.status());
  const std::vector<int> ranks = member == nullptr ? std::vector<int>() : std::vector<int>{member->rank};
  if (absl::Status refused = tracker_.Abort(*save, ranks, request.message()); !refused.ok())
    return reply(refused);
  reply(v1::AbortResponse());
}

// ---- Wait

absl::StatusOr<Engine::Impl::Awaited> Engine::Impl::FindAwaitedByName(const Caller& caller,
                                                                      const std::string& name) {
  std::string tag;
  CKPTD_ASSIGN_OR_RETURN(const Run* run, RunOfCheckpointName(caller, name, &tag));
  if (Save* save = FindByTag(*run, tag)) return Awaited{save, std::nullopt};
  if (const Save* ended = ended_.FindNewest(run, tag)) return Awaited{nullptr, Describe(*ended, v1::BASIC)};
  if (const CommittedCheckpoint* committed = run->catalog.FindTag(tag))
    return Awaited{nullptr, Describe(*run, *committed)};
  return MakeError(absl::StatusCode::kNotFound, reason::kUnknownSave,
                   absl::StrCat("no checkpoint ", tag, " is known in ", run->path), {{"tag", tag}});
}

absl::StatusOr<Engine::Impl::Awaited> Engine::Impl::FindAwaitedByKey(const Caller& caller,
                                                                     const v1::WaitRequest& request) {
  CKPTD_ASSIGN_OR_RETURN(Run * run, FindRun(caller, request.key().run()));
  const Member* member = run->members.Find(caller.session, request.key().rank());
  const int64_t joined = member == nullptr ? 0 : member->attempt;
  const int64_t attempt = request.attempt() != 0 ? request.attempt() : joined;
  const SaveId key{attempt, request.key().tag(), request.key().ordinal()};
  if (Save* save = run->FindSave(key)) return Awaited{save, std::nullopt};
  return Awaited{nullptr, ended_.Past(*run, key), run, key};
}

// A save that neither is in flight here nor has an end that this daemon knows. `sequence`: that of the request.
void Engine::Impl::WaitForEarlier(Run* run, const SaveId& key, int64_t sequence, Instant deadline,
                                  Reply<v1::WaitResponse> reply) {
  earlier_.Find(run, key, deadline,
                [run, key, sequence, reply = std::move(reply)](std::optional<v1::Checkpoint> found) mutable {
                  if (!found && sequence == 0) return reply(UnknownSave(key));
                  if (!found) found = Lost(*run, key, sequence);
                  if (found->sequence() == 0) found->set_sequence(sequence);
                  v1::WaitResponse response;
                  *response.mutable_checkpoint() = *std::move(found);
                  reply(std::move(response));
                });
}

void Engine::Impl::Wait(const Caller& caller, const v1::WaitRequest& request, Reply<v1::WaitResponse> reply) {
  if (request.level() < v1::STAGED || request.level() > v1::UPLOADED)
    return reply(InvalidArgument("level is STAGED, SEALED, COMMITTED or UPLOADED"));
  absl::StatusOr<Duration> timeout =
      CheckDuration(request.has_timeout(), request.timeout(), "timeout", std::chrono::seconds(60),
                    Duration(0), std::chrono::seconds(86400));
  if (!timeout.ok()) return reply(timeout.status());
  const bool by_name = !request.name().empty();
  absl::StatusOr<Awaited> awaited =
      by_name ? FindAwaitedByName(caller, request.name()) : FindAwaitedByKey(caller, request);
  if (!awaited.ok()) return reply(awaited.status());
  const Instant deadline = clock_->Now() + *timeout;
  if (request.level() == v1::UPLOADED) {
    reply = [this, deadline, reply = std::move(reply)](absl::StatusOr<v1::WaitResponse> answer) mutable {
      if (!answer.ok() || answer->checkpoint().level() != v1::COMMITTED) return reply(std::move(answer));
      WaitForUpload(std::move(*answer->mutable_checkpoint()), deadline, std::move(reply));
    };
  }
  if (awaited->past) {
    v1::WaitResponse response;
    *response.mutable_checkpoint() = *std::move(awaited->past);
    return reply(std::move(response));
  }
  if (awaited->save == nullptr)
    return WaitForEarlier(awaited->run, awaited->id, request.sequence(), deadline, std::move(reply));
  Waiter waiter;
  waiter.rank = by_name ? -1 : request.key().rank();
  waiter.level = std::min(request.level(), v1::COMMITTED);
  waiter.deadline = deadline;
  waiter.reply = std::move(reply);
  tracker_.Wait(awaited->save, std::move(waiter));
}

void Engine::Impl::WaitForUpload(v1::Checkpoint committed, Instant deadline, Reply<v1::WaitResponse> reply) {
  Run* const run = runs_.Find(committed.run());
  if (run == nullptr)
    return reply(MakeError(absl::StatusCode::kNotFound, reason::kUnknownRun, committed.run()));
  const int64_t sequence = committed.sequence();
  const std::string tag = committed.tag();
  uploads_.Wait(run, sequence, tag, deadline,
                [this, run, committed = std::move(committed),
                 reply = std::move(reply)](const absl::Status& uploaded) mutable {
                  if (!uploaded.ok() && !absl::IsDeadlineExceeded(uploaded)) return reply(uploaded);
                  v1::WaitResponse response;
                  uploads_.Describe(*run, committed.sequence(), &committed);
                  if (uploaded.ok()) committed.set_level(v1::UPLOADED);
                  *response.mutable_checkpoint() = std::move(committed);
                  reply(std::move(response));
                });
}

// ---- a save of several nodes whose outcome is unknown

void Engine::Impl::ResolveSave(const Caller& caller, const v1::ResolveSaveRequest& request,
                               Reply<v1::ResolveSaveResponse> reply) {
  std::string tag;
  const absl::StatusOr<Run*> run = RunOfCheckpointName(caller, request.name(), &tag);
  if (!run.ok()) return reply(run.status());
  const bool is_checkpoint = request.outcome() == v1::ResolveSaveRequest::IS_CHECKPOINT;
  if (!is_checkpoint && request.outcome() != v1::ResolveSaveRequest::IS_NO_CHECKPOINT)
    return reply(InvalidArgument("outcome is IS_CHECKPOINT or IS_NO_CHECKPOINT"));
  (*run)->authority->SettleSave(tag, is_checkpoint,
                                [name = request.name(), reply = std::move(reply)](
                                    const absl::StatusOr<Authority::Settled>& settled) mutable {
                                  if (!settled.ok()) return reply(settled.status());
                                  v1::ResolveSaveResponse response;
                                  response.set_name(name);
                                  response.set_sequence(settled->sequence);
                                  response.set_is_checkpoint(settled->is_checkpoint);
                                  reply(std::move(response));
                                });
}

// ---- WriteFile

absl::StatusOr<WriteTarget> Engine::Impl::BeginWrite(const Caller& caller, const v1::SaveKey& key,
                                                     const std::string& path,
                                                     std::function<void(const absl::Status&)> revoke) {
  const Member* member = nullptr;
  CKPTD_ASSIGN_OR_RETURN(Save * save, FindSave(caller, key, &member));
  return streams_.Open(save, member->rank, path, std::move(revoke));
}

}  // namespace ckptd
