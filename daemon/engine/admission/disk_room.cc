#include "daemon/engine/admission/disk_room.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/part_layout.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

constexpr int64_t kSlackBytes = 1 << 20;  // For directories, the manifest and part records.
constexpr Duration kPollInterval = std::chrono::milliseconds(250);

int64_t WrittenBy(const Save& save) { return save.written->load(std::memory_order_relaxed); }

}  // namespace

DiskRoom::DiskRoom(Clock* clock, const std::map<std::string, std::unique_ptr<Run>>* runs,
                   const SaveTable* saves, const ExpectedSizes* sizes, Hooks hooks)
    : clock_(clock), runs_(runs), saves_(saves), sizes_(sizes), hooks_(std::move(hooks)) {}

// ---- measuring

void DiskRoom::Measure(Run* run, absl::AnyInvocable<void(absl::StatusOr<Measurement>)> done) {
  run->io->FreeBytes([done = std::move(done), written = WrittenBytes(run->device),
                      changes = changes_[run->device]](absl::StatusOr<int64_t> free) mutable {
    if (!free.ok()) return done(free.status());
    done(Measurement{*free, written, changes});
  });
}

void DiskRoom::Remember(const Run* run, const Measurement& measured) { states_.Of(run).measured = measured; }

void DiskRoom::AskAfterChange(Run* run, bool for_next) {
  State& asking = states_.Of(run);
  ++asking.asks;
  // Even if the answer is an error: do not ask again and again.
  asking.measured.changes = changes_[run->device];
  Measure(run, [this, run, for_next](absl::StatusOr<Measurement> measured) {
    State& state = states_.Of(run);
    --state.asks;
    if (measured.ok()) {
      state.measured.free_bytes = measured->free_bytes;
      state.measured.written_bytes = measured->written_bytes;
      if (for_next) MakeRoomForNext(run);
    }
    hooks_.room_changed();
  });
}

int64_t DiskRoom::WrittenBytes(uint64_t device) const {
  const auto ended = written_by_ended_.find(device);
  int64_t written = ended == written_by_ended_.end() ? 0 : ended->second;
  for (const auto& [id, save] : saves_->all()) {
    if (save->run->device == device) written += WrittenBy(*save);
  }
  return written;
}

int64_t DiskRoom::WrittenBytes() const {
  int64_t written = 0;
  for (const auto& [device, bytes] : written_by_ended_) written += bytes;
  for (const auto& [id, save] : saves_->all()) written += WrittenBy(*save);
  return written;
}

// ---- reserving

int64_t DiskRoom::NeededBytes(const Save& save) const {
  int64_t need = kSlackBytes + sizes_->TotalBytes(save);
  for (const auto& [rank, part] : save.parts) need += kPage * static_cast<int64_t>(part.placed->size());
  return need;
}

// What the other saves on the device are still to write.
int64_t DiskRoom::OutstandingBytes(uint64_t device, const Save* except) const {
  int64_t outstanding = 0;
  for (const auto& [id, save] : saves_->all()) {
    if (save == except || save->run->device != device || save->ended()) continue;
    outstanding += std::max<int64_t>(0, save->disk_reserved - WrittenBy(*save));
  }
  return outstanding;
}

// Free space that is reserved for no save. Negative if other programs have taken reserved space.
int64_t DiskRoom::FreeBytes(const Run& run, const Save* except) const {
  const Measurement& measured = states_.Of(&run).measured;
  const int64_t written_since = WrittenBytes(run.device) - measured.written_bytes;
  return measured.free_bytes - written_since - OutstandingBytes(run.device, except);
}

// Whether space that is not counted yet may become free on the save's device: from any run there, and from
// other saves with a reservation, because they may fail. A save that itself waits for space has no
// reservation: two such saves must not wait for each other.
bool DiskRoom::MayCome(const Save& save) const {
  const uint64_t device = save.run->device;
  for (const auto& [name, run] : *runs_) {
    if (run->device != device || !run->open) continue;
    if (IsAsking(*run) || hooks_.may_free_room(*run)) return true;
  }
  return std::any_of(saves_->all().begin(), saves_->all().end(), [&](const auto& entry) {
    const Save* other = entry.second;
    return other != &save && other->run->device == device && other->disk_reserved > 0;
  });
}

DiskRoom::Claim DiskRoom::Reserve(Save* save, std::string* lack) {
  Run* run = save->run;
  const int64_t need = NeededBytes(*save), free = FreeBytes(*run, save);
  if (need <= free) {
    save->disk_reserved = need;
    return Claim::kReserved;
  }
  *lack = absl::StrCat("disk: the checkpoint needs ", need, " bytes, the file system of ", run->path, " has ",
                       std::max<int64_t>(0, free), " free");
  if (const int64_t total = run->probe.total_bytes; total > 0 && need > total) {
    absl::StrAppend(lack, ", and holds no more than ", total, " in all");
    return Claim::kNever;
  }
  if (MayCome(*save)) return Claim::kMayCome;
  if (states_.Of(run).measured.changes == changes_[run->device]) return Claim::kNever;
  AskAfterChange(run);  // Another run on the device has freed some space since this one asked.
  return Claim::kAsking;
}

void DiskRoom::Poll(Save* save) {
  State& state = states_.Of(save->run);
  if (state.poll_at) return;
  state.poll_at = clock_->Now() + kPollInterval;
  MakeRoom(save->run, NeededBytes(*save) - FreeBytes(*save->run, save));
  if (hooks_.give_up_uploads != nullptr) hooks_.give_up_uploads(save->run);
}

void DiskRoom::MakeRoom(Run* run, int64_t bytes) {
  bytes -= hooks_.empty_trash(run, bytes);
  for (const auto& [name, other] : *runs_) {
    if (bytes <= 0) return;
    if (other.get() != run && other->device == run->device && other->open && hooks_.may_free_room(*other))
      bytes -= hooks_.empty_trash(other.get(), bytes);
  }
}

void DiskRoom::MakeRoomForNext(Run* run) {
  const auto& committed = run->catalog.committed();
  if (committed.empty()) return;
  const int64_t lack =
      kSlackBytes + committed.rbegin()->second.summary.size_bytes() - FreeBytes(*run, nullptr);
  if (lack > 0) MakeRoom(run, lack);
}

absl::Status DiskRoom::Grow(Save* save, int rank) {
  const int64_t more = NeededBytes(*save) - save->disk_reserved;
  const int64_t free = std::max<int64_t>(0, FreeBytes(*save->run, nullptr));
  if (more > free) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, reason::kNoSpace,
        absl::StrCat("rank ", rank, " needs ", more, " bytes more than was expected, the disk has ", free),
        {{"tag", save->key.tag}, {"ranks", absl::StrCat(rank)}});
  }
  save->disk_reserved += more;
  return absl::OkStatus();
}

// ---- events

void DiskRoom::OnSaveEnded(const Save& save) {
  written_by_ended_[save.run->device] += WrittenBy(save);
  NoteChange(*save.run);
}

void DiskRoom::OnTick(Run* run, Instant now) {
  State& state = states_.Of(run);
  if (!state.poll_at || now < *state.poll_at) return;
  state.poll_at.reset();
  hooks_.room_changed();
}

}  // namespace ckptd
