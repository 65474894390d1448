// MemberFiles brings this node's part of a save to disk: it opens the part, writes what the ranks have
// sealed, finishes it, and tells the run's authority, which decides what becomes of it.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_MEMBER_FILES_H_
#define CKPTD_DAEMON_ENGINE_SAVE_MEMBER_FILES_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/admission/expected_sizes.h"
#include "daemon/engine/roots/root_scanner.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "storage/base/clock.h"

namespace ckptd {

// What the manifest says of the save, but for its files and the time of its commit.
storage::v1::ManifestSummary SummaryOf(const Save& save, int32_t chunk_bytes);

class MemberFiles {
 public:
  struct Hooks {
    std::function<void(Save*, absl::Status)> fail;
    // A call for a save that is failing has ended.
    std::function<void(Save*)> continue_failing;
  };
  MemberFiles(Clock* clock, const SaveTable* saves, const ExpectedSizes* sizes, RootScanner* scanner,
              int32_t chunk_bytes, Hooks hooks);

  // Opens this node's part of an admitted save.
  void Open(Save* save);
  // Writes the part of each rank that has sealed it and whose part is not written yet, when all ranks have
  // sealed theirs, or one second after the first one has.
  void WriteSealedParts(Save* save);

  // The root takes changes again: saves that waited for that go on.
  void OnScanned(Run* run);
  void OnTick(Run* run, Instant now);

 private:
  void OnOpened(int64_t save_id, const absl::Status& opened);
  bool HoldsWrites(Save* save) const;
  bool FindsBase(Save* save);
  void WritePart(Save* save, Part& part);
  void OnPartWritten(int64_t save_id, int rank, absl::StatusOr<storage::v1::PartRecord> record);
  void FinishIfWritten(Save* save);
  void OnFinished(int64_t save_id, const absl::StatusOr<std::string>& digest);

  Clock* const clock_;
  const SaveTable* const saves_;
  const ExpectedSizes* const sizes_;
  RootScanner* const scanner_;
  const int32_t chunk_bytes_;
  const Hooks hooks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_MEMBER_FILES_H_
