// Makes entries of the history from what the engine reports.
#ifndef CKPTD_DAEMON_HISTORY_HISTORY_ENTRIES_H_
#define CKPTD_DAEMON_HISTORY_HISTORY_ENTRIES_H_

#include <cstdint>

#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/seams/engine_types.h"

namespace ckptd {

// `now_us`: Unix time, in microseconds.
v1::HistoryEntry EntryOf(const SaveSummary& save, int64_t now_us);
v1::HistoryEntry EntryOf(const RestoreSummary& restore, int64_t now_us);
v1::HistoryEntry EntryOf(const RemovalSummary& removal, int64_t now_us);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HISTORY_HISTORY_ENTRIES_H_
