// This node's side of the saves that span nodes: it says to etcd what the node has done, and to the node what
// has become of each save.
#ifndef CKPTD_DAEMON_CLUSTER_SHARED_SAVES_H_
#define CKPTD_DAEMON_CLUSTER_SHARED_SAVES_H_

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
#include "daemon/cluster/node_save.h"
#include "daemon/cluster/voters.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/change_save.h"
#include "daemon/ledger/keys.h"
#include "daemon/ledger/node_identity.h"
#include "daemon/ledger/save_admission.h"
#include "daemon/ledger/save_reports.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// What the nodes call a save before they know its sequence.
struct SaveName {
  int64_t attempt = 0;
  std::string tag;
  int64_t ordinal = 0;  // Counts the saves of one tag in an attempt; equal on all nodes.

  auto operator<=>(const SaveName&) const = default;
};

// One for each run and registration of this node. What is asked of etcd is asked again, with a backoff, until
// it is answered. Used on one thread, the engine's.
class SharedSaves {
 public:
  // They run in calls of Etcd, of OnTick and of Options::post, and must not destroy the object.
  struct Hooks {
    // The save is known, or has reached a later phase; some phases may be left out. COMMITTED is the last;
    // so is ENDED, with ErrorOf(state.end()). OPEN: it is to get this sequence; it may be told to have
    // another one before it is ADMITTED.
    std::function<void(const SaveName&, const SharedSave&)> changed;
    // The save will be no checkpoint, for this node takes no part in it: FENCED, and LEDGER_UNAVAILABLE if
    // that could not be said in time. Nothing is said of it after that, but `released`.
    std::function<void(const SaveName&, const absl::Status&)> failed;
    // A save that this node has not begun is a checkpoint; may be null.
    std::function<void(const SharedSave&)> other_committed;
    // Of all saves that etcd shows as checkpoints, this one has the highest sequence: when they have been
    // listed, and then with each later one. May be null.
    std::function<void(const SharedSave&)> newest_committed;
    // No other node counts on the memory of this node's parts any more. Once for each save that ends without
    // a checkpoint, before or after its end is heard of.
    std::function<void(const SaveName&)> released;
    // Nothing is asked and nothing is heard any more: NODE_REPLACED, and errors of etcd_errors.h but for
    // LEDGER_UNAVAILABLE and LEDGER_FULL. Begin the saves again in another object, which finds them. A save
    // that was admitted and not sealed is lost if the registration is another one.
    std::function<void(const absl::Status&)> lost;
  };
  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;  // For messages.
    // Runs it later, on the thread that uses the object.
    std::function<void(absl::AnyInvocable<void()>)> post;
    // After the deadline of a save, how long this node waits until the others know its no.
    Duration patience = std::chrono::seconds(10);
  };

  // `etcd` and `clock` must outlive it.
  SharedSaves(Etcd* etcd, Clock* clock, Options options, Hooks hooks);

  void Start();
  // A rank of this node begins the save: it is proposed, or found as it is by now. A save that is not
  // admitted at the deadline ends: RANKS_MISSING if this node has accepted it, ADMISSION_TIMEOUT if it has
  // not. `ranks`: those of all nodes that have something to save, ascending; empty: all. SAVE_CONFLICT ends a
  // save for which two nodes name different ranks. No-op if it has begun before.
  void Begin(const SaveName& name, Instant admission_deadline, std::vector<int> ranks = {});
  // The same for a save whose parts this node has sealed, and Sealed as well: after a new registration, or by
  // the daemon that has taken the parts over. It has no deadline, for what is sealed is finished.
  void BeginSealed(const SaveName& name, std::vector<int> ranks = {});

  // As SharedRun::SkipAfter.
  void SkipAfter(const SaveName& name, Duration silence);

  // These are no-ops for saves that have not begun, have ended or have failed.
  // This node has the memory for its parts. It is promised from now on: until `released`, it is not used for
  // anything else.
  // `retention`: which checkpoints its ranks keep after the commit; unset: none of them names that.
  // SAVE_CONFLICT ends a save for which two nodes name different ones.
  void Accept(const SaveName& name, const std::optional<storage::v1::RetentionPolicy>& retention = {});
  // Before the admission: this node has no room. Later: its parts come to nothing. The save ends by that on
  // all nodes, unless Durable was called before: then it may still become a checkpoint.
  void Fail(const SaveName& name, const absl::Status& why);
  // After ADMITTED: all ranks of this node have sealed their parts.
  void Sealed(const SaveName& name);
  // After Sealed: this node's files and its part record, which has this digest, are durable.
  void Durable(const SaveName& name, const std::string& digest);

  // For error messages, as NodeSave::WaitsFor. Empty if nothing is known of the save.
  std::string WaitsFor(const SaveName& name) const;
  // The save of this sequence, for all that is known of it here.
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
#endif  // CKPTD_DAEMON_CLUSTER_SHARED_SAVES_H_
