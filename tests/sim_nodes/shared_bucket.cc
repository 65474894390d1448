#include "tests/sim_nodes/shared_bucket.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd::sim_nodes {

using sim::BucketDoesNotAnswer;
using sim::BucketModel;
using std::chrono::milliseconds;
using std::chrono::seconds;

// ---- the bucket

bool SharedBucket::IsToBeUploaded(const SharedDisk::Checkpoint& checkpoint) const {
  const storage::v1::ManifestSummary& summary = checkpoint.summary;
  return plan_.every == 1 && summary.suspect().empty() &&
         summary.sequence() > forgotten_through_.value_or(0) && !disk_.IsDamaged(summary.sequence()) &&
         !disk_.WasPutBack(summary.sequence()) && !model_.IsReplaced(summary.tag(), summary.sequence());
}

void SharedBucket::OnEvicted(const SharedDisk::Checkpoint& evicted) {
  if (plan_.evict_before_upload || !IsToBeUploaded(evicted) || model_.WasWhole(evicted.summary.sequence()))
    return;
  oracle_.Violated(absl::StrCat("retention removes ", evicted.summary.tag(), ", sequence ",
                                evicted.summary.sequence(), ", which was never in the bucket"));
}

std::string SharedBucket::Leftovers() const {
  std::string words = model_.Leftovers();
  SharedDisk::CheckpointPtr newest;
  for (const std::string& tag : disk_.Tags()) {
    SharedDisk::CheckpointPtr checkpoint = disk_.Find(tag);
    if (IsToBeUploaded(*checkpoint)) newest = std::move(checkpoint);
  }
  // What the bucket keeps in its place is newer.
  if (newest != nullptr && model_.Newest() < newest->summary.sequence() && !plan_.evict_before_upload)
    absl::StrAppend(&words, " without ", newest->summary.tag());
  return words;
}

void SharedBucket::Claim(const std::string& node, const storage::v1::UploadedCheckpoint& checkpoint) {
  const SharedDisk::CheckpointPtr source = disk_.FindAsSeenBy(node, checkpoint.tag());
  model_.Claim(checkpoint, source == nullptr ? nullptr : &source->summary);
}

absl::StatusOr<int64_t> SharedBucket::Upload(const std::string& node,
                                             const storage::v1::UploadedCheckpoint& checkpoint) {
  const SharedDisk::CheckpointPtr source = disk_.FindAsSeenBy(node, checkpoint.tag());
  if (source == nullptr) return model_.Upload(checkpoint, nullptr, false);
  absl::StatusOr<int64_t> sent =
      model_.Upload(checkpoint, &source->summary, disk_.IsDamaged(checkpoint.sequence()));
  if (sent.ok()) copies_.try_emplace(checkpoint.sequence(), source);
  return sent;
}

absl::Status SharedBucket::Fetch(const std::string& node, const std::string& tag, int64_t term) {
  const BucketModel::Summary* found = model_.Find(tag);
  if (found == nullptr) return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint, tag);
  if (found->sequence() <= disk_.newest()) {
    oracle_.Violated(
        absl::StrCat("sequence ", found->sequence(), " is fetched into a root that has a newer one"));
  } else if (oracle_.IsPublished(found->sequence()) && !forgotten_through_) {
    oracle_.Violated(absl::StrCat("sequence ", found->sequence(), " is fetched, and was removed before"));
  }
  return disk_.PutIn(node, copies_.at(found->sequence()), term);
}

// ---- one daemon

SimBucketIo::~SimBucketIo() {
  scope_.End();
  if (sending_ != nullptr && !pause_.paused() && bucket_.model_.random().Percent(50)) (void)sending_->work();
}

void SimBucketIo::Later(Duration delay, absl::AnyInvocable<void()> event) {
  bucket_.schedule_.After(delay, scope_.Guard([this, event = scope_.Guard(std::move(event))]() mutable {
    pause_.Deliver(std::move(event));
  }));
}

void SimBucketIo::Send(Duration delay, Request request) {
  if (sending_ != nullptr && sending_->may_go_on())
    return bucket_.oracle_.Violated("a daemon changes the bucket by two calls at once");
  sending_ = std::make_shared<Request>(std::move(request));
  Later(delay, [this, now = sending_] {
    if (sending_ == now) sending_ = nullptr;
    if (!now->may_go_on()) {
      bucket_.trace_(absl::StrCat(node_, ": no longer coordinates, and leaves the bucket alone"));
      return now->refuse(absl::CancelledError("another node coordinates the run"));
    }
    now->work()();
  });
}

void SimBucketIo::Upload(std::string, storage::v1::UploadedCheckpoint checkpoint, MayGoOn may_go_on,
                         std::shared_ptr<std::atomic<int64_t>>,
                         absl::AnyInvocable<void(absl::StatusOr<int64_t>)> done) {
  sim::Random& random = bucket_.model_.random();
  const Duration first = random.Spread(milliseconds(1), seconds(1));
  const Duration rest = random.Spread(milliseconds(5), seconds(10));
  auto answer = std::make_shared<decltype(done)>(std::move(done));
  const auto refuse = [answer](const absl::Status& why) { (*answer)(why); };
  Send(first,
       {may_go_on,
        [this, rest, checkpoint = std::move(checkpoint), may_go_on, answer,
         refuse]() -> absl::AnyInvocable<void()> {
          bucket_.Claim(node_, checkpoint);
          return [this, rest, checkpoint, may_go_on, answer, refuse] {
            Send(rest, {may_go_on,
                        [this, checkpoint, answer]() -> absl::AnyInvocable<void()> {
                          const absl::StatusOr<int64_t> sent = bucket_.Upload(node_, checkpoint);
                          bucket_.trace_(absl::StrCat(node_, ": uploads ", checkpoint.tag(), ", sequence ",
                                                      checkpoint.sequence(), ": ", sent.status().ToString()));
                          return [answer, sent] { (*answer)(sent); };
                        },
                        refuse});
          };
        },
        refuse});
}

void SimBucketIo::Remove(std::string, storage::v1::UploadedCheckpoint checkpoint, MayGoOn may_go_on,
                         absl::AnyInvocable<void(absl::Status)> done) {
  auto answer = std::make_shared<decltype(done)>(std::move(done));
  Send(bucket_.model_.random().Spread(milliseconds(1), seconds(2)),
       {std::move(may_go_on),
        [this, checkpoint = std::move(checkpoint), answer]() -> absl::AnyInvocable<void()> {
          const absl::Status removed = bucket_.model_.Remove(checkpoint);
          bucket_.trace_(absl::StrCat(node_, ": removes ", checkpoint.tag(), ", sequence ",
                                      checkpoint.sequence(), " from the bucket: ", removed.ToString()));
          return [answer, removed] { (*answer)(removed); };
        },
        [answer](const absl::Status& why) { (*answer)(why); }});
}

void SimBucketIo::List(std::string, absl::AnyInvocable<void(absl::StatusOr<Contents>)> done) {
  Later(bucket_.model_.random().Spread(milliseconds(1), seconds(2)),
        [this, done = std::move(done)]() mutable {
          if (bucket_.model_.Fails()) return done(BucketDoesNotAnswer());
          Contents contents;
          for (const auto& summary : bucket_.model_.Whole())
            contents.checkpoints.push_back({summary, /*by_daemon=*/true});
          done(contents);
        });
}

void SimBucketIo::Fetch(std::string, std::string tag, Term term, std::shared_ptr<std::atomic<int64_t>>,
                        absl::AnyInvocable<void(absl::Status)> done) {
  auto answer = std::make_shared<decltype(done)>(std::move(done));
  Later(bucket_.model_.random().Spread(milliseconds(5), seconds(10)), [this, tag, term, answer] {
    if (term.may_go_on && !term.may_go_on())
      return (*answer)(absl::CancelledError("another node coordinates the run"));
    const absl::Status fetched = bucket_.Fetch(node_, tag, term.number);
    bucket_.trace_(absl::StrCat(node_, ": fetches ", tag, ": ", fetched.ToString()));
    (*answer)(fetched);
  });
}

}  // namespace ckptd::sim_nodes
