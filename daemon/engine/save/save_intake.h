// SaveIntake handles Begin: it makes the save at the first rank's Begin, lets the other ranks join it, and
// asks the file system whether the tag may be used. Then the save goes to the AdmissionQueue.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_SAVE_INTAKE_H_
#define CKPTD_DAEMON_ENGINE_SAVE_SAVE_INTAKE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/admission/admission_queue.h"
#include "daemon/engine/admission/disk_room.h"
#include "daemon/engine/admission/file_placer.h"
#include "daemon/engine/admission/kept_layouts.h"
#include "daemon/engine/admission/part_grants.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/seams/engine_types.h"
#include "storage/base/clock.h"

namespace ckptd {

// The answer to Begin for a save that was skipped.
v1::BeginResponse SkippedResponse(const Save& save);
v1::BeginResponse SkippedResponse(int64_t sequence, const std::string& why);

class SaveIntake {
 public:
  struct Hooks {
    // The open run of this name; nullptr if it was closed while an answer was awaited.
    std::function<Run*(const std::string& name)> find_run;
    // What the session has joined the run as; nullptr if its session has ended.
    std::function<const Member*(Run*, SessionId, int rank)> find_member;
    // Ends unsealed saves of attempts that are older than the one that acts now.
    std::function<void(Run*, int64_t attempt)> fence_off;
    // The answer to a rank that begins a save which has ended already; nullopt if it has not.
    std::function<std::optional<absl::StatusOr<v1::BeginResponse>>(Run*, const SaveId&)> answer_if_ended;
    std::function<bool(const Run&, int64_t sequence)> is_pinned;
    // The tag's checkpoint is on its way back from the trash.
    std::function<bool(const Run&, const std::string& tag)> is_undeleting;
    // The error for a save that has not begun, while the daemon ends or is drained.
    std::function<absl::Status()> check_takes_saves;
    std::function<void(Save*, absl::Status)> fail;
  };
  SaveIntake(const EngineOptions& options, Clock* clock, EngineObserver* observer, SaveTable* saves,
             FilePlacer* placer, KeptLayouts* layouts, AdmissionQueue* queue, PartGrants* grants,
             DiskRoom* disk, Hooks hooks);

  // The request was checked, and the session has joined the run as `member`.
  void Begin(Run* run, const Member& member, v1::BeginRequest request, Reply<v1::BeginResponse> reply);
  // The ranks that have begun this save continue, or get the error. No-op if none waits for the sequence.
  void OnSequence(const std::string& run_name, const SaveId& id, const absl::StatusOr<int64_t>& sequence);
  // Ends the waits for the ledger to let an attempt act that are over.
  void OnTick(Instant now);
  Instant NextDeadline() const;

 private:
  // A Begin whose attempt acts, until the save has its sequence.
  struct Pending {
    SessionId session = 0;
    v1::BeginRequest request;
    std::shared_ptr<FilePlaces> layout;  // What the request names so; null: it lists its files.
    Reply<v1::BeginResponse> reply;
  };
  struct Timeouts {
    Duration admission, commit;
  };
  // A Begin that waits until its attempt acts.
  struct Activating {
    Pending begin;
    std::string waits_for;
    Instant deadline;  // With SKIP, after kLongestSilenceForSkip.
  };
  // Begins of one save that wait for its sequence.
  struct Awaiting {
    Timeouts timeouts;  // Of the first one.
    std::vector<Pending> begins;
  };
  using PendingKey = std::pair<std::string, SaveId>;  // Run, save.

  Instant ActivationDeadline(const v1::BeginRequest& request) const;
  void OnActivated(Pending begin);
  // Answers if the save exists or has ended. False: it has to be made.
  bool JoinExisting(Run* run, const Member& member, Pending& begin);
  void AskSequence(Run* run, const Member& member, Pending begin);
  void BeginNew(const std::string& run_name, const Timeouts& timeouts, int64_t sequence, Pending begin);
  absl::StatusOr<Timeouts> CheckTimeouts(const v1::BeginRequest& request) const;
  absl::Status CheckSavesInFlight(const Run& run) const;
  Save* NewSave(Run* run, const Member& member, const Timeouts& timeouts, int64_t sequence,
                const v1::BeginRequest& request);
  // Of the saves of the run that are in flight, and of its checkpoints; 0: there is none.
  int64_t LatestBegin(const Run& run) const;
  void LogStepBack(const Save& save);

  // One rank joins a save that exists.
  void BeginPart(Save* save, const Member& member, Pending begin);
  absl::Status PlaceFiles(Save* save, Part& part, Pending& begin);
  void BeginAgain(Save* save, Part& part, const Member& member, BeginReply reply);
  absl::Status CheckAgrees(const Save& save, const Member& member, const v1::BeginRequest& request) const;
  absl::Status NamePointers(Save* save, const Member& member, const v1::BeginRequest& request);

  void AskTarget(Save* save);
  void MeasureDisk(Save* save);

  const EngineOptions& options_;
  Clock* const clock_;
  EngineObserver* const observer_;
  SaveTable* const saves_;
  FilePlacer* const placer_;
  KeptLayouts* const layouts_;
  AdmissionQueue* const queue_;
  PartGrants* const grants_;
  DiskRoom* const disk_;
  const Hooks hooks_;
  std::map<int64_t, Activating> activating_;  // By number.
  int64_t last_activating_ = 0;
  std::map<PendingKey, Awaiting> awaiting_sequence_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_SAVE_INTAKE_H_
