// Resume and FinishResume: all ranks of an attempt resume from the same checkpoint, and leave together.
#ifndef CKPTD_DAEMON_ENGINE_RESUME_RESUME_BARRIER_H_
#define CKPTD_DAEMON_ENGINE_RESUME_RESUME_BARRIER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/reading/lease_table.h"
#include "daemon/engine/run/members.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/run_states.h"
#include "daemon/engine/run/session_table.h"
#include "daemon/engine/run/wire.h"
#include "daemon/engine/seams/engine_types.h"
#include "storage/base/clock.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// Owns the ranks that wait for what to resume from, and for each attempt which ranks have read their part.
//
//   1. Resume waits until every save of earlier attempts is published or has failed, until a root with an
//      INDETERMINATE save has been scanned, and until newer checkpoints of the run's bucket have been fetched.
//   2. The ledger decides once for the attempt: the newest checkpoint that is not damaged. Every rank gets a
//      lease on it. If it turns out to be damaged, the ledger withdraws the decision and decides again.
//   3. FinishResume is the barrier. It is answered when all ranks have read their part and the ledger has
//      written that down, or as soon as one rank cannot go on.
//
// The ranks are those of this node. Resume waits first until the saves that other nodes have begun in earlier
// attempts are over, and until a scan shows what they have committed; FinishResume waits for the ranks of
// other nodes (Authority::WhenSettled and FinishResume).
class ResumeBarrier {
 public:
  struct Hooks {
    DescribeCheckpoint describe;
    // Null: the run has been closed.
    std::function<Run*(const std::string& name)> find_run;
    // The ledger has activated this attempt: unsealed saves of earlier attempts end.
    std::function<void(Run*, int64_t attempt)> activated;
    // Tags of the saves in flight of attempts before this one.
    std::function<std::vector<std::string>(const Run&, int64_t attempt)> older_saves;
    // Whether the attempt need not wait for the run's bucket.
    std::function<bool(const Run&, int64_t attempt)> is_fetched;
    // Fetches what the bucket has newer than the root. OnFetched follows.
    std::function<void(Run*, int64_t attempt)> fetch;
    // What the fetch waits for, for messages.
    std::function<std::string(const Run&)> fetching;
    // `done` runs when the mark is on disk.
    MarkAsDamaged mark_damaged;
    // The ledger is asked to decide on this checkpoint: retention leaves it alone until end_decision.
    std::function<void(Run*, int64_t sequence)> begin_decision, end_decision;
    // Scans the root; OnScanned follows.
    std::function<void(Run*)> scan;
    // Every rank has read this checkpoint.
    std::function<void(Run*, int64_t sequence)> agreed;
    // Retention may remove a checkpoint that was kept for ranks that resume.
    std::function<void(Run*)> released;
  };

  ResumeBarrier(Clock* clock, const SessionTable* sessions, LeaseTable* leases, Hooks hooks)
      : clock_(clock), sessions_(sessions), leases_(leases), hooks_(std::move(hooks)) {}

  // ---- requests of a rank

  void Resume(Run* run, const Member& member, const v1::ResumeRequest& request,
              Reply<v1::ResumeResponse> reply);
  void FinishResume(Run* run, const Member& member, const v1::FinishResumeRequest& request,
                    Reply<v1::FinishResumeResponse> reply);

  // ---- events

  // A save has ended: some ranks may wait no longer.
  void Continue(Run* run);
  // A scan of the root has ended, and the root takes changes.
  void OnScanned(Run* run);
  // OK: the bucket has nothing newer than the root any more. If `is_new`, the root has a checkpoint that no scan
  // has found yet.
  void OnFetched(Run* run, const absl::Status& fetched, bool is_new);
  // The write of the checkpoint's damage mark, or of its repair, has ended, perhaps with an error.
  void OnDamageRecorded(Run* run, int64_t sequence);
  void OnJoined(Run* run, int64_t attempt, int rank);
  // `attempt` acts: fails the agreements of earlier attempts.
  void OnFenced(Run* run, int64_t attempt, const absl::Status& error);
  // `left`: the memberships that ended with the session.
  void OnSessionEnded(SessionId session, const std::vector<std::pair<Run*, Member>>& left);
  void OnTick(Instant now);
  Instant NextDeadline() const;
  void OnRunClosed(Run* run) { states_.Forget(run); }

  // ---- queries

  // Whether a rank waits for the answer to Resume.
  bool HasWaiting(const Run& run) const;
  // Whether nothing would be lost by closing the run.
  bool IsIdle(const Run& run) const;

 private:
  // The stages before the ledger is asked.
  enum class Stage {
    kSettling,
    kFetching,
    kScanning,
    kReady,
    kHearing,  // The ledger knows of damage that has not reached this node yet.
  };
  struct PendingResume {
    SessionId session = 0;
    int rank = 0;
    int64_t attempt = 0;
    bool strict = false;
    bool allow_suspect = false;
    Instant deadline;
    Reply<v1::ResumeResponse> reply;
    bool asking = false;  // The ledger was asked what the attempt resumes from, and has not answered.
    Stage stage = Stage::kReady;
  };
  // A rank that has read its part, and waits for the others.
  struct PendingFinish {
    SessionId session = 0;
    int rank = 0;
    int64_t attempt = 0;
    int world_size = 0;
    std::vector<int> local_ranks;  // As Member::local_ranks.
    Instant deadline;
    Reply<v1::FinishResumeResponse> reply;

    bool IsHere(int of) const {
      return local_ranks.empty() || std::binary_search(local_ranks.begin(), local_ranks.end(), of);
    }
    int local_count() const {
      return local_ranks.empty() ? world_size : static_cast<int>(local_ranks.size());
    }
  };
  // The ranks of an attempt, on the checkpoint that they resume from.
  struct Agreement {
    int64_t sequence = 0;
    std::string tag;
    std::set<int> finished;             // Ranks that have read their part.
    std::map<int, std::string> failed;  // Ranks that could not, and why, until they resume again.
    std::set<int> lost;                 // Ranks whose session has ended, until they join again.
    std::vector<PendingFinish> waiting;
    bool writing = false;    // All ranks have finished: the answer of Authority::FinishResume ends it.
    int64_t decided = 0;     // The sequence that the ranks were last told to read.
    std::set<int64_t> told;  // All sequences that they were told to read.
    int64_t round = 0;       // Counts the calls of Authority::FinishResume with OK.
    bool agreed = false;     // The last of them was answered with OK.
  };
  struct State {
    std::map<int64_t, PendingResume> resumes;  // By arrival.
    int64_t next_resume = 1;
    std::map<int64_t, Agreement> agreements;  // By attempt.
    std::set<int64_t> settling;               // Attempts for which Authority::WhenSettled has not answered.
    int asking = 0;                           // Requests to the ledger in flight.
  };
  using Decision = std::optional<Ledger::ResumeChoice>;

  static Agreement* FindAgreement(State& state, int64_t attempt);
  // Whether the agreement of this attempt is on this checkpoint.
  bool IsOn(Run* run, int64_t attempt, int64_t sequence);
  // Asks the ledger what the attempt resumes from. The run stays open meanwhile.
  void AskDecision(Run* run, int64_t attempt, absl::AnyInvocable<void(absl::StatusOr<Decision>)> then);

  void ResumeActivated(const std::string& run_name, PendingResume pending, const absl::Status& active);
  void Settle(Run* run, int64_t attempt);
  // Ends this stage of the waiting ranks (of all attempts if `attempt` is 0): with an error, or by entering the next
  // stage, after a scan of the root if `scan`.
  void Leave(Run* run, Stage stage, int64_t attempt, const absl::Status& status, bool scan);
  void ContinueOne(Run* run, int64_t id, const absl::StatusOr<Decision>& decided);
  void Answer(Run* run, PendingResume pending, const Decision& decided);
  void Decide(Run* run, PendingResume pending, bool is_decided);
  void Decided(Run* run, const Ledger::ResumeChoice& choice, PendingResume pending);
  void Again(Run* run, PendingResume pending);
  void HearOfDamage(Run* run, int64_t sequence, PendingResume pending);

  void FinishActivated(const std::string& run_name, const v1::FinishResumeRequest& request,
                       PendingFinish finish, const absl::Status& active);
  void Finish(Run* run, const v1::FinishResumeRequest& request, PendingFinish finish,
              const Decision& decided);
  void Finished(Run* run, int64_t sequence, PendingFinish finish);
  void Agreed(Run* run, int64_t attempt, int64_t sequence, const absl::Status& agreed);
  // Reports the error to the authority, so that the ranks of other nodes get it at once.
  void ReportFailure(Run* run, int64_t attempt, const absl::Status& error);
  // Fails the agreement as soon as a rank cannot go on or its session has ended, not at the deadline.
  void FailIfIncomplete(Run* run, int64_t attempt);
  void FailAgreement(Run* run, int64_t attempt, const absl::Status& error);
  void AnswerFinishes(Run* run, int64_t attempt, const absl::Status& status);
  void RejectDamaged(Run* run, int64_t attempt, int64_t sequence);
  void ExpireResumes(Run* run, State& state, Instant now);
  static void ExpireFinishes(Agreement& agreement, Instant now);

  Clock* const clock_;
  const SessionTable* const sessions_;
  LeaseTable* const leases_;
  const Hooks hooks_;
  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RESUME_RESUME_BARRIER_H_
