// The bucket of a run, which outlives daemons and the root, and the UploadIo through which a daemon uses it.
//
// The model follows storage/bucket: an upload claims its tag first, and the checkpoint is whole with the last request; a
// removal takes its wholeness first. When a daemon dies, what it had under way has come to any of these points.
#ifndef CKPTD_TESTS_SIM_SIM_BUCKET_H_
#define CKPTD_TESTS_SIM_SIM_BUCKET_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/seams/upload_io.h"
#include "storage/base/callback_scope.h"
#include "tests/sim/oracle.h"
#include "tests/sim/plan.h"
#include "tests/sim/random.h"
#include "tests/sim/schedule.h"
#include "tests/sim/sim_disk.h"

namespace ckptd::sim {

class SimBucket {
 public:
  SimBucket(std::shared_ptr<SimDisk> disk, const UploadPlan& plan, uint64_t seed, Schedule* schedule,
            Oracle* oracle)
      : disk_(std::move(disk)), plan_(plan), random_(seed), schedule_(schedule), oracle_(oracle) {}
  SimBucket(const SimBucket&) = delete;
  SimBucket& operator=(const SimBucket&) = delete;

  void EndFaults() { faulty_ = false; }
  bool IsWhole(int64_t sequence) const;
  // Retention has removed this checkpoint from the root. A violation if it was to be uploaded, and was not.
  void OnEvicted(const SimDisk::Generation& evicted, const storage::v1::UploadRecord& record);
  // Earlier checkpoints of this tag need not be uploaded any more, nor stay in the bucket.
  void OnPublished(const std::string& tag, int64_t sequence) {
    newest_of_tag_[tag] = std::max(newest_of_tag_[tag], sequence);
  }
  // To be called when nothing is going on: describes everything that should not be left, or be missing.
  std::string Leftovers() const;
  // The newest whole checkpoint; 0: there is none.
  int64_t Newest() const;

 private:
  friend class SimUploadIo;
  struct Entry {
    SimDisk::Generation checkpoint;
    bool whole = false;
  };
  // A rank or a read has found that, or an upload would. It is not to be uploaded any more.
  bool IsDamaged(const SimDisk::Generation& checkpoint) const;
  bool IsReplaced(const std::string& tag, int64_t sequence) const;
  // Each checkpoint that the run has saved, and that is good.
  bool IsToBeUploaded(const SimDisk::Generation& checkpoint) const;
  bool MayBeRemoved(const storage::v1::UploadedCheckpoint& checkpoint) const;
  // An upload begins: from now on no other checkpoint of the tag is uploaded.
  void Claim(const storage::v1::UploadedCheckpoint& checkpoint);
  // What is left of a call, and its answer.
  absl::StatusOr<int64_t> Upload(const storage::v1::UploadedCheckpoint& checkpoint);
  absl::Status Remove(const storage::v1::UploadedCheckpoint& checkpoint);
  UploadIo::Contents List() const;
  absl::Status Fetch(const std::string& tag);

  const std::shared_ptr<SimDisk> disk_;
  const UploadPlan plan_;
  Random random_;
  Schedule* const schedule_;
  Oracle* const oracle_;
  bool faulty_ = true;
  std::map<std::string, Entry> tags_;
  std::set<int64_t> were_whole_;
  std::map<std::string, int64_t> newest_of_tag_;
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
