// SharedFetches has the coordinator of a run that several nodes share bring the newest checkpoint of the run's bucket
// into the root, for ranks that resume on any of them. docs/decisions/0025 says why it is safe.
#ifndef CKPTD_DAEMON_ENGINE_UPLOAD_SHARED_FETCHES_H_
#define CKPTD_DAEMON_ENGINE_UPLOAD_SHARED_FETCHES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/shared_uploads.h"
#include "daemon/engine/seams/upload_io.h"
#include "daemon/engine/upload/bucket_fetches.h"

namespace ckptd {

// On each node it asks the coordinator, once for all of the node's ranks. On the coordinator it serves the nodes, one
// attempt after the other:
//
//   1. No save of an earlier attempt can become a checkpoint any more, and a scan shows those that have.
//   2. What was uploaded is known, and the coordinator's directory is in the root.
//   3. BucketFetches lists the bucket, and fetches.
//   4. After another scan all nodes that have asked for that attempt are answered.
//
// If it ceases to coordinate, the next coordinator begins anew.
class SharedFetches {
 public:
  using Restore = SharedUploads::Restore;
  using Newest = SharedUploads::Newest;
  using Brought = Callback<absl::StatusOr<Newest>>;

  struct Hooks {
    std::function<void(Run*)> scan;  // OnScanned follows.
    // As Uploads::CountedThrough.
    std::function<absl::StatusOr<int64_t>(const Run&)> counted_through;
    // As those of BucketFetches; OnFetched follows `begin`.
    std::function<void(Run*, BucketFetches::Order)> begin;
    std::function<void(const Run*)> drop;
    std::function<void(const Run*, int64_t attempt, const std::string& url)> set_done;
    // Ranks of this node that have waited go on with this status; if `is_new`, after a scan of the root.
    std::function<void(Run*, const absl::Status&, bool is_new)> ended;
  };

  explicit SharedFetches(Hooks hooks) : hooks_(std::move(hooks)) {}

  // Ranks of this node resume. Hooks::ended follows.
  void Ask(Run* run, int64_t attempt, const v1::UploadPolicy& policy);
  // What they wait for, for people; empty: they do not wait.
  std::string Describe(const Run& run) const;

  // As Authority::Hooks::restore_requested.
  void Serve(Run* run, const Restore& restore, Brought brought);
  void OnScanned(Run* run);
  // As BucketFetches::Hooks::ended.
  void OnFetched(Run* run, const absl::Status& status, bool is_new);
  void OnTick(Run* run);

  bool IsActive(const Run& run) const;
  void Forget(const Run* run) { states_.Forget(run); }

 private:
  enum class Stage { kIdle, kSettling, kScanning, kLearning, kFetching, kShowing };
  struct Waiting {
    Restore restore;
    Brought brought;
  };
  struct State {
    std::string asking;  // The bucket's URL; empty: nothing was asked.
    // Of this node as the coordinator.
    std::vector<Waiting> waiting;
    Stage stage = Stage::kIdle;
    Restore now;
    UploadIo::MayGoOn leads;
    int64_t number = 0;     // Answers to what was asked under an earlier one are ignored.
    Restore served;         // The last one that ended well,
    UploadIo::MayGoOn led;  // under this leadership.
  };

  void ServeNext(Run* run);
  void Learn(Run* run);
  void Answer(Run* run, const absl::Status& status);

  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_UPLOAD_SHARED_FETCHES_H_
