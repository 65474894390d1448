#include "daemon/cluster/coordinator/unknown_outcomes.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/cluster/coordinator/evictions.h"
#include "daemon/etcd/etcd_errors.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::SaveState;

namespace {

constexpr Duration kLookInterval = std::chrono::seconds(10);

absl::Status Differs(const SharedSave& save, const std::string& what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kOutcomeDiffers,
                   absl::StrCat("the save of ", save.state.tag(), ", sequence ", save.sequence, ", ", what),
                   {{"tag", save.state.tag()}});
}

// The error if the coordinator sees that an operator's statement is wrong; OK: the statement counts.
absl::Status CheckStatement(const SharedSave& save, bool is_checkpoint, SharedPlace place) {
  if (place == SharedPlace::kPublished && !is_checkpoint)
    return Differs(save, "is at its tag: it is a checkpoint, and the run goes on");
  if (place == SharedPlace::kInTrash && is_checkpoint)
    return Differs(save, "is in the trash: it never becomes a checkpoint, and the run goes on");
  if (place != SharedPlace::kPublished && is_checkpoint)
    return Differs(save,
                   "is not at its tag, as the coordinator sees the root. Look whether its node sees the same "
                   "file system, and say that the save is not there if it is not");
  return absl::OkStatus();
}

}  // namespace

UnknownOutcomes::UnknownOutcomes(Tools tools, CompareAndSwap::Held leadership, std::string run, Hooks hooks)
    : tools_(tools), leadership_(std::move(leadership)), run_(std::move(run)), hooks_(std::move(hooks)) {}

UnknownOutcomes::~UnknownOutcomes() {
  callbacks_.End();
  for (auto& [sequence, unknown] : unknown_)
    Refuse(unknown, NotCoordinator("settle its saves any more", run_));
}

void UnknownOutcomes::OnEnded(const SharedSave& save) {
  const SaveState& state = save.state;
  if (state.found() == SaveState::NOT_KNOWN) {
    const auto [unknown, is_new] = unknown_.try_emplace(save.sequence);
    if (is_new) unknown->second.save = save;
    return;
  }
  settled_[state.tag()] = {save.sequence, state.found() == SaveState::IS_CHECKPOINT};
  const auto found = unknown_.find(save.sequence);
  if (found == unknown_.end()) return;
  std::vector<Statement> statements = std::move(found->second.statements);
  unknown_.erase(found);
  hooks_.settled();
  for (Statement& statement : statements) {
    const bool agrees = statement.is_checkpoint == settled_[state.tag()].is_checkpoint;
    statement.answer(agrees ? absl::StatusOr<Settled>(settled_[state.tag()])
                            : Differs(save, "was settled otherwise meanwhile"));
  }
}

std::set<int64_t> UnknownOutcomes::sequences() const {
  std::set<int64_t> sequences;
  for (const auto& [sequence, unknown] : unknown_) sequences.insert(sequence);
  return sequences;
}

bool UnknownOutcomes::HasTag(const std::string& tag) const {
  for (const auto& [sequence, unknown] : unknown_) {
    if (unknown.save.state.tag() == tag) return true;
  }
  return settled_.contains(tag);
}

void UnknownOutcomes::OnTick() {
  for (auto& [sequence, unknown] : unknown_) {
    if (!unknown.asking && tools_.clock->Now() >= unknown.next_look) Look(unknown);
  }
}

void UnknownOutcomes::Settle(const std::string& tag, bool is_checkpoint, Answer answer) {
  for (auto unknown = unknown_.rbegin(); unknown != unknown_.rend(); ++unknown) {
    if (unknown->second.save.state.tag() != tag) continue;
    unknown->second.statements.push_back({is_checkpoint, std::move(answer)});
    if (!unknown->second.asking) Look(unknown->second);
    return;
  }
  const auto settled = settled_.find(tag);
  if (settled == settled_.end())
    return answer(MakeError(absl::StatusCode::kNotFound, reason::kUnknownSave,
                            absl::StrCat("the outcome of no save of ", tag, " is unknown"), {{"tag", tag}}));
  if (settled->second.is_checkpoint == is_checkpoint) return answer(settled->second);
  SharedSave save;
  save.sequence = settled->second.sequence;
  save.state.set_tag(tag);
  answer(Differs(save, settled->second.is_checkpoint ? "is a checkpoint, as is known by now"
                                                     : "is no checkpoint, as is known by now"));
}

// ---- looking

void UnknownOutcomes::Look(Unknown& unknown) {
  unknown.asking = true;
  const SharedSave& save = unknown.save;
  tools_.root->Find(
      {save.state.tag(), save.sequence, save.state.inflight()},
      callbacks_.Guard([this, sequence = save.sequence](const absl::StatusOr<SharedPlace>& place) {
        Looked(sequence, place);
      }));
}

void UnknownOutcomes::Looked(int64_t sequence, const absl::StatusOr<SharedPlace>& place) {
  const auto found = unknown_.find(sequence);
  if (found == unknown_.end()) return;
  Unknown& unknown = found->second;
  unknown.asking = false;
  unknown.next_look = tools_.clock->Now() + kLookInterval;
  if (!place.ok()) return Refuse(unknown, Annotate(place.status(), "looking for the save in the root"));
  std::vector<Statement> counting;
  for (Statement& statement : std::exchange(unknown.statements, {})) {
    if (absl::Status wrong = CheckStatement(unknown.save, statement.is_checkpoint, *place); !wrong.ok()) {
      statement.answer(std::move(wrong));
    } else {
      counting.push_back(std::move(statement));
    }
  }
  unknown.statements = std::move(counting);
  const bool is_known = *place == SharedPlace::kPublished || *place == SharedPlace::kInTrash ||
                        *place == SharedPlace::kSuperseded || *place == SharedPlace::kLost;
  if (is_known || !unknown.statements.empty()) Release(unknown, *place == SharedPlace::kPublished);
}

// ---- recording the outcome

void UnknownOutcomes::Release(Unknown& unknown, bool is_checkpoint) {
  unknown.asking = true;
  tools_.decisions->Release(
      unknown.save, leadership_, is_checkpoint ? SaveState::IS_CHECKPOINT : SaveState::IS_NO_CHECKPOINT,
      callbacks_.Guard([this, sequence = unknown.save.sequence](const absl::StatusOr<SharedSave>& save) {
        Released(sequence, save);
      }));
}

void UnknownOutcomes::Released(int64_t sequence, const absl::StatusOr<SharedSave>& save) {
  const auto found = unknown_.find(sequence);
  if (found == unknown_.end()) return;
  found->second.asking = false;
  if (save.ok()) return OnEnded(*save);
  Refuse(found->second, save.status());
  const std::string reason = ReasonOf(save.status());
  if (reason != ledger_reason::kUnavailable && reason != ledger_reason::kFull) hooks_.lost(save.status());
}

void UnknownOutcomes::Refuse(Unknown& unknown, const absl::Status& why) {
  for (Statement& statement : std::exchange(unknown.statements, {})) statement.answer(why);
}

}  // namespace ckptd
