// This node's side of the saves that span nodes: it reports to etcd what the node has done, and tells the
// node the state of each save.
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

// The name of a save, by which the nodes know it before it has a sequence.
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
  // They run in calls of Etcd, of OnTick and of Options::post, and must not destroy the object.
  struct Hooks {
    // The save is known, or has reached a later phase; some phases may be left out. COMMITTED and ENDED, with
    // ErrorOf(state.end()), are the last. OPEN: the save will get this sequence, unless another one follows
    // before it is ADMITTED.
    std::function<void(const SaveName&, const SharedSave&)> changed;
    // The save will be no checkpoint, because this node takes no part in it: FENCED, or LEDGER_UNAVAILABLE
    // if etcd did not answer in time. No other hook but `released` runs for it after that.
    std::function<void(const SaveName&, const absl::Status&)> failed;
    // A save that this node has not begun is a checkpoint; may be null.
    std::function<void(const SharedSave&)> other_committed;
    // Of all saves that etcd shows as checkpoints, this one has the highest sequence: when they have been
    // listed, and then with each later one. May be null.
    std::function<void(const SharedSave&)> newest_committed;
    // No other node counts on the memory of this node's parts any more. Runs once for each save that ends
    // without a checkpoint, before or after the hook that tells its end.
    std::function<void(const SaveName&)> released;
    // This object asks etcd nothing more and runs no hook any more: NODE_REPLACED, and errors of
    // etcd_errors.h but for LEDGER_UNAVAILABLE and LEDGER_FULL. Begin the saves again in another object,
    // which finds them. A save that was admitted and not sealed is lost with its registration.
    std::function<void(const absl::Status&)> lost;
  };
  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;  // For messages.
    // Runs it later, on the thread that uses the object.
    std::function<void(absl::AnyInvocable<void()>)> post;
    // How long after the deadline of a save this node waits until etcd has its rejection.
    Duration patience = std::chrono::seconds(10);
  };

  // `etcd` and `clock` must outlive it.
  SharedSaves(Etcd* etcd, Clock* clock, Options options, Hooks hooks);

  void Start();
  // A rank of this node begins the save, which is proposed, or found in its present state. A save that is not
  // admitted at the deadline ends: RANKS_MISSING if this node has accepted it, ADMISSION_TIMEOUT if it has
  // not. `ranks`: those of all nodes that have something to save, ascending; empty: all. SAVE_CONFLICT ends a
  // save for which two nodes name different ranks. No-op if it has begun before.
  void Begin(const SaveName& name, Instant admission_deadline, std::vector<int> ranks = {});
  // Begin and Sealed in one, for a save whose parts this node has sealed: after a new registration, or by the
  // daemon that has taken the parts over. It has no deadline, because what is sealed is finished.
  void BeginSealed(const SaveName& name, std::vector<int> ranks = {});

  // As SharedRun::SkipAfter.
  void SkipAfter(const SaveName& name, Duration silence);

  // These are no-ops for saves that have not begun, have ended or have failed.
  // This node has the memory for its parts, and promises it: until `released` it uses that for nothing else.
  // `retention`: which checkpoints its ranks keep after the commit; unset: none of them names that.
  // SAVE_CONFLICT ends a save for which two nodes name different ones.
  void Accept(const SaveName& name, const std::optional<storage::v1::RetentionPolicy>& retention = {});
  // Before the admission: this node has no room. Later: its parts have failed, or a rank has aborted the
  // save. That ends it on all nodes, unless its publication was decided before.
  void Fail(const SaveName& name, const absl::Status& why);
  // After ADMITTED: all ranks of this node have sealed their parts.
  void Sealed(const SaveName& name);
  // After Sealed: this node's files and its part record, which has this digest, are durable.
  void Durable(const SaveName& name, const std::string& digest);

  // For error messages, as NodeSave::WaitsFor. Empty: the save is not known.
  std::string WaitsFor(const SaveName& name) const;
  // The state of the save with this sequence, as etcd has last shown it.
  std::optional<ledger::v1::SaveState> Shown(int64_t sequence) const;
  void OnTick();  // Several times a second.

 private:
  using Request = NodeSave::Request;

  NodeSave* Find(const SaveName& name);
  void Ask(const SaveName& name);
  std::optional<SharedSave> Known(const SaveName& name, const NodeSave& part) const;
  std::optional<SharedSave> OpenFor(const SaveName& name, const NodeSave& part) const;
  void TellKnown(const SaveName& name);
  void Send(const SaveName& name, const NodeSave& part, Request request);
  void TellAgain(const SaveName& name, const absl::Status& why);
  void BeginAt(const SaveName& name, const NodeSave& part);
  SaveGuess GuessOf(const NodeSave& part) const;
  void CheckRanks(const SaveName& name, const ledger::v1::SaveState& state);
  void OnAnswer(const SaveName& name, Request request, int64_t sequence,
                const absl::StatusOr<VotedSave>& answer);
  void OnError(const SaveName& name, Request request, const absl::Status& error);
  void OnStates(const std::vector<std::string>& keys);
  void OnState(const SharedSave& save);
  void OnActive();
  void Saw(const SaveName& name, const SharedSave& save);
  void PassOver(const SaveName& name);
  void Forget(const SaveName& name);
  void CheckSilence(const SaveName& name, NodeSave& part);
  void CheckDeadline(const SaveName& name, NodeSave& part);
  void GiveUp(const SaveName& name, const absl::Status& why);
  void Release(const SaveName& name, NodeSave& part);
  void Lose(const absl::Status& why);

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
  std::map<int64_t, SaveName> names_;      // Of those, by sequence, if that is known.
  std::map<SaveName, int64_t> sequences_;  // Of all saves that etcd shows.
  int64_t newest_committed_ = 0;           // The last of them that is a checkpoint; 0: none.
  int64_t open_ = 0;                       // The last save that is OPEN, or was; 0: none.
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_SHARED_SAVES_H_
