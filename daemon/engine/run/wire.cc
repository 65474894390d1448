#include "daemon/engine/run/wire.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/format/retention_record.h"

namespace ckptd {
namespace {

constexpr int64_t kMicros = 1'000'000;  // In a second.

// Adds the files of one rank, or counts them when the view has no list.
class FileCounter {
 public:
  FileCounter(v1::View view, v1::Checkpoint* checkpoint) : view_(view), checkpoint_(checkpoint) {}

  void Add(const Part& part) {
    if (part.sealed) {
      for (const SealedFile& file : part.files) Add(file.placed->path, file.size, part.rank);
    } else {
      std::vector<const PlacedFile*> placed;
      for (const PlacedFile& file : part.placed->files()) placed.push_back(&file);
      if (view_ == v1::FULL) std::sort(placed.begin(), placed.end(), IsBefore);
      for (const PlacedFile* file : placed) Add(file->path, file->size, part.rank);
    }
  }
  int64_t bytes() const { return bytes_; }
  int files() const { return files_; }

 private:
  static bool IsBefore(const PlacedFile* one, const PlacedFile* other) { return one->path < other->path; }
  void Add(const std::string& path, int64_t size, int rank) {
    bytes_ += size;
    ++files_;
    if (view_ != v1::FULL) return;
    v1::FileInfo& info = *checkpoint_->add_files();
    info.set_path(path);
    info.set_size_bytes(size);
    info.set_rank(rank);
  }

  const v1::View view_;
  v1::Checkpoint* const checkpoint_;
  int64_t bytes_ = 0;
  int files_ = 0;
};

void SetParts(const Save& save, v1::View view, v1::Checkpoint* checkpoint) {
  FileCounter counter(view, checkpoint);
  for (const auto& [rank, part] : save.parts) {
    counter.Add(part);
    if (part.sealed && save.level() < v1::COMMITTED) checkpoint->add_staged_ranks(rank);
  }
  for (int rank = 0; rank < save.world_size; ++rank) {
    const Part* part = save.FindPart(rank);
    if (part == nullptr || !part->sealed) checkpoint->add_missing_ranks(rank);
  }
  const int64_t written = save.written->load(std::memory_order_relaxed);
  checkpoint->set_size_bytes(counter.bytes());
  checkpoint->set_file_count(counter.files());
  checkpoint->set_written_bytes(save.level() == v1::COMMITTED ? counter.bytes()
                                                              : std::min(counter.bytes(), written));
  if (save.phase() < SavePhase::kAdmitted) checkpoint->set_waits_for(save.waits_for_words);
}

}  // namespace

void SetTime(int64_t unix_us, google::protobuf::Timestamp* time) {
  time->set_seconds(unix_us / 1'000'000);
  time->set_nanos(static_cast<int32_t>(unix_us % 1'000'000 * 1000));
}

std::string CheckpointName(const Run& run, const std::string& tag) {
  return absl::StrCat(run.name, "/checkpoints/", tag);
}

std::string CheckpointDirectory(const Run& run, const std::string& tag) {
  return absl::StrCat(run.path, "/", tag);
}

// ---- committed checkpoints

v1::Checkpoint ToWire(const Run& run, const CommittedCheckpoint& committed, const CheckpointUse& use) {
  const storage::v1::ManifestSummary& summary = committed.summary;
  v1::Checkpoint checkpoint;
  checkpoint.set_name(CheckpointName(run, summary.tag()));
  checkpoint.set_run(run.name);
  checkpoint.set_tag(summary.tag());
  if (summary.has_step()) checkpoint.set_step(summary.step());
  checkpoint.set_sequence(summary.sequence());
  checkpoint.set_attempt(summary.attempt());
  checkpoint.set_ordinal(summary.ordinal());
  checkpoint.set_level(v1::COMMITTED);
  checkpoint.set_world_size(summary.world_size());
  checkpoint.set_size_bytes(summary.size_bytes());
  checkpoint.set_written_bytes(summary.size_bytes());
  checkpoint.set_file_count(summary.file_count());
  *checkpoint.mutable_metrics() = summary.metrics();
  SetTime(summary.create_time_us(), checkpoint.mutable_create_time());
  SetCommit(&committed, use.resident, &checkpoint);
  checkpoint.set_adopted_from(summary.adopted_from());
  checkpoint.set_suspect(summary.suspect());
  checkpoint.set_directory(CheckpointDirectory(run, summary.tag()));
  if (committed.damage) *checkpoint.mutable_damage() = ToWire(*committed.damage);
  checkpoint.set_leases(use.leases);
  if (use.scrubbed_unix_us) SetTime(*use.scrubbed_unix_us, checkpoint.mutable_scrub_time());
  return checkpoint;
}

v1::Checkpoint ToWire(const Run& run, const DamagedCheckpoint& unreadable) {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(CheckpointName(run, unreadable.tag));
  checkpoint.set_run(run.name);
  checkpoint.set_tag(unreadable.tag);
  checkpoint.set_directory(CheckpointDirectory(run, unreadable.tag));
  checkpoint.mutable_damage()->set_message(std::string(unreadable.status.message()));
  return checkpoint;
}

void AddFiles(const Manifest& manifest, v1::Checkpoint* checkpoint) {
  for (const storage::v1::FileRecord& file : manifest.body.files()) {
    v1::FileInfo& info = *checkpoint->add_files();
    info.set_path(file.path());
    info.set_size_bytes(file.size_bytes());
    info.set_rank(file.rank());
  }
}

// ---- saves

v1::Checkpoint ToWire(const Save& save, v1::View view) {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(CheckpointName(*save.run, save.key.tag));
  checkpoint.set_run(save.run->name);
  checkpoint.set_tag(save.key.tag);
  if (save.step) checkpoint.set_step(*save.step);
  checkpoint.set_sequence(save.sequence);
  checkpoint.set_attempt(save.key.attempt);
  checkpoint.set_ordinal(save.key.ordinal);
  checkpoint.set_level(save.level());
  checkpoint.set_world_size(save.world_size);
  checkpoint.set_directory(CheckpointDirectory(*save.run, save.key.tag));
  SetParts(save, view, &checkpoint);
  for (const auto& [name, value] : save.metrics) (*checkpoint.mutable_metrics())[name] = value;
  checkpoint.set_suspect(save.suspect);
  SetTime(save.begun_unix_us, checkpoint.mutable_create_time());
  if (!save.error.ok() && save.level() >= v1::FAILED) *checkpoint.mutable_error() = ErrorToWire(save.error);
  return checkpoint;
}

void SetCommit(const CommittedCheckpoint* committed, bool resident, v1::Checkpoint* checkpoint) {
  checkpoint->clear_commit_time();
  checkpoint->clear_pinned();
  checkpoint->clear_resident();
  if (committed == nullptr) return;
  SetTime(committed->summary.commit_time_us(), checkpoint->mutable_commit_time());
  checkpoint->set_pinned(committed->pinned);
  checkpoint->set_resident(resident);
}

v1::Checkpoint ToWire(const Run& run, const storage::v1::Outcome& outcome) {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(CheckpointName(run, outcome.tag()));
  checkpoint.set_run(run.name);
  checkpoint.set_tag(outcome.tag());
  if (outcome.has_step()) checkpoint.set_step(outcome.step());
  checkpoint.set_sequence(outcome.sequence());
  checkpoint.set_attempt(outcome.attempt());
  checkpoint.set_ordinal(outcome.ordinal());
  checkpoint.set_level(static_cast<v1::Level>(outcome.level()));
  checkpoint.set_size_bytes(outcome.size_bytes());
  checkpoint.mutable_create_time()->set_seconds(outcome.time_us() / 1'000'000);
  v1::SaveError& error = *checkpoint.mutable_error();
  error.set_reason(outcome.reason());
  error.set_message(outcome.message());
  error.set_code(outcome.code());
  *error.mutable_ranks() = outcome.ranks();
  return checkpoint;
}

SaveSummary SummaryOf(const Run& run, const storage::v1::Outcome& outcome) {
  SaveSummary summary;
  summary.run = run.name;
  summary.run_id = run.ledger->record().run_id();
  summary.path = run.path;
  summary.root = KeyOf(run);
  summary.checkpoint = ToWire(run, outcome);
  return summary;
}

RemovalSummary RemovalOf(const Run& run, const storage::v1::ManifestSummary& removed,
                         std::optional<uid_t> by) {
  RemovalSummary removal;
  removal.run = run.name;
  removal.root = KeyOf(run);
  removal.tag = removed.tag();
  if (removed.has_step()) removal.step = removed.step();
  removal.sequence = removed.sequence();
  removal.size_bytes = removed.size_bytes();
  removal.by = by;
  return removal;
}

v1::SaveError ErrorToWire(const absl::Status& status) {
  v1::SaveError error;
  error.set_reason(ReasonOf(status));
  error.set_message(std::string(status.message()));
  error.set_code(static_cast<int>(status.code()));
  const ErrorDetails details = DetailsOf(status);
  if (const auto ranks = details.find("ranks"); ranks != details.end()) {
    for (int rank : SplitRanks(ranks->second)) error.add_ranks(rank);
  }
  return error;
}

// ---- damage

v1::Damage ToWire(const storage::v1::Damage& damage) {
  v1::Damage wire;
  wire.set_path(damage.path());
  if (damage.has_chunk()) wire.set_chunk(damage.chunk());
  wire.set_expected(damage.expected());
  wire.set_found(damage.found());
  wire.set_message(damage.message());
  SetTime(damage.time_us(), wire.mutable_time());
  return wire;
}

storage::v1::Damage FromWire(const v1::Damage& said) {
  storage::v1::Damage damage;
  damage.set_path(said.path());
  if (said.has_chunk()) damage.set_chunk(said.chunk());
  damage.set_expected(said.expected());
  damage.set_found(said.found());
  damage.set_message(said.message().empty() ? "it is not what was saved" : said.message());
  return damage;
}

// ---- roots, foreign checkpoints

v1::RetentionPolicy ToWire(const storage::v1::RetentionPolicy& policy) {
  v1::RetentionPolicy wire;
  if (policy.has_last()) wire.set_last(policy.last());
  wire.set_best(policy.best());
  wire.set_metric(policy.metric());
  if (policy.best() > 0) wire.set_order(policy.highest() ? v1::MAX : v1::MIN);
  wire.set_every_steps(policy.every_steps());
  if (policy.newer_than_us() > 0) wire.mutable_newer_than()->set_seconds(policy.newer_than_us() / kMicros);
  return wire;
}

storage::v1::RetentionPolicy FromWire(const v1::RetentionPolicy& policy) {
  storage::v1::RetentionPolicy stored;
  if (policy.has_last()) stored.set_last(policy.last());
  stored.set_best(policy.best());
  stored.set_metric(policy.metric());
  stored.set_highest(policy.best() > 0 && policy.order() == v1::MAX);
  stored.set_every_steps(policy.every_steps());
  if (policy.has_newer_than()) stored.set_newer_than_us(policy.newer_than().seconds() * kMicros);
  return stored;
}

v1::RetentionDecision ToWire(const storage::v1::ManifestSummary& checkpoint,
                             const std::vector<std::string>& kept_by) {
  v1::RetentionDecision decision;
  decision.set_tag(checkpoint.tag());
  decision.set_sequence(checkpoint.sequence());
  if (checkpoint.has_step()) decision.set_step(checkpoint.step());
  *decision.mutable_kept_by() = {kept_by.begin(), kept_by.end()};
  return decision;
}

void DescribeRetention(const storage::v1::RunRecord& record, v1::Run* run) {
  if (record.has_num_kept_ckpts()) run->set_num_kept_ckpts(record.num_kept_ckpts());
  const storage::v1::RetentionPolicy in_force = LoadRetention(record);
  if (in_force.ByteSizeLong() > 0) *run->mutable_retention() = ToWire(in_force);
  if (record.has_retention_override())
    *run->mutable_retention_override() = ToWire(record.retention_override());
}

v1::RootProbe ToWire(const ProbeResult& probe, int64_t free_bytes) {
  v1::RootProbe wire;
  wire.set_file_system(probe.file_system);
  wire.set_io_backend(probe.io_backend);
  wire.set_io_backend_cause(probe.io_backend_cause);
  wire.set_direct_io(probe.direct_io);
  wire.set_fallocate(probe.fallocate);
  wire.set_rename_exchange(probe.rename_exchange);
  wire.set_directory_sync(probe.directory_sync);
  wire.set_locks(probe.locks);
  wire.set_free_bytes(free_bytes);
  for (const std::string& warning : probe.warnings) wire.add_warnings(warning);
  return wire;
}

v1::ForeignCheckpoint ToWire(const Run& run, const ForeignCheckpoint& foreign) {
  v1::ForeignCheckpoint wire;
  wire.set_tag(foreign.tag.tag);
  wire.set_run(run.name);
  wire.set_directory(CheckpointDirectory(run, foreign.tag.tag));
  wire.set_format(kForeignFormat);
  SetTime(foreign.tag.done_us, wire.mutable_done_time());
  if (foreign.size_bytes) wire.set_size_bytes(*foreign.size_bytes);
  if (foreign.file_count) wire.set_file_count(*foreign.file_count);
  return wire;
}

}  // namespace ckptd
