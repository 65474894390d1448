// Resident copies: committed checkpoints whose bytes are in memory still, and what readers get of them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/part_layout.h"
#include "storage/base/errors.h"

namespace ckptd {

// The save is committed: its memory becomes a copy.
void Engine::Impl::KeepResident(Save* save) {
  Resident resident;
  resident.copy = save->reservation;
  for (const auto& entry : save->parts) {
    const Part& part = entry.second;
    if (part.files.empty()) continue;
    ResidentPart& kept = resident.parts[entry.first];
    kept.writer = part.session;
    kept.files = part.files;
    kept.placed = part.placed;
    kept.segments = part.segments;
    kept.records.assign(part.record.files().begin(), part.record.files().end());
  }
  if (resident.parts.empty()) return;  // Nothing to read.
  Run* run = save->run;
  pool_->Settle(std::exchange(save->reservation, 0));
  if (!pool_->HasCopy(resident.copy)) return;
  run->residents.insert_or_assign(save->sequence, std::move(resident));
  for (const auto& part : run->residents.at(save->sequence).parts) {
    if (!sessions_.contains(part.second.writer)) CheckResident(run, save->sequence, part.first, [](bool) {});
  }
}

// Only what is offered to readers: checkpoints that are committed, and not damaged.
void Engine::Impl::PruneResidents(Run* run) {
  std::vector<int64_t> over;
  for (const auto& entry : run->residents) {
    if (!pool_->HasCopy(entry.second.copy) || !run->committed.contains(entry.first) ||
        IsDamaged(*run, entry.first)) {
      over.push_back(entry.first);
    }
  }
  for (int64_t sequence : over) DropResident(run, sequence);
}

bool Engine::Impl::IsResident(const Run& run, int64_t sequence) const {
  auto resident = run.residents.find(sequence);
  return resident != run.residents.end() && pool_->HasCopy(resident->second.copy);
}

void Engine::Impl::DropResident(Run* run, int64_t sequence) {
  auto resident = run->residents.find(sequence);
  if (resident == run->residents.end()) return;
  const ReservationId copy = resident->second.copy;
  std::vector<absl::AnyInvocable<void(bool)>> waiting;
  for (auto& part : resident->second.parts) {
    for (auto& waits : part.second.waiting) waiting.push_back(std::move(waits));
  }
  run->residents.erase(resident);
  pool_->Release(copy);
  for (auto& waits : waiting) waits(false);
}

// A session has ended that could write to the memory it had: what is there is checked now, once.
void Engine::Impl::CheckResidentsOf(SessionId session) {
  for (auto& entry : runs_) {
    Run* run = entry.second.get();
    std::vector<std::pair<int64_t, int>> parts;
    for (const auto& resident : run->residents) {
      for (const auto& part : resident.second.parts) {
        if (part.second.writer == session) parts.emplace_back(resident.first, part.first);
      }
    }
    for (const auto& [sequence, rank] : parts) CheckResident(run, sequence, rank, [](bool) {});
    PruneResidents(run);
  }
}

// Whether a part's bytes are those that were saved. While their writer's session lives that is true for now,
// and asked again each time.
void Engine::Impl::CheckResident(Run* run, int64_t sequence, int rank, absl::AnyInvocable<void(bool)> done) {
  auto resident = run->residents.find(sequence);
  if (resident == run->residents.end()) return done(false);
  ResidentPart& part = resident->second.parts.at(rank);
  if (part.checked) return done(true);
  const ReservationId copy = resident->second.copy;
  if (!part.checking && !pool_->Hold(copy, 0)) return done(false);
  part.waiting.push_back(std::move(done));
  if (std::exchange(part.checking, true)) return;
  part.for_good = !sessions_.contains(part.writer);
  run->io->CheckImages(ImagesOf(part.files, part.placed, part.segments), part.records, options_.chunk_bytes,
                       [this, run, sequence, rank, copy](const absl::Status& found) {
                         pool_->Unhold(copy, 0);
                         ResidentChecked(run, sequence, rank, copy, found);
                       });
}

void Engine::Impl::ResidentChecked(Run* run, int64_t sequence, int rank, ReservationId copy,
                                   const absl::Status& found) {
  auto resident = run->residents.find(sequence);
  if (resident == run->residents.end() || resident->second.copy != copy) return;  // Who waited has heard.
  if (!found.ok()) {
    observer_->OnWarning(
        absl::StrCat("what is in memory of sequence ", sequence, " of ", run->path,
                     " is not what was saved, and is read from the disk: ", std::string(found.message())));
    return DropResident(run, sequence);
  }
  ResidentPart& part = resident->second.parts.at(rank);
  part.checking = false;
  part.checked = part.for_good;
  const bool again = !part.for_good && !sessions_.contains(part.writer);  // It has ended meanwhile.
  for (auto& waits : std::exchange(part.waiting, {})) {
    if (again) {
      CheckResident(run, sequence, rank, std::move(waits));
    } else {
      waits(true);
    }
  }
}

int64_t Engine::Impl::BytesOf(const Resident& resident) {
  int64_t bytes = 0;
  for (const auto& part : resident.parts) {
    for (const SegmentRef& segment : part.second.segments) bytes += segment.size;
  }
  return bytes;
}

// Whether a save of the same size finds memory while somebody reads this: else a reader would keep it
// waiting. held: somebody reads it already.
bool Engine::Impl::LeavesRoom(const Resident& resident, bool held) const {
  const PoolUsage usage = pool_->usage();
  return usage.total_bytes - usage.used_bytes >= (held ? 1 : 2) * BytesOf(resident);
}

// All ranks have read it, and read it no more from memory. What comes next is their first save, which is not
// to wait for that.
void Engine::Impl::MakeWayForSaves(Run* run, int64_t sequence) {
  for (auto& entry : leases_) {
    Lease& lease = entry.second;
    if (lease.run != run || lease.sequence != sequence || !lease.resumes || lease.copy == 0) continue;
    pool_->Unhold(std::exchange(lease.copy, 0), lease.session);
  }
  auto resident = run->residents.find(sequence);
  if (resident == run->residents.end()) return;
  const int64_t bytes = BytesOf(resident->second);
  const PoolUsage usage = pool_->usage();
  if (usage.total_bytes - usage.used_bytes - usage.lent_bytes - usage.resident_bytes < bytes)
    DropResident(run, sequence);
}

void Engine::Impl::LocateFiles(const Caller& caller, const v1::LocateFilesRequest& request,
                               Reply<v1::LocateFilesResponse> reply) {
  const absl::StatusOr<Lease*> lease = FindLease(caller, request.lease());
  if (!lease.ok()) return reply(lease.status());
  Run* run = (*lease)->run;
  const int64_t sequence = (*lease)->sequence;
  const auto session = sessions_.find(caller.session);
  if (run->prefetch && run->prefetch->sequence == sequence) {  // Faster than to read it twice at once.
    run->prefetch->locating.push_back([this, caller, request, reply = std::move(reply)]() mutable {
      LocateFiles(caller, request, std::move(reply));
    });
    return;
  }
  PruneResidents(run);
  auto resident = run->residents.find(sequence);
  if (session == sessions_.end() || !session->second.descriptors || resident == run->residents.end())
    return reply(v1::LocateFilesResponse());
  const ReservationId copy = resident->second.copy;
  if ((*lease)->copy == 0) {
    const bool held = std::any_of(leases_.begin(), leases_.end(),
                                  [copy](const auto& entry) { return entry.second.copy == copy; });
    if (!(*lease)->resumes && !LeavesRoom(resident->second, held)) return reply(v1::LocateFilesResponse());
    if (!MayRead(session->second.uid, copy, pool_->Count(copy)).ok()) return reply(v1::LocateFilesResponse());
    if (!pool_->Hold(copy, caller.session)) return reply(v1::LocateFilesResponse());
    (*lease)->copy = copy;
  }
  struct Asked {
    std::vector<int> good;
    size_t left;
    Reply<v1::LocateFilesResponse> reply;
  };
  auto asked = std::make_shared<Asked>();
  std::vector<int> ranks;
  for (const auto& part : resident->second.parts) {
    if (request.path().empty() || part.second.placed.contains(request.path())) ranks.push_back(part.first);
  }
  if (ranks.empty()) return reply(v1::LocateFilesResponse());
  asked->left = ranks.size();
  asked->reply = std::move(reply);
  for (int rank : ranks) {
    CheckResident(run, sequence, rank, [this, run, sequence, rank, asked, request](bool good) {
      if (good) asked->good.push_back(rank);
      if (--asked->left == 0) GiveLocated(run, sequence, request, asked->good, std::move(asked->reply));
    });
  }
}

void Engine::Impl::GiveLocated(Run* run, int64_t sequence, const v1::LocateFilesRequest& request,
                               const std::vector<int>& ranks, Reply<v1::LocateFilesResponse> reply) {
  v1::LocateFilesResponse response;
  auto resident = run->residents.find(sequence);
  auto held = leases_.find(request.lease());
  const bool there =
      resident != run->residents.end() && held != leases_.end() && held->second.copy == resident->second.copy;
  for (int rank : there ? ranks : std::vector<int>()) {
    const ResidentPart& part = resident->second.parts.at(rank);
    v1::ResidentPart& located = *response.add_parts();
    located.set_rank(rank);
    for (const SegmentRef& segment : part.segments) {
      v1::Segment& lent = *located.add_segments();
      lent.set_id(segment.id);
      lent.set_size_bytes(segment.size);
    }
    for (const v1::FileSpec& file : part.files) {
      v1::FilePlacement& placement = *located.add_placements();
      placement = part.placed.at(file.path());
      placement.set_size_bytes(file.size_bytes());
    }
  }
  const bool has_memory = std::any_of(response.parts().begin(), response.parts().end(),
                                      [](const v1::ResidentPart& part) { return part.segments_size() > 0; });
  if (!request.map() || !has_memory) return reply(std::move(response));
  LetMap(held->second.session, resident->second, ranks,
         [response = std::move(response), reply = std::move(reply)](bool may) mutable {
           response.set_may_map(may);
           reply(std::move(response));
         });
}

// Nobody sees when a mapping ends: the memory is the reader's until its session has ended, and never written
// again. Only where no other session could write to it, and where that leaves a save its room.
void Engine::Impl::LetMap(SessionId session, const Resident& resident, const std::vector<int>& ranks,
                          absl::AnyInvocable<void(bool)> done) {
  const bool final =
      std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return resident.parts.at(rank).checked; });
  if (!sessions_.contains(session) || !final || !LeavesRoom(resident, true)) return done(false);
  if (!pool_->Hold(resident.copy, session)) return done(false);
  pool_->Retire(
      resident.copy, [this, session, copy = resident.copy, done = std::move(done)](bool may) mutable {
        // The first time it may, this stays held until the session ends.
        const bool stays = may && sessions_.contains(session) && mapped_[session].insert(copy).second;
        if (!stays) pool_->Unhold(copy, session);
        done(may);
      });
}

}  // namespace ckptd
