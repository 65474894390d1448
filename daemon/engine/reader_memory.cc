// The memory that readers hold.
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "storage/base/errors.h"

namespace ckptd {

// Segments that readers and prefetches of each user keep from others.
std::map<uid_t, int64_t> Engine::Impl::HeldByReaders() const {
  std::map<uid_t, std::set<ReservationId>> copies;
  const auto add = [&](SessionId session, ReservationId copy) {
    auto reader = sessions_.find(session);
    if (copy != 0 && reader != sessions_.end()) copies[reader->second.uid].insert(copy);
  };
  for (const auto& entry : leases_) add(entry.second.session, entry.second.copy);
  for (const auto& [session, held] : mapped_) {
    for (ReservationId copy : held) add(session, copy);
  }
  for (const auto& entry : runs_) {
    const Run& run = *entry.second;
    if (run.prefetch && run.prefetch->resident.copy != 0) copies[run.uid].insert(run.prefetch->resident.copy);
  }
  std::map<uid_t, int64_t> held;
  for (const auto& [uid, set] : copies) {
    for (ReservationId copy : set) held[uid] += pool_->Count(copy);
  }
  return held;
}

// Whether the user's readers may hold `segments` more. Memory cannot be taken back from a reader, so a user's
// readers together hold at most a part of the pool. A copy that they hold already costs nothing.
absl::Status Engine::Impl::MayRead(uid_t uid, ReservationId copy, int64_t segments) const {
  for (const auto& entry : leases_) {
    auto reader = sessions_.find(entry.second.session);
    const bool ours = reader != sessions_.end() && reader->second.uid == uid;
    if (copy != 0 && ours && entry.second.copy == copy) return absl::OkStatus();
  }
  const std::map<uid_t, int64_t> readers = HeldByReaders();
  const auto found = readers.find(uid);
  const int64_t held = found == readers.end() ? 0 : found->second;
  const int64_t most = int64_t{pool_->capacity()} * options_.max_reader_pool_percent_per_user / 100;
  if (held + segments <= most) return absl::OkStatus();
  const int64_t mib = pool_->segment_bytes() >> 20;
  return MakeError(
      absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED",
      absl::StrCat("readers of uid ", uid, " hold ", held * mib, " MiB of memory and would hold ",
                   (held + segments) * mib, "; they may hold ", most * mib,
                   " (limits.max_reader_pool_percent_per_user): read the disk, or raise that"));
}

}  // namespace ckptd
