#include "daemon/cluster/node/shared_saves.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/save/save_end.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::NodeVote;
using ledger::v1::SaveState;

namespace {

constexpr Duration kLongestWait = std::chrono::hours(24);
// With SKIP, how often a node repeats its vote while the save waits for other nodes.
constexpr Duration kVoteAgainAfter = std::chrono::seconds(1);

absl::Status NotInTime(const std::string& node, const NodeSave& part) {
  return MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                   absl::StrCat("the save was not admitted before its deadline; node \"", node,
                                "\" waited for ", part.WaitsFor(), ". Look whether it can reach etcd"));
}

absl::Status Skipped(const std::string& node, Duration silence, const std::string& waits_for) {
  return MakeError(absl::StatusCode::kAborted, reason::kSkipped,
                   absl::StrCat("node \"", node, "\" has waited ", silence / std::chrono::seconds(1),
                                " s for an answer of ", waits_for, "; look whether it can reach etcd"));
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

SaveName NameOf(const SaveState& state) { return {state.attempt(), state.tag(), state.ordinal()}; }

// Whether the sequence is another save's, or unused.
bool IsOfAnother(const SaveName& name, const SaveState& state) {
  return state.phase() != SaveState::OPEN && NameOf(state) != name;
}

// Why this node rejects a save whose deadline passes while etcd answers. A node that has accepted the save
// only waits for other nodes: the coordinator's decision names the missing ranks (EndByMissingRanks).
absl::Status NotAdmitted(bool accepted) {
  if (accepted)
    return MakeError(
        absl::StatusCode::kDeadlineExceeded, reason::kRanksMissing,
        "not all ranks of the run have begun the save, and had room for it, before its deadline");
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kAdmissionTimeout,
                   "the node had no room for its parts of the save before its deadline, or its file system "
                   "had not said whether it has");
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
          [this](const absl::Status& why) { OnLost(why); }),
      active_(
          etcd, keys_.Active(), absl::StrCat("following the attempts of run ", options_.run),
          [this](const std::vector<std::string>&) { OnActive(); },
          [this](const absl::Status& why) { OnLost(why); }),
      voters_(etcd, keys_, options_.node.Siblings(), options_.run,
              [this](const absl::Status& why) { OnLost(why); }) {}

void SharedSaves::Start() {
  states_.Start();
  active_.Start();
  voters_.Start();
}

void SharedSaves::OnActive() {
  ledger::v1::ActiveAttempt active;
  const std::string* const acts = active_.Find(keys_.Active());
  if (acts != nullptr && active.ParseFromString(*acts)) voters_.Follow(active.attempt());
}

NodeSave* SharedSaves::Find(const SaveName& name) {
  const auto found = parts_.find(name);
  return found == parts_.end() ? nullptr : &found->second;
}

// ---- calls of the owner

void SharedSaves::Begin(const SaveName& name, Instant admission_deadline, std::vector<int> ranks,
                        bool was_known) {
  const auto [part, is_new] = parts_.try_emplace(name, admission_deadline, std::move(ranks));
  if (is_new) {
    part->second.was_known = was_known;
    return Ask(name);
  }
  if (part->second.given_up && part->second.released) RepeatFailure(name, *part->second.given_up);
}

// The owner forgets a save that was given up once its memory is released; a rank may begin it after that.
void SharedSaves::RepeatFailure(const SaveName& name, const absl::Status& why) {
  options_.post(callbacks_.Guard([this, name, why] {
    if (lost_) return;
    hooks_.failed(name, why);
    hooks_.released(name);
  }));
}

void SharedSaves::BeginSealed(const SaveName& name, std::vector<int> ranks) {
  const auto [part, is_new] = parts_.try_emplace(name, Instant::max(), std::move(ranks));
  part->second.accepted = part->second.sealed = part->second.was_known = true;
  if (is_new) Ask(name);
}

void SharedSaves::SkipAfter(const SaveName& name, Duration silence) {
  if (NodeSave* const part = Find(name)) part->skip_after = silence;
}

void SharedSaves::Accept(const SaveName& name, const std::optional<storage::v1::RetentionPolicy>& retention) {
  NodeSave* const part = Find(name);
  if (part == nullptr) return;
  part->accepted = true;
  part->retention = retention;
  Ask(name);
}

void SharedSaves::Fail(const SaveName& name, const absl::Status& why) {
  NodeSave* const part = Find(name);
  if (part == nullptr || part->failed) return;
  part->failed = EndOf(why);
  Ask(name);
}

void SharedSaves::Sealed(const SaveName& name) {
  NodeSave* const part = Find(name);
  if (part == nullptr) return;
  part->sealed = true;
  Ask(name);
}

void SharedSaves::Durable(const SaveName& name, const std::string& digest) {
  NodeSave* const part = Find(name);
  if (part == nullptr || part->durable) return;
  part->durable = true;
  part->digest = digest;
  Ask(name);
}

std::string SharedSaves::WaitsFor(const SaveName& name) const {
  const auto part = parts_.find(name);
  return part == parts_.end() ? "" : part->second.WaitsFor();
}

std::optional<SaveState> SharedSaves::Shown(int64_t sequence) const {
  const std::string* const shown = states_.Find(keys_.SaveState(sequence));
  SaveState state;
  if (shown == nullptr || !state.ParseFromString(*shown)) return std::nullopt;
  return state;
}

std::optional<SharedSave> SharedSaves::ShownAs(const SaveName& name) const {
  const auto sequence = sequences_.find(name);
  if (sequence == sequences_.end()) return std::nullopt;
  std::optional<SaveState> state = Shown(sequence->second);
  return state ? std::optional(SharedSave{sequence->second, *std::move(state)}) : std::nullopt;
}

// ---- requests to etcd

void SharedSaves::Ask(const SaveName& name) {
  NodeSave* const part = Find(name);
  if (part == nullptr || lost_ || part->asking || !part->backoff.IsOver(clock_->Now())) return;
  const Request request = part->Next();
  if (request == Request::kNone) return;
  part->asking = true;
  if (!part->silent_since) part->silent_since = clock_->Now();
  if (request == Request::kBegin) return BeginAt(name, *part);
  Send(name, *part, request);
}

// If the watch shows the save, no request is needed.
void SharedSaves::BeginAt(const SaveName& name, const NodeSave& part) {
  if (!Known(name, part)) return Send(name, part, Request::kBegin);
  options_.post(callbacks_.Guard([this, name] { TellKnown(name); }));
}

void SharedSaves::TellKnown(const SaveName& name) {
  NodeSave* const part = Find(name);
  if (part == nullptr || lost_) return;
  part->asking = false;
  part->silent_since.reset();
  if (part->save.sequence == 0) {
    if (const std::optional<SharedSave> known = Known(name, *part)) return Update(name, *known);
  }
  Ask(name);
}

// The save as the watch shows it, or a prepared save whose sequence it may get.
std::optional<SharedSave> SharedSaves::Known(const SaveName& name, const NodeSave& part) const {
  return sequences_.contains(name) ? ShownAs(name) : OpenFor(name, part);
}

std::optional<SharedSave> SharedSaves::OpenFor(const SaveName& name, const NodeSave& part) const {
  if (part.was_known || part.lost_prepared || open_ == 0 || names_.contains(open_)) return std::nullopt;
  ledger::v1::ActiveAttempt active;
  const std::string* const acts = active_.Find(keys_.Active());
  if (acts == nullptr || !active.ParseFromString(*acts) || active.attempt() != name.attempt)
    return std::nullopt;
  SharedSave save{open_, {}};
  const std::string* const shown = states_.Find(keys_.SaveState(open_));
  if (shown == nullptr || !save.state.ParseFromString(*shown)) return std::nullopt;
  return save.state.phase() == SaveState::OPEN ? std::optional(save) : std::nullopt;
}

SaveGuess SharedSaves::GuessOf(const NodeSave& part) const {
  SaveGuess guess;
  const auto add = [](const EtcdMirror& mirror, const std::string& key, auto* values) {
    const auto found = mirror.keys().find(key);
    if (found != mirror.keys().end()) values->push_back(found->second);
  };
  add(states_, keys_.SaveState(part.save.sequence), &guess.state);
  add(active_, keys_.Active(), &guess.active);
  if (!part.vote.empty()) {
    etcdserverpb::KeyValue& vote = guess.vote.emplace_back();
    vote.set_key(keys_.Vote(part.save.sequence, options_.node.name));
    vote.set_value(part.vote);
  }
  return guess;
}

void SharedSaves::Send(const SaveName& name, const NodeSave& part, Request request) {
  const auto answer = [this, name, request,
                       sequence = part.save.sequence](const absl::StatusOr<VotedSave>& voted) {
    OnAnswer(name, request, sequence, voted);
  };
  const Duration longest_wait =
      std::clamp<Duration>(part.deadline - clock_->Now(), Duration::zero(), kLongestWait);
  NodeVote vote;
  if (part.save.state.phase() == SaveState::OPEN) {
    ledger::v1::SaveProposal& proposal = *vote.mutable_proposal();
    proposal.set_attempt(name.attempt);
    proposal.set_tag(name.tag);
    proposal.set_ordinal(name.ordinal);
    proposal.mutable_ranks()->Add(part.ranks.begin(), part.ranks.end());
    // In whole seconds, so that nodes that begin together send equal votes, which the last vote can compare.
    proposal.set_admission_ms(1000 * std::chrono::ceil<std::chrono::seconds>(longest_wait).count());
  }
  switch (request) {
    case Request::kNone:
      return;
    case Request::kBegin:
      return admission_.Begin(
          {name.attempt, name.tag, name.ordinal, part.ranks, longest_wait, part.was_known},
          [answer](const absl::StatusOr<SharedSave>& save) {
            if (!save.ok()) return answer(save.status());
            answer(VotedSave{*save, ""});
          });
    case Request::kReject:
      *vote.mutable_no() = *part.failed;
      return admission_.Vote(part.save, vote, GuessOf(part), answer);
    case Request::kAccept: {
      if (part.retention) *vote.mutable_retention() = *part.retention;
      SaveGuess guess = GuessOf(part);
      guess.voters = voters_.Of(name.attempt);
      return admission_.Vote(part.save, vote, guess, answer);
    }
    case Request::kSealed:
      return reports_.Sealed(part.save, GuessOf(part), answer);
    case Request::kDurable:
      return reports_.Durable(part.save, part.digest, GuessOf(part), answer);
    case Request::kFailed:
      return reports_.Failed(part.save, *part.failed, GuessOf(part), answer);
  }
}

void SharedSaves::OnAnswer(const SaveName& name, Request request, int64_t sequence,
                           const absl::StatusOr<VotedSave>& answer) {
  NodeSave* const part = Find(name);
  if (part == nullptr || lost_) return;
  part->asking = false;
  // The answer is about a sequence that the save no longer has.
  if (part->save.sequence != sequence && request != Request::kBegin) return Ask(name);
  if (!answer.ok()) return OnError(name, request, answer.status());
  part->silent_since.reset();
  part->answered_at = clock_->Now();
  const SharedSave& save = answer->save;
  if (IsOfAnother(name, save.state)) {
    LosePrepared(name);
    return Ask(name);
  }
  part->Answered(request, save.state);
  if (request != Request::kBegin) part->vote = answer->vote;
  if (part->rejection_counts && request == Request::kReject) Release(name, *part);
  Update(name, save);
  Ask(name);
}

// The first Begin of any node has named the ranks of the save.
void SharedSaves::CheckRanks(const SaveName& name, const SaveState& state) {
  NodeSave& part = *Find(name);
  const std::vector<int> proposed(state.ranks().begin(), state.ranks().end());
  if (proposed != part.ranks && !part.failed) part.failed = EndOf(OtherRanks(name.tag, proposed, part.ranks));
}

void SharedSaves::OnError(const SaveName& name, Request request, const absl::Status& error) {
  NodeSave& part = *Find(name);
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
  if (reason == reason::kUnknownSave) return OnForgotten(name);
  OnLost(error);
}

// ---- changes in etcd

void SharedSaves::OnStates(const std::vector<std::string>& keys) {
  SharedSave newest;
  for (const std::string& key : keys) {
    SharedSave save;
    if (!absl::SimpleAtoi(key.substr(keys_.SaveStates().size()), &save.sequence)) continue;
    const std::string* const value = states_.Find(key);
    if (value == nullptr) {
      std::erase_if(sequences_, [&save](const auto& known) { return known.second == save.sequence; });
      const auto bound = names_.find(save.sequence);
      if (bound != names_.end() && !lost_) OnForgotten(SaveName(bound->second));
      continue;
    }
    if (!save.state.ParseFromString(*value)) continue;
    if (lost_) return;
    OnState(save);
    if (IsCheckpoint(save.state) && save.sequence > newest_committed_) {
      newest_committed_ = save.sequence;
      newest = save;
    }
  }
  if (newest.sequence != 0 && !lost_ && hooks_.newest_committed) hooks_.newest_committed(newest);
}

void SharedSaves::OnState(const SharedSave& save) {
  if (save.state.phase() == SaveState::OPEN) {
    open_ = std::max(open_, save.sequence);
    return;
  }
  const SaveName name = NameOf(save.state);
  const auto bound = names_.find(save.sequence);
  if (bound != names_.end() && bound->second != name) {
    const SaveName displaced = bound->second;
    LosePrepared(displaced);
    Ask(displaced);
  }
  if (name.tag.empty()) return;  // A prepared save that ended unused.
  sequences_[name] = save.sequence;
  if (Find(name) != nullptr) return Update(name, save);
  if (IsCheckpoint(save.state) && hooks_.other_committed) hooks_.other_committed(save);
}

// Another save has got the prepared sequence for which this save has voted.
void SharedSaves::LosePrepared(const SaveName& name) {
  NodeSave& part = *Find(name);
  names_.erase(part.save.sequence);
  part.Bind(SharedSave());
  part.lost_prepared = true;
  if (!part.given_up && !part.failed) hooks_.changed(name, part.save);
}

// Etcd has removed what it had of the save, which has ended. A checkpoint needs the files of all nodes.
void SharedSaves::OnForgotten(const SaveName& name) {
  const NodeSave& part = *Find(name);
  SharedSave save = part.save;
  save.state.set_phase(SaveState::ENDED);
  save.state.mutable_ranks()->Assign(part.ranks.begin(), part.ranks.end());
  ledger::v1::SaveEnd& end = *save.state.mutable_end();
  end.set_reason(part.durable ? reason::kIndeterminate : reason::kStagedLost);
  end.set_message(
      absl::StrCat("this node was not told how the save ended before etcd forgot it, an hour after its end. ",
                   part.durable ? "If the save is a checkpoint, it is listed (ckptctl list)" : "Save again"));
  Update(name, save);
}

void SharedSaves::Update(const SaveName& name, const SharedSave& save) {
  NodeSave* const part = Find(name);
  if (part == nullptr) return;
  const bool is_new = part->save.sequence != save.sequence;
  if (!is_new && !IsLater(part->save.state, save.state)) return;
  if (is_new) {
    names_.erase(part->save.sequence);
    names_[save.sequence] = name;
    part->Bind(save);
  }
  part->save = save;
  if (save.state.phase() != SaveState::OPEN) CheckRanks(name, save.state);
  const bool ended = HasEnded(save.state);
  const bool tell = !part->given_up && (ended || !part->failed);
  if (save.state.phase() == SaveState::ENDED) Release(name, *part);
  if (ended) Forget(name);
  if (tell) hooks_.changed(name, save);
  Ask(name);
}

void SharedSaves::Forget(const SaveName& name) {
  names_.erase(Find(name)->save.sequence);
  parts_.erase(SaveName(name));
}

// ---- time

void SharedSaves::OnTick() {
  for (auto& [name, part] : parts_) {
    if (lost_) return;
    CheckDeadline(name, part);
    CheckSilence(name, part);
    Ask(name);
  }
}

// A node sends its rejection even for a save that it has given up: the other nodes must not wait for this
// one, and its promise of memory may count until etcd has the rejection.
void SharedSaves::CheckDeadline(const SaveName& name, NodeSave& part) {
  const Instant now = clock_->Now();
  if (now < part.deadline || part.given_up || !part.IsUndecided()) return;
  if (!part.failed) {
    Fail(name,
         part.Next() != Request::kNone ? NotInTime(options_.node.name, part) : NotAdmitted(part.accepted));
  } else if (now >= part.deadline + options_.patience) {
    GiveUp(name, NotInTime(options_.node.name, part));
  }
}

// With SKIP a save waits for room and for ranks, but not for etcd. While it waits for other nodes, this node
// repeats its acceptance to find out whether etcd answers. After a rejection it waits for the coordinator,
// which may be lost, so this wait is bounded, too.
void SharedSaves::CheckSilence(const SaveName& name, NodeSave& part) {
  if (!part.skip_after || part.given_up || !part.IsUndecided()) return;
  const Instant now = clock_->Now();
  if (!part.silent_since && part.failed) part.silent_since = now;
  if (!part.silent_since && part.accepted && now - part.answered_at >= kVoteAgainAfter) part.VoteAgain();
  if (part.silent_since && now - *part.silent_since >= *part.skip_after)
    GiveUp(name, Skipped(options_.node.name, *part.skip_after, part.WaitsFor()));
}

void SharedSaves::GiveUp(const SaveName& name, const absl::Status& why) {
  NodeSave& part = *Find(name);
  part.given_up = why;
  if (!part.failed) part.failed = EndOf(why);
  hooks_.failed(name, why);
}

void SharedSaves::Release(const SaveName& name, NodeSave& part) {
  if (std::exchange(part.released, true)) return;
  hooks_.released(name);
}

void SharedSaves::OnLost(const absl::Status& why) {
  if (std::exchange(lost_, true)) return;
  hooks_.lost(why);
}

}  // namespace ckptd
