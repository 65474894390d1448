#include "daemon/engine/reading/resident_cache.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/part_layout.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

int64_t BytesOf(const Resident& resident) {
  int64_t bytes = 0;
  for (const auto& [rank, part] : resident.parts) {
    for (const SegmentRef& segment : part.segments) bytes += segment.size;
  }
  return bytes;
}

// The parts of a save that have files.
std::map<int, ResidentPart> PartsOf(const Save& save) {
  std::map<int, ResidentPart> parts;
  for (const auto& [rank, part] : save.parts) {
    if (part.files.empty()) continue;
    ResidentPart& kept = parts[rank];
    kept.writer = part.session;
    kept.files = part.files;
    kept.placed = part.placed;
    kept.segments = part.segments;
    kept.records.assign(part.record.files().begin(), part.record.files().end());
  }
  return parts;
}

v1::ResidentPart ToWire(int rank, const ResidentPart& part) {
  v1::ResidentPart located;
  located.set_rank(rank);
  for (const SegmentRef& segment : part.segments) {
    v1::Segment& lent = *located.add_segments();
    lent.set_id(segment.id);
    lent.set_size_bytes(segment.size);
  }
  for (const SealedFile& file : part.files) {
    v1::FilePlacement& placement = *located.add_placements();
    placement.set_path(file.placed->path);
    placement.set_size_bytes(file.size);
    placement.set_offset(file.placed->offset);
  }
  return located;
}

}  // namespace

// ---- copies

ResidentCache::Copy* ResidentCache::FindCopy(const Run* run, int64_t sequence) {
  Copies& copies = copies_.Of(run);
  const auto found = copies.find(sequence);
  return found == copies.end() ? nullptr : &found->second;
}

bool ResidentCache::Keep(const Save& save) {
  Copy copy;
  copy.resident.copy = save.reservation;
  copy.resident.parts = PartsOf(save);
  if (copy.resident.parts.empty()) return false;  // There is nothing to read.
  pool_->Settle(save.reservation);
  if (!pool_->HasCopy(save.reservation)) return true;
  std::vector<int> final;  // Ranks whose session has ended.
  for (const auto& [rank, part] : copy.resident.parts) {
    if (!sessions_->IsOpen(part.writer)) final.push_back(rank);
  }
  copies_.Of(save.run).insert_or_assign(save.sequence, std::move(copy));
  for (int rank : final) CheckPart(save.run, save.sequence, rank, [](bool) {});
  return true;
}

absl::StatusOr<ReservationId> ResidentCache::ReserveForPrefetch(const Run& run, int segments) {
  if (absl::Status may = CheckReaderLimit(run.uid, 0, segments); !may.ok()) return may;
  const int64_t bytes = int64_t{segments} * pool_->segment_bytes();
  // Open sessions keep the segments that are lent to them, and a save of the same size finds its memory too.
  const PoolUsage usage = pool_->usage();
  const int64_t free = usage.total_bytes - usage.used_bytes;
  const int64_t room = std::min({pool_->resident_limit_bytes(), free - usage.lent_bytes, free - bytes});
  if (bytes > room) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, reason::kPoolExhausted,
        absl::StrCat("the checkpoint needs ", bytes >> 20, " MiB of memory as a copy, and there are ",
                     std::max<int64_t>(room, 0) >> 20,
                     " MiB that no save needs; make pool.bytes or pool.resident_bytes larger, or let its "
                     "readers read the disk"));
  }
  absl::StatusOr<ReservationId> reserved = pool_->Reserve({{0, segments}}, /*spares_lent=*/true);
  if (reserved.ok()) prefetching_.emplace(*reserved, run.uid);
  return reserved;
}

void ResidentCache::AddPrefetched(Run* run, int64_t sequence, Resident resident) {
  prefetching_.erase(resident.copy);
  pool_->Settle(resident.copy);
  copies_.Of(run).insert_or_assign(sequence, Copy{std::move(resident), {}});
}

void ResidentCache::CancelPrefetch(ReservationId copy) {
  prefetching_.erase(copy);
  pool_->Release(copy);
}

bool ResidentCache::IsResident(const Run& run, int64_t sequence) const {
  const Copies& copies = copies_.Of(&run);
  const auto found = copies.find(sequence);
  return found != copies.end() && pool_->HasCopy(found->second.resident.copy);
}

void ResidentCache::Drop(Run* run, int64_t sequence) {
  Copy* copy = FindCopy(run, sequence);
  if (copy == nullptr) return;
  const ReservationId reservation = copy->resident.copy;
  std::vector<absl::AnyInvocable<void(bool)>> waiting;
  for (auto& [rank, check] : copy->checks) {
    for (auto& waits : check.waiting) waiting.push_back(std::move(waits));
  }
  copies_.Of(run).erase(sequence);
  pool_->Release(reservation);
  for (auto& waits : waiting) waits(false);
}

void ResidentCache::Prune(Run* run) {
  std::vector<int64_t> over;
  for (const auto& [sequence, copy] : copies_.Of(run)) {
    if (!pool_->HasCopy(copy.resident.copy) || run->catalog.Find(sequence) == nullptr ||
        run->catalog.IsDamaged(sequence)) {
      over.push_back(sequence);
    }
  }
  for (int64_t sequence : over) Drop(run, sequence);
}

void ResidentCache::MakeWayForSaves(Run* run, int64_t sequence) {
  for (const std::string& lease : leases_->ResumingFrom(*run, sequence)) {
    const auto hold = holds_.find(lease);
    if (hold == holds_.end()) continue;
    pool_->Unhold(hold->second.copy, hold->second.session);
    holds_.erase(hold);
  }
  const Copy* copy = FindCopy(run, sequence);
  if (copy == nullptr) return;
  const int64_t bytes = BytesOf(copy->resident);
  const PoolUsage usage = pool_->usage();
  if (usage.total_bytes - usage.used_bytes - usage.lent_bytes - usage.resident_bytes < bytes)
    Drop(run, sequence);
}

// ---- checks

void ResidentCache::CheckPart(Run* run, int64_t sequence, int rank, absl::AnyInvocable<void(bool)> done) {
  Copy* copy = FindCopy(run, sequence);
  if (copy == nullptr) return done(false);
  const ResidentPart& part = copy->resident.parts.at(rank);
  if (part.checked) return done(true);
  const ReservationId reservation = copy->resident.copy;
  const bool is_checking = copy->checks.contains(rank);
  if (!is_checking && !pool_->Hold(reservation, 0)) return done(false);
  Check& check = copy->checks[rank];
  check.waiting.push_back(std::move(done));
  if (is_checking) return;
  check.for_good = !sessions_->IsOpen(part.writer);
  run->io->CheckImages(ImagesOf(part.files, part.segments), part.records, options_.chunk_bytes,
                       [this, run, sequence, rank, reservation](const absl::Status& found) {
                         pool_->Unhold(reservation, 0);
                         PartChecked(run, sequence, rank, reservation, found);
                       });
}

void ResidentCache::PartChecked(Run* run, int64_t sequence, int rank, ReservationId reservation,
                                const absl::Status& found) {
  Copy* copy = FindCopy(run, sequence);
  if (copy == nullptr || copy->resident.copy != reservation) return;  // Drop has answered the readers.
  if (!found.ok()) {
    observer_->OnWarning(
        absl::StrCat("what is in memory of sequence ", sequence, " of ", run->path,
                     " is not what was saved, and is read from the disk: ", std::string(found.message())));
    return Drop(run, sequence);
  }
  ResidentPart& part = copy->resident.parts.at(rank);
  Check check = std::move(copy->checks.at(rank));
  copy->checks.erase(rank);
  part.checked = check.for_good;
  // The writer's session has ended during the check, and may have written before: check once more.
  const bool again = !check.for_good && !sessions_->IsOpen(part.writer);
  for (auto& waits : check.waiting) {
    if (again) {
      CheckPart(run, sequence, rank, std::move(waits));
    } else {
      waits(true);
    }
  }
}

// ---- readers

bool ResidentCache::LeavesRoom(const Resident& resident, bool held) const {
  const PoolUsage usage = pool_->usage();
  return usage.total_bytes - usage.used_bytes >= (held ? 1 : 2) * BytesOf(resident);
}

bool ResidentCache::IsHeldByLease(ReservationId copy) const {
  return std::any_of(holds_.begin(), holds_.end(),
                     [copy](const auto& entry) { return entry.second.copy == copy; });
}

std::map<uid_t, int64_t> ResidentCache::HeldByReaders() const {
  std::map<uid_t, std::set<ReservationId>> copies;
  const auto add = [&](SessionId session, ReservationId copy) {
    if (const SessionInfo* reader = sessions_->Find(session)) copies[reader->uid].insert(copy);
  };
  for (const auto& [lease, hold] : holds_) add(hold.session, hold.copy);
  for (const auto& [session, held] : mapped_) {
    for (ReservationId copy : held) add(session, copy);
  }
  for (const auto& [copy, uid] : prefetching_) copies[uid].insert(copy);
  std::map<uid_t, int64_t> held;
  for (const auto& [uid, set] : copies) {
    for (ReservationId copy : set) held[uid] += pool_->Count(copy);
  }
  return held;
}

// Memory cannot be taken from a reader, so a user's readers hold no more than a part of the pool. `segments`:
// how many they would hold in addition; none if they hold `copy` already.
absl::Status ResidentCache::CheckReaderLimit(uid_t uid, ReservationId copy, int64_t segments) const {
  for (const auto& [lease, hold] : holds_) {
    if (copy != 0 && hold.copy == copy && sessions_->IsOfUser(hold.session, uid)) return absl::OkStatus();
  }
  const std::map<uid_t, int64_t> readers = HeldByReaders();
  const auto found = readers.find(uid);
  const int64_t held = found == readers.end() ? 0 : found->second;
  const int64_t most = int64_t{pool_->capacity()} * options_.max_reader_pool_percent_per_user / 100;
  if (held + segments <= most) return absl::OkStatus();
  const int64_t mib = pool_->segment_bytes() >> 20;
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kPoolExhausted,
      absl::StrCat("readers of uid ", uid, " hold ", held * mib, " MiB of memory and would hold ",
                   (held + segments) * mib, "; they may hold ", most * mib,
                   " (limits.max_reader_pool_percent_per_user): read the disk, or raise that"));
}

bool ResidentCache::HoldFor(const Lease& lease, const SessionInfo& reader, const Resident& resident) {
  if (holds_.contains(lease.id)) return true;
  const ReservationId copy = resident.copy;
  if (!lease.resumes && !LeavesRoom(resident, IsHeldByLease(copy))) return false;
  if (!CheckReaderLimit(reader.uid, copy, pool_->Count(copy)).ok()) return false;
  if (!pool_->Hold(copy, lease.session)) return false;
  holds_.emplace(lease.id, Hold{lease.session, copy});
  return true;
}

void ResidentCache::Locate(const Lease& lease, const v1::LocateFilesRequest& request,
                           Reply<v1::LocateFilesResponse> reply) {
  Run* run = lease.run;
  const int64_t sequence = lease.sequence;
  Prune(run);
  const SessionInfo* reader = sessions_->Find(lease.session);
  const Copy* copy = FindCopy(run, sequence);
  if (reader == nullptr || !reader->descriptors || copy == nullptr) return reply(v1::LocateFilesResponse());
  if (!HoldFor(lease, *reader, copy->resident)) return reply(v1::LocateFilesResponse());
  std::vector<int> ranks;
  for (const auto& [rank, part] : copy->resident.parts) {
    if (request.path().empty() || part.placed->Find(request.path()) != nullptr) ranks.push_back(rank);
  }
  if (ranks.empty()) return reply(v1::LocateFilesResponse());
  CheckParts(run, sequence, request, std::move(ranks), std::move(reply));
}

// Answers once every part has been checked.
void ResidentCache::CheckParts(Run* run, int64_t sequence, const v1::LocateFilesRequest& request,
                               std::vector<int> ranks, Reply<v1::LocateFilesResponse> reply) {
  struct Asked {
    std::vector<int> good;
    size_t left;
    Reply<v1::LocateFilesResponse> reply;
  };
  auto asked = std::make_shared<Asked>();
  asked->left = ranks.size();
  asked->reply = std::move(reply);
  for (int rank : ranks) {
    CheckPart(run, sequence, rank, [this, run, sequence, rank, asked, request](bool good) {
      if (good) asked->good.push_back(rank);
      if (--asked->left == 0) AnswerLocate(run, sequence, request, asked->good, std::move(asked->reply));
    });
  }
}

void ResidentCache::AnswerLocate(Run* run, int64_t sequence, const v1::LocateFilesRequest& request,
                                 const std::vector<int>& ranks, Reply<v1::LocateFilesResponse> reply) {
  v1::LocateFilesResponse response;
  const Copy* copy = FindCopy(run, sequence);
  const auto hold = holds_.find(request.lease());
  const bool there = copy != nullptr && hold != holds_.end() && hold->second.copy == copy->resident.copy;
  if (!there) return reply(std::move(response));
  for (int rank : ranks) *response.add_parts() = ToWire(rank, copy->resident.parts.at(rank));
  const bool has_memory = std::any_of(response.parts().begin(), response.parts().end(),
                                      [](const v1::ResidentPart& part) { return part.segments_size() > 0; });
  if (!request.map() || !has_memory) return reply(std::move(response));
  LetMap(hold->second.session, copy->resident, ranks,
         [response = std::move(response), reply = std::move(reply)](bool may) mutable {
           response.set_may_map(may);
           reply(std::move(response));
         });
}

// The daemon cannot see when a mapping ends: the memory is the reader's until its session has ended, and is
// never written again. So mapping is allowed only if no other session can write to the memory, and a save
// still finds room.
void ResidentCache::LetMap(SessionId session, const Resident& resident, const std::vector<int>& ranks,
                           absl::AnyInvocable<void(bool)> done) {
  const bool final =
      std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return resident.parts.at(rank).checked; });
  if (!sessions_->IsOpen(session) || !final || !LeavesRoom(resident, true)) return done(false);
  if (!pool_->Hold(resident.copy, session)) return done(false);
  pool_->Retire(
      resident.copy, [this, session, copy = resident.copy, done = std::move(done)](bool may) mutable {
        // The first time that mapping is allowed, the hold stays until the session ends.
        const bool stays = may && sessions_->IsOpen(session) && mapped_[session].insert(copy).second;
        if (!stays) pool_->Unhold(copy, session);
        done(may);
      });
}

// ---- ends

void ResidentCache::OnLeaseReleased(const Lease& lease) {
  const auto hold = holds_.find(lease.id);
  if (hold == holds_.end()) return;
  const auto [session, copy] = hold->second;
  holds_.erase(hold);
  pool_->Unhold(copy, session);
}

void ResidentCache::ReleaseMappings(SessionId session) {
  const auto mapped = mapped_.extract(session);
  if (mapped.empty()) return;
  for (ReservationId copy : mapped.mapped()) pool_->Unhold(copy, session);
}

void ResidentCache::OnSessionEnded(SessionId session) {
  std::vector<Run*> runs;
  for (const auto& [run, copies] : copies_) runs.push_back(run);
  for (Run* run : runs) {
    std::vector<std::pair<int64_t, int>> parts;
    for (const auto& [sequence, copy] : copies_.Of(run)) {
      for (const auto& [rank, part] : copy.resident.parts) {
        if (part.writer == session) parts.emplace_back(sequence, rank);
      }
    }
    for (const auto& [sequence, rank] : parts) CheckPart(run, sequence, rank, [](bool) {});
    Prune(run);
  }
}

void ResidentCache::OnRunClosed(Run* run) {
  while (!copies_.Of(run).empty()) Drop(run, copies_.Of(run).begin()->first);
  copies_.Forget(run);
}

}  // namespace ckptd
