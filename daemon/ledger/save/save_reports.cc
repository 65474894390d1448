#include "daemon/ledger/save/save_reports.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/fenced.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

using ledger::v1::NodeVote;
using ledger::v1::SaveState;
using Operations = std::vector<etcdserverpb::RequestOp>;

absl::Status NotInSave(int64_t sequence, const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kNotInSave,
                   absl::StrCat("this node takes no part in the save of sequence ", sequence, ": ", why));
}

// Whether `report` may follow `before`, the present value of the node's key.
absl::Status CheckOrder(int64_t sequence, const NodeVote& before, const NodeVote& report) {
  if (before.registration().empty()) return NotInSave(sequence, "it has not voted for it");
  if (before.has_no()) return NotInSave(sequence, "it has said that it has no part of it");
  if (report.has_no()) return absl::OkStatus();
  const bool of_predecessor = before.registration() != report.registration();
  if (before.stage() == NodeVote::VOTED && of_predecessor) {
    return NotInSave(sequence, "the daemon that has voted for it has ended, and its memory with it");
  }
  if (before.stage() == NodeVote::VOTED && report.stage() == NodeVote::DURABLE)
    return NotInSave(sequence, "its parts are not sealed");
  return absl::OkStatus();
}

absl::Status CheckNotFenced(int64_t attempt, int64_t active) {
  if (attempt >= active) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kFenced, FencedMessage(attempt, active));
}

// Whether `before` stays, and `report` is ignored.
bool HasCounted(const NodeVote& before, const NodeVote& report) {
  const bool of_predecessor = before.registration() != report.registration();
  // A daemon may end a save whose part it has made durable itself. Its successor has no part in the save any
  // more, and must not end it.
  if (report.has_no()) return before.has_no() || (before.stage() == NodeVote::DURABLE && of_predecessor);
  // A successor that has taken over sealed parts must report them, or they would count as lost.
  if (before.stage() == NodeVote::SEALED && of_predecessor) return false;
  return before.stage() >= report.stage();
}

// Returns what to write so that `report` counts. Sets `wrong` if the report is not allowed.
Operations Follow(int64_t sequence, const CompareAndSwap::Found& found, const SaveState& state,
                  const std::string& key, const NodeVote& report, absl::Status* wrong) {
  *wrong = absl::OkStatus();
  if (state.phase() != SaveState::ADMITTED && state.phase() != SaveState::SEALED) return {};
  const auto before = FirstOf<NodeVote>(found[0]);
  if (HasCounted(before, report)) return {};
  *wrong = CheckOrder(sequence, before, report);
  if (wrong->ok() && report.stage() == NodeVote::SEALED && before.stage() == NodeVote::VOTED) {
    const auto active = FirstOf<ledger::v1::ActiveAttempt>(found[1]);
    *wrong = CheckNotFenced(state.attempt(), active.attempt());
  }
  return wrong->ok() ? Operations{Put(key, report.SerializeAsString())} : Operations();
}

}  // namespace

SaveReports::SaveReports(Etcd* etcd, Options options)
    : etcd_(etcd), options_(std::move(options)), keys_(options_.prefix) {}

void SaveReports::Sealed(const SharedSave& save, const Guess& guess, Answer answer) {
  NodeVote report;
  report.set_stage(NodeVote::SEALED);
  Report(save, report, "reporting sealed parts", guess, std::move(answer));
}

void SaveReports::Durable(const SharedSave& save, const std::string& digest, const Guess& guess,
                          Answer answer) {
  NodeVote report;
  report.set_stage(NodeVote::DURABLE);
  report.set_digest(digest);
  Report(save, report, "reporting durable parts", guess, std::move(answer));
}

void SaveReports::Failed(const SharedSave& save, const ledger::v1::SaveEnd& why, const Guess& guess,
                         Answer answer) {
  NodeVote report;
  *report.mutable_no() = why;
  Report(save, report, "reporting that parts have failed", guess, std::move(answer));
}

void SaveReports::Report(const SharedSave& save, const NodeVote& what_is, const std::string& what,
                         const Guess& guess, Answer answer) {
  NodeVote report = what_is;
  report.set_registration(options_.node.value);
  auto wrong = std::make_shared<absl::Status>();
  auto stands = std::make_shared<std::string>();
  const std::string key = keys_.Vote(save.sequence, options_.node.name);
  SaveChange change;
  change.state_key = keys_.SaveState(save.sequence);
  change.ranges = {{key}, {keys_.Active()}};
  change.held = options_.node.Held();
  change.decide = [=, sequence = save.sequence](const CompareAndSwap::Found& found, SaveState* state) {
    Operations operations = Follow(sequence, found, *state, key, report, wrong.get());
    *stands = found[0].empty() ? "" : found[0][0].value();
    if (!operations.empty()) *stands = report.SerializeAsString();
    return operations;
  };
  change.purpose = absl::StrCat(what, " of run ", options_.run);
  if (guess) change.guess = {guess->vote, guess->active, guess->state};
  ChangeSave(etcd_, save.sequence, std::move(change),
             callbacks_.Guard(
                 [wrong, stands, answer = std::move(answer)](absl::StatusOr<SharedSave> changed) mutable {
                   if (changed.ok() && !wrong->ok()) return answer(*wrong);
                   if (!changed.ok()) return answer(changed.status());
                   answer(VotedSave{*std::move(changed), *stands});
                 }));
}

}  // namespace ckptd
