// This node's side of saves that span nodes: reports the node's progress to etcd, and the state of each save
// to the node.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_SHARED_SAVES_H_
#define CKPTD_DAEMON_CLUSTER_NODE_SHARED_SAVES_H_

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/cluster/node/node_save.h"
#include "daemon/cluster/node/voters.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/save/change_save.h"
#include "daemon/ledger/save/save_admission.h"
#include "daemon/ledger/save/save_reports.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// The name of a save, by which the nodes identify it before it has a sequence.
struct SaveName {
  int64_t attempt = 0;
  std::string tag;
  int64_t ordinal = 0;  // Counts the saves of one tag in an attempt; equal on all nodes.

  auto operator<=>(const SaveName&) const = default;
};

// One for each run and registration of this node. Each request to etcd is repeated, with a backoff, until it
// is answered. Used on the engine's thread.
class SharedSaves {
 public:
  // They run in callbacks of Etcd, in OnTick, and in work that was given to Options::post, and must not
  // destroy the object.
  struct Hooks {
    // The save has a sequence, or has reached a later phase; phases may be skipped. COMMITTED and ENDED, with
    // ErrorOf(state.end()), are the last. OPEN: the save will get this sequence, unless this hook runs with
    // another one before ADMITTED.
    std::function<void(const SaveName&, const SharedSave&)> changed;
    // The save will be no checkpoint, because this node takes no part in it: FENCED; LEDGER_UNAVAILABLE if
    // etcd did not answer in time; SKIPPED after SkipAfter. After that only `released` runs for the save.
    std::function<void(const SaveName&, const absl::Status&)> failed;
    // A save that this node has not begun is a checkpoint; may be null.
    std::function<void(const SharedSave&)> other_committed;
    // This checkpoint has the highest sequence of all that etcd shows. Runs after the first listing, and for
    // each later checkpoint. May be null.
    std::function<void(const SharedSave&)> newest_committed;
    // No other node counts on the memory of this node's parts any more. Runs once for each save that ends
    // without a checkpoint, before or after the hook with its end.
    std::function<void(const SaveName&)> released;
    // This object sends no request and runs no hook any more: NODE_REPLACED, or an error of etcd_errors.h
    // except LEDGER_UNAVAILABLE and LEDGER_FULL. Begin the saves again in another object, which finds them in
    // etcd. A save that was admitted and not sealed is lost with the registration.
    std::function<void(const absl::Status&)> lost;
  };
  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;  // For messages.
    // Runs the work later, on the thread that uses the object.
    std::function<void(absl::AnyInvocable<void()>)> post;
    // How long after the deadline of a save this node waits until etcd has its rejection.
    Duration patience = std::chrono::seconds(10);
  };

  // `etcd` and `clock` must outlive it.
  SharedSaves(Etcd* etcd, Clock* clock, Options options, Hooks hooks);

  void Start();
  // A rank of this node begins the save, which proposes it, or finds its present state. A save that is not
  // admitted at the deadline ends: with RANKS_MISSING if this node has accepted it, else with
  // ADMISSION_TIMEOUT. `ranks`: the ranks of all nodes that have something to save, ascending; empty: all
  // ranks. A save for which two nodes name different ranks ends with SAVE_CONFLICT. No-op if this node has
  // begun it before. `was_known`: an earlier registration of this node knew it as admitted. So it is not
  // proposed anew if etcd has forgotten it: it ends with STAGED_LOST, or INDETERMINATE if it is durable here.
  void Begin(const SaveName& name, Instant admission_deadline, std::vector<int> ranks = {},
             bool was_known = false);
  // Begin and Sealed in one, for a save whose parts this node has sealed: after a new registration, or in the
  // daemon that has taken over the parts. `was_known`, and without a deadline: a sealed save is always
  // finished.
  void BeginSealed(const SaveName& name, std::vector<int> ranks = {});

  // As Authority::SkipAfter.
  void SkipAfter(const SaveName& name, Duration silence);

  // The following calls are no-ops for saves that have not begun, have ended or have failed.
  // This node has the memory for its parts, and promises to use it for nothing else until `released`.
  // `retention`: which checkpoints its ranks keep after the commit; unset: none of the ranks names a policy.
  // A save for which two nodes name different policies ends with SAVE_CONFLICT.
  void Accept(const SaveName& name, const std::optional<storage::v1::RetentionPolicy>& retention = {});
  // Before the admission: this node has no room. Later: its parts have failed, or a rank has aborted the
  // save. Ends the save on all nodes, unless its publication was decided before.
  void Fail(const SaveName& name, const absl::Status& why);
  // After ADMITTED: all ranks of this node have sealed their parts.
  void Sealed(const SaveName& name);
  // After Sealed: this node's files and its part record, which has this digest, are durable.
  void Durable(const SaveName& name, const std::string& digest);

  // See NodeSave::WaitsFor. Empty: the save is not known.
  std::string WaitsFor(const SaveName& name) const;
  // The state of the save with this sequence, as etcd has last shown it.
  std::optional<ledger::v1::SaveState> Shown(int64_t sequence) const;
  // Likewise, by its name: also a save that this node has not begun.
  std::optional<SharedSave> ShownAs(const SaveName& name) const;
  // Shown answers with etcd's state at this revision or a later one; 0: etcd has not shown the saves yet.
  int64_t revision() const { return states_.revision(); }
  void OnTick();  // Call it several times a second.

 private:
  using Request = NodeSave::Request;

  NodeSave* Find(const SaveName& name);
  void Ask(const SaveName& name);
  std::optional<SharedSave> Known(const SaveName& name, const NodeSave& part) const;
  std::optional<SharedSave> OpenFor(const SaveName& name, const NodeSave& part) const;
  void TellKnown(const SaveName& name);
  void Send(const SaveName& name, const NodeSave& part, Request request);
  void RepeatFailure(const SaveName& name, const absl::Status& why);
  void BeginAt(const SaveName& name, const NodeSave& part);
  SaveGuess GuessOf(const NodeSave& part) const;
  void CheckRanks(const SaveName& name, const ledger::v1::SaveState& state);
  void OnAnswer(const SaveName& name, Request request, int64_t sequence,
                const absl::StatusOr<VotedSave>& answer);
  void OnError(const SaveName& name, Request request, const absl::Status& error);
  void OnStates(const std::vector<std::string>& keys);
  void OnState(const SharedSave& save);
  void OnActive();
  void Update(const SaveName& name, const SharedSave& save);
  void LosePrepared(const SaveName& name);
  void OnForgotten(const SaveName& name);
  void Forget(const SaveName& name);
  void CheckSilence(const SaveName& name, NodeSave& part);
  void CheckDeadline(const SaveName& name, NodeSave& part);
  void GiveUp(const SaveName& name, const absl::Status& why);
  void Release(const SaveName& name, NodeSave& part);
  void OnLost(const absl::Status& why);

  Clock* const clock_;
  const Options options_;
  const LedgerKeys keys_;
  const Hooks hooks_;
  SaveAdmission admission_;
  SaveReports reports_;
  EtcdMirror states_, active_;
  Voters voters_;
  bool lost_ = false;
  std::map<SaveName, NodeSave> parts_;     // Of saves that have not ended.
  std::map<int64_t, SaveName> names_;      // Of these saves, by sequence, if known.
  std::map<SaveName, int64_t> sequences_;  // Of all saves that etcd shows.
  int64_t newest_committed_ = 0;           // The highest sequence of a checkpoint; 0: none.
  int64_t open_ = 0;                       // The last save that is OPEN, or was; 0: none.
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_SHARED_SAVES_H_
