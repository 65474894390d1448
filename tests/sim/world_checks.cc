// Checks after each step of a case.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim/trainer.h"
#include "tests/sim/world.h"

namespace ckptd::sim {

std::optional<v1::Checkpoint> World::FindCheckpoint(int run, const std::string& tag) {
  const auto name = run_names_.find(run);
  if (name == run_names_.end()) return std::nullopt;
  v1::GetCheckpointRequest request;
  request.set_name(absl::StrCat(name->second, "/checkpoints/", tag));
  std::optional<v1::Checkpoint> known;
  engine_->GetCheckpoint(Caller{0, 0, true}, request, [&known](absl::StatusOr<v1::Checkpoint> answer) {
    if (answer.ok()) known = *std::move(answer);
  });
  return known;
}

int64_t World::Opened() const {
  int64_t opened = 0;
  for (const auto& disk : disks_) opened += disk->opened();
  return opened;
}

// In a step in which a checkpoint was opened and more memory is in use than before, a prefetch has reserved
// that memory. (A reader asks for memory in a separate step.)
void World::CheckPrefetch(const PoolUsage& usage) {
  const int64_t taken = usage.used_bytes - usage_.used_bytes;
  if (Opened() != opened_ && taken > 0) {
    Count("reserved for a prefetch");
    if (usage.lent_bytes != usage_.lent_bytes)
      oracle_.Violated("a prefetch takes memory that is lent to trainers");
    if (usage.total_bytes - usage.used_bytes < taken)
      oracle_.Violated("a prefetch leaves no memory for a save of its size");
    if (taken > pool_->resident_limit_bytes())
      oracle_.Violated("a prefetch takes more than resident copies may have");
  }
  if (usage.resident_bytes > pool_->resident_limit_bytes())
    oracle_.Violated("resident copies have more memory than their limit");
  for (const auto& [run, said] : std::exchange(reported_resident_, {})) {
    const auto known = FindCheckpoint(run, said.tag());
    if (known && known->sequence() == said.sequence() && disks_[run]->HasBytes(said.tag(), said.sequence()) &&
        !known->resident())
      oracle_.Violated(absl::StrCat(said.tag(), " of run ", run, " was reported as resident, but is not"));
  }
}

std::string World::RunName(int run) const {
  const auto name = run_names_.find(run);
  return name == run_names_.end() ? "" : name->second;
}

// A save that fits into its user's share of the pool must not fail because of another user.
void World::CheckNotStarved(int run, const v1::Checkpoint& ended) {
  if (!plan_.hostile || run >= plan_.runs) return;
  const Instant last_end = std::exchange(last_end_[run], schedule_.clock().Now());
  const std::string& reason = ended.error().reason();
  // (Waiting for the disk is a separate matter.)
  const bool waited =
      reason == "ADMISSION_TIMEOUT" && ended.error().message().find("file system") == std::string::npos;
  if (!waited && reason != "OVER_SHARE") return;
  // Saves of a run take turns, and wait for their file system first. A save whose turn has just come has had
  // no time to get its share.
  const Instant turn = std::max(last_end, disks_[run]->hangs_until());
  if (waited && schedule_.clock().Now() - turn < 2 * kOverShareGrace) return Count("waited for its turn");
  // An upper bound of what the user holds: saves in flight, two that have just ended, and checkpoints being
  // read.
  int64_t own = 2 + oracle_.CountLeases(run);
  const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
  for (const v1::Run& each : status.runs()) {
    if (each.name() == RunName(run)) own += each.in_flight_size();
  }
  Count("waited beside a hostile user");
  if (own * kMaxSegmentsOfSave <= plan_.segments / (plan_.runs + 1))
    oracle_.Violated(absl::StrCat("another user kept ", ended.tag(), " of run ", run,
                                  " from memory: ", ended.error().message()));
}

// A save may be refused for lack of disk space only when nothing on that disk will free any.
void World::CheckNoRoomComes(int run, const v1::Checkpoint& ended) {
  if (ended.error().reason() != "NO_SPACE" ||
      ended.error().message().find("free some space") == std::string::npos)
    return;
  Count("no room on disk");
  const DiskFaults& faults = plan_.faults;
  if (faults.publish + faults.indeterminate + faults.discard + faults.evict + faults.trash + faults.read > 0)
    return;  // The engine may not know what is in trash.
  for (const auto& disk : disks_) {
    if (RunName(disk->run()).empty() || (!plan_.shared && disk->run() != run)) continue;
    if (disk->MayGiveRoom(disk->run() == run ? ended.sequence() : 0))
      oracle_.Violated(absl::StrCat(ended.tag(), " of run ", run,
                                    " was refused for lack of disk space, although run ", disk->run(),
                                    " may free some"));
  }
}

void World::CheckDamageIsMarked() {
  for (const Oracle::FoundDamage& found : oracle_.TakeFoundDamage()) {
    Count("damage read");
    const auto known = FindCheckpoint(found.run, found.tag);
    if (!known || known->sequence() != found.sequence || known->has_damage()) continue;
    if (known->level() != v1::COMMITTED) continue;  // It is evicted, and its save had ended INDETERMINATE.
    const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
    for (const v1::Run& run : status.runs()) {
      if (run.name() == run_names_.at(found.run) && !run.read_only())
        oracle_.Violated(
            absl::StrCat(found.tag, " of run ", found.run, " was found to be damaged, but is not marked"));
    }
  }
}

// What is shown as uploaded is in the bucket.
void World::CheckUploads() {
  for (const auto& [run, bucket] : buckets_) {
    if (RunName(run).empty()) continue;
    v1::ListCheckpointsRequest request;
    request.set_parent(RunName(run));
    engine_->ListCheckpoints(
        Caller{0, 0, true}, request,
        [&, run = run, bucket = bucket](const absl::StatusOr<v1::ListCheckpointsResponse>& answer) {
          if (!answer.ok()) return;
          for (const v1::Checkpoint& each : answer->checkpoints()) {
            if (each.upload().state() != v1::CheckpointUpload::DONE) continue;
            Count("uploaded");
            if (!bucket->model().IsWhole(each.sequence()))
              oracle_.Violated(absl::StrCat(each.tag(), ", sequence ", each.sequence(), " of run ", run,
                                            " is shown as uploaded, and is not in the bucket"));
          }
        });
  }
}

void World::Check() {
  if (engine_ == nullptr) return;
  oracle_.EndStep();
  const PoolUsage usage = pool_->usage();
  const int64_t lent = usage.lent_bytes + usage.resident_bytes;
  if (usage.used_bytes < 0 || usage.lent_bytes < 0 || usage.resident_bytes < 0 || usage.ready_bytes < 0 ||
      usage.used_bytes + lent > usage.total_bytes || usage.ready_bytes + lent > usage.total_bytes) {
    oracle_.Violated(absl::StrCat("the pool's accounts: ", usage.used_bytes, " used, ", usage.lent_bytes,
                                  " lent, ", usage.resident_bytes, " copies, ", usage.ready_bytes,
                                  " ready of ", usage.total_bytes));
  }
  if (usage.used_bytes < MappedBytes())
    oracle_.Violated("memory mapped by a living session is not counted as used");
  CheckPrefetch(usage);
  CheckDamageIsMarked();
  for (const auto& [run, run_name] : run_names_) {
    v1::GetCheckpointRequest request;
    request.set_name(absl::StrCat(run_name, "/checkpoints/latest"));
    bool answered = false;
    engine_->GetCheckpoint(Caller{0, 0, true}, request,
                           [&, run = run](absl::StatusOr<v1::Checkpoint> latest) {
                             answered = true;
                             if (latest.ok() || ReasonOf(latest.status()) == "NO_CHECKPOINT")
                               oracle_.Latest(run, latest.ok() ? latest->sequence() : 0);
                             if (latest.ok() && !disks_[run]->Holds(latest->tag(), latest->sequence()))
                               oracle_.Violated(absl::StrCat("latest of run ", run, " is sequence ",
                                                             latest->sequence(), ", which is not on disk"));
                           });
    if (!answered) oracle_.Violated("GetCheckpoint did not answer at once");
  }
}

// Counts the memory that living sessions map: it is in use for as long as they live.
int64_t World::MappedBytes() const {
  std::map<int64_t, int64_t> segments;
  for (const auto& trainer : trainers_) trainer->AddMapped(&segments);
  int64_t bytes = 0;
  for (const auto& segment : segments) bytes += segment.second;
  return bytes;
}

bool World::IsIdle() {
  if (engine_ == nullptr || starting_ || !pending_.empty()) return false;
  for (const auto& trainer : trainers_) {
    if (!trainer->idle()) return false;
  }
  const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
  for (const v1::Run& run : status.runs()) {
    if (!run.in_flight().empty() || run.read_only() || run.trash_bytes() > 0) return false;
  }
  if (ending_ && engine_->HasUploads()) return false;
  // A mapped copy is in use as a whole, including memory that no file occupies.
  const int64_t used = pool_->usage().used_bytes, mapped = MappedBytes();
  return mapped == 0 ? used == 0 : used >= mapped;
}

std::string World::DescribeActivity() {
  std::string words;
  for (const auto& trainer : trainers_) {
    if (!trainer->idle()) absl::StrAppend(&words, "; ", trainer->ToString());
  }
  for (const auto& pending : pending_) absl::StrAppend(&words, "; not answered: ", pending.second.what);
  if (engine_ == nullptr) return words;
  const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
  for (const v1::Run& run : status.runs()) {
    for (const auto& save : run.in_flight()) absl::StrAppend(&words, "; in flight: ", save.tag());
    if (run.read_only()) absl::StrAppend(&words, "; read-only: ", run.path());
    if (run.trash_bytes() > 0) absl::StrAppend(&words, "; in trash of ", run.path(), ": ", run.trash_bytes());
    for (const auto& waiting : run.uploads().waiting())
      absl::StrAppend(&words, "; waits for its upload: ", waiting.tag(), " ",
                      waiting.upload().error().message());
  }
  return absl::StrCat(words, "; memory in use: ", pool_->usage().used_bytes, ", mapped: ", MappedBytes());
}

}  // namespace ckptd::sim
