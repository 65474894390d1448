// Publisher brings the sealed parts of a save to disk and publishes the checkpoint. RootStore has the steps
// on disk; this class decides when they are made, and repeats a publish that changed nothing.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_PUBLISHER_H_
#define CKPTD_DAEMON_ENGINE_SAVE_PUBLISHER_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/admission/expected_sizes.h"
#include "daemon/engine/retention/retention_policy.h"
#include "daemon/engine/roots/root_scanner.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/base/clock.h"

namespace ckptd {

// What the manifest says of the save, but for its files and the time of its commit.
storage::v1::ManifestSummary SummaryOf(const Save& save, int32_t chunk_bytes);

class Publisher {
 public:
  struct Hooks {
    std::function<void(Save*, absl::Status)> fail;
    // A call to RootIo for a save that is failing has ended.
    std::function<void(Save*)> continue_failing;
    // In the place of a publish, for a save of a shared run: perhaps this node's part is complete.
    std::function<void(Save*)> shared_part_written;
    // The checkpoint is committed on disk.
    std::function<void(Save*, CommittedCheckpoint, PointerFiles)> committed;
    // It is not known whether the checkpoint survives a crash. Save::error says why.
    std::function<void(Save*)> indeterminate;
  };
  Publisher(Clock* clock, EngineObserver* observer, const SaveTable* saves, const ExpectedSizes* sizes,
            RootScanner* scanner, int32_t chunk_bytes, Hooks hooks);

  // Makes the in-flight directory of an admitted save, or this node's part of it.
  void Start(Save* save);
  // Writes every part that is sealed and not yet written, when all ranks have sealed theirs, or one second
  // after the first one has.
  void WriteSealedParts(Save* save);
  // Publishes the save if every part is durable and nothing else has to come first.
  void TryPublish(Save* save);

  // The root is read-only until it is scanned, and the save ends INDETERMINATE.
  void SetIndeterminate(Save* save, const absl::Status& why);

  // A younger save of the same tag may have waited for this one.
  void OnSaveEnded(const Save& save);
  // The root takes changes again: saves that waited for that go on.
  void OnScanned(Run* run);
  void OnTick(Run* run, Instant now);

 private:
  void OnStarted(int64_t save_id, const absl::Status& made);
  bool HoldsWrites(Save* save) const;
  void WritePart(Save* save, Part& part);
  void OnPartWritten(int64_t save_id, int rank, absl::StatusOr<storage::v1::PartRecord> record);
  bool IsReady(const Save& save) const;
  std::vector<RetentionPolicy> NextPolicies(const Run& run, const Save* except) const;
  // Asks the ledger whether this daemon publishes, and does it.
  void Publish(Save* save);
  void OnPublished(int64_t save_id, PublishResult result);
  void TryLater(Save* save, const absl::Status& why);

  Clock* const clock_;
  EngineObserver* const observer_;
  const SaveTable* const saves_;
  const ExpectedSizes* const sizes_;
  RootScanner* const scanner_;
  const int32_t chunk_bytes_;
  const Hooks hooks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_PUBLISHER_H_
