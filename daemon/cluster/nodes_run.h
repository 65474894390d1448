// A run that several nodes share, for the engine of one of them: Authority over etcd.
#ifndef CKPTD_DAEMON_CLUSTER_NODES_RUN_H_
#define CKPTD_DAEMON_CLUSTER_NODES_RUN_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/cluster/checkpoint_list.h"
#include "daemon/cluster/coordinator/evictions.h"
#include "daemon/cluster/coordinator/save_coordinator.h"
#include "daemon/cluster/coordinator_requests.h"
#include "daemon/cluster/node/damage_keys.h"
#include "daemon/cluster/node/ledger_calls.h"
#include "daemon/cluster/node/nodes_ledger.h"
#include "daemon/cluster/node/nodes_resume.h"
#include "daemon/cluster/node/reader_keys.h"
#include "daemon/cluster/node/setting_keys.h"
#include "daemon/cluster/node/upload_keys.h"
#include "daemon/cluster/node/use_counter.h"
#include "daemon/cluster/nodes_root_io.h"
#include "daemon/cluster/root_trial.h"
#include "daemon/cluster/saves_over_registrations.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "daemon/engine/seams/shared_uploads.h"
#include "daemon/etcd/backoff.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/nodes/run_coordinator.h"
#include "daemon/ledger/state/user_use.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Owns the parts of one node that use etcd for one run: the ledger, the node's side of the saves, its readers,
// and, while it leads, the coordinator. They belong to one registration of the node. A new registration makes
// them anew, and continues the saves that have not ended, except those that were admitted and not sealed: these
// are lost. If a part fails, it needs a new registration, too: promises that it has made under the present one
// still count, and a new part would not know them.
class NodesRun : public Authority, public NodesReading, public SharedUploads {
 public:
  struct Options {
    std::string cluster_prefix;  // Of all keys of ckptd in this etcd, with the slash at its end.
    std::string path;            // Of the root, as the processes of a launch name it; also for messages.
    Duration grace = std::chrono::seconds(30);        // For a lost node to come back.
    Duration visibility = std::chrono::seconds(5);    // For how long names in the root may be old.
    Duration patience = std::chrono::seconds(30);     // With etcd, for what has no deadline of its own.
    Duration ended_kept_for = std::chrono::hours(1);  // As OldSaves::Options::kept_for.
    UseBound bound;                                   // On what the runs of one user have in etcd.
    // Runs it on the thread that uses this object. Thread-safe.
    std::function<void(absl::AnyInvocable<void()>)> post;
    // Asks for a new registration of the node, and says why. It comes by SetNode, later.
    std::function<void(const absl::Status& why)> register_anew;
    // For the errors that ranks get while this node is not registered. May be null.
    LedgerCalls::WhyUnregistered why_unregistered;
    // Log problems that an operator must repair, and information. May be null.
    std::function<void(const std::string&message)> log_error = nullptr, log_info = nullptr;
  };
  // `etcd`, `clock` and `files` must outlive it; `files`: the same as of the engine's NodesRootIo.
  NodesRun(Etcd* etcd, Clock* clock, SharedFilesIo* files, Options options);
  ~NodesRun() override;

  // Counts for joins and saves from now on.
  void SetBound(const UseBound& bound) { options_.bound = bound; }

  // Call it whenever the registration changes; null: this node is not registered.
  void SetNode(const NodeIdentity* node);
  // This node is about to end: ends the saves for which its files are not durable with NODE_LOST, on all
  // nodes, which would else wait for its next daemon. `ended` runs when etcd has the end of all of them, or at
  // the deadline; never if this object is destroyed before. Call it once, before Resign: if this node
  // coordinates, it ends them itself.
  void EndSaves(Instant deadline, absl::AnyInvocable<void()> ended) {
    saves_.EndAll(deadline, std::move(ended));
  }
  // Steps down, if this node leads, and is no candidate any more.
  void Resign(absl::AnyInvocable<void(absl::Status)> resigned);
  const std::string& path() const { return options_.path; }
  // The coordinator's node; empty: none, or not known.
  std::string coordinator() const {
    return election_ != nullptr && election_->has_leader() ? coordinator_name_ : "";
  }
  // For messages: what the save waits for, on which nodes. Empty if nothing is known of it.
  std::string WaitsFor(const SaveId& save) const { return saves_.WaitsFor(save, coordinator_.get()); }
  // The saves that have begun here, and whose end is not known.
  std::vector<SaveId> UnfinishedSaves() const { return saves_.Unfinished(); }

  // ---- NodesReading
  void CheckRoot(const SharedFilesIo::RunOfRoot& root, Callback<absl::Status> checked) override;
  void Opened(const SharedFilesIo::RunOfRoot& root) override;
  void ApplyDecided(RootSnapshot* root) override;
  bool IsStale(const RootSnapshot& root, Instant begun) override { return list_.IsStale(root, begun); }
  Instant Now() const override { return clock_->Now(); }
  void CallLater(absl::AnyInvocable<void()> look) override;
  void Post(absl::AnyInvocable<void()> answer) override { options_.post(std::move(answer)); }
  void AcquireReader(int64_t sequence, Callback<absl::Status> acquired) override;
  void ConfirmReader(int64_t sequence, Callback<absl::Status> confirmed) override;
  bool WasRemoved(int64_t sequence) const override { return list_.ended_removals()->contains(sequence); }
  std::function<void()> ReleaserOf(int64_t sequence) override;
  void Evict(const std::string& tag, int64_t sequence, Callback<absl::Status> done) override;

  // ---- Authority
  void Start(Hooks hooks) override;
  void OnTick() override;
  std::string name() const override { return "etcd"; }
  bool may_span_nodes() const override { return true; }
  Ledger* ledger() override { return ledger_.get(); }  // Once the root is open.
  SharedUploads* uploads() override { return this; }
  bool coordinates() const override { return coordinator_ != nullptr && !coordinator_over_; }
  void SetIdle(bool idle) override { idle_ = idle; }
  bool may_close() const override;
  void Begin(const SaveId& save, Instant admission_deadline, const std::vector<int>& ranks) override {
    saves_.Begin(save, admission_deadline, ranks);
  }
  void SkipAfter(const SaveId& save, Duration silence) override { saves_.SkipAfter(save, silence); }
  void Accept(const SaveId& save, const std::optional<storage::v1::RetentionPolicy>& retention) override {
    saves_.Accept(save, retention);
  }
  void Fail(const SaveId& save, const absl::Status& why) override { saves_.Fail(save, why); }
  void Sealed(const SaveId& save) override { saves_.Sealed(save); }
  void Durable(const SaveId& save, const std::string& digest) override { saves_.Durable(save, digest); }
  void WhenEnded(const SaveId& save, Callback<std::optional<Decision>> ended) override {
    saves_.WhenEnded(save, std::move(ended));
  }
  void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence, const std::string& inflight,
                int64_t manifest_bytes, Callback<absl::Status> done) override;
  void FinishPart(InflightId64 id, std::vector<storage::v1::PartRecord> parts,
                  Callback<absl::StatusOr<std::string>> done) override;
  void LoadCheckpoint(const std::string& tag, int64_t sequence,
                      Callback<absl::StatusOr<LoadedCheckpoint>> done) override;
  // The next daemon would have to take over this node's parts with its registration, which it cannot do yet:
  // NODE_LOST ends the save.
  bool next_daemon_continues() const override { return false; }
  void SettleSave(const std::string& tag, bool is_checkpoint,
                  Callback<absl::StatusOr<Settled>> done) override;
  void WhenSettled(int64_t attempt, Callback<absl::StatusOr<bool>> settled) override;
  void FinishResume(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant deadline,
                    Callback<absl::Status> finished) override;
  void MarkDamaged(const storage::v1::Damage& damage, Callback<absl::Status> marked) override {
    damages_->Mark(damage, std::move(marked));
  }
  void ClearDamage(int64_t sequence, Callback<absl::Status> cleared) override {
    damages_->Clear(sequence, std::move(cleared));
  }
  void Delete(const std::string& tag, int64_t sequence, bool force, Callback<absl::Status> deleted) override;
  void SetPinned(const std::string& tag, int64_t sequence, bool pinned, Callback<absl::Status> set) override {
    settings_->SetPinned(tag, sequence, pinned, std::move(set));
  }

  // ---- SharedUploads. Once the root is open.
  Known Shown() const override;
  int64_t version() const override { return uploads_->version(); }
  void Read(absl::AnyInvocable<void(absl::StatusOr<Known>)> read) override;
  void Write(const storage::v1::UploadRecord& record, int64_t counted_through, int64_t sequences_above,
             absl::AnyInvocable<void(absl::Status)> written) override;
  void BringBack(const Restore& restore, absl::AnyInvocable<void(absl::StatusOr<Newest>)> brought) override;
  int64_t Term() const override {
    return coordinator_ != nullptr && coordinator_->term_begun() ? coordinator_->term() : 0;
  }
  std::function<bool()> StillCoordinates() const override;

 private:
  static constexpr Duration kLongestPause = std::chrono::minutes(5);
  // How long one operation of the file system may take before this node steps down: kHang, doubled each time up
  // to kLongestHang, so that a slow file system keeps a coordinator in the end; kHang again when nothing has
  // hung for kLongestHang.
  static constexpr Duration kHang = std::chrono::minutes(1), kLongestHang = std::chrono::hours(1);

  absl::Status WhyUnregistered() const;
  std::string UsesOfOwner() const { return UsesOf(options_.cluster_prefix, root_.uid); }
  absl::Status CheckUse() const;
  absl::Status MayBeginSave() const;
  void OnUnsuitableChanged();
  void BeginRegistration();
  void GoOnWithRegistration();
  ledger::v1::RunRoot RootOf(const SharedFilesIo::RunOfRoot& root) const;
  void EndRegistration();
  void AskForRegistration();
  void BindRoot();
  void RootRefused(const absl::Status& why);
  void OnLeadership(const RunCoordinator::Leadership& leadership);
  void OnLeadershipLost(const absl::Status& why);
  void FollowFileSystem();
  void FollowUse();
  void DropLeadership();
  void EndRemovals();
  void OnPinChanged(const std::string& tag, int64_t sequence, bool pinned);
  void Serve(const CoordinatorRequests::Request& request, CoordinatorRequests::Done done);
  void ServeRestore(const ledger::v1::CoordinatorRequest::Restore& restore, CoordinatorRequests::Done done);
  void NoticeLateness(const std::string& tag, Duration after, bool seen);
  void OnNewestCommitted(const SharedSave& save);
  void ReportNewestCommitted();
  void OnCheckpointKeys(const std::vector<std::string>& keys);
  void ListUnsettled(int64_t attempt, LedgerCalls::Answer<absl::Status> done);
  bool IsUnderWay(int64_t sequence) const;
  void RunDue();

  Etcd* const etcd_;
  Clock* const clock_;
  SharedFilesIo* const files_;
  Options options_;
  Hooks hooks_;
  bool started_ = false;
  std::string prefix_;  // Of the run's keys; empty until the root is open.
  SharedFilesIo::RunOfRoot root_;
  // The highest sequence and term seen in the root, the sequence of its newest checkpoint, and the newest attempt
  // that has saved one.
  int64_t highest_ = 0, highest_term_ = 0, newest_ = 0, highest_attempt_ = 0;
  int64_t of_highest_attempt_ = 0;  // The newest checkpoint of that attempt.
  // newest_ and highest_attempt_ when the root was last compared with the run's root in etcd.
  int64_t bound_through_ = 0, bound_attempt_ = 0;
  std::optional<NodeIdentity> node_;

  // Null until the root is open.
  std::unique_ptr<NodesLedger> ledger_;
  std::unique_ptr<LedgerCalls> calls_;
  std::unique_ptr<NodesResume> resume_;
  std::unique_ptr<ReaderKeys> readers_;
  std::unique_ptr<DamageKeys> damages_;
  std::unique_ptr<SettingKeys> settings_;
  std::unique_ptr<CoordinatorRequests> requests_;
  std::unique_ptr<UploadKeys> uploads_;
  std::unique_ptr<RootTrial> trial_;

  // Of the present registration.
  std::unique_ptr<RunCoordinator> election_;
  std::unique_ptr<EtcdMirror> condemned_;  // The keys of damaged and of removed checkpoints.
  absl::Status over_;                      // Not OK: the error that has ended one of them.
  absl::Status root_error_;                // Not OK: why the run waits.
  std::optional<Instant> bind_again_;      // When to compare the root again, if root_error_ may change.
  std::unique_ptr<EtcdMirror> uses_;       // The keys that all runs of the owner use.
  Instant registered_{};                   // When this node was registered.
  Backoff again_{std::chrono::seconds(1), kLongestPause};  // Between requests for a new registration.

  std::string coordinator_name_;
  int64_t told_term_ = 0;  // The term that hooks_.coordinator_changed was last called with.
  std::unique_ptr<SaveCoordinator> coordinator_;
  std::unique_ptr<Evictions> evictions_;
  std::unique_ptr<UseCounter> counter_;
  bool coordinator_over_ = false;
  // Of this leadership, for other threads: true once it has ended. Null: this node does not lead.
  std::shared_ptr<std::atomic<bool>> term_over_;
  Duration hang_ = kHang;
  std::optional<Instant> hangs_since_;  // Since when; while this node is no candidate.
  bool idle_ = false;                   // The engine has no use for the run.
  Instant last_hang_{};                 // When the last hang was over.

  SavesOverRegistrations saves_;
  CheckpointList list_;
  std::vector<std::pair<Instant, absl::AnyInvocable<void()>>> later_;  // Work, with its due time.

  std::vector<HalfRemoved> half_removed_;
  // The newest committed save that was not reported yet, and the policy of its ranks.
  std::optional<std::pair<int64_t, std::optional<storage::v1::RetentionPolicy>>> newest_committed_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODES_RUN_H_
