#include "daemon/engine/resume/resume_barrier.h"

#include <optional>

#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

class ResumeBarrierTest : public ClassTest {
 protected:
  template <typename T>
  struct Answer {
    std::optional<absl::StatusOr<T>> value;
    Reply<T> reply() {
      return [this](absl::StatusOr<T> answer) { value = std::move(answer); };
    }
    std::string reason() const { return value ? ReasonOf(value->status()) : "no answer"; }
  };
  using Resumed = Answer<v1::ResumeResponse>;
  using Finished = Answer<v1::FinishResumeResponse>;

  // A run with two ranks, of sessions 1 and 2.
  Run* AddJoinedRun(const std::vector<int64_t>& sequences) {
    Run* run = AddRun(1000, sequences);
    run->ledger->WatchActiveAttempt([run](int64_t attempt) { run->active_attempt = attempt; });
    for (int64_t sequence : sequences)
      disks_.at(run)->manifests[sequence].summary = run->catalog.Find(sequence)->summary;
    for (int rank : {0, 1}) {
      SessionInfo session;
      session.id = 1 + rank;
      session.uid = 1000;
      sessions_.Add(session);
      const std::string instance = "process " + std::to_string(rank);
      Ledger::JoinSpec spec;
      spec.rank = rank;
      spec.world_size = 2;
      spec.launch_id = "launch";
      spec.instance = instance;
      run->ledger->Join(spec, [](absl::StatusOr<int64_t>) {});
      run->members.Join({session.id, instance, rank, 2, 1});
    }
    return run;
  }
  void Resume(Run* run, int rank, Resumed* answer, bool strict = false, bool allow_suspect = false) {
    v1::ResumeRequest request;
    request.set_strict(strict);
    request.set_allow_suspect(allow_suspect);
    barrier_.Resume(run, *run->members.FindRank(1, rank), request, answer->reply());
    RunCallbacks();
  }
  void Finish(Run* run, int rank, int64_t sequence, Finished* answer, const std::string& failure = "") {
    v1::FinishResumeRequest request;
    request.set_sequence(sequence);
    request.set_failure(failure);
    request.mutable_timeout()->set_seconds(10);
    barrier_.FinishResume(run, *run->members.FindRank(1, rank), request, answer->reply());
    RunCallbacks();
  }
  void Suspect(Run* run, int64_t sequence) {
    CommittedCheckpoint suspect = *run->catalog.Find(sequence);
    suspect.summary.set_suspect("NaN in w");
    disks_.at(run)->manifests[sequence].summary = run->catalog.Add(suspect).summary;
  }
  static v1::Checkpoint Describe(const Run& run, const CommittedCheckpoint& committed) {
    return ToWire(run, committed, {});
  }
  void Mark(Run* run, int64_t sequence, DamageMarked done) {
    storage::v1::Damage damage;
    damage.set_tag(run->catalog.Find(sequence)->summary.tag());
    damage.set_sequence(sequence);
    run->catalog.SetDamage(sequence, damage);
    barrier_.OnDamageRecorded(run, sequence);
    done(absl::OkStatus());
  }

  SessionTable sessions_;
  std::vector<std::string> older_;
  std::vector<int64_t> agreed_;
  bool is_fetched_ = true;
  std::vector<int64_t> fetches_;  // The attempts that have asked for the bucket's.
  int scans_ = 0;
  LeaseTable leases_{{100, 1 << 20},
                     &sessions_,
                     {.describe = Describe,
                      .mark_damaged = [this](Run* run, int64_t sequence, storage::v1::Damage,
                                             DamageMarked done) { Mark(run, sequence, std::move(done)); },
                      .notify = [](const Run&, v1::WatchResponse) {},
                      .released = [](const Lease&) {}}};
  ResumeBarrier barrier_{&clock_,
                         &sessions_,
                         &leases_,
                         {.describe = Describe,
                          .find_run = [this](const std::string& name) { return runs_.at(name).get(); },
                          .activated = [](Run*, int64_t) {},
                          .older_saves = [this](const Run&, int64_t) { return older_; },
                          .is_fetched = [this](const Run&, int64_t) { return is_fetched_; },
                          .fetch = [this](Run*, int64_t attempt) { fetches_.push_back(attempt); },
                          .fetching = [](const Run&) { return std::string("fetching s9 from s3://b/run"); },
                          .mark_damaged = [this](Run* run, int64_t sequence, storage::v1::Damage,
                                                 DamageMarked done) { Mark(run, sequence, std::move(done)); },
                          .begin_decision = [](Run*, int64_t) {},
                          .end_decision = [](Run*, int64_t) {},
                          .scan = [this](Run*) { ++scans_; },
                          .agreed = [this](Run*, int64_t sequence) { agreed_.push_back(sequence); },
                          .released = [](Run*) {}}};
};

TEST_F(ResumeBarrierTest, AllRanksResumeFromTheCheckpointThatTheFirstOneGot) {
  Run* run = AddJoinedRun({1, 2});
  Resumed first, second;
  Resume(run, 0, &first);
  EXPECT_EQ((*first.value)->checkpoint().sequence(), 2);
  Commit(run, 3);  // Recovery has published it in the meantime.
  Resume(run, 1, &second);
  EXPECT_EQ((*second.value)->checkpoint().sequence(), 2);
}

TEST_F(ResumeBarrierTest, PassesOverSuspectCheckpointsEvenIfStrict) {
  Run* run = AddJoinedRun({1, 2, 3});
  Suspect(run, 2);
  Suspect(run, 3);
  Resumed answer;
  Resume(run, 0, &answer, /*strict=*/true);
  ASSERT_TRUE(answer.value && answer.value->ok()) << answer.reason();
  EXPECT_EQ((*answer.value)->checkpoint().sequence(), 1);
  ASSERT_EQ((*answer.value)->passed_over_size(), 2);
  EXPECT_EQ((*answer.value)->passed_over(0).sequence(), 3);
  EXPECT_EQ((*answer.value)->passed_over(0).suspect(), "NaN in w");
}

TEST_F(ResumeBarrierTest, ResumesFromASuspectCheckpointThatAllRanksAllow) {
  Run* run = AddJoinedRun({1, 2});
  Suspect(run, 2);
  Resumed first, second, other;
  Resume(run, 0, &first, /*strict=*/false, /*allow_suspect=*/true);
  ASSERT_TRUE(first.value && first.value->ok()) << first.reason();
  EXPECT_EQ((*first.value)->checkpoint().sequence(), 2);
  Resume(run, 1, &other);
  EXPECT_EQ(other.reason(), reason::kSuspect) << "this rank does not allow it";
  Resume(run, 1, &second, /*strict=*/false, /*allow_suspect=*/true);
  EXPECT_EQ((*second.value)->checkpoint().sequence(), 2);
}

TEST_F(ResumeBarrierTest, RefusesToBeginFromNothingIfAllCheckpointsAreSuspect) {
  Run* run = AddJoinedRun({1});
  Suspect(run, 1);
  Resumed answer;
  Resume(run, 0, &answer);
  EXPECT_EQ(answer.reason(), reason::kSuspect);
}

TEST_F(ResumeBarrierTest, WaitsForSavesOfEarlierAttempts) {
  Run* run = AddJoinedRun({1});
  older_ = {"step_2"};
  Resumed answer;
  Resume(run, 0, &answer);
  EXPECT_EQ(answer.reason(), "no answer");
  EXPECT_TRUE(barrier_.HasWaiting(*run));
  EXPECT_FALSE(barrier_.IsIdle(*run));
  EXPECT_EQ(barrier_.NextDeadline(), clock_.Now() + seconds(60));
  Commit(run, 2);
  disks_.at(run)->manifests[2].summary = run->catalog.Find(2)->summary;
  older_.clear();
  barrier_.Continue(run);
  RunCallbacks();
  EXPECT_EQ((*answer.value)->checkpoint().sequence(), 2);
  EXPECT_TRUE(barrier_.IsIdle(*run));
}

TEST_F(ResumeBarrierTest, NoRankIsAnsweredBeforeTheBucketsCheckpointIsInTheRoot) {
  Run* run = AddJoinedRun({1});
  is_fetched_ = false;
  Resumed first, second;
  Resume(run, 0, &first);
  Resume(run, 1, &second);
  EXPECT_EQ(first.reason(), "no answer");
  EXPECT_EQ(second.reason(), "no answer");
  EXPECT_FALSE(fetches_.empty());
  is_fetched_ = true;
  barrier_.OnFetched(run, absl::OkStatus(), /*is_new=*/true);
  RunCallbacks();
  EXPECT_EQ(scans_, 1);
  EXPECT_EQ(first.reason(), "no answer") << "the root has not been scanned";
  Commit(run, 9);
  disks_.at(run)->manifests[9].summary = run->catalog.Find(9)->summary;
  barrier_.OnScanned(run);
  RunCallbacks();
  EXPECT_EQ((*first.value)->checkpoint().sequence(), 9);
  EXPECT_EQ((*second.value)->checkpoint().sequence(), 9);
}

TEST_F(ResumeBarrierTest, ARankThatComesBeforeTheFetchedCheckpointIsSeenWaitsForTheScan) {
  Run* run = AddJoinedRun({});
  is_fetched_ = false;
  Resumed first, late;
  Resume(run, 0, &first);
  is_fetched_ = true;
  barrier_.OnFetched(run, absl::OkStatus(), /*is_new=*/true);
  run->scanning = true;
  Resume(run, 1, &late);
  RunCallbacks();
  EXPECT_EQ(late.reason(), "no answer") << "it would begin from nothing, and so would all ranks";
  run->scanning = false;
  Commit(run, 9);
  disks_.at(run)->manifests[9].summary = run->catalog.Find(9)->summary;
  barrier_.OnScanned(run);
  RunCallbacks();
  EXPECT_EQ((*first.value)->checkpoint().sequence(), 9);
  EXPECT_EQ((*late.value)->checkpoint().sequence(), 9);
}

TEST_F(ResumeBarrierTest, AllRanksAreToldWhyTheBucketsCheckpointIsNotThere) {
  Run* run = AddJoinedRun({1});
  is_fetched_ = false;
  Resumed answers[2];
  for (int rank : {0, 1}) Resume(run, rank, &answers[rank]);
  barrier_.OnFetched(run, MakeError(absl::StatusCode::kFailedPrecondition, reason::kRestoreFailed, "away"),
                     /*is_new=*/false);
  for (const Resumed& answer : answers) EXPECT_EQ(answer.reason(), reason::kRestoreFailed);
  EXPECT_FALSE(barrier_.HasWaiting(*run));
}

TEST_F(ResumeBarrierTest, ADecidedAttemptDoesNotWaitForTheBucket) {
  Run* run = AddJoinedRun({1});
  Resumed first, second;
  Resume(run, 0, &first);
  is_fetched_ = false;  // A daemon that was restarted does not know that the bucket was asked.
  Resume(run, 1, &second);
  EXPECT_EQ((*second.value)->checkpoint().sequence(), 1);
  EXPECT_TRUE(fetches_.empty());
}

TEST_F(ResumeBarrierTest, ADeadlineSaysWhatIsFetched) {
  Run* run = AddJoinedRun({1});
  is_fetched_ = false;
  Resumed answer;
  Resume(run, 0, &answer);
  clock_.Advance(seconds(60));
  barrier_.OnTick(clock_.Now());
  EXPECT_EQ(answer.reason(), reason::kResumeTimeout);
  EXPECT_NE(answer.value->status().message().find("fetching s9 from s3://b/run"), std::string::npos);
}

TEST_F(ResumeBarrierTest, EndsAWaitAtItsDeadline) {
  Run* run = AddJoinedRun({1});
  older_ = {"step_2"};
  Resumed answer;
  Resume(run, 0, &answer);
  clock_.Advance(seconds(60));
  barrier_.OnTick(clock_.Now());
  EXPECT_EQ(answer.reason(), reason::kResumeTimeout);
}

TEST_F(ResumeBarrierTest, TakesADecisionForADamagedCheckpointBack) {
  Run* run = AddJoinedRun({1, 2});
  disks_.at(run)->unreadable.insert(2);
  Resumed answer;
  Resume(run, 0, &answer);
  ASSERT_TRUE(answer.value && answer.value->ok()) << answer.reason();
  EXPECT_EQ((*answer.value)->checkpoint().sequence(), 1);
  EXPECT_EQ((*answer.value)->passed_over(0).sequence(), 2);
  Resumed strict;
  Resume(run, 1, &strict, /*strict=*/true);
  EXPECT_EQ(strict.reason(), reason::kCheckpointDamaged);
}

TEST_F(ResumeBarrierTest, AnswersWhenTheLastRankHasRead) {
  Run* run = AddJoinedRun({1});
  Resumed resumed[2];
  Finished finished[2];
  for (int rank : {0, 1}) Resume(run, rank, &resumed[rank]);
  Finish(run, 0, 1, &finished[0]);
  EXPECT_EQ(finished[0].reason(), "no answer");
  Finish(run, 1, 1, &finished[1]);
  for (int rank : {0, 1}) EXPECT_TRUE(finished[rank].value && finished[rank].value->ok());
  EXPECT_THAT(agreed_, ElementsAre(1));
}

TEST_F(ResumeBarrierTest, FailsEverybodyWhenARankCannotGoOn) {
  Run* run = AddJoinedRun({1});
  Resumed resumed[2];
  Finished waits, fails;
  for (int rank : {0, 1}) Resume(run, rank, &resumed[rank]);
  Finish(run, 0, 1, &waits);
  Finish(run, 1, 1, &fails, "out of memory");
  EXPECT_EQ(waits.reason(), reason::kResumeFailed);
  EXPECT_TRUE(fails.value->ok()) << "the rank that failed knows";
}

TEST_F(ResumeBarrierTest, FailsEverybodyWhenASessionEnds) {
  Run* run = AddJoinedRun({1});
  Resumed resumed[2];
  Finished waits;
  for (int rank : {0, 1}) Resume(run, rank, &resumed[rank]);
  Finish(run, 0, 1, &waits);
  sessions_.Remove(2);
  std::vector<std::pair<Run*, Member>> left;
  for (Member& member : run->members.Leave(2)) left.emplace_back(run, member);
  barrier_.OnSessionEnded(2, left);
  EXPECT_EQ(waits.reason(), reason::kResumeFailed);
}

TEST_F(ResumeBarrierTest, ARankWhoseWaitHasExpiredDoesNotCount) {
  Run* run = AddJoinedRun({1});
  Resumed resumed[2];
  Finished expired, late;
  for (int rank : {0, 1}) Resume(run, rank, &resumed[rank]);
  Finish(run, 0, 1, &expired);
  clock_.Advance(seconds(10));
  barrier_.OnTick(clock_.Now());
  EXPECT_EQ(expired.reason(), reason::kResumeIncomplete);
  Finish(run, 1, 1, &late);
  EXPECT_EQ(late.reason(), "no answer");
}

}  // namespace
}  // namespace ckptd
