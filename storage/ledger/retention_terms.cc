#include "storage/ledger/retention_terms.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ckptd {

using storage::v1::RetentionPolicy;

bool KeepsAll(const RetentionPolicy& policy) {
  return !policy.has_last() && policy.best() == 0 && policy.every_steps() == 0 && policy.newer_than_us() == 0;
}

int LastOf(const RetentionPolicy& policy) { return policy.has_last() ? policy.last() : 1; }

bool IsSamePolicy(const RetentionPolicy& a, const RetentionPolicy& b) {
  if (KeepsAll(a) || KeepsAll(b)) return KeepsAll(a) && KeepsAll(b);
  return LastOf(a) == LastOf(b) && a.best() == b.best() && a.metric() == b.metric() &&
         a.highest() == b.highest() && a.every_steps() == b.every_steps() &&
         a.newer_than_us() == b.newer_than_us();
}

std::string DescribePolicy(const RetentionPolicy& policy) {
  if (KeepsAll(policy)) return "all";
  std::vector<std::string> words = {LastInWords(policy)};
  if (policy.best() > 0) words.push_back(BestInWords(policy));
  if (policy.every_steps() > 0) words.push_back(StepsInWords(policy));
  if (policy.newer_than_us() > 0) words.push_back(AgeInWords(policy));
  return absl::StrJoin(words, ", ");
}

std::string LastInWords(const RetentionPolicy& policy) { return absl::StrCat("last ", LastOf(policy)); }

std::string BestInWords(const RetentionPolicy& policy) {
  return absl::StrCat("best ", policy.best(), " by ", policy.highest() ? "highest " : "lowest ",
                      policy.metric());
}

std::string StepsInWords(const RetentionPolicy& policy) {
  return absl::StrCat("every ", policy.every_steps(), " steps");
}

std::string AgeInWords(const RetentionPolicy& policy) {
  return absl::StrCat("newer than ", policy.newer_than_us() / 1'000'000, " s");
}

}  // namespace ckptd
