// Seam: decides once for a run what several daemons would have to agree on: attempts, sequences, commits, and
// what to resume from. Implementations: LocalLedger (one node); for tests in tests/testing.
//
// One ledger serves one run. Called on the engine's thread; answers run there, perhaps within the call. A
// ledger of several nodes answers later, so no caller keeps a reference to a request, or to anything on its
// stack, until the answer. What is answered without a callback (record) concerns this node.
#ifndef CKPTD_STORAGE_LEDGER_LEDGER_H_
#define CKPTD_STORAGE_LEDGER_LEDGER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"

namespace ckptd {

class Ledger {
 public:
  template <typename T>
  using Answer = absl::AnyInvocable<void(T)>;

  virtual ~Ledger() = default;

  struct JoinSpec {
    int rank = 0;
    int world_size = 0;
    std::string launch_id;
    std::string instance;           // Identifies the process: its client instance.
    int64_t requested_attempt = 0;  // 0: any.
    std::string run_id;             // Becomes the run's label if it has none yet.
    std::string process;            // Of the instance; empty: unknown.
    std::string job;                // Identifies the job across its launches; empty: unknown.
    bool takeover = false;          // Fence off a launch of another job that runs.
    // Of rank 0: what the launch uploads, for a run that several nodes share; no URL: nothing.
    std::optional<storage::v1::UploadRecord> uploads = std::nullopt;
  };
  // Answers with the attempt of this process. A new launch gets the next number. A new process for a rank of
  // the newest launch whose process has ended gets the next number, too, and the new processes of its other
  // ranks join it. A new instance in the rank's own process counts as a new process. Errors: RANK_TAKEN if
  // the rank's process lives; RUN_IN_USE if a launch of another job runs, no process of which has ended;
  // WORLD_SIZE_MISMATCH; FENCED if `requested_attempt` is another one, or if it is a new process of a launch
  // that a later launch has followed.
  virtual void Join(const JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) = 0;
  // The ranks of launches that may still act, whose processes live and are not of `job`, in words such as
  // "attempt 3 (ranks 0,1)"; empty if there are none, or if one of the launch's processes has ended.
  virtual std::string RunningBeside(const std::string& job) const = 0;
  // A process of this run has ended, or its session has.
  virtual void ProcessEnded(const std::string& instance) = 0;

  // The attempt begins to act. Before the answer it is durable that all earlier attempts are fenced. FENCED
  // if a later one has acted.
  virtual void Activate(int64_t attempt, Answer<absl::Status> answer) = 0;
  // `changed` runs at once with the newest attempt that has acted (0: none has), and then whenever a newer
  // one acts, here or on another node: before the answer of its Activate. One watcher.
  virtual void WatchActiveAttempt(std::function<void(int64_t attempt)> changed) = 0;

  // Answers with the sequence of a new checkpoint of this attempt, one above all before it. FENCED as
  // Activate.
  virtual void Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) = 0;

  // A scan has found a checkpoint of this sequence in the root. If it is above the last one that was given,
  // somebody has moved the checkpoint in; the next one is above it.
  virtual void RaiseSequence(int64_t found) = 0;
  // The root holds, or has held, a checkpoint of this attempt. New attempts come after it: an attempt is part
  // of a save's name. Attempts that have joined go on. Durable as soon as an attempt above it acts.
  virtual void RaiseAttempt(int64_t found) = 0;

  // Answers with the sequence of a checkpoint that another program wrote. It is remembered durably before the
  // answer and never given again. It is one of those reserved for adoption, above `above` and below `below`,
  // and leaves room for `more` others after it. FAILED_PRECONDITION, reason ADOPT_ORDER, if there is none.
  // `below` 0: no checkpoint of the run is younger; then, if a save has had a sequence, it is one above all.
  virtual void AdmitAdopted(int64_t above, int64_t below, int64_t more,
                            Answer<absl::StatusOr<int64_t>> answer) = 0;

  struct ResumeChoice {
    std::string tag;
    int64_t sequence = 0;  // 0: nothing to resume from.
    bool agreed = false;   // Every rank has read its part of it.
  };
  // Answers with what the attempt resumes from. The first call of an attempt decides it as `newest`, the
  // newest committed checkpoint now. Remembered durably before the answer.
  virtual void DecideResume(int64_t attempt, const ResumeChoice& newest,
                            Answer<absl::StatusOr<ResumeChoice>> answer) = 0;
  // The decision; nullopt if there is none yet.
  virtual void DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer) = 0;
  // Withdraws the decision if it names this checkpoint, which is damaged (the root has recorded that before).
  // The next DecideResume decides again. OK also if something else was decided.
  virtual void RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) = 0;
  // Every rank has read its part of the decided checkpoint. Remembered durably before the answer. NOT_FOUND
  // if that decision was withdrawn.
  virtual void AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) = 0;

  // A rank cannot go on from this checkpoint, which its attempt resumes from. A later agreement on it makes
  // that undone. Written with the next write.
  virtual void ResumeFailed(int64_t attempt, int64_t sequence) = 0;
  // The attempt has committed a checkpoint. If it could not resume from the one that it had decided on, its
  // state is another one: record().retained_through() then keeps those before it from retention, unless it
  // takes the root over. Written with the next write of the history.
  virtual void Committed(int64_t attempt) = 0;

  // Adds to the history, which survives restarts. Written soon after the return. When `recorded` runs, all
  // earlier outcomes are on disk, too.
  virtual void RecordOutcome(const storage::v1::Outcome& outcome, Answer<absl::Status> recorded) = 0;
  // Tries again to write the history, after a failure.
  virtual void WriteHistory(Answer<absl::Status> written) = 0;
  // The retention policy in force, and those that commits may put in force from now on. An empty policy keeps
  // all. Written with the next write of the history.
  virtual void SetRetention(const storage::v1::RetentionPolicy& in_force,
                            const std::vector<storage::v1::RetentionPolicy>& next) = 0;
  // The policy that replaces those of the saves; nullopt: theirs count. Remembered durably before the answer;
  // after an error the earlier one counts.
  virtual void SetRetentionOverride(const std::optional<storage::v1::RetentionPolicy>& policy,
                                    Answer<absl::Status> set) = 0;
  // What the run uploads. Written with the next write of the history.
  virtual void SetUploads(const storage::v1::UploadRecord& uploads) = 0;
  virtual const storage::v1::RunRecord& record() const = 0;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_LEDGER_LEDGER_H_
