// Draining: for the daemon's end, and when an operator asks for it.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/engine/engine_impl.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

constexpr size_t kLongestMessage = 500;

std::string Utc(int64_t unix_us) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMicros(unix_us), absl::UTCTimeZone());
}

// A save that has failed and only tidies up has nothing to lose.
bool IsUnderWay(const Save& save) {
  return !save.remembered && !save.ended() && save.phase() != SavePhase::kFailing;
}

std::string WaitingFor(const Save& save) {
  if (save.sealed()) return "its bytes to be durable, and its publication";
  if (!save.waits_for_words.empty()) return save.waits_for_words;
  const std::vector<int> unsealed = save.UnsealedRanks();
  return unsealed.empty() ? "the other nodes" : absl::StrCat("ranks ", JoinRanks(unsealed), " to seal");
}

v1::UnfinishedWork OfSave(const Save& save) {
  v1::UnfinishedWork work;
  work.set_root(save.run->path);
  work.set_tag(save.key.tag);
  work.set_waits_for(WaitingFor(save));
  work.set_lost(!save.sealed());
  work.set_if_ended(save.sealed() ? "published within drain_timeout_seconds; lost if the machine ends before"
                                  : "lost: not all ranks have sealed their part");
  return work;
}

v1::UnfinishedWork OfRoot(const Run& run, const std::string& what, const std::string& if_ended) {
  v1::UnfinishedWork work;
  work.set_root(run.path);
  work.set_waits_for(what);
  work.set_if_ended(if_ended);
  return work;
}

}  // namespace

void Engine::Impl::CheckDrained() {
  if (!draining_) return;
  for (const auto& entry : saves_.all()) {
    if (entry.second->sealed()) return;
  }
  for (const auto& entry : runs_.all()) {
    if (IsRetaining(*entry.second)) return;
  }
  for (auto& done : std::exchange(drained_, {})) done();
}

absl::Status Engine::Impl::CheckTakesSaves() const {
  if (draining_) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kDraining,
                     "the daemon is ending and takes no new saves; try again when it is back");
  }
  if (!operator_drain_) return absl::OkStatus();
  const OperatorDrain& drain = *operator_drain_;
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kNodeDrained,
      absl::StrCat(options_.node.empty() ? "the daemon" : absl::StrCat("node \"", options_.node, "\""),
                   " takes no new saves: uid ", drain.uid, " has drained it at ", Utc(drain.unix_us),
                   drain.message.empty() ? "" : absl::StrCat(" (", drain.message, ")"),
                   "; save again when it has been restarted, or when an operator has undone that there "
                   "(ckptctl drain --undo)"),
      {{"node", options_.node}, {"uid", absl::StrCat(drain.uid)}});
}

std::vector<v1::UnfinishedWork> Engine::Impl::UnfinishedWork() const {
  std::vector<v1::UnfinishedWork> found;
  for (const auto& [id, save] : saves_.all()) {
    if (IsUnderWay(*save)) found.push_back(OfSave(*save));
  }
  for (const auto& [name, run] : runs_.all()) {
    if (adoptions_.IsActive(*run)) {
      found.push_back(OfRoot(*run, "the adoption of foreign checkpoints to end",
                             "ckptctl adopt continues with those that are left"));
    }
    if (IsRetaining(*run)) {
      found.push_back(OfRoot(*run, "checkpoints that are not kept any more to be removed",
                             "the retention of the next save removes them"));
    }
  }
  return found;
}

v1::DrainStatus Engine::Impl::DescribeDrain(const Caller& caller) const {
  v1::DrainStatus status;
  status.set_uid(static_cast<int>(operator_drain_->uid));
  SetTime(operator_drain_->unix_us, status.mutable_time());
  status.set_message(operator_drain_->message);
  std::vector<v1::UnfinishedWork> unfinished = UnfinishedWork();
  status.set_drained(unfinished.empty());
  if (!caller.privileged) return status;  // Names of other users' roots.
  for (v1::UnfinishedWork& work : unfinished) *status.add_unfinished() = std::move(work);
  return status;
}

void Engine::Drain(absl::AnyInvocable<void()> done) {
  impl_->draining_ = true;
  impl_->drained_.push_back(std::move(done));
  impl_->CheckDrained();
}

absl::StatusOr<v1::Status> Engine::SetDrained(const Caller& caller, const v1::DrainRequest& request) {
  if (!caller.privileged) {
    return MakeError(absl::StatusCode::kPermissionDenied, reason::kWrongUid,
                     absl::StrCat("only root and the daemon's user may drain it; you are uid ", caller.uid));
  }
  if (request.message().size() > kLongestMessage) {
    return InvalidArgument(absl::StrCat("message has ", request.message().size(), " bytes; at most ",
                                        kLongestMessage, " are allowed"));
  }
  if (request.undo()) {
    if (impl_->operator_drain_)
      impl_->observer_->OnInfo(
          absl::StrCat("uid ", caller.uid, " has undone the drain: saves are taken again"));
    impl_->operator_drain_.reset();
  } else {
    impl_->operator_drain_ = {caller.uid, impl_->clock_->UnixMicros(), request.message()};
    impl_->observer_->OnWarning(absl::StrCat("uid ", caller.uid,
                                             " has drained the daemon: no new save is taken",
                                             request.message().empty() ? "" : ": ", request.message()));
  }
  return GetStatus(caller);
}

}  // namespace ckptd
