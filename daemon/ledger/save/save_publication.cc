#include "daemon/ledger/save/save_publication.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "daemon/ledger/state/fenced.h"
#include "daemon/ledger/state/found_messages.h"
#include "daemon/ledger/state/save_view.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::CheckpointPin;
using ledger::v1::NodeVote;
using ledger::v1::PublishedNow;
using ledger::v1::SaveState;

namespace {

// Places of the ranges of Publish(), after those of the view.
constexpr size_t kPublishing = 4, kReaders = 5, kPin = 6;

ledger::v1::SaveEnd NodeLost(bool is_registered) {
  ledger::v1::SaveEnd end;
  end.set_reason(ledger_reason::kNodeLost);
  end.set_message(is_registered
                      ? "its daemon was started again, and its files of this save were not durable"
                      : "it is lost, because it is no longer registered in etcd, and its files of this save "
                        "were not durable; look whether the daemon there runs and reaches etcd");
  return end;
}

// Whether a node's part is lost, if the node has had the time to come back.
bool IsLost(const SaveView& view, const std::string& node) {
  const auto found = view.votes.find(node);
  const NodeVote vote = found != view.votes.end() ? found->second : NodeVote();
  if (vote.stage() == NodeVote::DURABLE) return false;
  const auto living = view.registrations.find(node);
  if (living == view.registrations.end()) return true;
  // The memory of a save that was only accepted is freed when the daemon ends. A successor that has taken
  // over sealed parts reports them with its own registration.
  return found != view.votes.end() && vote.registration() != living->second;
}

// What must come before a save may be published; empty: nothing.
std::string WaitsFor(const CompareAndSwap::Found& found, int64_t sequence, const SaveState& state) {
  if (state.phase() != SaveState::ADMITTED && state.phase() != SaveState::SEALED)
    return absl::StrCat("its admission: it is ", SaveState::Phase_Name(state.phase()));
  const SaveView view = SaveViewOf(found, state);
  if (!view.AllHave(NodeVote::DURABLE))
    return absl::StrCat("the files of nodes ", absl::StrJoin(view.Behind(NodeVote::DURABLE), ", "));
  const auto now = FirstOf<PublishedNow>(found[kPublishing]);
  if (now.unknown())
    return absl::StrCat(
        "the coordinator, or an operator with `ckptctl resolve`, to find out whether the save "
        "of sequence ",
        now.sequence(), " was published");
  if (now.sequence() != 0 && now.sequence() != sequence)
    return absl::StrCat("the save of sequence ", now.sequence(), ", which is being published");
  // The root does not let the save replace it, once it has learnt of the pin.
  if (FirstOf<CheckpointPin>(found[kPin]).pinned())
    return "the root to learn that the checkpoint it replaces is pinned";
  const std::vector<std::string> readers = ReadersOf(found[kReaders]);
  if (readers.empty()) return "";
  return absl::StrCat("readers of the checkpoint that it replaces, on nodes ", absl::StrJoin(readers, ", "));
}

// No save is being published any more, or only that of `next`.
etcdserverpb::RequestOp PutPublishing(const LedgerKeys& keys,
                                      const std::vector<etcdserverpb::KeyValue>& found, PublishedNow next) {
  next.set_last_time_us(FirstOf<PublishedNow>(found).last_time_us());
  return Put(keys.Publishing(), next.SerializeAsString());
}

void SettleSave(const SaveView& view, SaveState* state) {
  if (state->phase() != SaveState::ADMITTED && state->phase() != SaveState::SEALED) return;
  for (const auto& [node, ranks] : view.ranks) {
    const auto vote = view.votes.find(node);
    if (vote != view.votes.end() && vote->second.has_no())
      return EndWith(EndBy(node, ranks, vote->second.no()), state);
  }
  if (state->phase() == SaveState::SEALED) return;
  if (view.AllHave(NodeVote::SEALED)) return state->set_phase(SaveState::SEALED);
  if (state->attempt() < view.active) EndWith(FencedEnd(state->attempt(), view.active), state);
}

}  // namespace

SavePublication::SavePublication(Etcd* etcd, Options options)
    : etcd_(etcd), options_(std::move(options)), keys_(options_.prefix) {}

std::vector<CompareAndSwap::Range> SavePublication::View(const SharedSave& save) const {
  return SaveViewRanges(keys_, options_.node.Siblings(), save.sequence, save.state.attempt());
}

void SavePublication::Change(const SharedSave& save, std::vector<CompareAndSwap::Range> ranges,
                             const CompareAndSwap::Held& leadership, const std::string& what, Decide decide,
                             Answer<SharedSave> answer) {
  ChangeSave(etcd_, save.sequence,
             {keys_.SaveState(save.sequence), std::move(ranges), leadership, std::move(decide),
              absl::StrCat(what, " of run ", options_.run)},
             callbacks_.Guard(std::move(answer)));
}

void SavePublication::Settle(const SharedSave& save, const CompareAndSwap::Held& leadership,
                             Answer<SharedSave> answer) {
  Change(
      save, View(save), leadership, "sealing a save",
      [](const CompareAndSwap::Found& found, SaveState* state) {
        SettleSave(SaveViewOf(found, *state), state);
        return Operations();
      },
      std::move(answer));
}

void SavePublication::LoseNode(const SharedSave& save, const CompareAndSwap::Held& leadership,
                               const std::string& node, Answer<SharedSave> answer) {
  Change(
      save, View(save), leadership, "ending a save",
      [node](const CompareAndSwap::Found& found, SaveState* state) {
        const SaveView view = SaveViewOf(found, *state);
        const auto ranks = view.ranks.find(node);
        if (MayEnd(*state) && ranks != view.ranks.end() && IsLost(view, node))
          EndWith(EndBy(node, ranks->second, NodeLost(view.registrations.contains(node))), state);
        return Operations();
      },
      std::move(answer));
}

void SavePublication::Publish(const SharedSave& save, const CompareAndSwap::Held& leadership, int64_t time_us,
                              const Replaces& replaces, Answer<Publishing> answer) {
  auto result = std::make_shared<Publishing>();
  std::vector<CompareAndSwap::Range> ranges = View(save);
  ranges.push_back({keys_.Publishing()});
  // Without a checkpoint to replace, these ranges are empty.
  ranges.push_back({keys_.Readers(replaces.sequence), true});
  ranges.push_back({keys_.Pinned(replaces.sequence)});
  const auto decide = [=, keys = keys_, sequence = save.sequence](const CompareAndSwap::Found& found,
                                                                  SaveState* state) {
    *result = Publishing();
    for (const auto& [node, vote] : SaveViewOf(found, *state).votes) {
      if (vote.stage() == NodeVote::DURABLE) result->digests[node] = vote.digest();
    }
    if (state->phase() == SaveState::PUBLISHING || state->phase() == SaveState::COMMITTED ||
        state->phase() == SaveState::ENDED)
      return Operations();
    result->waits_for = WaitsFor(found, sequence, *state);
    if (!result->waits_for.empty()) return Operations();
    state->set_phase(SaveState::PUBLISHING);
    const int64_t earlier_us = FirstOf<PublishedNow>(found[kPublishing]).last_time_us();
    state->set_earlier_time_us(earlier_us);
    state->set_time_us(std::max(time_us, earlier_us + 1));
    state->set_replaces(replaces.sequence);
    state->mutable_inherited_pointers()->insert(replaces.pointers.begin(), replaces.pointers.end());
    PublishedNow now;
    now.set_sequence(sequence);
    now.set_last_time_us(state->time_us());
    Operations operations = {Put(keys.Publishing(), now.SerializeAsString())};
    if (replaces.sequence != 0) operations.push_back(PutEvicting(keys, replaces.sequence, sequence));
    return operations;
  };
  Change(save, std::move(ranges), leadership, "publishing a save", decide,
         [result, answer = std::move(answer)](absl::StatusOr<SharedSave> changed) mutable {
           if (!changed.ok()) return answer(changed.status());
           result->save = *std::move(changed);
           answer(std::move(*result));
         });
}

void SavePublication::ReplaceAnother(const SharedSave& save, const CompareAndSwap::Held& leadership,
                                     const Replaces& replaces, Answer<SharedSave> answer) {
  Change(
      save, {}, leadership, "publishing a save",
      [replaces](const CompareAndSwap::Found&, SaveState* state) {
        if (state->phase() != SaveState::PUBLISHING) return Operations();
        state->set_replaces(replaces.sequence);
        state->mutable_inherited_pointers()->insert(replaces.pointers.begin(), replaces.pointers.end());
        return Operations();
      },
      std::move(answer));
}

void SavePublication::Committed(const SharedSave& save, const CompareAndSwap::Held& leadership,
                                int64_t moved_in, Answer<SharedSave> answer) {
  std::vector<CompareAndSwap::Range> ranges = {{keys_.Publishing()}};
  if (moved_in != 0) ranges.push_back({keys_.Sequence()});
  const auto decide = [keys = keys_, moved_in](const CompareAndSwap::Found& found, SaveState* state) {
    if (state->phase() != SaveState::PUBLISHING) return Operations();
    state->set_phase(SaveState::COMMITTED);
    Operations operations = {PutPublishing(keys, found[0], PublishedNow())};
    if (moved_in == 0) return operations;
    state->set_moved_in(moved_in);
    auto last = FirstOf<ledger::v1::LastSequence>(found[1]);
    if (last.sequence() >= moved_in) return operations;
    last.set_sequence(moved_in);
    operations.push_back(Put(keys.Sequence(), last.SerializeAsString()));
    return operations;
  };
  Change(save, std::move(ranges), leadership, "committing a save", decide, std::move(answer));
}

void SavePublication::NotPublished(const SharedSave& save, const CompareAndSwap::Held& leadership,
                                   const ledger::v1::SaveEnd& end, Answer<SharedSave> answer) {
  EndPublishing(
      save, leadership, "ending a save", PublishedNow(), [end](SaveState* state) { EndWith(end, state); },
      std::move(answer));
}

void SavePublication::Unknown(const SharedSave& save, const CompareAndSwap::Held& leadership,
                              Answer<SharedSave> answer) {
  ledger::v1::SaveEnd end;
  end.set_reason(reason::kIndeterminate);
  end.set_message(absl::StrCat(
      "it is not known yet whether the checkpoint was published. The coordinator looks for it, and "
      "publishes no later save until it knows. If that lasts, and no directory ",
      save.state.tag(), " is in the root, run `ckptctl resolve ROOT/", save.state.tag(),
      " --not-there` on the coordinator"));
  PublishedNow held;
  held.set_sequence(save.sequence);
  held.set_unknown(true);
  EndPublishing(
      save, leadership, "ending a save", held, [end](SaveState* state) { EndWith(end, state); },
      std::move(answer));
}

void SavePublication::Release(const SharedSave& save, const CompareAndSwap::Held& leadership,
                              SaveState::Found what, Answer<SharedSave> answer) {
  Change(
      save, {{keys_.Publishing()}}, leadership, "letting saves be published again",
      [keys = keys_, sequence = save.sequence, what](const CompareAndSwap::Found& found, SaveState* state) {
        if (state->end().reason() != reason::kIndeterminate) return Operations();
        if (state->found() == SaveState::NOT_KNOWN) state->set_found(what);
        const auto now = FirstOf<PublishedNow>(found[0]);
        if (!now.unknown() || now.sequence() != sequence) return Operations();
        return Operations{PutPublishing(keys, found[0], PublishedNow())};
      },
      std::move(answer));
}

void SavePublication::EndPublishing(const SharedSave& save, const CompareAndSwap::Held& leadership,
                                    const std::string& what, const PublishedNow& next,
                                    std::function<void(SaveState*)> end, Answer<SharedSave> answer) {
  Change(
      save, {{keys_.Publishing()}}, leadership, what,
      [keys = keys_, next, end = std::move(end)](const CompareAndSwap::Found& found, SaveState* state) {
        if (state->phase() != SaveState::PUBLISHING) return Operations();
        end(state);
        return Operations{PutPublishing(keys, found[0], next)};
      },
      std::move(answer));
}

}  // namespace ckptd
