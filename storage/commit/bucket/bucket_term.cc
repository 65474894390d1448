#include "storage/commit/bucket/bucket_term.h"

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/transfer.h"

namespace ckptd {
namespace {

bool Exists(const absl::Status& status) { return ReasonOf(status) == "OBJECT_EXISTS"; }

absl::StatusOr<std::set<int64_t>> Terms(ObjectStore& store, const BucketKeys& keys) {
  CKPTD_ASSIGN_OR_RETURN(const std::set<std::string> found, KeysBeneath(store, keys.Terms()));
  std::set<int64_t> terms;
  for (const std::string& key : found)
    if (const std::optional<int64_t> term = keys.TermOf(key)) terms.insert(*term);
  return terms;
}

int64_t Highest(const std::set<int64_t>& terms) { return terms.empty() ? 0 : *terms.rbegin(); }

// No other daemon writes these bytes: a put that is tried again knows its own first try by them.
std::string TextOf(const std::string& owner) {
  std::random_device random;
  return absl::StrFormat("%s\n%08x%08x%08x%08x\n", owner, random(), random(), random(), random());
}

absl::StatusOr<bool> PutOwn(ObjectStore& store, const std::string& key, const std::string& text) {
  const absl::Status put = PutText(store, key, text, PutMode::kIfAbsent);
  if (put.ok()) return true;
  if (!Exists(put)) return put;
  const absl::StatusOr<std::string> there = GetText(store, key);
  if (ReasonOf(there.status()) == "NO_OBJECT") return false;
  if (!there.ok()) return there.status();
  return *there == text;
}

}  // namespace

absl::StatusOr<int64_t> TakeTerm(ObjectStore& store, const BucketKeys& keys, const std::string& owner) {
  const std::string text = TextOf(owner);
  while (true) {  // Each turn, another daemon has just opened the root.
    CKPTD_ASSIGN_OR_RETURN(const std::set<int64_t> before, Terms(store, keys));
    const int64_t term = Highest(before) + 1;
    CKPTD_ASSIGN_OR_RETURN(const bool is_ours, PutOwn(store, keys.Term(term), text));
    if (!is_ours) continue;
    const absl::Status second = PutText(store, keys.Term(term), text, PutMode::kIfAbsent);
    if (second.ok()) {
      CKPTD_RETURN_IF_ERROR(store.Delete(keys.Term(term)));
      return MakeError(
          absl::StatusCode::kUnimplemented, "STORE_UNSUITABLE",
          "the server ignores If-None-Match: two daemons could write in one root; use a server that "
          "knows conditional puts");
    }
    if (!Exists(second)) return second;
    // A daemon that had listed the terms long ago has put a term that was removed since.
    CKPTD_ASSIGN_OR_RETURN(const std::set<int64_t> now, Terms(store, keys));
    if (Highest(now) != term) continue;
    for (const int64_t earlier : now)
      if (earlier < term) CKPTD_RETURN_IF_ERROR(store.Delete(keys.Term(earlier)));
    return term;
  }
}

absl::Status CheckTerm(ObjectStore& store, const BucketKeys& keys, int64_t term) {
  CKPTD_ASSIGN_OR_RETURN(const std::set<int64_t> terms, Terms(store, keys));
  const int64_t highest = Highest(terms);
  if (highest == term) return absl::OkStatus();
  std::string who = "another daemon";
  if (highest > term) {
    const absl::StatusOr<std::string> text = GetText(store, keys.Term(highest));
    if (text.ok()) who = absl::StrCat("the daemon ", text->substr(0, text->find('\n')));
  }
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "ROOT_TAKEN_OVER",
      absl::StrCat(who,
                   " has opened this root since, and this one writes nothing there any more; end that "
                   "job, or give each job a prefix of its own, and start this one again"));
}

}  // namespace ckptd
