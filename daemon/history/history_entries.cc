#include "daemon/history/history_entries.h"

namespace ckptd {
namespace {

v1::HistoryEntry Entry(v1::HistoryEntry::Kind kind, int64_t now_us) {
  v1::HistoryEntry entry;
  entry.set_kind(kind);
  entry.mutable_time()->set_seconds(now_us / 1'000'000);
  entry.mutable_time()->set_nanos(static_cast<int32_t>(now_us % 1'000'000 * 1000));
  return entry;
}

}  // namespace

v1::HistoryEntry EntryOf(const SaveSummary& save, int64_t now_us) {
  const v1::Checkpoint& checkpoint = save.checkpoint;
  v1::HistoryEntry entry = Entry(v1::HistoryEntry::SAVE, now_us);
  entry.set_tag(checkpoint.tag());
  if (checkpoint.has_step()) entry.set_step(checkpoint.step());
  entry.set_sequence(checkpoint.sequence());
  entry.set_attempt(checkpoint.attempt());
  entry.set_size_bytes(checkpoint.size_bytes());
  entry.set_processes(checkpoint.world_size());
  entry.set_level(checkpoint.level());
  entry.set_reason(checkpoint.error().reason());
  entry.set_message(checkpoint.error().message());
  *entry.mutable_ranks() = checkpoint.error().ranks();
  entry.set_stall_seconds(save.stall_seconds);
  entry.set_staged_seconds(save.staged_seconds);
  entry.set_written_seconds(save.written_seconds);
  entry.set_committed_seconds(save.committed_seconds);
  if (save.slowest_rank >= 0) entry.set_slowest_rank(save.slowest_rank);
  return entry;
}

v1::HistoryEntry EntryOf(const RestoreSummary& restore, int64_t now_us) {
  v1::HistoryEntry entry = Entry(v1::HistoryEntry::RESTORE, now_us);
  entry.set_tag(restore.tag);
  if (restore.step) entry.set_step(*restore.step);
  entry.set_sequence(restore.sequence);
  entry.set_attempt(restore.attempt);
  entry.set_size_bytes(restore.total_bytes);
  entry.set_read_bytes(restore.read_bytes);
  entry.set_processes(restore.readers);
  entry.set_reason(restore.reason);
  entry.set_message(restore.message);
  entry.set_staged_seconds(restore.seconds);
  if (restore.slowest_rank >= 0) entry.set_slowest_rank(restore.slowest_rank);
  return entry;
}

v1::HistoryEntry EntryOf(const RemovalSummary& removal, int64_t now_us) {
  v1::HistoryEntry entry = Entry(removal.by ? v1::HistoryEntry::DELETED : v1::HistoryEntry::EVICTED, now_us);
  entry.set_tag(removal.tag);
  if (removal.step) entry.set_step(*removal.step);
  entry.set_sequence(removal.sequence);
  entry.set_size_bytes(removal.size_bytes);
  if (removal.by) entry.set_uid(static_cast<int32_t>(*removal.by));
  return entry;
}

}  // namespace ckptd
