// Reads the state of one save in etcd, and changes it.
#ifndef CKPTD_DAEMON_LEDGER_SAVE_CHANGE_SAVE_H_
#define CKPTD_DAEMON_LEDGER_SAVE_CHANGE_SAVE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"

namespace ckptd {

// A save of all nodes of a run.
struct SharedSave {
  int64_t sequence = 0;
  ledger::v1::SaveState state;  // The only record of how the save ends: ranks are told what it holds.
};

// The answer to a node's vote or report on a save.
struct VotedSave {
  SharedSave save;
  std::string vote;  // The value of this node's key; empty: it has none.
};

// What a node believes to be in etcd of a save, as CompareAndSwap::guess: each has one key or none.
struct SaveGuess {
  std::vector<etcdserverpb::KeyValue> vote, active, state;  // `vote` is the node's own.
  // The ranks of the attempt's nodes, and the registrations of all nodes.
  struct Voters {
    std::vector<etcdserverpb::KeyValue> ranks, nodes;
  };
  std::optional<Voters> voters = std::nullopt;
};

// Whether the save can still end without a checkpoint: from PUBLISHING on only its publication decides that.
// False for one that is OPEN: no node has asked for it yet.
bool MayEnd(const ledger::v1::SaveState& state);
void EndWith(const ledger::v1::SaveEnd& end, ledger::v1::SaveState* state);

struct SaveChange {
  std::string state_key;
  std::vector<CompareAndSwap::Range> ranges;  // What else is read.
  CompareAndSwap::Held held;
  // Returns what to write beside the state, which it may change. As CompareAndSwap::decide; the state's key
  // is the last of what is found.
  std::function<std::vector<etcdserverpb::RequestOp>(const CompareAndSwap::Found&, ledger::v1::SaveState*)>
      decide;
  std::string purpose;
  std::optional<CompareAndSwap::Found> guess = std::nullopt;  // With the state at its end.
};

// The change is written only if the state is still as it was read: of a decision and a vote that meet, the
// second one sees the first. Answers with the save as it is then. Errors as those of SwapIn.
void ChangeSave(Etcd* etcd, int64_t sequence, SaveChange change,
                absl::AnyInvocable<void(absl::StatusOr<SharedSave>)> answer);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_CHANGE_SAVE_H_
