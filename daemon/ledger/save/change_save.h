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

// A save that the nodes of a run make together.
struct SharedSave {
  int64_t sequence = 0;
  ledger::v1::SaveState state;  // The only record of how the save ends; the ranks are told this end.
};

// The answer to a node's vote or report on a save.
struct VotedSave {
  SharedSave save;
  std::string vote;  // The value of this node's vote key; empty: there is no key.
};

// What a node believes that etcd has about a save, for CompareAndSwap::guess.
struct SaveGuess {
  // One key each, or none. `vote` is the node's own.
  std::vector<etcdserverpb::KeyValue> vote, active, state;
  // The ranks of the attempt's nodes, and the registrations of all nodes.
  struct Voters {
    std::vector<etcdserverpb::KeyValue> ranks, nodes;
  };
  std::optional<Voters> voters = std::nullopt;
};

// Whether the save may still be ended. False from PUBLISHING on, because then only its publication decides
// how it ends; and for a save that is OPEN, because no node has asked for it yet.
bool MayEnd(const ledger::v1::SaveState& state);
void EndWith(const ledger::v1::SaveEnd& end, ledger::v1::SaveState* state);

struct SaveChange {
  std::string state_key;
  std::vector<CompareAndSwap::Range> ranges;  // To read beside the state.
  CompareAndSwap::Held held;
  // As CompareAndSwap::decide. May change the state, and returns what else to write. The last range that was
  // found is the state's key.
  std::function<std::vector<etcdserverpb::RequestOp>(const CompareAndSwap::Found&, ledger::v1::SaveState*)>
      decide;
  std::string purpose;
  std::optional<CompareAndSwap::Found> guess = std::nullopt;  // The last range is the state's.
};

// The change is written only if the state is still as it was read: if a decision and a vote race, the second
// one sees the first. Answers with the save after the change. Errors are those of SwapIn.
void ChangeSave(Etcd* etcd, int64_t sequence, SaveChange change,
                absl::AnyInvocable<void(absl::StatusOr<SharedSave>)> answer);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_CHANGE_SAVE_H_
