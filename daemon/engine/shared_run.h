// Seam: what the engine asks of a run that several nodes share. Run::shared is null for a run of this node
// alone. Real: daemon/cluster; fake: tests/testing.
//
// Called on the engine's thread; callbacks and hooks run there, never inside the call that asked for them.
// What a call asks of the ledger is asked again until it is answered; what has a deadline says so.
//
// The ranks of other nodes are to the engine as ranks that contribute nothing: it gathers, admits, writes and
// seals what its own ranks have. Where a run of one node would go on by itself (from memory to ADMITTED, from
// sealed to SEALED, from durable to COMMITTED, from a failure to FAILED), it tells the other nodes, and goes
// on when `changed` says so. Ranks hear nothing else.
#ifndef CKPTD_DAEMON_ENGINE_SHARED_RUN_H_
#define CKPTD_DAEMON_ENGINE_SHARED_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/root_io.h"
#include "daemon/engine/save_id.h"
#include "daemon/engine/shared_files_io.h"
#include "storage/base/clock.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

class SharedRun {
 public:
  // What all nodes have decided of a save. Some phases may be left out; kCommitted, kEnded and kUnknown are
  // the last.
  struct Decision {
    enum Phase {
      // Each node says whether it has the memory for its part. The sequence is another one than before if
      // another save has got that one meanwhile, and 0 until it is known.
      kProposed,
      kAdmitted,   // Every node has, and the in-flight directory is there.
      kSealed,     // No trainer of any node is needed any longer.
      kCommitted,  // It is a checkpoint. LoadCheckpoint shows it.
      kEnded,      // It is none, because of `end`.
      kUnknown,    // INDETERMINATE: nobody knows whether it is one.
    };
    Phase phase = kProposed;
    int64_t sequence = 0;
    std::string inflight;  // From kAdmitted on: the directory of its files, beneath the root's inflight/.
    absl::Status end;
  };

  struct Hooks {
    std::function<void(const SaveId&, const Decision&)> changed;
    // This node takes no part in the save any longer, and nothing more is said of it but `released`: FENCED,
    // and LEDGER_UNAVAILABLE when the ledger could not be told in time.
    std::function<void(const SaveId&, const absl::Status&)> failed;
    // The memory of a save that becomes no checkpoint is promised to no other node any longer. Once, before
    // or after its end is heard of. Until then it is not used for anything else.
    std::function<void(const SaveId&)> released;
    // Nobody begins to read this checkpoint any more: retention or a save in its place removes it.
    std::function<void(int64_t sequence)> removed;
    // A node has found damage in this checkpoint; unset: an operator has repaired it. Also of checkpoints
    // that this node does not list.
    std::function<void(int64_t sequence, const std::optional<storage::v1::Damage>& damage)> damage_changed;
    // The run has a checkpoint of which this node had no part, or this node may write in the root from now on
    // what a coordinator writes: look at the root again.
    std::function<void()> root_changed;
    // No save with a higher sequence is a checkpoint, for all that this node knows, and its ranks keep these
    // checkpoints; unset: they have not named that, so all. Before or after the save's kCommitted.
    std::function<void(int64_t sequence, const std::optional<storage::v1::RetentionPolicy>&)>
        newest_committed;
    // `coordinates` has become another one.
    std::function<void()> office_changed;
    // Right after that: this node has given up what it decided for others, because its file system has not
    // answered for so long. Another one takes its place.
    std::function<void(Duration silence)> stood_aside;
    // For the log: this node decides for all from now on. Once for each term that is heard of. May be null.
    std::function<void(const std::string& node, int64_t term)> coordinator_changed;
    // What an operator may want to read in the log.
    std::function<void(const std::string& message)> noticed;
    // This node's registration was lost, and nothing is asked or heard until there is another one: what is
    // admitted and not sealed here is lost (the hook is followed by `failed` for each save).
    std::function<void(const absl::Status&)> lost;
  };

  virtual ~SharedRun() = default;

  // Once, before anything else. No hook runs before the root is open and Start was called.
  virtual void Start(Hooks hooks) = 0;
  virtual void OnTick() = 0;  // Several times a second.

  // The ledger of this run. Admit and Commit of it are not called: Begin and Durable decide that.
  virtual Ledger* ledger() = 0;
  // Whether this node decides for all: retention removes checkpoints on this node alone.
  virtual bool coordinates() const = 0;
  // Whether nobody would wait for this run if it were closed now: it neither coordinates nor asks for that,
  // and other nodes do not think that it reads a checkpoint.
  virtual bool may_close() const = 0;

  // ---- saves; see daemon/cluster/shared_saves.h

  // A rank of this node begins the save; `changed` answers with its sequence. `ranks`: those of all nodes
  // that have something to save, ascending; empty: all. The save is between their nodes. One that is not
  // admitted at the deadline ends. No-op if it has begun before.
  virtual void Begin(const SaveId& save, Instant admission_deadline, const std::vector<int>& ranks) = 0;
  // For saves that have begun and not ended; else no-ops.
  // Before its admission the save waits no longer than this for what is neither room nor a rank: an answer of
  // the ledger, or, where this node coordinates, of its file system. Then it ends with SKIPPED.
  virtual void SkipAfter(const SaveId& save, Duration silence) = 0;
  // This node has the memory for its parts, and promises it. `retention`: which checkpoints its ranks keep
  // after the commit; unset: none of them names that. The save ends if another node keeps others.
  virtual void Accept(const SaveId& save, const std::optional<storage::v1::RetentionPolicy>& retention) = 0;
  // This node has no room, or its part comes to nothing: the save ends by that on all nodes.
  virtual void Fail(const SaveId& save, const absl::Status& why) = 0;
  virtual void Sealed(const SaveId& save) = 0;
  // The part record of this node, from FinishPart, is durable.
  virtual void Durable(const SaveId& save, const std::string& digest) = 0;
  // For error messages: what the save waits for, on which nodes. Empty if nothing is known of it.
  virtual std::string WaitsFor(const SaveId& save) const = 0;

  // ---- files. RootIo::WritePart writes the files of each rank, RootIo::Discard ends a part that fails.

  // In the place of RootIo::CreateInflight: the coordinator has made the directory.
  virtual void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence,
                        const std::string& inflight, Callback<absl::Status> done) = 0;
  // After WritePart of all ranks of this node: writes the node's part record, durably, and answers with its
  // digest.
  virtual void FinishPart(InflightId64 id, std::vector<storage::v1::PartRecord> parts,
                          Callback<absl::StatusOr<std::string>> done) = 0;
  virtual void LoadCheckpoint(const std::string& tag, int64_t sequence,
                              Callback<absl::StatusOr<SharedFilesIo::Loaded>> done) = 0;

  // An operator has looked whether the save of this tag is a checkpoint, whose outcome nobody knows
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
  // resumes from the checkpoint, on any node, and all nodes hear of it; this one by `damage_changed`, before
  // the answer. BEING_REMOVED: the reader has seen a removal, perhaps, and nothing is marked; so it is after
  // LEDGER_UNAVAILABLE, as far as this node knows.
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
  // could not. Answers when the ranks of all nodes have, and the ledger has written that down; with the error
  // as soon as a node could not; DEADLINE_EXCEEDED names the nodes that have not said it.
  virtual void FinishResume(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant deadline,
                            Callback<absl::Status> finished) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SHARED_RUN_H_
