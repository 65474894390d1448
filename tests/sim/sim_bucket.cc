#include "tests/sim/sim_bucket.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

bool SimBucket::IsDamaged(const SimDisk::Generation& checkpoint) const {
  return !checkpoint.rotten->empty() || checkpoint.damage ||
         oracle_->WasDamaged(disk_->run(), checkpoint.summary.sequence());
}

bool SimBucket::IsToBeUploaded(const SimDisk::Generation& checkpoint) const {
  const storage::v1::ManifestSummary& summary = checkpoint.summary;
  return plan_.every == 1 && summary.suspect().empty() && summary.adopted_from().empty() &&
         !IsDamaged(checkpoint) && !summary.tag().starts_with("moved") &&
         !model_.IsReplaced(summary.tag(), summary.sequence());
}

void SimBucket::OnEvicted(const SimDisk::Generation& evicted, const storage::v1::UploadRecord& record) {
  if (plan_.evict_before_upload || plan_.needs_room || IsDamaged(evicted)) return;
  const int64_t sequence = evicted.summary.sequence();
  if (std::any_of(record.waiting().begin(), record.waiting().end(),
                  [&](const auto& waiting) { return waiting.sequence() == sequence; })) {
    oracle_->Violated(
        absl::StrCat("retention removes ", evicted.summary.tag(), ", which waits for its upload"));
  } else if (IsToBeUploaded(evicted) && !model_.WasWhole(sequence)) {
    oracle_->Violated(absl::StrCat("retention removes ", evicted.summary.tag(), ", sequence ", sequence,
                                   ", which was never in the bucket"));
  }
}

std::string SimBucket::Leftovers() const {
  std::string words = model_.Leftovers();
  const SimDisk::Generation* newest = nullptr;
  for (const auto& [tag, generation] : disk_->tags_) {
    if (IsToBeUploaded(generation) &&
        (newest == nullptr || generation.summary.sequence() > newest->summary.sequence()))
      newest = &generation;
  }
  // What the bucket keeps in its place is newer.
  const bool is_there = newest == nullptr || model_.Newest() >= newest->summary.sequence();
  if (!is_there && !plan_.needs_room && !plan_.evict_before_upload)
    absl::StrAppend(&words, " without ", newest->summary.tag());
  return words;
}

const SimDisk::Generation* SimBucket::SourceOf(const std::string& tag) const {
  const auto source = disk_->tags_.find(tag);
  return source == disk_->tags_.end() ? nullptr : &source->second;
}

void SimBucket::Claim(const storage::v1::UploadedCheckpoint& checkpoint) {
  if (const SimDisk::Generation* source = SourceOf(checkpoint.tag()))
    model_.Claim(checkpoint, &source->summary);
}

absl::StatusOr<int64_t> SimBucket::Upload(const storage::v1::UploadedCheckpoint& checkpoint) {
  const SimDisk::Generation* source = SourceOf(checkpoint.tag());
  if (source == nullptr) return model_.Upload(checkpoint, nullptr, false);
  absl::StatusOr<int64_t> sent = model_.Upload(checkpoint, &source->summary, !source->rotten->empty());
  if (sent.ok()) copies_.try_emplace(checkpoint.sequence(), *source);
  return sent;
}

absl::Status SimBucket::Fetch(const std::string& tag) {
  const BucketModel::Summary* found = model_.Find(tag);
  if (found == nullptr) return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", tag);
  if (!disk_->tags_.empty())
    oracle_->Violated("a root that has all that it had before fetches from the bucket");
  SimDisk::Generation& fetched = disk_->tags_[tag] = copies_.at(found->sequence());
  fetched.pinned = false;
  return absl::OkStatus();
}

// ---- the daemon's side

// What it changes has been done, or not.
SimUploadIo::~SimUploadIo() {
  if (changing_ && bucket_->model_.random().Percent(50)) (void)(*changing_)();
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
  Change(bucket_->model_.random().Spread(milliseconds(5), seconds(10)),
         [this, checkpoint = std::move(checkpoint),
          done = std::move(done)]() mutable -> absl::AnyInvocable<void()> {
           return [done = std::move(done), sent = bucket_->Upload(checkpoint)]() mutable {
             done(std::move(sent));
           };
         });
}

void SimUploadIo::Remove(std::string, storage::v1::UploadedCheckpoint checkpoint, MayGoOn,
                         absl::AnyInvocable<void(absl::Status)> done) {
  Change(bucket_->model_.random().Spread(milliseconds(1), seconds(2)),
         [this, checkpoint = std::move(checkpoint),
          done = std::move(done)]() mutable -> absl::AnyInvocable<void()> {
           return [done = std::move(done), removed = bucket_->model_.Remove(checkpoint)]() mutable {
             done(removed);
           };
         });
}

void SimUploadIo::List(std::string, absl::AnyInvocable<void(absl::StatusOr<Contents>)> done) {
  bucket_->schedule_->After(bucket_->model_.random().Spread(milliseconds(1), seconds(2)),
                            scope_.Guard([this, done = std::move(done)]() mutable {
                              if (bucket_->model_.Fails()) return done(BucketDoesNotAnswer());
                              Contents contents;
                              for (const auto& summary : bucket_->model_.Whole())
                                contents.checkpoints.push_back({summary, /*by_daemon=*/true});
                              done(contents);
                            }));
}

void SimUploadIo::Fetch(std::string, std::string tag, Term, std::shared_ptr<std::atomic<int64_t>>,
                        absl::AnyInvocable<void(absl::Status)> done) {
  bucket_->schedule_->After(bucket_->model_.random().Spread(milliseconds(5), seconds(10)),
                            scope_.Guard([this, tag = std::move(tag), done = std::move(done)]() mutable {
                              done(bucket_->Fetch(tag));
                            }));
}

}  // namespace ckptd::sim
