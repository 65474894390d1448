#include "daemon/ledger/state/run_root.h"

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"

namespace ckptd {

using ledger::v1::RunRoot;

absl::Status CheckRunRoot(const std::string& run, const RunRoot& here,
                          const std::vector<etcdserverpb::KeyValue>& found) {
  const RunRoot bound = FirstOf<RunRoot>(found);
  if (found.empty() || bound.inode() == here.inode()) return absl::OkStatus();
  const std::string what = absl::StrCat("the root ", here.path(), " holds the id of run ", run,
                                        ", whose root is another directory");
  if (bound.uid() != here.uid()) {
    return MakeError(absl::StatusCode::kPermissionDenied, ledger_reason::kRootCopied,
                     absl::StrCat(what, ", of another user; save into another directory"),
                     {{"path", here.path()}});
  }
  return MakeError(
      absl::StatusCode::kFailedPrecondition, ledger_reason::kRootCopied,
      absl::StrCat(what, " (", bound.path(), ", inode ", bound.inode(), "; this one has inode ", here.inode(),
                   "). If this is a copy, or the file system was made anew, give it an id of its own: "
                   "ckptctl new-run ",
                   here.path()),
      {{"path", here.path()}});
}

std::optional<etcdserverpb::RequestOp> BindRunRoot(const std::string& key, const RunRoot& here,
                                                   const std::vector<etcdserverpb::KeyValue>& found) {
  const std::string value = here.SerializeAsString();
  if (!found.empty() && found[0].value() == value) return std::nullopt;
  return Put(key, value);
}

}  // namespace ckptd
