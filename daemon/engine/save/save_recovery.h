// SaveRecovery carries sealed saves from one daemon to the next.
//
// What every rank has sealed is kept in the seal journal until it is on disk. The next daemon inherits these
// saves with their memory. When their root is open, it writes and commits them as if they were sealed there.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_SAVE_RECOVERY_H_
#define CKPTD_DAEMON_ENGINE_SAVE_SAVE_RECOVERY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/admission/expected_sizes.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/succession/seal_journal.h"
#include "storage/base/clock.h"

namespace ckptd {

class SaveRecovery {
 public:
  struct Hooks {
    // How the save ended, if that is known.
    std::function<std::optional<v1::Checkpoint>(const Run&, const SaveId&)> past;
    // An inherited save is in its run now, sealed: its parts are to be written.
    std::function<void(Save*)> recovered;
  };
  // `journal` may be null: then nothing is kept and nothing is inherited.
  SaveRecovery(Clock* clock, EngineObserver* observer, SegmentPool* pool, SealJournal* journal,
               const std::map<std::string, std::unique_ptr<Run>>* runs, SaveTable* saves,
               ExpectedSizes* sizes, int32_t chunk_bytes, Hooks hooks);

  // Every rank has sealed. Call it before the last Seal is answered.
  void Keep(Save* save);
  // Call it before the save's memory is released, and before any rank hears that it is COMMITTED or FAILED.
  void Drop(Save* save);

  // Takes over the saves that the previous daemon kept. Call it at start, before the first root is opened.
  void Inherit(std::vector<storage::v1::SealedSave> saves);
  // The highest sequence of the run's inherited saves; 0: none. The ledger gives out higher ones only.
  int64_t HighestSequence(const Run& run) const;
  // The newest attempt that has sealed one of them; 0: there is none.
  int64_t HighestAttempt(const Run& run) const;
  // A save with this sequence was inherited and waits for its root to open.
  bool Holds(const Run& run, int64_t sequence) const;
  // The root was opened and recovered: the disk's parts of these saves are published, or gone.
  void OnRootOpened(Run* run);
  // Drops saves whose root is not opened: other saves want their memory.
  void OnTick(Instant now);

 private:
  struct Inherited {
    storage::v1::SealedSave record;
    SegmentPool::Inherited memory;  // Segments in the record's order.
    Instant deadline;               // For its root to be opened.
  };
  static bool IsOf(const Run& run, const Inherited& save);
  std::vector<Inherited> TakeInherited(const Run& run);
  // Why the save is not recovered; empty if it is.
  std::string ObstacleTo(const Run& run, const storage::v1::SealedSave& record) const;
  void Recover(Run* run, Inherited inherited);
  void RecoverPart(const storage::v1::SealedPart& sealed, const std::vector<SegmentRef>& segments,
                   Save* save) const;
  void LetGo(const Inherited& save);
  void DropRecord(const storage::v1::SealedSave& record);

  Clock* const clock_;
  EngineObserver* const observer_;
  SegmentPool* const pool_;
  SealJournal* const journal_;
  const std::map<std::string, std::unique_ptr<Run>>* const runs_;
  SaveTable* const saves_;
  ExpectedSizes* const sizes_;
  const int32_t chunk_bytes_;
  const Hooks hooks_;
  std::vector<Inherited> inherited_;  // Saves whose roots are not open yet.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_SAVE_RECOVERY_H_
