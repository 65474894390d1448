#include "client/ckptctl/text/history_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/text/render.h"
#include "client/ckptctl/text/text.h"

namespace ckptd::ctl {
namespace {

std::string Seconds(double seconds) { return seconds > 0 ? HumanSeconds(seconds) : "-"; }

// The average over the whole save or restore.
std::string Rate(int64_t bytes, double seconds) {
  if (bytes <= 0 || seconds <= 0) return "-";
  return absl::StrCat(HumanBytes(static_cast<int64_t>(static_cast<double>(bytes) / seconds)), "/s");
}

std::string Rank(const v1::HistoryEntry& entry) {
  return entry.has_slowest_rank() ? absl::StrCat(entry.slowest_rank()) : "-";
}

bool IsUnread(const v1::HistoryEntry& restore) { return restore.read_bytes() < restore.size_bytes(); }

}  // namespace

std::string RenderEnd(const v1::HistoryEntry& entry) {
  std::string what;
  switch (entry.kind()) {
    case v1::HistoryEntry::SAVE:
      what = v1::Level_Name(entry.level());
      break;
    case v1::HistoryEntry::RESTORE:
      if (entry.reason().empty() && IsUnread(entry))
        return absl::StrCat("INCOMPLETE: ", HumanBytes(entry.read_bytes()), " of ",
                            HumanBytes(entry.size_bytes()), " were read");
      what = entry.reason().empty() ? "READ" : "FAILED";
      break;
    case v1::HistoryEntry::EVICTED:
      return "by retention";
    case v1::HistoryEntry::DELETED:
      return absl::StrCat("by uid ", entry.uid());
    default:
      return "";
  }
  if (!entry.reason().empty()) absl::StrAppend(&what, ": ", entry.reason());
  if (!entry.message().empty()) absl::StrAppend(&what, ": ", OneLine(entry.message()));
  return what;
}

std::string RenderHistory(const v1::GetHistoryResponse& history) {
  if (history.entries().empty()) return "nothing has happened yet\n";
  Table table({"WHEN", "WHAT", "TAG", "STEP", "SIZE", "RATE", "STALL", "COPIED", "WRITTEN", "PUBLISHED",
               "SLOWEST", "OUTCOME"});
  for (const v1::HistoryEntry& entry : history.entries()) {
    const bool is_save = entry.kind() == v1::HistoryEntry::SAVE;
    const bool is_restore = entry.kind() == v1::HistoryEntry::RESTORE;
    table.Add({LocalTime(UnixMicros(entry.time())), v1::HistoryEntry::Kind_Name(entry.kind()),
               Printable(entry.tag()), entry.has_step() ? absl::StrCat(entry.step()) : "-",
               is_restore && entry.size_bytes() == 0 ? "-" : HumanBytes(entry.size_bytes()),
               is_save ? Rate(entry.size_bytes(), entry.written_seconds())
                       : Rate(entry.read_bytes(), entry.staged_seconds()),
               Seconds(entry.stall_seconds()), Seconds(entry.staged_seconds()),
               Seconds(entry.written_seconds()), Seconds(entry.committed_seconds()), Rank(entry),
               Printable(RenderEnd(entry))});
  }
  return table.ToString();
}

}  // namespace ckptd::ctl
