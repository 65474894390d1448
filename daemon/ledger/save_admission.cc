#include "daemon/ledger/save_admission.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/admission_rules.h"
#include "daemon/ledger/found_messages.h"
#include "daemon/ledger/run_state.h"
#include "daemon/ledger/save_view.h"
#include "storage/ledger/local_ledger.h"

namespace ckptd {
using ledger::v1::SaveState;

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
  swap.decide = [proposal, sequence, keys = keys_](const CompareAndSwap::Found& found) {
    return Propose(keys, proposal, found, sequence.get());
  };
  swap.purpose = While(absl::StrCat("beginning the save ", save.tag));
  SwapIn(etcd_, std::move(swap),
         [this, sequence, alive = std::weak_ptr<bool>(alive_),
          answer = std::move(answer)](const absl::Status& written) mutable {
           if (alive.expired()) return;
           if (!written.ok()) return answer(written);
           if (!sequence->ok()) return answer(sequence->status());
           ReadState(**sequence, std::move(answer));
         });
}

// Finds the sequence of a save that was proposed, or proposes it with the next one.
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

// ---- what changes a save

void SaveAdmission::Change(const Save& save, std::vector<CompareAndSwap::Range> ranges,
                           CompareAndSwap::Held held, const std::string& what,
                           std::function<Operations(const CompareAndSwap::Found&, SaveState*)> decide,
                           Answer<Save> answer) {
  ChangeSave(
      etcd_, save.sequence,
      {keys_.SaveState(save.sequence), std::move(ranges), std::move(held), std::move(decide), While(what)},
      [alive = std::weak_ptr<bool>(alive_),
       answer = std::move(answer)](absl::StatusOr<Save> changed) mutable {
        if (!alive.expired()) answer(std::move(changed));
      });
}

void SaveAdmission::Vote(const Save& save, ledger::v1::NodeVote vote, Answer<Save> answer) {
  const std::string key = keys_.Vote(save.sequence, options_.node.name);
  vote.set_registration(options_.node.value);
  Change(
      save, {{key}}, options_.node.Held(), "voting for a save",
      [key, value = vote.SerializeAsString()](const CompareAndSwap::Found& found, SaveState* state) {
        const bool voted = !found[0].empty() && found[0][0].value() == value;
        if (voted || state->phase() != SaveState::PROPOSED) return Operations();
        return Operations{Put(key, value)};
      },
      std::move(answer));
}

void SaveAdmission::Decide(const Save& save, const CompareAndSwap::Held& office, const std::string& inflight,
                           Answer<Save> answer) {
  Change(
      save, SaveViewRanges(keys_, options_.node.Siblings(), save.sequence, save.state.attempt()), office,
      "admitting a save",
      [inflight](const CompareAndSwap::Found& found, SaveState* state) {
        DecideAdmission(SaveViewOf(found, *state), inflight, state);
        return Operations();
      },
      std::move(answer));
}

void SaveAdmission::End(const Save& save, const CompareAndSwap::Held& office, const ledger::v1::SaveEnd& end,
                        Answer<Save> answer) {
  Change(
      save, {}, office, "ending a save",
      [end](const CompareAndSwap::Found&, SaveState* state) {
        if (MayEnd(*state)) EndWith(end, state);
        return Operations();
      },
      std::move(answer));
}

}  // namespace ckptd
