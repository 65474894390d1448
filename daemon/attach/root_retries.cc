#include "daemon/attach/root_retries.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr Duration kFirstRetry = std::chrono::seconds(1);
constexpr Duration kSlowestRetry = std::chrono::seconds(60);

}  // namespace

std::string RootRetries::KeyOf(const storage::v1::KnownRoot& root) {
  return absl::StrCat(root.uid(), ":", root.inode(), ":", root.path());
}

bool RootRetries::Ended(const storage::v1::KnownRoot& root, const absl::Status& status, Instant now) {
  MutexLock lock(mutex_);
  const std::string key = KeyOf(root);
  if (!CouldNotFindOut(status)) {
    retries_.erase(key);
    return false;
  }
  Retry& retry = retries_[key];
  retry.root = root;
  retry.waiting = true;
  retry.at = now + std::min<Duration>(kSlowestRetry, kFirstRetry * (1 << std::min(retry.failures, 10)));
  ++retry.failures;
  return true;
}

std::vector<storage::v1::KnownRoot> RootRetries::TakeDue(Instant now) {
  MutexLock lock(mutex_);
  std::vector<storage::v1::KnownRoot> due;
  for (auto& [key, retry] : retries_) {
    if (!retry.waiting || now < retry.at) continue;
    retry.waiting = false;
    due.push_back(retry.root);
  }
  return due;
}

int RootRetries::failures(const storage::v1::KnownRoot& root) const {
  MutexLock lock(mutex_);
  const auto found = retries_.find(KeyOf(root));
  return found == retries_.end() ? 0 : found->second.failures;
}

}  // namespace ckptd
