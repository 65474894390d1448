#include "daemon/cluster/shared_saves.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/ledger_reasons.h"
#include "daemon/ledger/save_end.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::NodeVote;
using ledger::v1::SaveState;

namespace {

constexpr Duration kLongestWait = std::chrono::hours(24);

absl::Status NotInTime(const NodePart& part) {
  return MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                   absl::StrCat("the save was not admitted before its deadline; waiting for ",
                                part.WaitsFor(), ". Look whether all nodes can reach etcd"));
}

absl::Status OtherRanks(const std::string& tag, const std::vector<int>& proposed,
                        const std::vector<int>& own) {
  const auto words = [](const std::vector<int>& ranks) {
    return ranks.empty() ? "all ranks" : absl::StrCat("ranks ", JoinRanks(ranks));
  };
  return MakeError(
      absl::StatusCode::kAlreadyExists, reason::kSaveConflict,
      absl::StrCat("the save of ", tag, " was begun on another node for ", words(proposed),
                   ", and on this one for ", words(own), "; begin it with the same ranks everywhere"),
      {{"tag", tag}});
}

// Why a save ends whose deadline passes while etcd answers.
absl::Status NotAdmitted(bool accepted) {
  if (accepted)
    return MakeError(
        absl::StatusCode::kDeadlineExceeded, reason::kRanksMissing,
        "not all ranks of the run have begun the save, and had room for it, before its deadline");
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kAdmissionTimeout,
                   "the node had no room for its parts of the save before its deadline");
}

}  // namespace

SharedSaves::SharedSaves(Etcd* etcd, Clock* clock, Options options, Hooks hooks)
    : clock_(clock),
      options_(std::move(options)),
      keys_(options_.prefix),
      hooks_(std::move(hooks)),
      admission_(etcd, {options_.prefix, options_.node, options_.run}),
      reports_(etcd, {options_.prefix, options_.node, options_.run}),
      states_(
          etcd, keys_.SaveStates(), absl::StrCat("following the saves of run ", options_.run),
          [this](const std::vector<std::string>& keys) { OnStates(keys); },
          [this](const absl::Status& why) { Lose(why); }) {}

void SharedSaves::Start() { states_.Start(); }

NodePart* SharedSaves::Find(const SaveName& name) {
  const auto found = parts_.find(name);
  return found == parts_.end() ? nullptr : &found->second;
}

// ---- what the owner says

void SharedSaves::Begin(const SaveName& name, Instant admission_deadline, std::vector<int> ranks) {
  if (parts_.try_emplace(name, admission_deadline, std::move(ranks)).second) Ask(name);
}

void SharedSaves::BeginSealed(const SaveName& name, std::vector<int> ranks) {
  const auto [part, is_new] = parts_.try_emplace(name, Instant::max(), std::move(ranks));
  part->second.accepted = part->second.sealed = true;
  if (is_new) Ask(name);
}

void SharedSaves::Accept(const SaveName& name) {
  NodePart* const part = Find(name);
  if (part == nullptr) return;
  part->accepted = true;
  Ask(name);
}

void SharedSaves::Fail(const SaveName& name, const absl::Status& why) {
  NodePart* const part = Find(name);
  if (part == nullptr || part->failed) return;
  part->failed = EndOf(why);
  Ask(name);
}

void SharedSaves::Sealed(const SaveName& name) {
  NodePart* const part = Find(name);
  if (part == nullptr) return;
  part->sealed = true;
  Ask(name);
}

void SharedSaves::Durable(const SaveName& name, const std::string& digest) {
  NodePart* const part = Find(name);
  if (part == nullptr || part->durable) return;
  part->durable = true;
  part->digest = digest;
  Ask(name);
}

std::string SharedSaves::WaitsFor(const SaveName& name) const {
  const auto part = parts_.find(name);
  return part == parts_.end() ? "" : part->second.WaitsFor();
}

// ---- what is asked of etcd

void SharedSaves::Ask(const SaveName& name) {
  NodePart* const part = Find(name);
  if (part == nullptr || lost_ || part->asking || !part->backoff.IsOver(clock_->Now())) return;
  const Request request = part->Next();
  if (request == Request::kNone) return;
  part->asking = true;
  Send(name, *part, request);
}

void SharedSaves::Send(const SaveName& name, const NodePart& part, Request request) {
  const auto answer = [this, name, request](const absl::StatusOr<SharedSave>& save) {
    OnAnswer(name, request, save);
  };
  NodeVote vote;
  switch (request) {
    case Request::kNone:
      return;
    case Request::kBegin:
      return admission_.Begin(
          {name.attempt, name.tag, name.ordinal, part.ranks,
           std::clamp<Duration>(part.deadline - clock_->Now(), Duration::zero(), kLongestWait)},
          answer);
    case Request::kVoteNo:
      *vote.mutable_no() = *part.failed;
      return admission_.Vote(part.save, vote, answer);
    case Request::kVoteYes:
      return admission_.Vote(part.save, vote, answer);
    case Request::kSealed:
      return reports_.Sealed(part.save, answer);
    case Request::kDurable:
      return reports_.Durable(part.save, part.digest, answer);
    case Request::kFailed:
      return reports_.Failed(part.save, *part.failed, answer);
  }
}

void SharedSaves::OnAnswer(const SaveName& name, Request request, const absl::StatusOr<SharedSave>& answer) {
  NodePart* const part = Find(name);
  if (part == nullptr || lost_) return;
  part->asking = false;
  if (!answer.ok()) return OnError(name, request, answer.status());
  part->Answered(request, answer->state);
  if (request == Request::kBegin) CheckRanks(name, answer->state);
  SharedSave save = *answer;
  names_[save.sequence] = name;
  // The mirror may have shown a later state before the sequence was known to be that of this save.
  if (const std::string* const shown = states_.Find(keys_.SaveState(save.sequence))) {
    SaveState state;
    if (state.ParseFromString(*shown) && IsLater(save.state, state)) save.state = state;
  }
  if (part->no_counts && request == Request::kVoteNo) Release(name, *part);
  Saw(name, save);
  Ask(name);
}

// The first Begin of any node says of which ranks the save is.
void SharedSaves::CheckRanks(const SaveName& name, const SaveState& state) {
  NodePart& part = *Find(name);
  const std::vector<int> proposed(state.ranks().begin(), state.ranks().end());
  if (proposed != part.ranks && !part.failed) part.failed = EndOf(OtherRanks(name.tag, proposed, part.ranks));
}

void SharedSaves::OnError(const SaveName& name, Request request, const absl::Status& error) {
  NodePart& part = *Find(name);
  const std::string reason = ReasonOf(error);
  if (reason == ledger_reason::kUnavailable || reason == ledger_reason::kFull) {
    part.last_error = std::string(error.message());
    return part.backoff.Failed(clock_->Now());
  }
  if (reason == reason::kFenced && request == Request::kBegin) {
    if (!part.given_up) GiveUp(name, error);
    Release(name, part);
    return Forget(name);
  }
  if (reason == reason::kFenced || reason == ledger_reason::kNotInSave) {
    part.refused = true;
    return;
  }
  Lose(error);
}

// ---- what etcd says

void SharedSaves::OnStates(const std::vector<std::string>& keys) {
  if (lost_) return;
  for (const std::string& key : keys) {
    SharedSave save;
    const std::string* const value = states_.Find(key);
    if (value == nullptr || !save.state.ParseFromString(*value)) continue;
    if (!absl::SimpleAtoi(key.substr(keys_.SaveStates().size()), &save.sequence)) continue;
    const auto name = names_.find(save.sequence);
    if (name != names_.end()) {
      Saw(SaveName(name->second), save);
    } else if (save.state.phase() == SaveState::COMMITTED && hooks_.other_committed) {
      hooks_.other_committed(save);
    }
  }
}

void SharedSaves::Saw(const SaveName& name, const SharedSave& save) {
  NodePart* const part = Find(name);
  if (part == nullptr || !IsLater(part->save.state, save.state)) return;
  part->save = save;
  const bool ended = HasEnded(save.state);
  const bool tell = !part->given_up && (ended || !part->failed);
  if (save.state.phase() == SaveState::ENDED) Release(name, *part);
  if (ended) Forget(name);
  if (tell) hooks_.changed(name, save);
  Ask(name);
}

void SharedSaves::Forget(const SaveName& name) {
  names_.erase(Find(name)->save.sequence);
  parts_.erase(name);
}

// ---- time

void SharedSaves::OnTick() {
  for (auto& [name, part] : parts_) {
    if (lost_) return;
    CheckDeadline(name, part);
    Ask(name);
  }
}

// A no is said also of a save that this node has given up: the others must not wait for it, and what is
// promised may count until then.
void SharedSaves::CheckDeadline(const SaveName& name, NodePart& part) {
  const Instant now = clock_->Now();
  if (now < part.deadline || part.given_up || !part.IsUndecided()) return;
  if (!part.failed) {
    Fail(name, part.Next() != Request::kNone ? NotInTime(part) : NotAdmitted(part.accepted));
  } else if (now >= part.deadline + options_.patience) {
    GiveUp(name, NotInTime(part));
  }
}

void SharedSaves::GiveUp(const SaveName& name, const absl::Status& why) {
  NodePart& part = *Find(name);
  part.given_up = true;
  if (!part.failed) part.failed = EndOf(why);
  hooks_.failed(name, why);
}

void SharedSaves::Release(const SaveName& name, NodePart& part) {
  if (std::exchange(part.released, true)) return;
  hooks_.released(name);
}

void SharedSaves::Lose(const absl::Status& why) {
  if (std::exchange(lost_, true)) return;
  hooks_.lost(why);
}

}  // namespace ckptd
