// A node's reports on its part of an admitted save.
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

// Answers with the save's present state: the report counts if that is ADMITTED or SEALED. Answers come after
// the call has returned, and never after the destruction of this object. Errors: NODE_REPLACED, those of
// etcd_errors.h, and NOT_IN_SAVE if this node has not made an earlier report that must come first.
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

  // All ranks of this node have sealed their parts, so the save needs their trainers no longer. FENCED if a
  // later attempt has acted and this node had not reported its parts before. A successor that has taken over
  // its predecessor's sealed parts may report them again; if the predecessor had only voted, this is
  // NOT_IN_SAVE.
  void Sealed(const SharedSave& save, const Guess& guess, Answer answer);
  // This node's files, its part record and their directories are durable. This counts even after a later
  // attempt has acted: a save that all nodes had sealed before is still published. Of two reports the first
  // counts.
  void Durable(const SharedSave& save, const std::string& digest, const Guess& guess, Answer answer);
  // This node's part has failed: it could not be written, or sealed parts are lost. That ends the save,
  // unless a predecessor of this daemon has reported the part durable.
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
