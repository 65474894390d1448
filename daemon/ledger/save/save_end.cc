#include "daemon/ledger/save/save_end.h"

#include <string>
#include <vector>

#include "storage/base/errors.h"

namespace ckptd {

using ledger::v1::SaveEnd;

SaveEnd EndOf(const absl::Status& error) {
  SaveEnd end;
  end.set_code(static_cast<int>(error.code()));
  end.set_reason(ReasonOf(error));
  end.set_message(std::string(error.message()));
  const ErrorDetails details = DetailsOf(error);
  if (const auto ranks = details.find("ranks"); ranks != details.end()) {
    for (const int rank : SplitRanks(ranks->second)) end.add_ranks(rank);
  }
  return end;
}

absl::Status ErrorOf(const SaveEnd& end) {
  ErrorDetails details;
  if (!end.node().empty()) details["node"] = end.node();
  if (end.ranks_size() > 0)
    details["ranks"] = JoinRanks(std::vector<int>(end.ranks().begin(), end.ranks().end()));
  // An end that the ledger itself decides has no code: it means that a condition was not met.
  const auto code =
      end.code() == 0 ? absl::StatusCode::kFailedPrecondition : static_cast<absl::StatusCode>(end.code());
  return MakeError(code, end.reason(), end.message(), details);
}

}  // namespace ckptd
