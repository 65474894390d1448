// Seam: decides and records, for one run, how its saves proceed and end, which checkpoints are damaged, and
// what its ranks resume from. Implementations: LocalAuthority, for a run of this node alone; NodesRun
// (daemon/cluster), for a run that several nodes share; fake: tests/testing.
//
// Called on the engine's thread, where hooks and callbacks run, too. The local authority decides at once: its
// hooks run within the call that asks. Those of a shared run run later, and what a call asks of etcd is asked
// again until it is answered; what has a deadline says so.
//
// A save asks for each step that all nodes have to agree on (its sequence, its admission, that it is sealed,
// that it is published, that it fails), and continues when `changed` reports the decision. Ranks are told of
// no step before that. The engine treats ranks of other nodes as ranks that contribute nothing: it gathers,
// admits, writes and seals the parts of its own ranks.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_AUTHORITY_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_AUTHORITY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/save_id.h"
#include "daemon/engine/seams/shared_uploads.h"
#include "storage/base/clock.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

class Authority {
 public:
  // What was decided on a save. Some phases may be left out; kCommitted, kEnded and kUnknown are the last.
  struct Decision {
    enum Phase {
      // The save has a sequence, and each node is to accept or reject it. The sequence differs from an
      // earlier one if another save has got that one meanwhile; it is 0 until it is known.
      kProposed,
      kAdmitted,  // Every node has the memory, and in a shared run the in-flight directory is there.
      // No trainer of any node is needed any longer. Once more after kPublishing: nothing was published, and
      // it is tried again later.
      kSealed,
      kPublishing,  // Every part is durable, and it is being published: Fail does not end it any more.
      kCommitted,   // It is a checkpoint. LoadCheckpoint shows it.
      kEnded,       // It is no checkpoint, because of `end`.
      kUnknown,     // INDETERMINATE, because of `end`: it is not known whether it is a checkpoint.
    };
    Phase phase = kProposed;
    int64_t sequence = 0;  // 0 in a later phase: as before.
    // Of a shared run, from kAdmitted on: its directory, beneath the root's inflight/.
    std::string inflight = {};
    absl::Status end = {};
  };

  struct Hooks {
    std::function<void(const SaveId&, const Decision&)> changed;
    // This node takes no part in the save any longer, and no hook but `released` runs for it any more:
    // FENCED, or LEDGER_UNAVAILABLE if the ledger did not answer in time.
    std::function<void(const SaveId&, const absl::Status&)> failed;
    // No other node counts any longer on this node's memory for a save that becomes no checkpoint. Runs once,
    // before or after the hook that reports the end. Until then the memory is used for nothing else.
    std::function<void(const SaveId&)> released;
    // No reader begins to read this checkpoint any more: retention or a save in its place removes it.
    std::function<void(int64_t sequence)> removed;
    // A node has found damage in this checkpoint; unset: an operator has repaired it. Also of checkpoints
    // that this node does not list. `recorded`, unless it is null, runs when this node's root has recorded
    // that, or could not.
    std::function<void(int64_t sequence, const std::optional<storage::v1::Damage>& damage,
                       absl::AnyInvocable<void()> recorded)>
        damage_changed;
    // An operator has pinned the checkpoint, or unpinned it; in a shared run also on another node, and also of
    // checkpoints that this node does not list. On the node that was asked, before the answer of SetPinned.
    std::function<void(const std::string& tag, int64_t sequence, bool pinned)> pin_changed;
    // This node coordinates the run, and an operator has asked on some node to delete the checkpoint. It
    // answers as Delete does. May run twice for one request, when the coordinator has changed.
    std::function<void(const std::string& tag, int64_t sequence, bool force, Callback<absl::Status> deleted)>
        delete_requested;
    // This node coordinates the run, of several nodes, and ranks on one of them resume. It answers as
    // SharedUploads::BringBack does; with CANCELLED if it coordinates no longer. May run twice for one request.
    std::function<void(const SharedUploads::Restore&,
                       Callback<absl::StatusOr<SharedUploads::Newest>> brought)>
        restore_requested;
    // The run has a checkpoint that this node had no part in, or this node may write in the root from now on
    // what a coordinator writes: look at the root again.
    std::function<void()> root_changed;
    // No save with a higher sequence is a checkpoint, for all that this node knows, and its ranks keep these
    // checkpoints; unset: they have not named that, so all. Before or after the save's kCommitted.
    std::function<void(int64_t sequence, const std::optional<storage::v1::RetentionPolicy>&)>
        newest_committed;
    // The value of coordinates() has changed.
    std::function<void()> leadership_changed;
    // Right after that: this node has stepped down as the coordinator, because its file system has not
    // answered for so long. Another node takes its place.
    std::function<void(Duration silence)> stepped_down;
    // For the log: the coordinator of the run, from now on. Once for each term that this node learns of. May
    // be null.
    std::function<void(const std::string& node, int64_t term)> coordinator_changed;
    // What an operator may want to read in the log.
    std::function<void(const std::string& message)> noticed;
    // This node's registration was lost. Until it has another one, it asks the ledger nothing and learns of
    // no decision: what is admitted and not sealed here is lost (`failed` follows for each such save).
    std::function<void(const absl::Status&)> lost;
  };

  virtual ~Authority() = default;

  // Once, when the root is open, before anything else. No hook runs before.
  virtual void Start(Hooks hooks) = 0;
  virtual void OnTick() = 0;  // Several times a second.
  // For messages: what has to answer before this run continues.
  virtual std::string name() const = 0;
  // Whether several nodes may take part: a launch may have ranks on each of them, and each commits
  // checkpoints of which the others learn later.
  virtual bool may_span_nodes() const = 0;
  // Whether this node coordinates the run.
  virtual bool coordinates() const = 0;
  // Of this run, once the root is open. Its Admit is for Begin alone. Null: the engine makes one from the run
  // record in the root.
  virtual Ledger* ledger() = 0;
  // What all nodes know of the run's uploads. Null: the run record has it.
  virtual SharedUploads* uploads() = 0;
  // Whether this node has no use for the run. While it has none, it gives up coordinating when nothing is
  // under way: a node that uses the run coordinates it, or none does. Cheap if nothing changes.
  virtual void SetIdle(bool idle) = 0;
  // Whether no other node waits for this run if it is closed now: this one neither coordinates nor asks for
  // that, and the others do not count it as a reader of a checkpoint.
  virtual bool may_close() const = 0;

  // ---- saves; for shared runs see daemon/cluster/node/shared_saves.h

  // A rank of this node begins the save; `changed` answers with its sequence, or `failed`. `ranks`: those of
  // all nodes that have something to save, ascending; empty: all. The save is between their nodes. One that
  // is not admitted at the deadline ends. No-op if it has begun before.
  virtual void Begin(const SaveId& save, Instant admission_deadline, const std::vector<int>& ranks) = 0;
  // For saves that have begun and not ended; else no-ops.
  // Before its admission the save waits at most this long for an answer of the ledger or, if this node
  // coordinates, of its file system; then it ends with SKIPPED. Waits for room and for ranks do not count.
  virtual void SkipAfter(const SaveId& save, Duration silence) = 0;
  // This node has the memory for its parts, and promises it. `retention`: which checkpoints its ranks keep
  // after the commit; unset: none of them names that. The save ends if another node names another policy.
  virtual void Accept(const SaveId& save, const std::optional<storage::v1::RetentionPolicy>& retention) = 0;
  // All ranks of this node have sealed.
  virtual void Sealed(const SaveId& save) = 0;
  // This node has no room, its part has failed, or somebody has aborted the save: that ends it on all nodes,
  // unless it is being published.
  virtual void Fail(const SaveId& save, const absl::Status& why) = 0;
  // This node's part is durable, with this answer of FinishPart. The save is published when the parts of all
  // nodes are.
  virtual void Durable(const SaveId& save, const std::string& digest) = 0;

  // How a save has ended that an earlier daemon of this node had taken part in: kCommitted, kEnded or kUnknown,
  // as soon as it has. Without a deadline; a registration that is lost meanwhile makes it later. nullopt: the
  // authority has nothing of the save (on one node: beyond the record of the ledger).
  virtual void WhenEnded(const SaveId& save, Callback<std::optional<Decision>> ended) = 0;

  // Makes this node's part of an admitted save, in the directory `inflight` (Decision), or makes that
  // directory. `manifest_bytes`: the room that the manifest may need.
  virtual void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence,
                        const std::string& inflight, int64_t manifest_bytes, Callback<absl::Status> done) = 0;
  // After RootIo::WritePart of all ranks of this node: writes the node's record of them, durably, and answers
  // with its digest; empty where the records of the ranks are enough.
  virtual void FinishPart(InflightId64 id, std::vector<storage::v1::PartRecord> parts,
                          Callback<absl::StatusOr<std::string>> done) = 0;
  // Once, when `changed` reports kCommitted.
  virtual void LoadCheckpoint(const std::string& tag, int64_t sequence,
                              Callback<absl::StatusOr<LoadedCheckpoint>> done) = 0;
  // Whether the next daemon on this root continues the saves of this one: it takes over what is sealed, and
  // publishes what is durable, also a save that has failed and whose files are still there.
  virtual bool next_daemon_continues() const = 0;

  // An operator has looked whether the save of this tag is a checkpoint, whose outcome is unknown
  // (kUnknown) and which holds up all later ones. OUTCOME_PENDING while the coordinator is still finding out;
  // OUTCOME_DIFFERS if it sees something else; UNKNOWN_SAVE if no save of this tag has ended so;
  // LEDGER_UNAVAILABLE if no node coordinates the run. A second call answers as the first.
  struct Settled {
    int64_t sequence = 0;
    bool is_checkpoint = false;
  };
  virtual void SettleSave(const std::string& tag, bool is_checkpoint,
                          Callback<absl::StatusOr<Settled>> done) = 0;

  // ---- damage

  // A reader on this node has found it, with the tag, the sequence and the time. From OK on no attempt
  // resumes from the checkpoint, on any node; `damage_changed` runs on all nodes, and on this one before the
  // answer. BEING_REMOVED: nothing is marked, because the reader may have seen a removal. After
  // LEDGER_UNAVAILABLE nothing is marked, either, as far as this node knows.
  virtual void MarkDamaged(const storage::v1::Damage& damage, Callback<absl::Status> marked) = 0;
  // The checkpoint has been repaired. Likewise.
  virtual void ClearDamage(int64_t sequence, Callback<absl::Status> cleared) = 0;

  // ---- what operators ask

  // The coordinator deletes the checkpoint (Hooks::delete_requested), unless something keeps it: then the
  // error says what. OK: it is gone from its tag, durably, or will be for sure. LEDGER_UNAVAILABLE if no node
  // coordinates the run, or if this one has lost its registration: then it is deleted, or not.
  virtual void Delete(const std::string& tag, int64_t sequence, bool force,
                      Callback<absl::Status> deleted) = 0;

  // From OK on no node removes a pinned checkpoint, or replaces it. Durable. BEING_REMOVED: its removal was
  // decided before, and it is not pinned. After LEDGER_UNAVAILABLE it is, or is not.
  virtual void SetPinned(const std::string& tag, int64_t sequence, bool pinned,
                         Callback<absl::Status> set) = 0;

  // ---- resume
  //
  // The ledger answers DecideResume and AgreeResume with CHECKPOINT_DAMAGED if another node has marked the
  // checkpoint; `damage_changed` reports that mark before the answer or after it.

  // Answers when no save that ranks of other nodes have begun in an earlier attempt can become a checkpoint
  // any more: whether the root may hold checkpoints of theirs that this node does not list yet, so that it
  // has to be scanned before the attempt decides what it resumes from. The caller waits for its own saves.
  virtual void WhenSettled(int64_t attempt, Callback<absl::StatusOr<bool>> settled) = 0;
  // All ranks of this node have read their part of what the attempt resumes from, or, not OK, one of them
  // could not. Answers when the ranks of all nodes have, and the ledger has recorded that; with the error
  // as soon as a node could not; DEADLINE_EXCEEDED names the nodes that have not answered. A call whose
  // answer is outstanding is answered with `mine` of the next one, ABORTED if that is OK; except that an
  // agreement which is being recorded, where no other node takes part in it, is no longer taken back.
  virtual void FinishResume(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant deadline,
                            Callback<absl::Status> finished) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_AUTHORITY_H_
