// Seam: the authority of a run that several nodes share, and what only such a run has so far. A decision that
// LocalAuthority takes, too, belongs in authority.h. Real: daemon/cluster; fake: tests/testing.
//
// Called on the engine's thread; callbacks and hooks run there, never inside the call that asked for them.
// What a call asks of the ledger is asked again until it is answered; what has a deadline says so.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_SHARED_RUN_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_SHARED_RUN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/save_id.h"
#include "storage/base/clock.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

class SharedRun : public Authority {
 public:
  // The ledger of this run. Admit of it is not called: Begin decides that.
  virtual Ledger* ledger() = 0;
  // Whether this node coordinates the run: retention removes checkpoints only there.
  virtual bool coordinates() const = 0;
  std::string name() const override { return "etcd"; }
  // It would have to take over this node's part with its registration, and does not yet: NODE_LOST ends it.
  bool next_daemon_continues() const override { return false; }

  // ---- saves

  // An operator has looked whether the save of this tag is a checkpoint, whose outcome is unknown
  // (kUnknown) and which holds up all later ones. OUTCOME_PENDING while the coordinator is still finding out;
  // OUTCOME_DIFFERS if it sees something else; UNKNOWN_SAVE if no save of this tag has ended so;
  // NOT_COORDINATOR. A second call answers as the first.
  struct Settled {
    int64_t sequence = 0;
    bool is_checkpoint = false;
  };
  virtual void SettleSave(const std::string& tag, bool is_checkpoint,
                          Callback<absl::StatusOr<Settled>> done) = 0;

  // ---- damage

  // A reader on this node has found it, with the tag, the sequence and the time. From OK on no attempt
  // resumes from the checkpoint, on any node, and `damage_changed` runs on all nodes; on this one before
  // the answer. BEING_REMOVED: nothing is marked, because the reader may have seen a removal. After
  // LEDGER_UNAVAILABLE nothing is marked, either, as far as this node knows.
  virtual void MarkDamaged(const storage::v1::Damage& damage, Callback<absl::Status> marked) = 0;
  // It has been repaired. Likewise.
  virtual void ClearDamage(int64_t sequence, Callback<absl::Status> cleared) = 0;

  // ---- resume
  //
  // The ledger answers DecideResume and AgreeResume with CHECKPOINT_DAMAGED if a node has marked the
  // checkpoint; `damage_changed` tells it before the answer or after it.

  // Answers when no save of an earlier attempt can become a checkpoint any more, on any node, but for those
  // that have become one. Scan the root after that.
  virtual void WhenSettled(int64_t attempt, Callback<absl::Status> settled) = 0;
  // All ranks of this node have read their part of what the attempt resumes from, or, not OK, one of them
  // could not. Answers when the ranks of all nodes have, and the ledger has recorded that; with the error
  // as soon as a node could not; DEADLINE_EXCEEDED names the nodes that have not answered.
  virtual void FinishResume(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant deadline,
                            Callback<absl::Status> finished) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_SHARED_RUN_H_
