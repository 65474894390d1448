// Seam: where what several daemons must agree on is decided once for a run: attempts, sequences, admission,
// commit, what to resume from. Real: LocalLedger (one node); later one on etcd. Fake and faulty:
// tests/testing.
//
// One ledger for one run. Called on the engine's thread; callbacks run there, perhaps inside the call.
#ifndef CKPTD_STORAGE_LEDGER_LEDGER_H_
#define CKPTD_STORAGE_LEDGER_LEDGER_H_

#include <cstdint>
#include <optional>
#include <string>

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
    std::string instance;           // The process: its client instance.
    int64_t requested_attempt = 0;  // 0: any.
    std::string run_id;             // Remembered when the run has none yet.
  };
  // The attempt that this process belongs to. A launch that was not seen before gets the next number; so does
  // a new process for a rank of the newest launch whose process has ended, and the new processes of the other
  // ranks join it. RANK_TAKEN when the rank's process lives; WORLD_SIZE_MISMATCH; FENCED when
  // `requested_attempt` is another's, and for such a process of a launch that others have followed.
  virtual void Join(const JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) = 0;
  // A process of this run has ended (or its session has).
  virtual void ProcessEnded(const std::string& instance) = 0;

  // The attempt begins to act: those before it are fenced off for good, durably, before the answer. FENCED
  // when a later one has acted.
  virtual void Activate(int64_t attempt, Answer<absl::Status> answer) = 0;
  virtual int64_t active_attempt() const = 0;  // 0: none has acted.

  // The sequence of a checkpoint of this attempt: one above all before it. FENCED as Activate.
  virtual void Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) = 0;

  // The sequence of a checkpoint that another program wrote, remembered before the answer, and never given
  // again. It is one of those that are reserved for this, above `above` and below `below`, with room left for
  // `more` others after it: FAILED_PRECONDITION, reason ADOPT_ORDER, where there is none. `below` 0: none of
  // the run's is younger; then it is one above all, where a save has had one.
  virtual void AdmitAdopted(int64_t above, int64_t below, int64_t more,
                            Answer<absl::StatusOr<int64_t>> answer) = 0;

  // Every part is durable: OK means that this daemon publishes.
  virtual void Commit(int64_t sequence, Answer<absl::Status> answer) = 0;

  struct ResumeChoice {
    std::string tag;
    int64_t sequence = 0;  // 0: nothing to resume from.
    bool agreed = false;   // Every rank has read its part of it.
  };
  // Decided at the first question of an attempt, as `newest` (what is committed now), and remembered before
  // the answer.
  virtual void DecideResume(int64_t attempt, const ResumeChoice& newest,
                            Answer<absl::StatusOr<ResumeChoice>> answer) = 0;
  // What was decided; nullopt before.
  virtual std::optional<ResumeChoice> DecidedResume(int64_t attempt) const = 0;
  // Takes the decision back if it is this one, because that checkpoint is damaged (which the root remembers
  // before): the next question is decided anew.
  virtual void RejectResume(int64_t attempt, int64_t sequence) = 0;
  // Every rank has read its part of what was decided: remembered before the answer. NOT_FOUND when that was
  // taken back.
  virtual void AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) = 0;

  // History, kept over restarts. Written soon, not before the return.
  // With an outcome all those before it are on disk.
  virtual void RecordOutcome(const storage::v1::Outcome& outcome, Answer<absl::Status> recorded) = 0;
  // Again, after they could not be written.
  virtual void WriteHistory(Answer<absl::Status> written) = 0;
  virtual void SetRetention(std::optional<int> num_kept_ckpts) = 0;
  virtual const storage::v1::RunRecord& record() const = 0;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_LEDGER_LEDGER_H_
