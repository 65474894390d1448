// A bucket, as storage/bucket leaves it: an upload claims its tag first, and its last request makes the checkpoint whole;
// the first request of a removal ends that. Reports what no daemon may do to a bucket, whatever it knows.
//
// A call changes the model at once. Where faults are on, a call may fail after none or some of its changes.
#ifndef CKPTD_TESTS_SIM_BUCKET_MODEL_H_
#define CKPTD_TESTS_SIM_BUCKET_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "tests/sim/random.h"

namespace ckptd::sim {

// The copies in a bucket of a run's checkpoints.
struct UploadPlan {
  int every = 0;  // As in UploadPolicy; so are the next two. 0: nothing is uploaded.
  int keep_last = 0;
  bool evict_before_upload = false;
  bool restore = false;     // Resumes ask the bucket, too.
  int faults = 0;           // Percentage of calls that fail, while faults are on.
  bool needs_room = false;  // The disk is so small that saves may need the room of what waits.

  // Of a run that uploads.
  static UploadPlan Some(Random& random);
  std::string ToString() const;
};

class BucketModel {
 public:
  using Summary = storage::v1::ManifestSummary;
  using Checkpoint = storage::v1::UploadedCheckpoint;
  using Violated = std::function<void(const std::string& what)>;

  BucketModel(const UploadPlan& plan, uint64_t seed, Violated violated)
      : plan_(plan), random_(seed), violated_(std::move(violated)) {}

  Random& random() { return random_; }
  void EndFaults() { faulty_ = false; }
  // No daemon knows any more what it has uploaded, before it lists the bucket, nor what it had begun to upload.
  void Forget();
  // An upload or a removal was half done then.
  bool ForgotHalfDone() const { return forgot_half_done_; }
  // Whether a call that changes nothing fails.
  bool Fails() { return faulty_ && random_.Percent(plan_.faults); }

  // Null: no whole checkpoint has this tag.
  const Summary* Find(const std::string& tag) const;
  bool IsWhole(int64_t sequence) const;
  bool WasWhole(int64_t sequence) const { return were_whole_.contains(sequence); }
  // Sequence of the newest whole checkpoint; 0: there is none.
  int64_t Newest() const;
  // From which a run goes on that has lost its root. A checkpoint that was moved into that root counts by the times of
  // the root where it was saved: they are all that the bucket has of it.
  int64_t NewestWithoutRoot() const;
  std::vector<Summary> Whole() const;

  // Earlier checkpoints of this tag need not be uploaded any more, nor stay.
  void OnPublished(const std::string& tag, int64_t sequence);
  bool IsReplaced(const std::string& tag, int64_t sequence) const;

  // An upload begins: from now on no other checkpoint of the tag is uploaded. `source`: what the root has at the tag;
  // null: nothing.
  void Claim(const Checkpoint& checkpoint, const Summary* source);
  // The rest of it, and its answer. `is_damaged`: bytes of the source are not those of its manifest.
  absl::StatusOr<int64_t> Upload(const Checkpoint& checkpoint, const Summary* source, bool is_damaged);
  absl::Status Remove(const Checkpoint& checkpoint);

  // Call it when no call is in flight: describes everything that should not be left.
  std::string Leftovers() const;

 private:
  struct Entry {
    Summary summary;
    bool whole = false;
  };
  // As many newer ones are there, or are about to be, as are to stay.
  bool IsOutnumbered(const Checkpoint& checkpoint) const;

  const UploadPlan plan_;
  Random random_;
  const Violated violated_;
  bool faulty_ = true, is_forgotten_ = false, forgot_half_done_ = false;
  std::map<std::string, Entry> tags_;
  std::set<int64_t> were_whole_;
  // An earlier checkpoint of these tags was removed, so that a later one is uploaded: it counts as if that were there.
  std::set<std::string> being_replaced_;
  std::map<std::string, int64_t> newest_of_tag_;
};

absl::Status BucketDoesNotAnswer();

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_BUCKET_MODEL_H_
