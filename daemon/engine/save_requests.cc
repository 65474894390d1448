// Begin and Extend: checks of the request and of the caller; SaveIntake and PartGrants do the rest.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/validate.h"
#include "storage/base/errors.h"

namespace ckptd {

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
  intake_.Begin(*run, *member, request, std::move(reply));
}

std::optional<absl::StatusOr<v1::BeginResponse>> Engine::Impl::AnswerIfEnded(Run* run, const SaveId& key) {
  const absl::Status committed =
      MakeError(absl::StatusCode::kAlreadyExists, "SAVE_CONFLICT",
                absl::StrCat("this save of ", key.tag, " is committed already"), {{"tag", key.tag}});
  if (Save* ended = FindEnded(run, key)) {
    if (ended->level == v1::SKIPPED) return SkippedResponse(*ended);
    return ended->level == v1::COMMITTED ? committed : ended->error;
  }
  const std::optional<v1::Checkpoint> past = PastSave(run, key);
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
  grants_.Extend(save, part, request, std::move(reply));
}

}  // namespace ckptd
