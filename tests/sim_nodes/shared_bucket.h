// The bucket of the run, and the UploadIo through which one daemon uses it.
//
// Each request of a call is sent when the daemon is not paused, and if its node may still go on then. When a daemon
// dies, its call in flight has stopped at any point.
#ifndef CKPTD_TESTS_SIM_NODES_SHARED_BUCKET_H_
#define CKPTD_TESTS_SIM_NODES_SHARED_BUCKET_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/seams/upload_io.h"
#include "storage/base/callback_scope.h"
#include "tests/sim/bucket_model.h"
#include "tests/sim/schedule.h"
#include "tests/sim_nodes/oracle.h"
#include "tests/sim_nodes/shared_disk.h"
#include "tests/testing/pausable_etcd.h"

namespace ckptd::sim_nodes {

class SharedBucket {
 public:
  using Trace = std::function<void(const std::string& what)>;

  SharedBucket(SharedDisk* disk, const sim::UploadPlan& plan, uint64_t seed, sim::Schedule* schedule,
               Oracle* oracle, Trace trace)
      : disk_(*disk),
        plan_(plan),
        model_(plan, seed, [oracle](const std::string& what) { oracle->Violated(what); }),
        schedule_(*schedule),
        oracle_(*oracle),
        trace_(std::move(trace)) {}

  sim::BucketModel& model() { return model_; }
  // Etcd may have lost what it knew of the checkpoints up to this sequence.
  void EtcdRestored(int64_t newest) {
    forgotten_through_ = newest;
    model_.Forget();
  }
  // What etcd has forgotten counts again with the next resume that asks the bucket. Without one, or if it is half done, it
  // may be in the way of later uploads for ever.
  bool MayStandStill() const { return forgotten_through_ && (!plan_.restore || model_.ForgotHalfDone()); }
  // Retention has begun to remove this checkpoint from the root. A violation if it was to be uploaded, and was not.
  void OnEvicted(const SharedDisk::Checkpoint& evicted);
  // Call it when no call is in flight: describes what is left and should not be, and what is missing.
  std::string Leftovers() const;

 private:
  friend class SimBucketIo;
  // Each good checkpoint that the run has saved since etcd knows of it.
  bool IsToBeUploaded(const SharedDisk::Checkpoint& checkpoint) const;
  void Claim(const std::string& node, const storage::v1::UploadedCheckpoint& checkpoint);
  absl::StatusOr<int64_t> Upload(const std::string& node, const storage::v1::UploadedCheckpoint& checkpoint);
  absl::Status Fetch(const std::string& node, const std::string& tag, int64_t term);

  SharedDisk& disk_;
  const sim::UploadPlan plan_;
  sim::BucketModel model_;
  sim::Schedule& schedule_;
  Oracle& oracle_;
  const Trace trace_;
  std::optional<int64_t> forgotten_through_;
  std::map<int64_t, SharedDisk::CheckpointPtr> copies_;  // By sequence: what was uploaded.
};

class SimBucketIo : public UploadIo {
 public:
  // All must outlive it.
  SimBucketIo(SharedBucket* bucket, Pause* pause, std::string node)
      : bucket_(*bucket), pause_(*pause), node_(std::move(node)) {}
  ~SimBucketIo() override;

  absl::Status Check(const std::string&) const override { return absl::OkStatus(); }
  void Upload(std::string url, storage::v1::UploadedCheckpoint checkpoint, MayGoOn may_go_on,
              std::shared_ptr<std::atomic<int64_t>> arrived,
              absl::AnyInvocable<void(absl::StatusOr<int64_t>)> done) override;
  void Remove(std::string url, storage::v1::UploadedCheckpoint checkpoint, MayGoOn may_go_on,
              absl::AnyInvocable<void(absl::Status)> done) override;
  void List(std::string url, absl::AnyInvocable<void(absl::StatusOr<Contents>)> done) override;
  void Fetch(std::string url, std::string tag, Term term, std::shared_ptr<std::atomic<int64_t>> arrived,
             absl::AnyInvocable<void(absl::Status)> done) override;

 private:
  struct Request {
    MayGoOn may_go_on;
    absl::AnyInvocable<absl::AnyInvocable<void()>()> work;  // Returns what answers it.
    absl::AnyInvocable<void(absl::Status)> refuse;
  };
  void Later(Duration delay, absl::AnyInvocable<void()> event);
  // Sends a request that changes the bucket after a while. The daemon has one call under way, and perhaps others of
  // earlier terms, which send nothing more.
  void Send(Duration delay, Request request);

  SharedBucket& bucket_;
  Pause& pause_;
  const std::string node_;
  std::shared_ptr<Request> sending_;  // The last one; null: it was sent.
  CallbackScope scope_;
};

}  // namespace ckptd::sim_nodes
#endif  // CKPTD_TESTS_SIM_NODES_SHARED_BUCKET_H_
