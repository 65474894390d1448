// A root in a bucket: what RootStore (storage/commit/local/root_store.h) is for a root on a disk.
// bucket_keys.h says what lies where. A save:
//
// 1. Check the term (bucket_term.h). Say that the save has begun, and claim the tag (unended.h). A tag that
//    has a checkpoint is refused.
// 2. For each part: put the list of its files, send these, and put the part record.
// 3. Check the term, remove other names of the tag from the index (storage/bucket/index.h), and put the manifest, on the
//    condition that there is none: the commit.
// 4. Put its name, and remove the claim and the lists.
//
// A daemon that dies in between leaves what the next one to open the root removes. What is committed has no
// other state than its manifest.
//
// Every call blocks on the server. CheckTarget, WritePart, RemoveLeft, OpenCheckpoint and contents may run on
// any thread beside the others, of which one runs at a time.
#ifndef CKPTD_STORAGE_COMMIT_BUCKET_BUCKET_ROOT_STORE_H_
#define CKPTD_STORAGE_COMMIT_BUCKET_BUCKET_ROOT_STORE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/bucket/transfer.h"
#include "storage/commit/bucket/bucket_keys.h"
#include "storage/commit/bucket/unended.h"
#include "storage/commit/steps/types.h"
#include "storage/format/manifest.h"
#include "storage/io/part_writer.h"
#include "storage/object/object_store.h"

namespace ckptd {

struct BucketRootOptions {
  std::string prefix;
  std::string owner;  // Tells the users of other daemons which one this is; in one line.
  TransferOptions transfer;
};

// A save in flight. Made by Begin; the store alone uses what is in it.
struct BucketSave {
  UnendedId id;
  std::atomic<bool> has_tried_to_commit = false;
  std::optional<Instant> unanswered_since;  // Its commit has not been answered.
  bool has_replaced = false;                // Begin has removed a checkpoint that had the tag.
};

class BucketRootStore {
 public:
  // Takes the root over from whichever daemon has it, ends what earlier ones have left, and lists. `store`
  // must outlive it, and so must `quick`, which is the same bucket with a shorter time limit, for what ranks
  // wait for. FAILED_PRECONDITION, reason ROOT_UNREADABLE, if the run's record is damaged.
  static absl::StatusOr<std::unique_ptr<BucketRootStore>> Open(ObjectStore* store, ObjectStore* quick,
                                                               Clock* clock, BucketRootOptions options);

  struct Contents {
    std::map<int64_t, CommittedCheckpoint> committed;  // By sequence.
    std::vector<DamagedCheckpoint> damaged;
    std::vector<RecoveredSave> recovered;  // By Open.
    storage::v1::RunRecord run_record;
    int64_t highest_sequence = 0;  // Of everything that was found.
    int64_t removing_bytes = 0;    // Of checkpoints whose files are still to be removed.
  };
  Contents contents() const;
  int64_t term() const { return term_; }

  // Whether a save may have this tag. ALREADY_EXISTS, reason TAG_TAKEN, for one of a checkpoint, unless no
  // launch resumes from that: Begin removes one that is damaged or suspect, and not pinned. TAG_FOREIGN if
  // something lies there that ckptd has not written. ROOT_TAKEN_OVER.
  absl::Status CheckTarget(const std::string& tag);

  // Step 1.
  absl::StatusOr<std::shared_ptr<BucketSave>> Begin(const std::string& tag, int64_t sequence);
  // Step 2, of one rank; several at a time. Returns `record` with its files.
  absl::StatusOr<storage::v1::PartRecord> WritePart(const BucketSave& save, storage::v1::PartRecord record,
                                                    const std::vector<FileImage>& images, int32_t chunk_bytes,
                                                    std::atomic<int64_t>* sent_bytes);
  // Steps 3 and 4. If the store does not answer, the result is retryable for an hour, and the next call finds
  // out whether the manifest has arrived.
  PublishResult Publish(BucketSave& save, const storage::v1::ManifestSummary& summary,
                        const std::vector<storage::v1::PartRecord>& parts);
  // The save never becomes a checkpoint. What cannot be removed now is removed before its tag is saved again,
  // or by the next Open.
  absl::Status Discard(const BucketSave& save);

  // Takes a checkpoint away from its tag; RemoveLeft then removes its files. NOT_FOUND, reason NO_CHECKPOINT.
  // FAILED_PRECONDITION, reason PINNED.
  absl::Status Evict(const std::string& tag, int64_t sequence);
  // Removes the files of one evicted checkpoint that is none of these sequences, or what a save has left.
  // False if there is nothing. On one thread at a time.
  absl::StatusOr<bool> RemoveLeft(const std::set<int64_t>& keep_sequences);

  absl::Status SaveRunRecord(const storage::v1::RunRecord& record);
  absl::Status SetPinned(const std::string& tag, int64_t sequence, bool pinned);
  // As RootStore::SetDamage.
  absl::Status SetDamage(const std::string& tag, int64_t sequence,
                         const std::optional<storage::v1::Damage>& damage);

  // The whole manifest. NOT_FOUND, reason NO_CHECKPOINT, if (tag, sequence) is not there. DATA_LOSS if it is
  // damaged, or a file is missing or has another size.
  absl::StatusOr<Manifest> OpenCheckpoint(const std::string& tag, int64_t sequence);
  // Lists again.
  absl::Status Rescan();

 private:
  // Something of this daemon that has ended, and of which something is left in the bucket.
  struct Left {
    UnendedId id;
    WhoEnds who = WhoEnds::kItself;
    bool has_committed = false;  // A save: only its claim and lists are left.
    int64_t size_bytes = 0;      // Of an evicted checkpoint.
  };

  BucketRootStore(ObjectStore* store, ObjectStore* quick, Clock* clock, BucketRootOptions options)
      : store_(store), quick_(quick), clock_(clock), options_(std::move(options)), keys_(options_.prefix) {}

  absl::Status LoadRecord();
  absl::Status EndEarlier();
  absl::Status List();
  absl::Status StoreRecord(storage::v1::SharedRunRecord record);
  // As PutText, and makes sure that it has arrived undamaged.
  absl::Status PutChecked(ObjectStore& store, const std::string& key, const std::string& text, PutMode mode);
  absl::Status Claim(const UnendedId& id);
  absl::Status TakeTag(const UnendedId& id);
  // Whether it is committed now. The result says what is to be reported if not.
  std::optional<PublishResult> Commit(BucketSave& save, const Manifest& manifest, const std::string& text);
  absl::Status EndOthersAt(const std::string& tag);
  // The sequence of the checkpoint at the tag, if a save may take its place; 0: there is none.
  int64_t FindUnusable(const std::string& tag) const;

  // Ends what is left at the tag, and waits for RemoveLeft if that is at it.
  absl::Status TidyUp(const std::string& tag);
  absl::Status End(const Left& left);
  // Names it in the index, and removes its claim and lists.
  absl::Status EndCommitted(const UnendedId& id);
  void Leave(Left left);

  void Remember(const Manifest& manifest);
  absl::StatusOr<CommittedCheckpoint> Find(const std::string& tag, int64_t sequence) const;
  storage::v1::SharedRunRecord record() const;

  ObjectStore* const store_;
  ObjectStore* const quick_;
  Clock* const clock_;
  const BucketRootOptions options_;
  const BucketKeys keys_;
  int64_t term_ = 0;  // Constant after Open; so is the next one.
  bool store_compares_checksums_ = false;

  mutable Mutex mutex_;
  CondVar changed_;
  storage::v1::SharedRunRecord record_ ABSL_GUARDED_BY(mutex_);
  Contents contents_ ABSL_GUARDED_BY(mutex_);  // But for `run_record` and `removing_bytes`.
  std::vector<Left> left_ ABSL_GUARDED_BY(mutex_);
  std::string ending_at_
      ABSL_GUARDED_BY(mutex_);  // The tag at which something of left_ is being ended; empty: none.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_BUCKET_BUCKET_ROOT_STORE_H_
