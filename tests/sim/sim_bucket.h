// The bucket of a run, which outlives daemons and the root, and the UploadIo through which a daemon uses it. When a
// daemon dies, its calls in flight have stopped at any point.
#ifndef CKPTD_TESTS_SIM_SIM_BUCKET_H_
#define CKPTD_TESTS_SIM_SIM_BUCKET_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/seams/upload_io.h"
#include "storage/base/callback_scope.h"
#include "tests/sim/bucket_model.h"
#include "tests/sim/oracle.h"
#include "tests/sim/schedule.h"
#include "tests/sim/sim_disk.h"

namespace ckptd::sim {

class SimBucket {
 public:
  SimBucket(std::shared_ptr<SimDisk> disk, const UploadPlan& plan, uint64_t seed, Schedule* schedule,
            Oracle* oracle)
      : disk_(std::move(disk)),
        plan_(plan),
        model_(plan, seed, [oracle](const std::string& what) { oracle->Violated(what); }),
        schedule_(schedule),
        oracle_(oracle) {}
  SimBucket(const SimBucket&) = delete;
  SimBucket& operator=(const SimBucket&) = delete;

  BucketModel& model() { return model_; }
  // Retention has removed this checkpoint from the root. A violation if it was to be uploaded, and was not.
  void OnEvicted(const SimDisk::Generation& evicted, const storage::v1::UploadRecord& record);
  // Call it when no call is in flight: describes what is left and should not be, and what is missing.
  std::string Leftovers() const;

 private:
  friend class SimUploadIo;
  // A rank or a read has found the checkpoint damaged, or an upload would. It need not be uploaded any more.
  bool IsDamaged(const SimDisk::Generation& checkpoint) const;
  // Each checkpoint that the run has saved, and that is good.
  bool IsToBeUploaded(const SimDisk::Generation& checkpoint) const;
  // Null: the root has none at this tag.
  const SimDisk::Generation* SourceOf(const std::string& tag) const;
  void Claim(const storage::v1::UploadedCheckpoint& checkpoint);
  absl::StatusOr<int64_t> Upload(const storage::v1::UploadedCheckpoint& checkpoint);
  absl::Status Fetch(const std::string& tag);

  const std::shared_ptr<SimDisk> disk_;
  const UploadPlan plan_;
  BucketModel model_;
  Schedule* const schedule_;
  Oracle* const oracle_;
  std::map<int64_t, SimDisk::Generation> copies_;  // By sequence: what was uploaded.
};

class SimUploadIo : public UploadIo {
 public:
  explicit SimUploadIo(std::shared_ptr<SimBucket> bucket) : bucket_(std::move(bucket)) {}
  // The daemon has died.
  ~SimUploadIo() override;

  absl::Status Check(const std::string& url) const override;
  void Upload(std::string url, storage::v1::UploadedCheckpoint checkpoint, MayGoOn may_go_on,
              std::shared_ptr<std::atomic<int64_t>> arrived,
              absl::AnyInvocable<void(absl::StatusOr<int64_t>)> done) override;
  void Remove(std::string url, storage::v1::UploadedCheckpoint checkpoint, MayGoOn may_go_on,
              absl::AnyInvocable<void(absl::Status)> done) override;
  void List(std::string url, absl::AnyInvocable<void(absl::StatusOr<Contents>)> done) override;
  void Fetch(std::string url, std::string tag, Term term, std::shared_ptr<std::atomic<int64_t>> arrived,
             absl::AnyInvocable<void(absl::Status)> done) override;

 private:
  // A call that changes the bucket. A run has one at a time.
  void Change(Duration latency, absl::AnyInvocable<absl::AnyInvocable<void()>()> change);

  const std::shared_ptr<SimBucket> bucket_;
  std::optional<absl::AnyInvocable<absl::AnyInvocable<void()>()>> changing_;
  CallbackScope scope_;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_SIM_BUCKET_H_
