// The saves of one node in a run that several nodes share, over all registrations of that node.
#ifndef CKPTD_DAEMON_CLUSTER_SAVES_OVER_REGISTRATIONS_H_
#define CKPTD_DAEMON_CLUSTER_SAVES_OVER_REGISTRATIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/cluster/coordinator/save_coordinator.h"
#include "daemon/cluster/node/shared_saves.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/save_id.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Remembers the engine's requests for each save that has begun here and has not ended, and repeats them in each
// new registration. A save that was admitted and not sealed when a registration ended is lost. Used on the
// engine's thread.
class SavesOverRegistrations {
 public:
  struct Options {
    std::string run;  // For messages.
    // Runs the work later, on the thread that uses the object.
    std::function<void(absl::AnyInvocable<void()>)> post;
    std::function<absl::Status()> why_unregistered;  // OK: not known.
    std::function<absl::Status()> may_begin;         // Not OK: no save may begin.
  };
  struct Hooks {
    // As those of Authority::Hooks.
    std::function<void(const SaveId&, const Authority::Decision&)> changed;
    std::function<void(const SaveId&, const absl::Status&)> failed;
    std::function<void(const SaveId&)> released;
    // A save of this node is a checkpoint. Runs before `changed`.
    std::function<void(const SharedSave&)> committed;
    // As those of SharedSaves::Hooks.
    std::function<void(const SharedSave&)> other_committed, newest_committed;
    std::function<void(const absl::Status&)> lost;
    // The coordinator has found a checkpoint that was moved into the root.
    std::function<void()> moved_in;
  };
  // `etcd` and `clock` must outlive it.
  SavesOverRegistrations(Etcd* etcd, Clock* clock, Options options, Hooks hooks)
      : etcd_(etcd), clock_(clock), options_(std::move(options)), hooks_(std::move(hooks)) {}

  // ---- registrations

  // `prefix`: of the run's keys, with the slash at its end.
  void BeginRegistration(const std::string& prefix, const NodeIdentity& node);
  void EndRegistration() { saves_ = nullptr; }
  bool registered() const { return saves_ != nullptr; }
  // Fails the saves that are lost with the last registration: a rank must not copy into a save that cannot
  // become a checkpoint any more, however long the next registration takes.
  void FailUnsealed();
  // Call it several times a second. `coordinator`: null if this node does not coordinate.
  void OnTick(const SaveCoordinator* coordinator);

  // ---- requests of the engine, as those of Authority

  void Begin(const SaveId& save, Instant admission_deadline, const std::vector<int>& ranks);
  void SkipAfter(const SaveId& save, Duration silence);
  void Accept(const SaveId& save, const std::optional<storage::v1::RetentionPolicy>& retention);
  void Fail(const SaveId& save, const absl::Status& why);
  void Sealed(const SaveId& save);
  void Durable(const SaveId& save, const std::string& digest);
  // Ends those that are not durable here, for all nodes.
  void FailUndurable(const absl::Status& why);
  void WhenEnded(const SaveId& save, Callback<std::optional<Authority::Decision>> ended) {
    awaited_ends_.push_back({save, std::move(ended)});
  }

  // ---- queries, and the end of this node

  // As NodesRun::EndSaves.
  void EndAll(Instant deadline, absl::AnyInvocable<void()> ended);
  // As those of NodesRun. `coordinator` as that of OnTick.
  std::string WaitsFor(const SaveId& save, const SaveCoordinator* coordinator) const;
  std::vector<SaveId> Unfinished() const;
  // The state of a save, as etcd has shown it to this registration; nullopt: not yet.
  std::optional<ledger::v1::SaveState> Shown(int64_t sequence) const {
    return saves_ == nullptr ? std::nullopt : saves_->Shown(sequence);
  }
  // As SharedSaves::revision; 0 without a registration.
  int64_t revision() const { return saves_ == nullptr ? 0 : saves_->revision(); }

 private:
  struct Saving {
    Instant deadline;
    std::vector<int> ranks;              // As those of Begin.
    std::optional<Duration> skip_after;  // As that of SkipAfter.
    std::optional<Instant> unregistered_since;
    bool accepted = false, sealed = false;
    std::optional<storage::v1::RetentionPolicy> retention;  // As that of Accept.
    bool admitted = false;                                  // The engine was told so.
    bool told_sealed = false;
    absl::Status given_up;  // Not OK: the error with which the engine was told that it fails.
    bool released = false;  // The engine was told that no node counts on its memory.
    std::string digest;     // Not empty: durable.
    std::optional<absl::Status> failed;
  };

  struct AwaitedEnd {
    SaveId save;
    Callback<std::optional<Authority::Decision>> ended;
  };

  void Refuse(const SaveId& save, const absl::Status& why);
  void RepeatFailure(const SaveId& save);
  void Continue(const SaveId& save, const Saving& saving);
  SharedSaves::Hooks SavesHooks();
  void OnChanged(const SaveId& save, const SharedSave& state);
  void OnFailed(const SaveId& save, const absl::Status& why);
  void OnReleased(const SaveId& save);
  void ExpireWithoutRegistration();
  void SkipWhereFilesHang(const SaveCoordinator& coordinator);
  void FollowEndOfAll();
  void AnswerAwaitedEnds();

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  const Hooks hooks_;
  std::string node_name_;               // This node's; empty until it has been registered.
  std::unique_ptr<SharedSaves> saves_;  // Of the present registration; null: there is none.
  std::map<SaveId, Saving> savings_;
  std::vector<AwaitedEnd> awaited_ends_;  // Of WhenEnded, not answered.
  absl::AnyInvocable<void()> all_ended_;  // Of EndAll; null: it was not called, or was answered.
  Instant end_all_by_{};
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_SAVES_OVER_REGISTRATIONS_H_
