// Resuming from the bucket of a run that several nodes share, on one of them: as the coordinator, and as another node.
#include "daemon/engine/upload/shared_fetches.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/upload/bucket_fetches.h"
#include "daemon/engine/upload/uploads.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/shared_run_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kUrl[] = "s3://bucket/run";
constexpr int64_t kMillion = 1'000'000;

UploadIo::InBucket InBucket(int64_t sequence, int64_t attempt = 7) {
  UploadIo::InBucket found{{}, /*by_daemon=*/true};
  found.summary.set_tag(absl::StrCat("s", sequence));
  found.summary.set_sequence(sequence);
  found.summary.set_attempt(attempt);
  found.summary.set_create_time_us(100 * sequence);
  found.summary.set_commit_time_us(100 * sequence + 5);
  return found;
}

class SharedFetchesTest : public SharedRunTest {
 protected:
  void Tick() {
    uploads_.OnTick(run_, clock_.Now());
    shared_.OnTick(run_);
  }
  // Until etcd and the nodes have answered all that does not wait for the bucket.
  void Settle() {
    for (bool is_over = false; !is_over;) {
      Tick();
      is_over = etcd().reads.empty() && etcd().writes.empty() && nodes_->settles.empty() && scans_ == 0;
      while (!etcd().reads.empty()) etcd().AnswerRead();
      while (!etcd().writes.empty()) etcd().AnswerWrite();
      for (auto& settled : std::exchange(nodes_->settles, {})) settled(absl::OkStatus());
      if (std::exchange(scans_, 0) > 0) shared_.OnScanned(run_);
    }
  }
  void Lead() {
    nodes_->leads = true;
    etcd().EndTerm();
    Settle();
  }
  void LoseLeadership() {
    nodes_->leads = false;
    etcd().EndTerm();
    *etcd().leads = false;
    Tick();
  }
  // A node asks the coordinator, which is this one. Its answer: "", "s7 7", "nothing" or an error.
  std::shared_ptr<std::string> Serve(int64_t attempt = 1, const std::string& run_id = "") {
    auto answer = std::make_shared<std::string>();
    shared_.Serve(run_, {attempt, kUrl, run_id},
                  [answer](const absl::StatusOr<SharedUploads::Newest>& newest) {
                    if (!newest.ok()) {
                      *answer = std::string(newest.status().message());
                    } else if (newest->sequence == 0) {
                      *answer = "nothing";
                    } else {
                      *answer = absl::StrCat(newest->tag, " ", newest->sequence);
                    }
                  });
    Settle();
    return answer;
  }
  void List(const std::vector<UploadIo::InBucket>& bucket) {
    ASSERT_FALSE(io_->lists.empty());
    io_->EndList(UploadIo::Contents{bucket, {}});
  }
  // It is in the root, as the next scan finds.
  void EndFetch(int64_t sequence, int64_t attempt = 7) {
    CommittedCheckpoint fetched;
    fetched.summary = InBucket(sequence, attempt).summary;
    run_->catalog.Add(fetched);
    io_->EndFetch(absl::OkStatus());
  }
  static storage::v1::UploadRecord PolicyOf(int every) {
    storage::v1::UploadRecord policy;
    policy.set_url(kUrl);
    policy.set_every(every);
    return policy;
  }
  std::vector<std::string> Fetching() const {
    std::vector<std::string> tags;
    for (const FakeUploadIo::Fetched& fetch : io_->fetches) tags.push_back(fetch.tag);
    return tags;
  }

  int scans_ = 0;
  std::vector<std::string>
      ends_;  // What the ranks of this node hear: "OK", "OK, after a scan", or the error.
  Uploads uploads_{
      &clock_, this, {.released = [](ckptd::Run*) {}, .changed = [](const ckptd::Run&, int64_t) {}}};
  BucketFetches fetches_{
      &clock_,
      this,
      {.listed =
           [this](ckptd::Run* run, int64_t attempt, const v1::UploadPolicy& policy,
                  const UploadIo::Contents& contents) {
             uploads_.TakeOver(run, attempt, policy, contents.checkpoints);
           },
       .fetched = [this](ckptd::Run* run,
                         const storage::v1::ManifestSummary& what) { uploads_.OnFetched(run, what); },
       .ended = [this](ckptd::Run* run, const absl::Status& status,
                       bool is_new) { shared_.OnFetched(run, status, is_new); },
       .ask = [this](ckptd::Run* run, int64_t attempt,
                     const v1::UploadPolicy& policy) { shared_.Ask(run, attempt, policy); },
       .announce =
           [this](ckptd::Run* run, int64_t sequence, int64_t above, absl::AnyInvocable<void()> recorded) {
             uploads_.Announce(run, sequence, above, std::move(recorded));
           }}};
  SharedFetches shared_{
      {.scan = [this](ckptd::Run*) { ++scans_; },
       .counted_through = [this](const ckptd::Run& run) { return uploads_.CountedThrough(run); },
       .begin = [this](ckptd::Run* run,
                       BucketFetches::Order order) { fetches_.Begin(run, std::move(order)); },
       .drop = [this](const ckptd::Run* run) { fetches_.Drop(run); },
       .set_done = [this](const ckptd::Run* run, int64_t attempt,
                          const std::string& url) { fetches_.SetDone(run, attempt, url); },
       .ended =
           [this](ckptd::Run*, const absl::Status& status, bool is_new) {
             ends_.push_back(!status.ok() ? ReasonOf(status) : is_new ? "OK, after a scan" : "OK");
           }}};
};

// ---- the coordinator

TEST_F(SharedFetchesTest, TheCoordinatorBringsTheNewestIntoAnEmptyRootOnceForAllNodesOfALaunch) {
  etcd().etcd.policy = PolicyOf(1);
  etcd().etcd.attempt = 1;
  Lead();
  const auto first = Serve(), second = Serve();
  ASSERT_THAT(io_->lists, SizeIs(1));
  List({InBucket(7), InBucket(12), InBucket(9)});
  EXPECT_THAT(Fetching(), IsEmpty()) << "the next coordinator would count it as a new save";
  Settle();
  EXPECT_THAT(Fetching(), ElementsAre("s12"));
  EXPECT_EQ(etcd().etcd.record.fetched_sequence(), 12);
  EXPECT_EQ(etcd().sequence, 12 + kMillion);
  EXPECT_EQ(io_->fetches[0].term.number, 1);
  EXPECT_TRUE(io_->fetches[0].term.may_go_on());
  EXPECT_EQ(etcd().etcd.counted_through, 0) << "a fetch that fails is made again";
  EndFetch(12);
  EXPECT_EQ(*first, "") << "it does not list it yet";
  Settle();
  EXPECT_EQ(*first, "s12 12");
  EXPECT_EQ(*second, "s12 12");
  EXPECT_EQ(*Serve(), "s12 12");
  EXPECT_THAT(io_->lists, IsEmpty()) << "once for a launch";
  Serve(/*attempt=*/2);
  EXPECT_THAT(io_->lists, SizeIs(1)) << "the next launch looks again";
}

TEST_F(SharedFetchesTest, AFetchedCheckpointIsKnownAsUploadedAndIsNoNewSave) {
  etcd().etcd.policy = PolicyOf(2);
  etcd().etcd.attempt = 1;
  Lead();
  Serve();
  List({InBucket(9), InBucket(12)});
  Settle();
  EndFetch(12);
  Settle();
  EXPECT_EQ(etcd().etcd.record.uploaded_size(), 2);
  EXPECT_EQ(etcd().etcd.record.commits(), 0);
  EXPECT_EQ(etcd().etcd.counted_through, 12);
  EXPECT_THAT(uploads_.Held(*run_), IsEmpty());
  Commit(run_, 12 + kMillion + 1, /*attempt=*/1);
  Settle();
  EXPECT_EQ(etcd().etcd.record.commits(), 1);
  EXPECT_THAT(io_->uploads, IsEmpty());
  Commit(run_, 12 + kMillion + 2, /*attempt=*/1);
  Settle();
  EXPECT_THAT(io_->uploads, SizeIs(1)) << "each second one";
}

TEST_F(SharedFetchesTest, TheNextCoordinatorDoesNotCountWhatTheOneBeforeHasFetched) {
  etcd().etcd.policy = etcd().etcd.record = PolicyOf(1);
  etcd().etcd.attempt = 1;
  etcd().etcd.record.set_fetched_sequence(12);  // It has died right after the rename.
  CommittedCheckpoint fetched;
  fetched.summary = InBucket(12).summary;
  run_->catalog.Add(fetched);
  Lead();
  EXPECT_THAT(io_->uploads, IsEmpty());
  EXPECT_EQ(etcd().etcd.counted_through, 12);
}

TEST_F(SharedFetchesTest, CountsByThePolicyOfRank0AlsoIfItJoinsAfterTheFetch) {
  Lead();
  Serve();
  List({InBucket(12)});
  Settle();
  EndFetch(12);
  Settle();
  EXPECT_EQ(etcd().etcd.record.every(), 0);
  etcd().etcd.policy = PolicyOf(1);
  etcd().etcd.attempt = 1;
  etcd().Show();
  Settle();
  EXPECT_EQ(etcd().etcd.record.uploaded_size(), 1);
  EXPECT_THAT(io_->uploads, IsEmpty());
  Commit(run_, 12 + kMillion + 1, /*attempt=*/1);
  Settle();
  EXPECT_THAT(io_->uploads, SizeIs(1));
}

TEST_F(SharedFetchesTest, WhatEarlierLaunchesHaveSavedIsNotUploadedAfterALookAtTheBucket) {
  Commit(run_, 13, /*attempt=*/2);
  Lead();
  EXPECT_EQ(*Serve(/*attempt=*/3), "") << "the bucket has not answered";
  List({InBucket(12)});
  Settle();
  EXPECT_THAT(Fetching(), IsEmpty()) << "the root is newer";
  EXPECT_EQ(etcd().sequence, 12);
  etcd().etcd.policy = PolicyOf(1);
  etcd().etcd.attempt = 3;
  etcd().Show();
  Settle();
  EXPECT_THAT(io_->uploads, IsEmpty());
}

TEST_F(SharedFetchesTest, WhatTheRootHasHadDoesNotComeBack) {
  etcd().etcd.policy = etcd().etcd.record = PolicyOf(1);
  etcd().etcd.attempt = 1;
  etcd().etcd.counted_through = 12;  // An operator has removed them.
  Lead();
  const auto answer = Serve();
  List({InBucket(11), InBucket(12)});
  Settle();
  EXPECT_EQ(*answer, "nothing");
}

TEST_F(SharedFetchesTest, AnErrorIsTheAnswerToAllAndTheNextQuestionBeginsAnew) {
  Lead();
  const auto first = Serve(), second = Serve();
  io_->EndList(MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "no answer"));
  EXPECT_THAT(*first, HasSubstr("no answer"));
  EXPECT_THAT(*first, HasSubstr("restore=False"));
  EXPECT_EQ(*second, *first);
  Serve();
  EXPECT_THAT(io_->lists, SizeIs(1));
}

TEST_F(SharedFetchesTest, AnotherRunsCheckpointIsNotFetched) {
  Lead();
  const auto answer = Serve(1, "mine");
  UploadIo::InBucket other = InBucket(12);
  other.summary.set_run_id("other");
  List({other});
  EXPECT_THAT(*answer, HasSubstr("is of run \"other\""));
}

TEST_F(SharedFetchesTest, ADamagedOneGivesWayToTheNextOlderOne) {
  Lead();
  const auto answer = Serve();
  List({InBucket(11), InBucket(12)});
  Settle();
  io_->EndFetch(MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", "chunk 5"));
  Settle();
  EXPECT_THAT(Fetching(), ElementsAre("s11"));
  EXPECT_EQ(etcd().etcd.record.fetched_sequence(), 11);
  EndFetch(11);
  Settle();
  EXPECT_EQ(*answer, "s11 11");
}

TEST_F(SharedFetchesTest, AFormerCoordinatorFetchesNoMoreAndLeavesTheQuestionToTheNextOne) {
  Lead();
  const auto answer = Serve();
  List({InBucket(12)});
  Settle();
  ASSERT_THAT(Fetching(), ElementsAre("s12"));
  LoseLeadership();
  EXPECT_FALSE(io_->fetches[0].term.may_go_on());
  EXPECT_THAT(*answer, HasSubstr("another node"));
  EXPECT_FALSE(shared_.IsActive(*run_));
  io_->EndFetch(absl::OkStatus());  // Late.
  Settle();
  EXPECT_TRUE(etcd().writes.empty());
  Lead();
  etcd().term = 3;
  Serve();
  ASSERT_THAT(io_->lists, SizeIs(1)) << "it does not know what the one between has done";
  List({InBucket(12)});
  Settle();
  ASSERT_THAT(io_->fetches, SizeIs(1));
  EXPECT_EQ(io_->fetches[0].term.number, 3);
}

TEST_F(SharedFetchesTest, NothingIsFetchedBeforeTheTermHasBegunInTheRoot) {
  etcd().term = 0;
  Lead();
  Serve();
  EXPECT_THAT(io_->lists, IsEmpty());
  etcd().term = 4;
  Settle();
  EXPECT_THAT(io_->lists, SizeIs(1));
}

TEST_F(SharedFetchesTest, AResumeFailsIfItCannotBeKnownWhatWasUploaded) {
  nodes_->leads = true;
  Tick();
  ASSERT_THAT(etcd().reads, SizeIs(1));
  etcd().FailRead(MakeError(absl::StatusCode::kDataLoss, "CORRUPT_KEY", "etcd's key uploads/record"));
  EXPECT_THAT(*Serve(), HasSubstr("uploads/record"));
  EXPECT_THAT(io_->lists, IsEmpty());
}

TEST_F(SharedFetchesTest, EtcdThatFailsIsAskedAgainBeforeTheFetch) {
  Lead();
  Serve();
  List({InBucket(12)});
  ASSERT_THAT(etcd().writes, SizeIs(1));
  etcd().AnswerWrite(absl::UnavailableError("away"));
  EXPECT_THAT(Fetching(), IsEmpty());
  clock_.Advance(std::chrono::seconds(1));
  Settle();
  EXPECT_THAT(Fetching(), ElementsAre("s12"));
  EXPECT_EQ(etcd().sequence, 12 + kMillion);
}

// ---- ranks of a node

TEST_F(SharedFetchesTest, ANodeAsksTheCoordinatorOnceForItsRanksAndLooksAtTheRootForWhatItNames) {
  v1::JoinRunRequest request;
  request.mutable_upload()->set_url(kUrl);
  fetches_.OnJoined(run_, 1, request);
  EXPECT_FALSE(fetches_.IsDone(*run_, 1));
  fetches_.Start(run_, 1);
  fetches_.Start(run_, 1);
  ASSERT_THAT(etcd().restores, SizeIs(1));
  EXPECT_THAT(io_->lists, IsEmpty());
  EXPECT_THAT(shared_.Describe(*run_), HasSubstr(kUrl));
  EXPECT_TRUE(shared_.IsActive(*run_));
  etcd().restores[0].brought(SharedUploads::Newest{"s12", 12});
  EXPECT_THAT(ends_, ElementsAre("OK, after a scan"));
  EXPECT_TRUE(fetches_.IsDone(*run_, 1));
  EXPECT_FALSE(shared_.IsActive(*run_));
}

TEST_F(SharedFetchesTest, ANodeWhoseQuestionFailsAsksAgain) {
  v1::JoinRunRequest request;
  request.mutable_upload()->set_url(kUrl);
  fetches_.OnJoined(run_, 1, request);
  fetches_.Start(run_, 1);
  etcd().restores[0].brought(
      MakeError(absl::StatusCode::kFailedPrecondition, reason::kRestoreFailed, "away"));
  EXPECT_THAT(ends_, ElementsAre("RESTORE_FAILED"));
  EXPECT_FALSE(fetches_.IsDone(*run_, 1));
  fetches_.Start(run_, 1);
  ASSERT_THAT(etcd().restores, SizeIs(2));
  etcd().restores[1].brought(SharedUploads::Newest{});
  EXPECT_THAT(ends_, ElementsAre("RESTORE_FAILED", "OK"));
}

}  // namespace
}  // namespace ckptd
