// How far a node is with its part of an admitted save.
#ifndef CKPTD_DAEMON_LEDGER_SAVE_SAVE_REPORTS_H_
#define CKPTD_DAEMON_LEDGER_SAVE_SAVE_REPORTS_H_

#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/save/change_save.h"
#include "storage/base/callback_scope.h"

namespace ckptd {

// Answers with the save as it is: what was reported counts if that is ADMITTED or SEALED. Answers come later,
// and not after the end of this object. Errors: NODE_REPLACED, those of etcd_errors.h, and NOT_IN_SAVE if
// this node has not said before what must come before.
class SaveReports {
 public:
  using Answer = absl::AnyInvocable<void(absl::StatusOr<VotedSave>)>;
  using Guess = std::optional<SaveGuess>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;  // For messages.
  };
  // `etcd` must outlive it.
  SaveReports(Etcd* etcd, Options options);

  // All ranks of this node have sealed their parts, which need no trainer from now on. FENCED if a later
  // attempt has acted: what was not sealed before never is. A successor that has the sealed parts of the
  // daemon before it may report so again; one whose predecessor had only voted has nothing to seal.
  void Sealed(const SharedSave& save, const Guess& guess, Answer answer);
  // This node's files, its part record and their directories are durable. Also after a later attempt has
  // acted: what all nodes had sealed by then is still published. Of two reports the first counts.
  void Durable(const SharedSave& save, const std::string& digest, const Guess& guess, Answer answer);
  // This node's part has failed: it could not be written, or what was sealed is lost. The save ends by
  // that, unless it was durable before.
  void Failed(const SharedSave& save, const ledger::v1::SaveEnd& why, const Guess& guess, Answer answer);

 private:
  void Report(const SharedSave& save, const ledger::v1::NodeVote& report, const std::string& what,
              const Guess& guess, Answer answer);

  Etcd* const etcd_;
  const Options options_;
  const LedgerKeys keys_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_SAVE_SAVE_REPORTS_H_
