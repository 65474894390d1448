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

#include "absl/functional/any_invocable.h"
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
//
// Of a run that several nodes share, the coordinator begins, for the ranks of all nodes: SharedFetches says when.
class BucketFetches {
 public:
  struct Hooks {
    // What lies in the bucket of this policy is known.
    std::function<void(Run*, int64_t attempt, const v1::UploadPolicy&, const UploadIo::Contents&)> listed;
    // This checkpoint is in the root, which has not been scanned yet.
    std::function<void(Run*, const storage::v1::ManifestSummary&)> fetched;
    // Ranks that have waited go on with this status; if `is_new`, after a scan of the root.
    std::function<void(Run*, const absl::Status&, bool is_new)> ended;
    // The rest is of a run that several nodes share. Its coordinator is to begin, for ranks of this node.
    std::function<void(Run*, int64_t attempt, const v1::UploadPolicy&)> ask = nullptr;
    // As Uploads::Announce.
    std::function<void(Run*, int64_t sequence, int64_t sequences_above, absl::AnyInvocable<void()> recorded)>
        announce = nullptr;
  };

  BucketFetches(Clock* clock, EngineObserver* observer, Hooks hooks)
      : clock_(clock), observer_(observer), hooks_(std::move(hooks)) {}

  // Every rank of an attempt has the same policy.
  void OnJoined(const Run* run, int64_t attempt, const v1::JoinRunRequest& request);
  // Whether the attempt need not wait for the bucket, or no longer.
  bool IsDone(const Run& run, int64_t attempt) const;
  // Begins, unless that has been done. Hooks::ended follows, never within the call; or Hooks::ask is called.
  void Start(Run* run, int64_t attempt);
  // The coordinator has brought what the attempt waits for.
  void SetDone(const Run* run, int64_t attempt, const std::string& url);

  // What the coordinator begins for all nodes.
  struct Order {
    int64_t attempt = 0;
    v1::UploadPolicy policy;  // At least its URL.
    std::string run_id = {};
    int64_t counted_through = 0;  // The root has had checkpoints up to this sequence.
    UploadIo::Term term = {};     // Number 0: of a run of one node.
  };
  void Begin(Run* run, Order order);
  // It coordinates no longer: no hook follows. What it sends may be on its way.
  void Drop(const Run* run);

  // What ranks wait for, for people.
  std::string Describe(const Run& run) const;
  // Sets `description->uploads.fetching` while ranks wait.
  void Describe(const Run& run, v1::Run* description) const;
  bool IsActive(const Run& run) const;
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
    int64_t number = 0;    // Of the last order: what earlier ones were answered is ignored.
    Order order;
    int64_t highest_sequence = 0;  // In the bucket.
    std::vector<Summary> left;     // Those that are newer than the root's; the next one to fetch is the last.
    Summary fetching;
    std::shared_ptr<std::atomic<int64_t>> arrived;  // Of it; null: nothing is being fetched.
    Instant begun{}, next_log{};
  };

  static bool IsShared(const Run& run) { return run.authority->uploads() != nullptr; }
  // Runs `then` unless the order has been dropped.
  template <typename... Args>
  absl::AnyInvocable<void(Args...)> WhileOrdered(Run* run, void (BucketFetches::*then)(Run*, Args...));
  std::vector<Summary> NewerThanRoot(const Run& run, const UploadIo::Contents& contents) const;
  absl::Status CheckSameRun(const Run& run, const Summary& newest) const;
  void Listed(Run* run, const absl::StatusOr<UploadIo::Contents>& contents);
  void FetchNext(Run* run);
  void Fetch(Run* run);
  void Fetched(Run* run, const absl::Status& fetched);
  void Fail(Run* run, const std::string& what, const absl::Status& why);
  void End(Run* run, const absl::Status& status, bool is_new);
  void NothingNewer(Run* run);

  Clock* const clock_;
  EngineObserver* const observer_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_UPLOAD_BUCKET_FETCHES_H_
