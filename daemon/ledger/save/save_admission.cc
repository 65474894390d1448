#include "daemon/ledger/save/save_admission.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/save/admission_rules.h"
#include "daemon/ledger/save/last_vote.h"
#include "daemon/ledger/state/found_messages.h"
#include "daemon/ledger/state/run_state.h"
#include "daemon/ledger/state/save_view.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/ledger/local_ledger.h"

namespace ckptd {

using ledger::v1::SaveState;

namespace {

// Places of the ranges of DecideOpen, after those of the view.
constexpr size_t kIndex = 4, kLast = 5;

absl::Status Forgotten(const std::string& tag) {
  return MakeError(absl::StatusCode::kNotFound, reason::kUnknownSave,
                   absl::StrCat("etcd does not have the save of ", tag, " any more"));
}

// Whether the vote can count in this state: the save is not decided yet, and has no other name than the vote.
bool CountsIn(const ledger::v1::NodeVote& vote, const SaveState& state) {
  if (state.phase() == SaveState::OPEN) return vote.has_proposal();
  return state.phase() == SaveState::PROPOSED && (!vote.has_proposal() || IsOf(vote.proposal(), state));
}

bool IsForOneSave(const ledger::v1::NodeVote& one, const ledger::v1::NodeVote& other,
                  const SaveState& state) {
  if (state.phase() != SaveState::OPEN) return CountsIn(one, state) && CountsIn(other, state);
  const ledger::v1::SaveProposal &a = one.proposal(), &b = other.proposal();
  return a.attempt() == b.attempt() && a.tag() == b.tag() && a.ordinal() == b.ordinal();
}

// Whether the acceptance `yes` must not replace the node's rejection `no`: it was sent before the rejection,
// and is sent again because it was not answered. The memory for the save may be in use for something else.
bool KeepsRejection(const ledger::v1::NodeVote& no, const ledger::v1::NodeVote& yes, const SaveState& state) {
  return no.has_no() && !yes.has_no() && no.registration() == yes.registration() &&
         IsForOneSave(no, yes, state);
}

ledger::v1::SaveEnd Unused() {
  ledger::v1::SaveEnd end;
  end.set_reason("UNUSED");  // No rank gets this end.
  end.set_message("another save has the next sequence");
  return end;
}

bool IsLast(const std::vector<etcdserverpb::KeyValue>& last, int64_t sequence) {
  return FirstOf<ledger::v1::LastSequence>(last).sequence() == sequence;
}

}  // namespace

SaveAdmission::SaveAdmission(Etcd* etcd, Options options)
    : etcd_(etcd), options_(std::move(options)), keys_(options_.prefix) {}

// ---- the first Begin

void SaveAdmission::Begin(const Proposal& save, Answer<Save> answer) {
  SaveState proposal;
  proposal.set_phase(SaveState::PROPOSED);
  proposal.set_attempt(save.attempt);
  proposal.set_tag(save.tag);
  proposal.set_ordinal(save.ordinal);
  proposal.mutable_ranks()->Add(save.ranks.begin(), save.ranks.end());
  proposal.set_admission_ms(std::chrono::ceil<std::chrono::milliseconds>(save.longest_wait).count());
  auto sequence = std::make_shared<absl::StatusOr<int64_t>>(absl::UnknownError("not decided"));
  CompareAndSwap swap;
  swap.ranges = {
      {keys_.SaveIndex(save.attempt, save.tag, save.ordinal)}, {keys_.Active()}, {keys_.Sequence()}};
  swap.held = {options_.node.Held()};
  swap.decide = [proposal, sequence, keys = keys_,
                 was_known = save.was_known](const CompareAndSwap::Found& found) {
    if (found[0].empty() && was_known) {
      *sequence = Forgotten(proposal.tag());
      return Operations();
    }
    return Propose(keys, proposal, found, sequence.get());
  };
  swap.purpose = While(absl::StrCat("beginning the save ", save.tag));
  SwapIn(etcd_, std::move(swap),
         callbacks_.Guard([this, sequence, answer = std::move(answer)](const absl::Status& written) mutable {
           if (!written.ok()) return answer(written);
           if (!sequence->ok()) return answer(sequence->status());
           ReadState(**sequence, std::move(answer));
         }));
}

// Finds the sequence of a save that was proposed before, or proposes the save with the next sequence.
SaveAdmission::Operations SaveAdmission::Propose(const LedgerKeys& keys, const SaveState& proposal,
                                                 const CompareAndSwap::Found& found,
                                                 absl::StatusOr<int64_t>* sequence) {
  if (!found[0].empty()) {
    *sequence = FirstOf<ledger::v1::SaveIndex>(found[0]).sequence();
    return {};
  }
  const RunState run(keys, "", {found[1], found[2]});
  LocalLedger ledger = LedgerFrom(run);
  ledger.Admit(proposal.attempt(), [&](absl::StatusOr<int64_t> given) { *sequence = std::move(given); });
  if (!sequence->ok()) return {};
  Operations operations = run.Changes(ledger.record());
  ledger::v1::SaveIndex index;
  index.set_sequence(**sequence);
  operations.push_back(
      Put(keys.SaveIndex(proposal.attempt(), proposal.tag(), proposal.ordinal()), index.SerializeAsString()));
  operations.push_back(Put(keys.SaveState(**sequence), proposal.SerializeAsString()));
  return operations;
}

void SaveAdmission::ReadState(int64_t sequence, Answer<Save> answer) {
  Save save;
  save.sequence = sequence;
  Change(
      save, {}, options_.node.Held(), "reading a save",
      [](const CompareAndSwap::Found&, SaveState*) { return Operations(); }, std::move(answer));
}

// ---- changes of a save

void SaveAdmission::Change(const Save& save, std::vector<CompareAndSwap::Range> ranges,
                           CompareAndSwap::Held held, const std::string& what,
                           std::function<Operations(const CompareAndSwap::Found&, SaveState*)> decide,
                           Answer<Save> answer, std::optional<CompareAndSwap::Found> guess) {
  ChangeSave(etcd_, save.sequence,
             {keys_.SaveState(save.sequence), std::move(ranges), std::move(held), std::move(decide),
              While(what), std::move(guess)},
             callbacks_.Guard(std::move(answer)));
}

void SaveAdmission::Vote(const Save& save, ledger::v1::NodeVote vote, const std::optional<SaveGuess>& guess,
                         Answer<VotedSave> answer) {
  const std::string key = keys_.Vote(save.sequence, options_.node.name);
  vote.set_registration(options_.node.value);
  auto stands = std::make_shared<std::string>();
  std::optional<CompareAndSwap::Found> believed;
  if (guess) believed = {guess->vote, guess->state};
  Change(
      save, {{key}}, options_.node.Held(), "voting for a save",
      [key, stands, vote, guess, sequence = save.sequence, keys = keys_, node = options_.node,
       value = vote.SerializeAsString()](const CompareAndSwap::Found& found, SaveState* state) {
        *stands = found[0].empty() ? "" : found[0][0].value();
        if (*stands == value || !CountsIn(vote, *state)) return Operations();
        if (KeepsRejection(FirstOf<ledger::v1::NodeVote>(found[0]), vote, *state)) return Operations();
        *stands = value;
        const auto admits =
            guess ? VoteAndAdmit(keys, node, sequence, found.back()[0], vote, *guess) : std::nullopt;
        return Operations{admits ? *admits : Put(key, value)};
      },
      [stands, answer = std::move(answer)](absl::StatusOr<Save> voted) mutable {
        if (!voted.ok()) return answer(voted.status());
        answer(VotedSave{*std::move(voted), *stands});
      },
      std::move(believed));
}

void SaveAdmission::Decide(const Save& save, const CompareAndSwap::Held& leadership,
                           const std::string& inflight, Answer<Save> answer) {
  Change(
      save, SaveViewRanges(keys_, options_.node.Siblings(), save.sequence, save.state.attempt()), leadership,
      "admitting a save",
      [inflight](const CompareAndSwap::Found& found, SaveState* state) {
        DecideAdmission(SaveViewOf(found, *state), inflight, state);
        return Operations();
      },
      std::move(answer));
}

// ---- prepared saves

void SaveAdmission::Open(int64_t sequence, const CompareAndSwap::Held& leadership,
                         const std::string& inflight, Answer<Save> answer) {
  SaveState open;
  open.set_phase(SaveState::OPEN);
  open.set_inflight(inflight);
  auto save = std::make_shared<Save>();
  CompareAndSwap swap;
  swap.ranges = {{keys_.Sequence()}, {keys_.SaveState(sequence)}};
  swap.held = {leadership};
  swap.decide = [save, open, sequence, keys = keys_](const CompareAndSwap::Found& found) {
    *save = {sequence, FirstOf<SaveState>(found[1])};
    auto last = FirstOf<ledger::v1::LastSequence>(found[0]);
    if (!found[1].empty()) return Operations();
    if (last.sequence() != sequence - 1) {
      save->sequence = last.sequence();
      return Operations();
    }
    save->state = open;
    last.set_sequence(sequence);
    return Operations{Put(keys.Sequence(), last.SerializeAsString()),
                      Put(keys.SaveState(sequence), open.SerializeAsString())};
  };
  swap.purpose = While("making a save in advance");
  SwapIn(etcd_, std::move(swap),
         callbacks_.Guard([save, answer = std::move(answer)](const absl::Status& written) mutable {
           if (!written.ok()) return answer(written);
           answer(std::move(*save));
         }));
}

std::vector<CompareAndSwap::Range> SaveAdmission::OpenRanges(int64_t sequence,
                                                             const ledger::v1::SaveProposal& proposal) const {
  std::vector<CompareAndSwap::Range> ranges =
      SaveViewRanges(keys_, options_.node.Siblings(), sequence, proposal.attempt());
  ranges.push_back({keys_.SaveIndex(proposal.attempt(), proposal.tag(), proposal.ordinal())});
  ranges.push_back({keys_.Sequence()});
  return ranges;
}

void SaveAdmission::DecideOpen(const Save& save, const CompareAndSwap::Held& leadership,
                               const ledger::v1::SaveProposal& proposal, bool may_wait,
                               std::optional<CompareAndSwap::Found> guess, Answer<Save> answer) {
  const std::string index_key = keys_.SaveIndex(proposal.attempt(), proposal.tag(), proposal.ordinal());
  Change(
      save, OpenRanges(save.sequence, proposal), leadership, "admitting a save",
      [=, sequence = save.sequence](const CompareAndSwap::Found& found, SaveState* state) {
        if (state->phase() != SaveState::OPEN) return Operations();
        if (!IsLast(found[kLast], sequence) || !found[kIndex].empty()) {
          EndWith(Unused(), state);
          return Operations();
        }
        SaveState named = *state;
        NameSave(proposal, &named);
        DecideAdmission(SaveViewOf(found, named), state->inflight(), &named);
        if (named.phase() == SaveState::PROPOSED && may_wait) return Operations();
        *state = named;
        ledger::v1::SaveIndex index;
        index.set_sequence(sequence);
        return Operations{Put(index_key, index.SerializeAsString())};
      },
      std::move(answer), std::move(guess));
}

void SaveAdmission::Close(const Save& save, const CompareAndSwap::Held& leadership, Answer<Save> answer) {
  Change(
      save, {{keys_.Sequence()}}, leadership, "ending a save that no node uses",
      [sequence = save.sequence](const CompareAndSwap::Found& found, SaveState* state) {
        if (state->phase() == SaveState::OPEN && !IsLast(found[0], sequence)) EndWith(Unused(), state);
        return Operations();
      },
      std::move(answer));
}

// ---- the end

void SaveAdmission::End(const Save& save, const CompareAndSwap::Held& leadership,
                        const ledger::v1::SaveEnd& end, Answer<Save> answer) {
  Change(
      save, {}, leadership, "ending a save",
      [end](const CompareAndSwap::Found&, SaveState* state) {
        if (MayEnd(*state)) EndWith(end, state);
        return Operations();
      },
      std::move(answer));
}

}  // namespace ckptd
