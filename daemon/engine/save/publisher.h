// Publisher publishes the saves of runs of this node alone, once they are durable. RootStore has the steps on
// disk; this class decides when they are made, and repeats a publication that changed nothing.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_PUBLISHER_H_
#define CKPTD_DAEMON_ENGINE_SAVE_PUBLISHER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/engine/retention/retention_policy.h"
#include "daemon/engine/roots/root_scanner.h"
#include "daemon/engine/run/local_authority.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/save_id.h"
#include "storage/base/clock.h"

namespace ckptd {

class Publisher {
 public:
  Publisher(Clock* clock, EngineObserver* observer, const SaveTable* saves, RootScanner* scanner,
            int32_t chunk_bytes);

  // As LocalAuthority::Publish, when nothing else has to come first.
  void Publish(Run* run, const SaveId& id, LocalAuthority::Decided decided);

  // A younger save of the same tag may have waited for this one.
  void OnSaveEnded(const Save& save);
  // The root takes changes again: saves that waited for that go on.
  void OnScanned(Run* run);
  void OnTick(Instant now);

 private:
  // Of a save that is durable and has not ended.
  struct Publication {
    LocalAuthority::Decided decided;
    bool under_way = false;           // Its policy is being recorded, or it is being published.
    int tries = 0;                    // That changed nothing.
    int64_t commit_time_us = 0;       // Of the last try; Unix time.
    std::optional<Instant> again_at;  // The next try.
  };
  bool IsReady(const Save& save, const Publication& publication) const;
  std::vector<RetentionPolicy> NextPolicies(const Run& run, const Save* except) const;
  void TryPublish(int64_t save_id);
  void Begin(int64_t save_id);
  void Decide(int64_t save_id, const Authority::Decision& decision, LoadedCheckpoint published = {});
  void OnPublished(int64_t save_id, PublishResult result);
  void TryLater(Save* save, const absl::Status& why);

  Clock* const clock_;
  EngineObserver* const observer_;
  const SaveTable* const saves_;
  RootScanner* const scanner_;
  const int32_t chunk_bytes_;
  std::map<int64_t, Publication> publications_;  // By the number of the save.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_PUBLISHER_H_
