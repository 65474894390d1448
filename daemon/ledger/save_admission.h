// How the nodes of an attempt admit a save: one proposes it, all vote, the coordinator decides.
#ifndef CKPTD_DAEMON_LEDGER_SAVE_ADMISSION_H_
#define CKPTD_DAEMON_LEDGER_SAVE_ADMISSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/change_save.h"
#include "daemon/ledger/compare_and_swap.h"
#include "daemon/ledger/keys.h"
#include "daemon/ledger/node_identity.h"
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

  // Says whether this node takes its ranks' part of the save: without `vote.no` when the memory is there. It
  // may be changed until the save is decided. A yes may have counted unless the answer says PROPOSED: so
  // memory that is promised is used for something else only after a no was answered with that.
  void Vote(const Save& save, ledger::v1::NodeVote vote, Answer<Save> answer);

  // By the coordinator, which holds `office`: ADMITTED if the nodes of its ranks have voted yes; ENDED at the
  // first no, or if the attempt is fenced; else still PROPOSED. A no with the reason RANKS_MISSING blames the
  // ranks whose nodes have not voted. `inflight`: the directory that was made for the save, in which no other
  // save's files ever are; empty: there is none yet, so it is not admitted. NOT_COORDINATOR.
  void Decide(const Save& save, const CompareAndSwap::Held& office, const std::string& inflight,
              Answer<Save> answer);
  // By the coordinator: ends a save that is not published yet. The answer says what has become of it, which
  // may be another end.
  void End(const Save& save, const CompareAndSwap::Held& office, const ledger::v1::SaveEnd& end,
           Answer<Save> answer);

 private:
  using Operations = std::vector<etcdserverpb::RequestOp>;
  static Operations Propose(const LedgerKeys& keys, const ledger::v1::SaveState& proposal,
                            const CompareAndSwap::Found& found, absl::StatusOr<int64_t>* sequence);
  void Change(const Save& save, std::vector<CompareAndSwap::Range> ranges, CompareAndSwap::Held held,
              const std::string& what,
              std::function<Operations(const CompareAndSwap::Found&, ledger::v1::SaveState*)> decide,
              Answer<Save> answer);
  void ReadState(int64_t sequence, Answer<Save> answer);
  std::string While(const std::string& what) const { return what + " of run " + options_.run; }

  Etcd* const etcd_;
  const Options options_;
  const LedgerKeys keys_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_ADMISSION_H_
