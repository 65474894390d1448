// The ledger of a run that several nodes share: makes an EtcdLedger for each registration of this node.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_NODES_LEDGER_H_
#define CKPTD_DAEMON_CLUSTER_NODE_NODES_LEDGER_H_

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/cluster/node/ledger_calls.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/run/etcd_ledger.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"
#include "storage/format/retention_record.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// A request that etcd does not answer is repeated for `patience`, and then answered with LEDGER_UNAVAILABLE.
// After a new registration all live processes that have joined before join again.
//
// The daemon keeps in memory how saves have ended, and the retention policy in force. After a restart etcd
// has the ends of saves and the policy of the newest checkpoint.
class NodesLedger : public Ledger {
 public:
  struct Options {
    std::string cluster_prefix;  // Of all keys of ckptd in this etcd, with the slash at its end.
    std::string run_prefix;      // Of the run's keys, likewise.
    std::string run_id;          // The id in the root's file.
    std::string path;            // Of the root, as the processes of the launch name it; also for messages.
    Duration patience = std::chrono::seconds(30);
    LedgerCalls::WhyUnregistered why_unregistered = nullptr;
    // Whether the run's owner may have more keys in etcd. Null: no limit.
    std::function<absl::Status()> check_use = nullptr;
    // Sets the policy in the place of those of the saves, for all nodes, as SettingKeys::SetRetention.
    std::function<void(const std::optional<storage::v1::RetentionPolicy>&, Answer<absl::Status>)>
        set_retention = nullptr;
    // As UploadKeys::SetPolicy. Null: nothing is uploaded.
    std::function<void(int64_t attempt, const storage::v1::UploadRecord& policy, Answer<absl::Status>)>
        set_upload_policy = nullptr;
    // A process of this node has joined the attempt. May be null.
    std::function<void(int64_t attempt, int world_size)> joined = nullptr;
  };
  // `etcd` and `clock` must outlive it.
  NodesLedger(Etcd* etcd, Clock* clock, Options options);

  // The present registration; null: none.
  void SetNode(const NodeIdentity* node);
  void OnTick();

  // LIMIT_EXCEEDED if the run's owner may have no more keys in etcd. ROOT_NOT_SHARED if the nodes of the
  // launch have found different runs under this path. OK: all nodes know what the launch uploads.
  void Join(const JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) override;
  // Always empty: only etcd knows the processes of other nodes, and Join refuses or fences them.
  std::string RunningBeside(const std::string&) const override { return ""; }
  void ProcessEnded(const std::string& instance) override;
  void Activate(int64_t attempt, Answer<absl::Status> answer) override;
  void WatchActiveAttempt(std::function<void(int64_t attempt)> changed) override;
  void DecideResume(int64_t attempt, const ResumeChoice& newest,
                    Answer<absl::StatusOr<ResumeChoice>> answer) override;
  void DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer) override;
  void RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) override;
  void AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) override;

  // Not called: NodesRun decides these.
  void Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) override;
  // No-op: NodesRun raises the last sequence to the highest in the root, with each registration and scan.
  void RaiseSequence(int64_t) override {}
  // No-op, for the same reason.
  void RaiseAttempt(int64_t) override {}
  // SHARED_ROOT_UNSUPPORTED.
  void AdmitAdopted(int64_t above, int64_t below, int64_t more,
                    Answer<absl::StatusOr<int64_t>> answer) override;

  // Repeated until etcd answers. Activate waits for that answer: no save of this node may be committed before
  // the coordinator can know that retention must leave other checkpoints alone.
  void ResumeFailed(int64_t attempt, int64_t sequence) override;
  // The next DecidedResume reports this to etcd and sets record().retained_through() from etcd's answer,
  // before it answers itself.
  void Committed(int64_t attempt) override { committed_.insert(attempt); }
  void RecordOutcome(const storage::v1::Outcome& outcome, Answer<absl::Status> recorded) override;
  void WriteHistory(Answer<absl::Status> written) override { written(absl::OkStatus()); }
  void SetRetention(const storage::v1::RetentionPolicy& in_force,
                    const std::vector<storage::v1::RetentionPolicy>& next) override;
  void SetRetentionOverride(const std::optional<storage::v1::RetentionPolicy>& policy,
                            Answer<absl::Status> set) override {
    options_.set_retention(policy, std::move(set));
  }
  // An operator has set the policy, on any node.
  void OnRetentionOverride(const std::optional<storage::v1::RetentionPolicy>& policy) {
    StoreRetentionOverride(policy, &record_);
  }
  void SetUploads(const storage::v1::UploadRecord& uploads) override { *record_.mutable_uploads() = uploads; }
  const storage::v1::RunRecord& record() const override { return record_; }

 private:
  struct PendingJoin {
    JoinSpec spec;
    Answer<absl::StatusOr<int64_t>> answer;
  };
  struct Activation {
    int64_t attempt = 0;
    Instant deadline;
    Answer<absl::Status> answer;
  };
  // The joins of one launch. Those that come while the launch's root is compared wait for the next
  // comparison.
  struct Claims {
    bool under_way = false;
    std::vector<PendingJoin> waiting;
  };
  void JoinAgain(const JoinSpec& spec);
  void ClaimAndJoin(const JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer);
  void Claim(const std::string& launch_id);
  void Claimed(const std::string& launch_id, std::vector<PendingJoin> joins, const absl::Status& claimed);
  void Joined(const JoinSpec& spec, int64_t attempt);
  void AskDecided(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer);
  storage::v1::Launch& LaunchOf(int64_t attempt);
  void RememberResume(int64_t attempt, const ResumeChoice& choice);
  template <typename T>
  void Ask(const std::string& what, std::function<void(EtcdLedger&, Answer<T>)> call, Answer<T> answer);

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  LedgerCalls calls_;
  std::optional<NodeIdentity> node_;
  std::unique_ptr<EtcdLedger> ledger_;      // Of the present registration.
  std::map<std::string, JoinSpec> living_;  // By instance.
  std::set<std::string> joining_again_;     // Those of `living_` that are joining again.
  std::map<std::string, Claims> claims_;    // By launch; since the last SetNode.
  std::optional<CallbackScope> claiming_;   // Of the present registration.
  std::function<void(int64_t)> active_changed_;
  int64_t active_ = -1;          // The newest known active attempt, which the watcher, if any, was told.
  std::set<int64_t> committed_;  // Attempts whose commits were not reported yet.
  int failures_in_flight_ = 0;   // Calls of ResumeFailed that etcd has not answered.
  std::deque<Activation> waiting_activations_;
  int64_t activated_ = -1;  // The last attempt that this node has activated.
  storage::v1::RunRecord record_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_NODES_LEDGER_H_
