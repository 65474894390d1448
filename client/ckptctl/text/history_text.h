// Renders the history of a run.
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_HISTORY_TEXT_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_HISTORY_TEXT_H_

#include <string>

#include "ckptd/v1/messages.pb.h"

namespace ckptd::ctl {

// A table, newest first.
std::string RenderHistory(const v1::GetHistoryResponse& history);
// What an entry says of its end: "COMMITTED", "FAILED: RANKS_MISSING: ranks 1 have not ...", "INCOMPLETE: ..."
std::string RenderEnd(const v1::HistoryEntry& entry);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_HISTORY_TEXT_H_
