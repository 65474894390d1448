// BucketFetches brings the newest checkpoint of a run's bucket into its root, before the ranks of a launch
// agree on what they resume from. docs/decisions/0021 says which one is the newest.
#ifndef CKPTD_DAEMON_ENGINE_UPLOAD_BUCKET_FETCHES_H_
#define CKPTD_DAEMON_ENGINE_UPLOAD_BUCKET_FETCHES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/upload_io.h"
#include "storage/base/clock.h"

namespace ckptd {

// The first rank of an attempt that resumes begins: the bucket is listed, and what is newer there than all
// that the root has had is fetched. A damaged one gives way to the next older one. What fails is begun again
// by the next rank that resumes.
class BucketFetches {
 public:
  struct Hooks {
    // What lies in the bucket of this policy is known.
    std::function<void(Run*, const v1::UploadPolicy&, const UploadIo::Contents&)> listed;
    // This checkpoint is in the root, which has not been scanned yet.
    std::function<void(Run*, const storage::v1::ManifestSummary&)> fetched;
    // Ranks that have waited go on with this status; if `is_new`, after a scan of the root.
    std::function<void(Run*, const absl::Status&, bool is_new)> ended;
  };

  BucketFetches(Clock* clock, EngineObserver* observer, Hooks hooks)
      : clock_(clock), observer_(observer), hooks_(std::move(hooks)) {}

  // Every rank of an attempt has the same policy.
  void OnJoined(const Run* run, int64_t attempt, const v1::JoinRunRequest& request);
  // Whether the attempt need not wait for the bucket, or no longer.
  bool IsDone(const Run& run, int64_t attempt) const;
  // Begins, unless that has been done. Hooks::ended follows, never within the call.
  void Start(Run* run, int64_t attempt);

  // What ranks wait for, for people.
  std::string Describe(const Run& run) const;
  // Sets `description->uploads.fetching` while ranks wait.
  void Describe(const Run& run, v1::Run* description) const;
  bool IsActive(const Run& run) const { return states_.Of(&run).is_busy; }
  void OnTick(const Run* run, Instant now);
  void Forget(const Run* run) { states_.Forget(run); }

 private:
  using Summary = storage::v1::ManifestSummary;
  struct Attempt {
    v1::UploadPolicy policy;
    bool is_done = false;
  };
  struct State {
    std::map<int64_t, Attempt> attempts;
    bool is_busy = false;  // UploadIo has not called back yet.
    v1::UploadPolicy policy;
    int64_t highest_sequence = 0;  // In the bucket.
    std::vector<Summary> left;     // Those that are newer than the root's; the next one to fetch is the last.
    Summary fetching;              // No tag: the bucket is being listed.
    std::shared_ptr<std::atomic<int64_t>> arrived;
    Instant begun{}, next_log{};
  };

  void Listed(Run* run, const absl::StatusOr<UploadIo::Contents>& contents);
  void FetchNext(Run* run);
  void Fetched(Run* run, const absl::Status& fetched);
  void Fail(Run* run, const std::string& what, const absl::Status& why);
  void End(Run* run, const absl::Status& status, bool is_new);

  Clock* const clock_;
  EngineObserver* const observer_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_UPLOAD_BUCKET_FETCHES_H_
