#include "tests/sim/sim_bucket.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

absl::Status NoAnswer() {
  return MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "the bucket does not answer");
}

bool IsSame(const storage::v1::ManifestSummary& summary, const storage::v1::UploadedCheckpoint& checkpoint) {
  return summary.sequence() == checkpoint.sequence() &&
         summary.commit_time_us() == checkpoint.commit_time_us();
}

}  // namespace

bool SimBucket::IsWhole(int64_t sequence) const {
  return std::any_of(tags_.begin(), tags_.end(), [&](const auto& tag) {
    return tag.second.whole && tag.second.checkpoint.summary.sequence() == sequence;
  });
}

int64_t SimBucket::Newest() const {
  int64_t newest = 0;
  for (const auto& [tag, entry] : tags_) {
    if (entry.whole) newest = std::max(newest, entry.checkpoint.summary.sequence());
  }
  return newest;
}

bool SimBucket::IsReplaced(const std::string& tag, int64_t sequence) const {
  const auto newest = newest_of_tag_.find(tag);
  return newest != newest_of_tag_.end() && newest->second > sequence;
}

bool SimBucket::IsDamaged(const SimDisk::Generation& checkpoint) const {
  return !checkpoint.rotten->empty() || checkpoint.damage ||
         oracle_->WasDamaged(disk_->run(), checkpoint.summary.sequence());
}

bool SimBucket::IsToBeUploaded(const SimDisk::Generation& checkpoint) const {
  const storage::v1::ManifestSummary& summary = checkpoint.summary;
  return plan_.every == 1 && summary.suspect().empty() && summary.adopted_from().empty() &&
         !IsDamaged(checkpoint) && !summary.tag().starts_with("moved") &&
         !IsReplaced(summary.tag(), summary.sequence());
}

void SimBucket::OnEvicted(const SimDisk::Generation& evicted, const storage::v1::UploadRecord& record) {
  if (plan_.evict_before_upload || plan_.needs_room || IsDamaged(evicted)) return;
  const int64_t sequence = evicted.summary.sequence();
  if (std::any_of(record.waiting().begin(), record.waiting().end(),
                  [&](const auto& waiting) { return waiting.sequence() == sequence; })) {
    oracle_->Violated(
        absl::StrCat("retention removes ", evicted.summary.tag(), ", which waits for its upload"));
  } else if (IsToBeUploaded(evicted) && !were_whole_.contains(sequence)) {
    oracle_->Violated(absl::StrCat("retention removes ", evicted.summary.tag(), ", sequence ", sequence,
                                   ", which was never in the bucket"));
  }
}

std::string SimBucket::Leftovers() const {
  std::string words;
  int whole = 0;
  for (const auto& [tag, entry] : tags_) {
    if (entry.whole) {
      ++whole;
    } else {
      absl::StrAppend(&words, " an unfinished upload of ", tag);
    }
  }
  if (plan_.keep_last > 0 && whole > plan_.keep_last) absl::StrAppend(&words, " ", whole, " checkpoints");
  const SimDisk::Generation* newest = nullptr;
  for (const auto& [tag, generation] : disk_->tags_) {
    if (IsToBeUploaded(generation) &&
        (newest == nullptr || generation.summary.sequence() > newest->summary.sequence()))
      newest = &generation;
  }
  // What the bucket keeps in its place is newer.
  const bool is_there = newest == nullptr || Newest() >= newest->summary.sequence();
  if (!is_there && !plan_.needs_room && !plan_.evict_before_upload)
    absl::StrAppend(&words, " without ", newest->summary.tag());
  return words;
}

// It was given up, newer ones have its place, or a newer save has its tag.
bool SimBucket::MayBeRemoved(const storage::v1::UploadedCheckpoint& checkpoint) const {
  int newer = 0;
  for (const auto& [tag, entry] : tags_)
    newer += entry.whole && entry.checkpoint.summary.sequence() > checkpoint.sequence() ? 1 : 0;
  return (plan_.keep_last > 0 && newer >= plan_.keep_last) ||
         IsReplaced(checkpoint.tag(), checkpoint.sequence());
}

void SimBucket::Claim(const storage::v1::UploadedCheckpoint& checkpoint) {
  const auto source = disk_->tags_.find(checkpoint.tag());
  if (source != disk_->tags_.end() && IsSame(source->second.summary, checkpoint))
    tags_.try_emplace(checkpoint.tag(), Entry{source->second});
}

absl::StatusOr<int64_t> SimBucket::Upload(const storage::v1::UploadedCheckpoint& checkpoint) {
  const auto source = disk_->tags_.find(checkpoint.tag());
  if (source == disk_->tags_.end() || !IsSame(source->second.summary, checkpoint))
    return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", checkpoint.tag());
  Claim(checkpoint);
  const auto entry = tags_.find(checkpoint.tag());
  if (!IsSame(entry->second.checkpoint.summary, checkpoint)) {
    oracle_->Violated(absl::StrCat("an upload of ", checkpoint.tag(), ", sequence ", checkpoint.sequence(),
                                   ", finds sequence ", entry->second.checkpoint.summary.sequence(),
                                   " in its place"));
    return MakeError(absl::StatusCode::kAlreadyExists, "OBJECT_EXISTS", checkpoint.tag());
  }
  if (entry->second.whole) return 0;
  if (faulty_ && random_.Percent(plan_.faults)) return NoAnswer();
  if (!source->second.rotten->empty())
    return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", checkpoint.tag());
  entry->second.whole = true;
  were_whole_.insert(checkpoint.sequence());
  return checkpoint.size_bytes();
}

absl::Status SimBucket::Remove(const storage::v1::UploadedCheckpoint& checkpoint) {
  const auto found = tags_.find(checkpoint.tag());
  if (found == tags_.end() || !IsSame(found->second.checkpoint.summary, checkpoint)) return absl::OkStatus();
  Entry& entry = found->second;
  if (entry.whole && checkpoint.given_up())
    return MakeError(absl::StatusCode::kAlreadyExists, "OBJECT_EXISTS", checkpoint.tag());
  if (entry.whole && !MayBeRemoved(checkpoint))
    oracle_->Violated(absl::StrCat(checkpoint.tag(), ", sequence ", checkpoint.sequence(),
                                   " is removed from the bucket, where it is to stay"));
  const bool fails = faulty_ && random_.Percent(plan_.faults);
  if (fails && random_.Percent(50)) return NoAnswer();
  entry.whole = false;
  if (fails) return NoAnswer();
  tags_.erase(found);
  return absl::OkStatus();
}

UploadIo::Contents SimBucket::List() const {
  UploadIo::Contents contents;
  for (const auto& [tag, entry] : tags_) {
    if (entry.whole) contents.checkpoints.push_back({entry.checkpoint.summary, /*by_daemon=*/true});
  }
  return contents;
}

absl::Status SimBucket::Fetch(const std::string& tag) {
  const auto found = tags_.find(tag);
  if (found == tags_.end() || !found->second.whole)
    return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", tag);
  if (!disk_->tags_.empty())
    oracle_->Violated("a root that has all that it had before fetches from the bucket");
  SimDisk::Generation& fetched = disk_->tags_[tag] = found->second.checkpoint;
  fetched.pinned = false;
  return absl::OkStatus();
}

// ---- the daemon's side

// What it changes has been done, or not.
SimUploadIo::~SimUploadIo() {
  if (changing_ && bucket_->random_.Percent(50)) (void)(*changing_)();
}

absl::Status SimUploadIo::Check(const std::string&) const { return absl::OkStatus(); }

void SimUploadIo::Change(Duration latency, absl::AnyInvocable<absl::AnyInvocable<void()>()> change) {
  if (changing_) return bucket_->oracle_->Violated("a run changes its bucket by two calls at once");
  changing_ = std::move(change);
  bucket_->schedule_->After(latency, scope_.Guard([this] {
    absl::AnyInvocable<void()> answer = (*std::exchange(changing_, std::nullopt))();
    answer();
  }));
}

void SimUploadIo::Upload(std::string, storage::v1::UploadedCheckpoint checkpoint, MayGoOn,
                         std::shared_ptr<std::atomic<int64_t>>,
                         absl::AnyInvocable<void(absl::StatusOr<int64_t>)> done) {
  bucket_->Claim(checkpoint);
  Change(bucket_->random_.Spread(milliseconds(5), seconds(10)),
         [this, checkpoint = std::move(checkpoint),
          done = std::move(done)]() mutable -> absl::AnyInvocable<void()> {
           return [done = std::move(done), sent = bucket_->Upload(checkpoint)]() mutable {
             done(std::move(sent));
           };
         });
}

void SimUploadIo::Remove(std::string, storage::v1::UploadedCheckpoint checkpoint, MayGoOn,
                         absl::AnyInvocable<void(absl::Status)> done) {
  Change(bucket_->random_.Spread(milliseconds(1), seconds(2)),
         [this, checkpoint = std::move(checkpoint),
          done = std::move(done)]() mutable -> absl::AnyInvocable<void()> {
           return
               [done = std::move(done), removed = bucket_->Remove(checkpoint)]() mutable { done(removed); };
         });
}

void SimUploadIo::List(std::string, absl::AnyInvocable<void(absl::StatusOr<Contents>)> done) {
  bucket_->schedule_->After(bucket_->random_.Spread(milliseconds(1), seconds(2)),
                            scope_.Guard([this, done = std::move(done)]() mutable {
                              if (bucket_->faulty_ && bucket_->random_.Percent(bucket_->plan_.faults))
                                return done(NoAnswer());
                              done(bucket_->List());
                            }));
}

void SimUploadIo::Fetch(std::string, std::string tag, Term, std::shared_ptr<std::atomic<int64_t>>,
                        absl::AnyInvocable<void(absl::Status)> done) {
  bucket_->schedule_->After(bucket_->random_.Spread(milliseconds(5), seconds(10)),
                            scope_.Guard([this, tag = std::move(tag), done = std::move(done)]() mutable {
                              done(bucket_->Fetch(tag));
                            }));
}

}  // namespace ckptd::sim
