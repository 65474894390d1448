// Uploads decides which committed checkpoints of a run are copied to its bucket, and which copies go again.
//
// The run record has what waits, what is in the bucket and what is to be removed from it (UploadRecord). It
// changes together with the history of saves, for which retention waits: a checkpoint that is to be uploaded
// survives every restart, and is evicted only when the record says that it is in the bucket. A run uploads
// one checkpoint at a time, the oldest first. What fails is tried again after 1 s, 2 s, ... 5 min.
//
// Of a run that several nodes share, the coordinator uploads. Its record is in SharedUploads, and says through
// which sequence it has counted: it counts the checkpoints of the root that come after that one, each by the
// policy that it reads after it has seen them. Until the record with that is written, retention removes none
// of them. The other nodes show what the coordinator has written.
#ifndef CKPTD_DAEMON_ENGINE_UPLOAD_UPLOADS_H_
#define CKPTD_DAEMON_ENGINE_UPLOAD_UPLOADS_H_

#include <atomic>
#include <cstdint>
#include <functional>
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
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/shared_uploads.h"
#include "daemon/engine/seams/upload_io.h"
#include "storage/base/clock.h"

namespace ckptd {

class Uploads {
 public:
  struct Hooks {
    std::function<void(Run*)> released;  // Retention need not keep a checkpoint for its upload any more.
    std::function<void(const Run&, int64_t sequence)> changed;  // An upload has begun, ended or failed.
  };
  // OK: it is in the bucket. DEADLINE_EXCEEDED. FAILED_PRECONDITION, reason NOT_UPLOADED: it will not be.
  using Waited = absl::AnyInvocable<void(const absl::Status&)>;

  Uploads(Clock* clock, EngineObserver* observer, Hooks hooks)
      : clock_(clock), observer_(observer), hooks_(std::move(hooks)) {}

  // The run's record was read.
  void Load(Run* run);
  // Whether a launch may have this policy. INVALID_ARGUMENT; the errors of UploadIo::Check.
  absl::Status Check(const Run& run, const v1::UploadPolicy& policy) const;
  // A rank has joined, with a policy that was checked. That of rank 0 of the newest launch counts.
  void OnJoined(Run* run, int64_t attempt, const v1::JoinRunRequest& request);
  // The newest launch has this policy; null: none. For a run of one node.
  void SetPolicy(Run* run, const v1::UploadPolicy* policy);
  // The bucket of this policy, with which an attempt has joined, was listed: what daemons have uploaded there
  // counts as this run's, although it has lost its record of that.
  void TakeOver(Run* run, int64_t attempt, const v1::UploadPolicy& policy,
                const std::vector<UploadIo::InBucket>& found);
  // This one was brought back: the run goes on from it, and no longer uploads what is older.
  void OnFetched(Run* run, const storage::v1::ManifestSummary& summary);
  // This node coordinates a run that several nodes share, and knows that the root has had checkpoints up to this
  // sequence, as far as they were counted. UNAVAILABLE: it does not know that yet. Another error: it cannot.
  absl::StatusOr<int64_t> CountedThrough(const Run& run) const;
  // Why this node, which coordinates, does not know what is to be uploaded; OK also if it has not asked yet.
  absl::Status WhyUnread(const Run& run) const { return states_.Of(&run).term.unread; }
  // On that node. A checkpoint is about to be brought back; 0: none is. `recorded` runs when it counts as no new
  // save, whichever node coordinates, and saves that begin from then on have sequences above that one. It does not
  // run if this node ceases to coordinate.
  void Announce(Run* run, int64_t sequence, int64_t sequences_above, absl::AnyInvocable<void()> recorded);
  // Whether it was in the bucket before it was in this root, or is there since.
  bool IsInBucket(const Run& run, int64_t sequence) const;
  // Call it before the outcome of the save goes into the history. No-op if several nodes share the run.
  void OnCommitted(Run* run, const storage::v1::ManifestSummary& summary);

  // The checkpoints that retention keeps until they are in the bucket.
  std::vector<int64_t> Held(const Run& run) const;
  // Gives up the upload of one of these, the oldest that is not being uploaded, because a save needs its room.
  void GiveUp(Run* run, const std::vector<int64_t>& sequences);

  void Wait(Run* run, int64_t sequence, const std::string& tag, Instant deadline, Waited waited);
  // Sets `checkpoint->upload`, unless it is neither uploaded nor to be.
  void Describe(const Run& run, int64_t sequence, v1::Checkpoint* checkpoint) const;
  // Sets `description->uploads`, unless nothing of the run was ever to be uploaded.
  void Describe(const Run& run, v1::Run* description) const;
  // The checkpoints that are being uploaded.
  std::vector<std::pair<Run*, int64_t>> UnderWay() const;
  // Something waits or is under way, so that the run cannot be closed.
  bool IsActive(const Run& run) const;

  void OnTick(Run* run, Instant now);
  // Drops what is under way: the record has it.
  void Forget(const Run* run);

 private:
  struct Waiter {
    int64_t sequence = 0;
    std::string tag;
    Instant deadline;
    Waited waited;
  };
  // What is known of a run that several nodes share.
  struct Term {
    int64_t shown_version = -1;   // Of SharedUploads.
    bool is_asked = false;        // A rank of this node has joined with a policy.
    int64_t counted_through = 0;  // By the coordinator, as this node knows.
    // The rest is of this node as the coordinator. `number` rises when it becomes the coordinator and when it
    // ceases to be it: answers to what it has asked for under an earlier number are ignored.
    int64_t number = 0;
    UploadIo::MayGoOn leads;  // Null: it does not coordinate.
    bool is_loaded = false;   // The record is etcd's, with what was done since.
    bool is_reading = false;
    bool is_unwritten = false;  // The record is to be written.
    Instant read_again_at{};
    absl::Status unread;                                // Why the record could not be read the last time.
    storage::v1::UploadRecord policy;                   // As it was read last.
    int64_t taken_over_for = 0;                         // The last attempt of TakeOver.
    int64_t sequences_above = 0;                        // To be written; 0: nothing is.
    std::vector<absl::AnyInvocable<void()>> announced;  // They run when what is to be written is.
    int64_t written_through = 0;  // Up to which checkpoint etcd says that they were counted.
  };
  struct State {
    storage::v1::UploadRecord record;
    bool is_busy = false;   // UploadIo has not called back yet.
    int64_t uploading = 0;  // The sequence; 0: none is.
    std::shared_ptr<std::atomic<int64_t>> arrived;
    int64_t failing = 0;  // Of which checkpoint the last call has failed; 0: it has not.
    absl::Status error;
    int tries = 0;  // That have failed, one after the other.
    Instant again_at{};
    int64_t again_unix_us = 0;
    int64_t sent_bytes = 0, done = 0, failed = 0;
    // Uploaded, and the record on disk does not say so yet: retention must not remove what the next daemon
    // would take for one that still waits.
    std::set<int64_t> unwritten;
    int writes = 0;  // Of the record, under way.
    Instant write_again_at{};
    int64_t changes = 0, stored = 0;  // Of the record, on one node: all, and those that are on disk.
    std::vector<Waiter> waiters;
    Term term;
  };
  static bool IsShared(const Run& run) { return run.authority->uploads() != nullptr; }
  // Removes from the bucket what its policy does not keep.
  static void ApplyKeepLast(const Run& run, storage::v1::UploadRecord* record);
  // Of a run that several nodes share: leaves out the oldest of very many. They stay in the bucket.
  static void ForgetOldest(const Run& run, storage::v1::UploadRecord* record);
  // This node uploads what the record says, and nobody else does.
  bool MayChange(const Run& run) const;

  // ---- of a run that several nodes share
  void Follow(Run* run, Instant now);
  void BeginTerm(Run* run);
  void EndTerm(Run* run);
  void OnShown(Run* run);
  void Read(Run* run);
  void OnRead(Run* run, const SharedUploads::Known& known, int64_t newest);
  void TakePolicy(Run* run, const SharedUploads::Known& known);
  // Counts those up to `newest`.
  void CountThrough(Run* run, int64_t newest);
  void Write(Run* run);
  int64_t WrittenThrough(const Run& run) const;
  // The coordinator has not said yet whether it uploads the checkpoint.
  bool IsUncounted(const Run& run, int64_t sequence) const;

  // ---- of any run
  void Count(Run* run, const storage::v1::ManifestSummary& summary);
  void Continue(Run* run);
  // Forgets checkpoints that are gone or damaged.
  void DropLost(Run* run);
  void Drop(Run* run, int index, const std::string& why, bool replaced = false);
  void Upload(Run* run, const storage::v1::UploadedCheckpoint& next);
  // Once it is on disk that the checkpoint goes: the next daemon would show as uploaded what is there no more.
  void RemoveWhenStored(Run* run, const storage::v1::UploadedCheckpoint& next);
  void Remove(Run* run, const storage::v1::UploadedCheckpoint& next);
  void OnUploaded(Run* run, const storage::v1::UploadedCheckpoint& what, const absl::StatusOr<int64_t>& sent);
  void OnRemoved(Run* run, const storage::v1::UploadedCheckpoint& what, const absl::Status& removed);
  void OnFailed(Run* run, const storage::v1::UploadedCheckpoint& what, const absl::Status& why);
  void OnSucceeded(Run* run);
  // With the next write of the history, or now.
  void Store(Run* run, bool now);
  void Answer(Run* run);
  absl::Status WhyNotUploaded(const Run& run, const Waiter& waiter) const;

  Clock* const clock_;
  EngineObserver* const observer_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_UPLOAD_UPLOADS_H_
