// How the nodes of an attempt admit a save: one node proposes it, all nodes vote, the coordinator decides. A
// prepared save takes one transaction less for each node: the coordinator has made it in advance, all nodes
// vote for it at once, and one step gives it its name and decides.
#ifndef CKPTD_DAEMON_LEDGER_SAVE_SAVE_ADMISSION_H_
#define CKPTD_DAEMON_LEDGER_SAVE_SAVE_ADMISSION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/save/change_save.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Answers come after the call has returned, and never after the destruction of this object. Errors:
// NODE_REPLACED, and those of etcd_errors.h; after them the change may have been made, and the call may be
// repeated.
class SaveAdmission {
 public:
  template <typename T>
  using Answer = absl::AnyInvocable<void(absl::StatusOr<T>)>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;  // For messages.
  };
  using Save = SharedSave;

  struct Proposal {
    int64_t attempt = 0;
    std::string tag;
    int64_t ordinal = 0;          // Counts the saves of one tag in an attempt.
    std::vector<int> ranks = {};  // That have something to save, ascending; empty: all.
    Duration longest_wait = {};   // For its admission.
    bool was_known = false;       // Etcd had it; do not propose it anew if etcd has lost it.
  };

  // `etcd` must outlive it.
  SaveAdmission(Etcd* etcd, Options options);

  // The first Begin of a save on any node proposes it, with a sequence above all earlier ones. Every later
  // Begin, on any node, answers with the save's present state, also after its end; the ranks and the wait are
  // those of the first Begin. FENCED if a later attempt has acted and the save was not proposed before. UNKNOWN_SAVE:
  // `was_known`, and etcd has forgotten the save (OldSaves), or was taken back to a time before it.
  void Begin(const Proposal& proposal, Answer<Save> answer);

  // Accepts or rejects the save for this node's ranks. A vote without `vote.no` accepts it: this node has the
  // memory. The vote may be changed until the save is decided. An acceptance may already have counted, so the
  // node uses the promised memory for something else only after a rejection was answered with PROPOSED or
  // OPEN. For a save that is OPEN, `vote.proposal` is the save that this node votes for; nodes may vote for
  // different ones, and the vote does not count if the answer has another name. With `guess->voters`, an
  // acceptance of a save that is OPEN also admits the save, if it is the last vote (last_vote.h). The answer
  // may be OPEN even then: read the state.
  void Vote(const Save& save, ledger::v1::NodeVote vote, const std::optional<SaveGuess>& guess,
            Answer<VotedSave> answer);

  // Called by the coordinator, which holds `leadership`. The save becomes ADMITTED if the nodes of its ranks
  // have accepted it, ENDED at the first rejection or if the attempt is fenced, and else stays PROPOSED. A
  // rejection with the reason RANKS_MISSING and without ranks ends it because of the ranks whose nodes have
  // not voted. `inflight`: the directory that was made for this save and never holds files of another one;
  // empty: there is none yet, so the save is not admitted. NOT_COORDINATOR.
  void Decide(const Save& save, const CompareAndSwap::Held& leadership, const std::string& inflight,
              Answer<Save> answer);
  // Called by the coordinator: prepares the save of this sequence, which is OPEN then, with a directory that
  // was made for it. Answers with its present state; or, if `sequence` is not the next one, with the last
  // sequence that was given, and no phase.
  void Open(int64_t sequence, const CompareAndSwap::Held& leadership, const std::string& inflight,
            Answer<Save> answer);
  // Called by the coordinator, for a save that is OPEN and that no last vote has admitted. Names the save by
  // `proposal`, for which a node has voted, and decides as Decide does. If that decides nothing and
  // `may_wait` is set, the save stays OPEN. It ends unused if its sequence is not the last one any more, or
  // if `proposal` has another sequence. `guess`: of OpenRanges, and the state.
  void DecideOpen(const Save& save, const CompareAndSwap::Held& leadership,
                  const ledger::v1::SaveProposal& proposal, bool may_wait,
                  std::optional<CompareAndSwap::Found> guess, Answer<Save> answer);
  // The ranges that DecideOpen reads, without the state: SaveViewRanges, the save's index, the last sequence.
  std::vector<CompareAndSwap::Range> OpenRanges(int64_t sequence,
                                                const ledger::v1::SaveProposal& proposal) const;
  // Called by the coordinator: a save that is OPEN ends unused if its sequence is not the last one any more.
  void Close(const Save& save, const CompareAndSwap::Held& leadership, Answer<Save> answer);
  // Called by the coordinator: ends a save that is not being published yet. The answer has the end that
  // counts, which may be an earlier one.
  void End(const Save& save, const CompareAndSwap::Held& leadership, const ledger::v1::SaveEnd& end,
           Answer<Save> answer);

 private:
  using Operations = std::vector<etcdserverpb::RequestOp>;
  static Operations Propose(const LedgerKeys& keys, const ledger::v1::SaveState& proposal,
                            const CompareAndSwap::Found& found, absl::StatusOr<int64_t>* sequence);
  void Change(const Save& save, std::vector<CompareAndSwap::Range> ranges, CompareAndSwap::Held held,
              const std::string& what,
              std::function<Operations(const CompareAndSwap::Found&, ledger::v1::SaveState*)> decide,
              Answer<Save> answer, std::optional<CompareAndSwap::Found> guess = std::nullopt);
  void ReadState(int64_t sequence, Answer<Save> answer);
  std::string While(const std::string& what) const { return what + " of run " + options_.run; }

  Etcd* const etcd_;
  const Options options_;
  const LedgerKeys keys_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_SAVE_ADMISSION_H_
