#include "daemon/cluster/node/node_save.h"

#include "absl/strings/str_cat.h"

namespace ckptd {

using ledger::v1::SaveState;

namespace {

// Phases are numbered in the order in which they were added to the protocol, not in that of a save.
int PlaceOf(const SaveState& state) {
  switch (state.phase()) {
    case SaveState::PROPOSED:
      return 1;
    case SaveState::ADMITTED:
      return 2;
    case SaveState::SEALED:
      return 3;
    case SaveState::PUBLISHING:
      return 4;
    case SaveState::COMMITTED:
    case SaveState::ENDED:
      return 5;
    default:  // OPEN: it may become any save.
      return 0;
  }
}

bool IsUndecidedState(const SaveState& state) {
  return state.phase() == SaveState::PROPOSED || state.phase() == SaveState::OPEN;
}

const char* Purpose(NodeSave::Request request) {
  switch (request) {
    case NodeSave::Request::kBegin:
      return "to begin the save";
    case NodeSave::Request::kAccept:
      return "to say that this node has room for the save";
    case NodeSave::Request::kReject:
    case NodeSave::Request::kFailed:
      return "to say that this node takes no part in the save";
    case NodeSave::Request::kSealed:
      return "to say that this node's parts are sealed";
    case NodeSave::Request::kDurable:
      return "to say that this node's files are durable";
    default:
      return "";
  }
}

}  // namespace

bool HasEnded(const SaveState& state) { return PlaceOf(state) == 5; }
bool IsCheckpoint(const SaveState& state) {
  return state.phase() == SaveState::COMMITTED || state.found() == SaveState::IS_CHECKPOINT;
}
bool IsLater(const SaveState& before, const SaveState& after) { return PlaceOf(before) < PlaceOf(after); }

bool NodeSave::IsUndecided() const { return save.sequence == 0 || IsUndecidedState(save.state); }

void NodeSave::Bind(const SharedSave& found) {
  save = found;
  answered_ = Request::kBegin;
  vote.clear();
  rejection_counts = false;
}

void NodeSave::VoteAgain() {
  if (IsUndecidedState(save.state) && answered_ == Request::kAccept) answered_ = Request::kBegin;
}

NodeSave::Request NodeSave::Next() const {
  if (save.sequence == 0) return Request::kBegin;
  const bool undecided = IsUndecidedState(save.state);
  if (refused || (!undecided && !MayEnd(save.state))) return Request::kNone;
  if (failed) {
    if (rejection_counts) return Request::kNone;
    return undecided ? Request::kReject : Request::kFailed;
  }
  if (undecided) return accepted && answered_ < Request::kAccept ? Request::kAccept : Request::kNone;
  return NextReport();
}

NodeSave::Request NodeSave::NextReport() const {
  if (sealed && answered_ < Request::kSealed) return Request::kSealed;
  if (durable && answered_ < Request::kDurable) return Request::kDurable;
  return Request::kNone;
}

// A rejection that was answered with ADMITTED came too late to be a vote, so it is sent again as a failed
// part.
void NodeSave::Answered(Request request, const SaveState& state) {
  last_error.clear();
  backoff.Succeeded();
  if (request == Request::kReject) {
    rejection_counts = IsUndecidedState(state);
  } else if (request == Request::kFailed) {
    rejection_counts = true;
  } else {
    answered_ = request;
  }
}

std::string NodeSave::WaitsFor() const {
  if (const Request next = Next(); next != Request::kNone) {
    const std::string why = last_error.empty() ? "" : absl::StrCat(" (", last_error, ")");
    return absl::StrCat("etcd, ", Purpose(next), why);
  }
  if (failed || refused) return "the coordinator of the run, which ends the save";
  switch (save.state.phase()) {
    case SaveState::OPEN:
    case SaveState::PROPOSED:
      return accepted ? "the other nodes to have room for the save" : "this node to have room for the save";
    case SaveState::ADMITTED:
      return "the ranks of all nodes to seal their parts";
    case SaveState::SEALED:
      return "the files of all nodes, or an older save";
    case SaveState::PUBLISHING:
      return "the coordinator of the run, which publishes the checkpoint";
    default:
      return "";
  }
}

}  // namespace ckptd
