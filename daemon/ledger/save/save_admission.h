// How the nodes of an attempt admit a save: one proposes it, all vote, the coordinator decides. Or, with one
// transaction less for each node: the coordinator has made the save in advance, all vote for it at once, and
// it gets its name and is decided in one step.
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

// Answers come later, and not after the end of this object. Errors: NODE_REPLACED, and those of
// etcd_errors.h; then what was asked for was done or not, and may be asked again.
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
  };

  // `etcd` must outlive it.
  SaveAdmission(Etcd* etcd, Options options);

  // The first Begin of a save on any node proposes it, with a sequence above all before it; later ones, on
  // any node, find it as it is by now, also after its end: with the ranks and the wait of the first. FENCED
  // if a later attempt has acted, and the save was not proposed before.
  void Begin(const Proposal& proposal, Answer<Save> answer);

  // Votes whether this node takes its ranks' part of the save. A vote without `vote.no` accepts it: the
  // memory is there. The vote may be changed until the save is decided. An acceptance may have counted unless
  // the answer is PROPOSED or OPEN: so memory that is promised is used for something else only after a
  // rejection had that answer. `vote.proposal` names which of several saves that might get the sequence of
  // one that is OPEN; the vote does not count if the answer has another name. With `guess->voters` an
  // acceptance of a save that is OPEN also admits it, if it is the last one (last_vote.h); the answer may be
  // OPEN all the same: then read the state.
  void Vote(const Save& save, ledger::v1::NodeVote vote, const std::optional<SaveGuess>& guess,
            Answer<VotedSave> answer);

  // By the coordinator, which holds `leadership`: ADMITTED if the nodes of its ranks have accepted; ENDED at
  // the first rejection, or if the attempt is fenced; else still PROPOSED. A rejection with the reason
  // RANKS_MISSING that names no ranks blames those whose nodes have not voted. `inflight`: the directory that
  // was made for the save, in which no other save's files ever are; empty: there is none yet, so it is not
  // admitted. NOT_COORDINATOR.
  void Decide(const Save& save, const CompareAndSwap::Held& leadership, const std::string& inflight,
              Answer<Save> answer);
  // By the coordinator: the save of this sequence is there in advance, OPEN, with a directory that was made
  // for it. Answers with it, as it is; or, if its sequence is not the next one, with the last one that was
  // given, and no phase.
  void Open(int64_t sequence, const CompareAndSwap::Held& leadership, const std::string& inflight,
            Answer<Save> answer);
  // By the coordinator, unless the last vote has done it: a save that is OPEN becomes the one that a node has
  // voted for, and is decided as by Decide. While that leaves it undecided and `may_wait` is set, it stays
  // OPEN. If its sequence is not the last one any more, or the save has another one, it ends unused.
  // `guess`: of OpenRanges, and the state.
  void DecideOpen(const Save& save, const CompareAndSwap::Held& leadership,
                  const ledger::v1::SaveProposal& proposal, bool may_wait,
                  std::optional<CompareAndSwap::Found> guess, Answer<Save> answer);
  // What DecideOpen reads, but for the state: SaveViewRanges, the save's index, the last sequence.
  std::vector<CompareAndSwap::Range> OpenRanges(int64_t sequence,
                                                const ledger::v1::SaveProposal& proposal) const;
  // By the coordinator: a save that is OPEN ends unused if its sequence is not the last one any more.
  void Close(const Save& save, const CompareAndSwap::Held& leadership, Answer<Save> answer);
  // By the coordinator: ends a save that is not published yet. The answer holds how it ended, which
  // may be another end.
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
