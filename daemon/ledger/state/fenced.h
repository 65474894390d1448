// The error message for an attempt, and the end of its saves, when a later attempt has acted.
#ifndef CKPTD_DAEMON_LEDGER_STATE_FENCED_H_
#define CKPTD_DAEMON_LEDGER_STATE_FENCED_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "storage/base/reasons.h"

namespace ckptd {

inline std::string FencedMessage(int64_t attempt, int64_t active) {
  return absl::StrCat("attempt ", attempt, " is over: attempt ", active,
                      " of this run has begun a save or resumed since");
}

inline ledger::v1::SaveEnd FencedEnd(int64_t attempt, int64_t active) {
  ledger::v1::SaveEnd end;
  end.set_reason(reason::kFenced);
  end.set_message(FencedMessage(attempt, active));
  return end;
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_FENCED_H_
