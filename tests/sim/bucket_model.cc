#include "tests/sim/bucket_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd::sim {
namespace {

bool IsSame(const BucketModel::Summary& summary, const BucketModel::Checkpoint& checkpoint) {
  return summary.sequence() == checkpoint.sequence() &&
         summary.commit_time_us() == checkpoint.commit_time_us();
}

bool WasMovedIn(const BucketModel::Summary& summary) { return summary.tag().starts_with("moved"); }

bool IsOlder(const BucketModel::Summary& a, const BucketModel::Summary& b) {
  return std::pair(a.create_time_us(), a.sequence()) < std::pair(b.create_time_us(), b.sequence());
}

}  // namespace

absl::Status BucketDoesNotAnswer() {
  return MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "the bucket does not answer");
}

UploadPlan UploadPlan::Some(Random& random) {
  UploadPlan plan;
  plan.every = random.Percent(70) ? 1 : static_cast<int>(random.Between(2, 4));
  if (random.Percent(70)) plan.keep_last = static_cast<int>(random.Between(1, 4));
  plan.evict_before_upload = random.Percent(15);
  plan.restore = random.Percent(60);
  if (random.Percent(60)) plan.faults = static_cast<int>(random.Between(1, 40));
  return plan;
}

std::string UploadPlan::ToString() const {
  if (every == 0) return "";
  return absl::StrCat(", every ", every, " uploaded, ", keep_last, " stay, ", faults, " % bucket faults",
                      restore ? ", restores" : "", evict_before_upload ? ", evicts before the upload" : "");
}

// ---- what is there

const BucketModel::Summary* BucketModel::Find(const std::string& tag) const {
  const auto found = tags_.find(tag);
  return found != tags_.end() && found->second.whole ? &found->second.summary : nullptr;
}

bool BucketModel::IsWhole(int64_t sequence) const {
  return std::any_of(tags_.begin(), tags_.end(), [&](const auto& tag) {
    return tag.second.whole && tag.second.summary.sequence() == sequence;
  });
}

int64_t BucketModel::Newest() const {
  int64_t newest = 0;
  for (const Summary& summary : Whole()) newest = std::max(newest, summary.sequence());
  return newest;
}

int64_t BucketModel::NewestWithoutRoot() const {
  Summary newest;
  const std::vector<Summary> whole = Whole();
  for (const Summary& summary : whole)
    if (!WasMovedIn(summary) && summary.sequence() > newest.sequence()) newest = summary;
  for (const Summary& summary : whole)
    if (WasMovedIn(summary) && IsOlder(newest, summary)) newest = summary;
  return newest.sequence();
}

std::vector<BucketModel::Summary> BucketModel::Whole() const {
  std::vector<Summary> whole;
  for (const auto& [tag, entry] : tags_) {
    if (entry.whole) whole.push_back(entry.summary);
  }
  return whole;
}

void BucketModel::Forget() {
  is_forgotten_ = true;
  for (const auto& [tag, entry] : tags_) forgot_half_done_ |= !entry.whole;
}

std::string BucketModel::Leftovers() const {
  std::string words;
  for (const auto& [tag, entry] : tags_) {
    if (!entry.whole) absl::StrAppend(&words, " an unfinished upload of ", tag);
  }
  // What is counted again at a resume goes with the next upload. Unless each save is uploaded there may be none.
  if (is_forgotten_ && plan_.every > 1) return words;
  const auto whole = static_cast<int>(Whole().size());
  if (plan_.keep_last > 0 && whole > plan_.keep_last) absl::StrAppend(&words, " ", whole, " checkpoints");
  return words;
}

void BucketModel::OnPublished(const std::string& tag, int64_t sequence) {
  int64_t& newest = newest_of_tag_[tag];
  newest = std::max(newest, sequence);
}

bool BucketModel::IsReplaced(const std::string& tag, int64_t sequence) const {
  const auto newest = newest_of_tag_.find(tag);
  return newest != newest_of_tag_.end() && newest->second > sequence;
}

// ---- calls

void BucketModel::Claim(const Checkpoint& checkpoint, const Summary* source) {
  if (source != nullptr && IsSame(*source, checkpoint)) tags_.try_emplace(checkpoint.tag(), Entry{*source});
}

absl::StatusOr<int64_t> BucketModel::Upload(const Checkpoint& checkpoint, const Summary* source,
                                            bool is_damaged) {
  if (source == nullptr || !IsSame(*source, checkpoint))
    return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", checkpoint.tag());
  Claim(checkpoint, source);
  Entry& entry = tags_.at(checkpoint.tag());
  if (!IsSame(entry.summary, checkpoint)) {
    if (!is_forgotten_)
      violated_(absl::StrCat("an upload of ", checkpoint.tag(), ", sequence ", checkpoint.sequence(),
                             ", finds sequence ", entry.summary.sequence(), " in its place"));
    return MakeError(absl::StatusCode::kAlreadyExists, "OBJECT_EXISTS", checkpoint.tag());
  }
  if (entry.whole) return 0;
  if (Fails()) return BucketDoesNotAnswer();
  if (is_damaged) return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", checkpoint.tag());
  entry.whole = true;
  being_replaced_.erase(checkpoint.tag());
  were_whole_.insert(checkpoint.sequence());
  return checkpoint.size_bytes();
}

bool BucketModel::IsOutnumbered(const Checkpoint& checkpoint) const {
  auto newer = static_cast<int>(being_replaced_.size());
  for (const Summary& summary : Whole()) newer += summary.sequence() > checkpoint.sequence() ? 1 : 0;
  return plan_.keep_last > 0 && newer >= plan_.keep_last;
}

absl::Status BucketModel::Remove(const Checkpoint& checkpoint) {
  const auto found = tags_.find(checkpoint.tag());
  if (found == tags_.end() || !IsSame(found->second.summary, checkpoint)) return absl::OkStatus();
  Entry& entry = found->second;
  if (entry.whole && checkpoint.given_up())
    return MakeError(absl::StatusCode::kAlreadyExists, "OBJECT_EXISTS", checkpoint.tag());
  const bool is_outnumbered = IsOutnumbered(checkpoint);
  const bool is_replaced = !is_outnumbered && IsReplaced(checkpoint.tag(), checkpoint.sequence());
  if (entry.whole && !is_replaced && !is_outnumbered)
    violated_(absl::StrCat(checkpoint.tag(), ", sequence ", checkpoint.sequence(),
                           " is removed from the bucket, where it is to stay"));
  const bool fails = Fails();
  if (fails && random_.Percent(50)) return BucketDoesNotAnswer();
  if (entry.whole && is_replaced) being_replaced_.insert(checkpoint.tag());
  entry.whole = false;
  if (fails) return BucketDoesNotAnswer();
  tags_.erase(found);
  return absl::OkStatus();
}

}  // namespace ckptd::sim
