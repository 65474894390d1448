// Conversions between the engine's state and the messages of ckptd.v1. All of them are here.
#ifndef CKPTD_DAEMON_ENGINE_RUN_WIRE_H_
#define CKPTD_DAEMON_ENGINE_RUN_WIRE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "storage/commit/checkpoint/foreign.h"
#include "storage/commit/steps/types.h"
#include "storage/format/manifest.h"
#include "storage/io/probe.h"

namespace ckptd {

void SetTime(int64_t unix_us, google::protobuf::Timestamp* time);

// ---- names

// `runs/{run}/checkpoints/{tag}`.
std::string CheckpointName(const Run& run, const std::string& tag);
// Where the checkpoint's directory is, or will be.
std::string CheckpointDirectory(const Run& run, const std::string& tag);

// ---- committed checkpoints

// How a committed checkpoint is used now. The catalog does not know that.
struct CheckpointUse {
  int leases = 0;
  bool resident = false;                    // A copy of it is in memory.
  std::optional<int64_t> scrubbed_unix_us;  // When it was last read back and found whole.
};

// Describes a committed checkpoint as clients see it. Given to classes that answer with checkpoints and do
// not know how these are used.
using DescribeCheckpoint =
    std::function<v1::Checkpoint(const Run& run, const CommittedCheckpoint& committed)>;

v1::Checkpoint ToWire(const Run& run, const CommittedCheckpoint& committed, const CheckpointUse& use);
// A checkpoint whose manifest cannot be read.
v1::Checkpoint ToWire(const Run& run, const DamagedCheckpoint& unreadable);
// The list of files, as the view FULL has it.
void AddFiles(const Manifest& manifest, v1::Checkpoint* checkpoint);

// ---- saves

// A save that has its parts still. Leaves out what only the catalog knows: SetCommit adds that.
v1::Checkpoint ToWire(const Save& save, v1::View view);
// Sets the fields that may change after a save has ended. `committed` null: it is not committed, or not any
// more.
void SetCommit(const CommittedCheckpoint* committed, bool resident, v1::Checkpoint* checkpoint);
// The end of a save, as the run's history has it.
v1::Checkpoint ToWire(const Run& run, const storage::v1::Outcome& outcome);
v1::SaveError ErrorToWire(const absl::Status& status);

// ---- summaries, for the observer

// Of a save of an earlier daemon, as the root shows it.
SaveSummary SummaryOf(const Run& run, const storage::v1::Outcome& outcome);
RemovalSummary RemovalOf(const Run& run, const storage::v1::ManifestSummary& removed,
                         std::optional<uid_t> by);

// ---- damage

v1::Damage ToWire(const storage::v1::Damage& damage);
// What a client says about damage. The caller adds the checkpoint and the time.
storage::v1::Damage FromWire(const v1::Damage& said);

// Runs once no rank resumes from the checkpoint any more. Not OK, in a shared run only: it is not marked.
using DamageMarked = absl::AnyInvocable<void(const absl::Status& marked)>;
// Given to classes that find damage.
using MarkAsDamaged = std::function<void(Run*, int64_t sequence, storage::v1::Damage, DamageMarked done)>;

// ---- retention

v1::RetentionPolicy ToWire(const storage::v1::RetentionPolicy& policy);
storage::v1::RetentionPolicy FromWire(const v1::RetentionPolicy& policy);
v1::RetentionDecision ToWire(const storage::v1::ManifestSummary& checkpoint,
                             const std::vector<std::string>& kept_by);
// Sets the fields about the policy in force and the operator's.
void DescribeRetention(const storage::v1::RunRecord& record, v1::Run* run);

// ---- roots, foreign checkpoints

v1::RootProbe ToWire(const ProbeResult& probe, int64_t free_bytes);
v1::ForeignCheckpoint ToWire(const Run& run, const ForeignCheckpoint& foreign);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_WIRE_H_
