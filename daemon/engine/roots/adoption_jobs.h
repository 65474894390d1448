// Adopting: checkpoints that another program wrote into a root become checkpoints of ckptd, where they lie.
// docs/decisions/0008 says which place in the run's order they get.
#ifndef CKPTD_DAEMON_ENGINE_ROOTS_ADOPTION_JOBS_H_
#define CKPTD_DAEMON_ENGINE_ROOTS_ADOPTION_JOBS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/run/wire.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/base/clock.h"
#include "storage/commit/checkpoint/foreign.h"

namespace ckptd {

// Owns the adoption that each run has under way, one at a time, and which foreign checkpoints may not be
// adopted because a sync of them has failed. A job takes its checkpoints oldest first: it reads and
// checksums one, gets it a sequence from the ledger, and writes the manifest. It reports each outcome.
class AdoptionJobs {
 public:
  // Returns false if the caller no longer listens; then the job stops.
  using Event = std::function<bool(const v1::AdoptCheckpointsResponse&)>;
  using Ended = std::function<void(const absl::Status&)>;

  struct SaveInFlight {
    int64_t sequence = 0;
    std::string tag;
    int64_t begun_unix_us = 0;
  };
  struct Hooks {
    DescribeCheckpoint describe;
    // The error for a job that has not begun, while the daemon ends or is drained.
    std::function<absl::Status()> check_takes_work;
    std::function<std::vector<SaveInFlight>(const Run&)> saves_in_flight;
    std::function<std::optional<int>(const Run&)> kept_last;
    std::function<void(Run*, PointerFiles)> pointers_changed;
    // Whether an adoption took effect is unknown: the root takes no changes until it has been scanned.
    std::function<void(Run*)> rescan;
    // The job has ended: what it adopted counts for retention from now on.
    std::function<void(Run*)> ended;
  };

  AdoptionJobs(int32_t chunk_bytes, Clock* clock, EngineObserver* observer, Hooks hooks)
      : chunk_bytes_(chunk_bytes), clock_(clock), observer_(observer), hooks_(std::move(hooks)) {}

  // Returns the job's id. `ended` runs once, perhaps within this call, which then returns 0.
  int64_t Start(Run* run, const v1::AdoptCheckpointsRequest& request, Event event, Ended ended);
  // Stops the job after its current step. No-op for one that has ended.
  void Stop(int64_t id);
  // Reports progress.
  void OnTick(Instant now);

  // Adds the root's foreign checkpoints, newest first, to the response and gives it.
  void ListForeign(Run* run, v1::ListCheckpointsResponse response, Reply<v1::ListCheckpointsResponse> reply);
  // For a root that holds foreign checkpoints and never had one of ckptd's: reserves sequences for them in
  // the new run record. `may_reserve`: no sequence of the run was ever given.
  void ReserveSequences(const Run& run, const RootSnapshot& snapshot, bool may_reserve,
                        storage::v1::RunRecord& record) const;

  bool IsActive(const Run& run) const;
  // Whether a sync has failed, which only this daemon remembers.
  bool HasUnsynced(const Run& run) const;
  void OnRunClosed(Run* run) { states_.Forget(run); }

 private:
  struct Planned {
    ForeignTag tag;
    bool found = true;  // False: it was not listed, and the survey finds out why.
    absl::Status refused;
  };
  struct Job {
    int64_t id = 0;
    v1::AdoptCheckpointsRequest request;
    Event event;
    Ended ended;
    std::vector<Planned> plan;  // Oldest first.
    size_t at = 0;
    std::shared_ptr<SurveyProgress> progress;  // Of plan[at], while it is read; else null.
    Instant next_progress;
    bool stopped = false;
  };
  struct State {
    std::shared_ptr<Job> job;        // Null: none is under way.
    std::set<std::string> unsynced;  // Tags whose sync failed: a second one would prove nothing.
  };

  absl::Status CheckStart(const Run& run, const v1::AdoptCheckpointsRequest& request) const;
  static std::vector<Planned> Wanted(const v1::AdoptCheckpointsRequest& request,
                                     const std::vector<ForeignCheckpoint>& found);
  void Plan(Run* run, const std::vector<ForeignCheckpoint>& found);
  void Next(Run* run);
  void ReportOurs(Run* run, const CommittedCheckpoint& ours);
  absl::Status CheckMayAdopt(const Run& run, const Planned& planned) const;
  void Survey(Run* run, const std::string& tag);
  void Surveyed(Run* run, const std::string& tag, absl::StatusOr<ForeignSurvey> survey);
  void Place(Run* run, ForeignSurvey survey);
  void AdoptAs(Run* run, ForeignSurvey survey, int64_t sequence);
  void Adopted(Run* run, const storage::v1::ManifestSummary& summary, PublishResult result);
  void Refuse(Run* run, const absl::Status& why);
  void Report(Run* run, v1::AdoptCheckpointsResponse event);
  void End(Run* run, const absl::Status& status);

  const int32_t chunk_bytes_;
  Clock* const clock_;
  EngineObserver* const observer_;
  const Hooks hooks_;
  RunStates<State> states_;
  int64_t next_id_ = 1;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ROOTS_ADOPTION_JOBS_H_
