#include "daemon/engine/upload/bucket_fetches.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"
#include "tests/testing/fake_upload_io.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kUrl[] = "s3://bucket/run";

absl::Status Corrupt() { return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", "chunk 5"); }
absl::Status ServerIsAway() {
  return MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "no answer");
}

UploadIo::InBucket InBucket(int64_t sequence, int64_t begun_us) {
  UploadIo::InBucket found{{}, /*by_daemon=*/true};
  found.summary.set_tag("s" + std::to_string(sequence));
  found.summary.set_sequence(sequence);
  found.summary.set_create_time_us(begun_us);
  found.summary.set_commit_time_us(begun_us + 5);
  found.summary.set_size_bytes(8'000'000);
  return found;
}

class BucketFetchesTest : public ClassTest {
 protected:
  BucketFetchesTest() { Open(AddRun(1000)); }

  void Open(ckptd::Run* run) {
    run_ = run;
    auto io = std::make_unique<FakeUploadIo>();
    io_ = io.get();
    run->uploads = std::move(io);
  }
  // A root that has given sequences up to the last of these, and has the checkpoints.
  void OpenWith(const std::vector<UploadIo::InBucket>& found) {
    Open(AddRun(1000));
    for (const auto& [summary, by_daemon] : found) {
      CommittedCheckpoint checkpoint;
      checkpoint.summary = summary;
      run_->catalog.Add(checkpoint);
      run_->ledger->RaiseSequence(summary.sequence());
    }
  }
  void Join(int64_t attempt, bool no_restore = false) {
    v1::JoinRunRequest request;
    request.mutable_upload()->set_url(kUrl);
    request.mutable_upload()->set_no_restore(no_restore);
    fetches_.OnJoined(run_, attempt, request);
  }
  // The root is of this run from now on.
  void JoinWithRunId(const std::string& run_id) {
    Ledger::JoinSpec spec;
    spec.world_size = 1;
    spec.launch_id = "launch";
    spec.instance = "a";
    spec.run_id = run_id;
    run_->ledger->Join(spec, [](const absl::StatusOr<int64_t>&) {});
  }
  void Start(const std::vector<UploadIo::InBucket>& bucket) {
    Join(1);
    ASSERT_FALSE(fetches_.IsDone(*run_, 1));
    fetches_.Start(run_, 1);
    io_->EndList(UploadIo::Contents{bucket, {}});
  }
  std::vector<std::string> Fetching() const {
    std::vector<std::string> tags;
    for (const FakeUploadIo::Fetched& fetch : io_->fetches) tags.push_back(fetch.tag);
    return tags;
  }

  ckptd::Run* run_ = nullptr;
  FakeUploadIo* io_ = nullptr;
  std::vector<int64_t> fetched_;
  std::vector<std::pair<absl::Status, bool>> ends_;
  BucketFetches fetches_{
      &clock_,
      this,
      {.listed = [](ckptd::Run*, int64_t, const v1::UploadPolicy&, const UploadIo::Contents&) {},
       .fetched = [this](ckptd::Run*,
                         const storage::v1::ManifestSummary& what) { fetched_.push_back(what.sequence()); },
       .ended = [this](ckptd::Run*, const absl::Status& status,
                       bool is_new) { ends_.emplace_back(status, is_new); }}};
};

TEST_F(BucketFetchesTest, BringsTheNewestIntoAnEmptyRootOnceForALaunch) {
  Start({InBucket(7, 700), InBucket(12, 1200), InBucket(9, 900)});
  EXPECT_THAT(Fetching(), ElementsAre("s12"));
  EXPECT_TRUE(fetches_.IsActive(*run_));
  fetches_.Start(run_, 1);
  EXPECT_THAT(io_->lists, IsEmpty()) << "the second rank waits for the same";
  EXPECT_THAT(ends_, IsEmpty());
  io_->EndFetch(absl::OkStatus());
  ASSERT_THAT(ends_, ElementsAre(std::pair(absl::OkStatus(), true)));
  EXPECT_THAT(fetched_, ElementsAre(12));
  EXPECT_TRUE(fetches_.IsDone(*run_, 1));
  EXPECT_FALSE(fetches_.IsActive(*run_));
}

TEST_F(BucketFetchesTest, SaysWhatRanksWaitFor) {
  Join(1);
  fetches_.Start(run_, 1);
  EXPECT_EQ(fetches_.Describe(*run_), "s3://bucket/run to say which checkpoints it has");
  io_->EndList(UploadIo::Contents{{InBucket(12, 1200)}, {}});
  io_->fetches[0].arrived->store(3'100'000);
  EXPECT_EQ(fetches_.Describe(*run_), "fetching s12 from s3://bucket/run, 3.1 MB of 8.0 MB");
  v1::Run description;
  fetches_.Describe(*run_, &description);
  EXPECT_EQ(description.uploads().fetching().fetched_bytes(), 3'100'000);
  infos_.clear();
  clock_.Advance(std::chrono::seconds(30));
  fetches_.OnTick(run_, clock_.Now());
  fetches_.OnTick(run_, clock_.Now());
  EXPECT_THAT(infos_, ElementsAre(HasSubstr("3.1 MB of 8.0 MB")));
}

TEST_F(BucketFetchesTest, RootThatIsNewerThanTheBucketWins) {
  OpenWith({InBucket(12, 1200), InBucket(13, 1300)});
  Start({InBucket(7, 700), InBucket(12, 1200)});
  EXPECT_THAT(Fetching(), IsEmpty());
  EXPECT_THAT(ends_, ElementsAre(std::pair(absl::OkStatus(), false)));
}

TEST_F(BucketFetchesTest, WhatTheRootHasRemovedDoesNotComeBack) {
  run_->ledger->RaiseSequence(12);
  storage::v1::Outcome saved;
  saved.set_level(v1::COMMITTED);
  run_->ledger->RecordOutcome(saved, [](const absl::Status&) {});
  Start({InBucket(12, 1200)});
  EXPECT_THAT(Fetching(), IsEmpty());
  EXPECT_THAT(ends_, ElementsAre(std::pair(absl::OkStatus(), false)));
}

// The first of them are left free for another program's checkpoints, if the root has some that are not adopted.
TEST_F(BucketFetchesTest, RootThatHasHadNoneTakesTheBucketsWhateverSequencesItHasGiven) {
  run_->ledger->RaiseSequence(1'000'000);
  storage::v1::Outcome failed;
  failed.set_level(v1::FAILED);
  run_->ledger->RecordOutcome(failed, [](const absl::Status&) {});
  Start({InBucket(12, 1200)});
  EXPECT_THAT(Fetching(), ElementsAre("s12"));
}

TEST_F(BucketFetchesTest, RootThatIsOlderThanTheBucketGoesOnFromTheBucket) {
  OpenWith({InBucket(5, 500)});
  Start({InBucket(5, 500), InBucket(12, 1200)});
  EXPECT_THAT(Fetching(), ElementsAre("s12"));
}

// A root was lost, the next one began at 1 without the bucket, and was lost, too.
TEST_F(BucketFetchesTest, TheLaterLifeOfARunIsNewerThanHigherSequencesOfAnEarlierOne) {
  Start({InBucket(12, 1200), InBucket(3, 2000)});
  EXPECT_THAT(Fetching(), ElementsAre("s3"));
  io_->EndFetch(absl::OkStatus());
  EXPECT_GT(run_->ledger->record().last_sequence(), 12) << "sequence 12 is not newer from now on";
}

// The lost root has saved 13 and 14, and has uploaded neither; the run has gone on from 12 elsewhere.
TEST_F(BucketFetchesTest, WhatTheRunSavesElsewhereIsNewerThanWhatTheLostRootHasNotUploaded) {
  Start({InBucket(12, 1200)});
  io_->EndFetch(absl::OkStatus());
  run_->ledger->RaiseSequence(run_->ledger->record().last_sequence() + 1);
  const UploadIo::InBucket elsewhere = InBucket(run_->ledger->record().last_sequence(), 1500);
  OpenWith({InBucket(12, 1200), InBucket(13, 1300), InBucket(14, 1400)});
  Start({InBucket(12, 1200), elsewhere});
  EXPECT_THAT(Fetching(), ElementsAre(elsewhere.summary.tag()));
}

TEST_F(BucketFetchesTest, HigherSequenceThatWasBegunEarlierIsRefused) {
  OpenWith({InBucket(3, 2000)});
  Start({InBucket(12, 1200)});
  EXPECT_THAT(Fetching(), IsEmpty());
  ASSERT_THAT(ends_, SizeIs(1));
  EXPECT_EQ(ReasonOf(ends_[0].first), "RESTORE_FAILED");
  EXPECT_THAT(std::string(ends_[0].first.message()), HasSubstr("nobody can say which is newer"));
}

TEST_F(BucketFetchesTest, CheckpointOfAnotherRunIsRefused) {
  JoinWithRunId("mine");
  UploadIo::InBucket other = InBucket(12, 1200);
  other.summary.set_run_id("theirs");
  Start({other});
  EXPECT_THAT(Fetching(), IsEmpty());
  ASSERT_THAT(ends_, SizeIs(1));
  EXPECT_THAT(std::string(ends_[0].first.message()), HasSubstr("give each run a prefix of its own"));
}

TEST_F(BucketFetchesTest, PassesSuspectOnesOverUnlessThereIsNoOther) {
  UploadIo::InBucket suspect = InBucket(12, 1200);
  suspect.summary.set_suspect("NaN in w");
  Start({InBucket(7, 700), suspect});
  EXPECT_THAT(Fetching(), ElementsAre("s7"));
  Open(AddRun(1000));
  Start({suspect});
  EXPECT_THAT(Fetching(), ElementsAre("s12"));
}

TEST_F(BucketFetchesTest, DamagedOneGivesWayToTheNextOlder) {
  Start({InBucket(7, 700), InBucket(12, 1200)});
  io_->EndFetch(Corrupt());
  EXPECT_THAT(Fetching(), ElementsAre("s7"));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("s3://bucket/run/s12 is damaged")));
  io_->EndFetch(absl::OkStatus());
  EXPECT_THAT(fetched_, ElementsAre(7));
}

TEST_F(BucketFetchesTest, ErrorIfAllAreDamagedAndTheRootHasNone) {
  Start({InBucket(12, 1200)});
  io_->EndFetch(Corrupt());
  ASSERT_THAT(ends_, SizeIs(1));
  EXPECT_EQ(ReasonOf(ends_[0].first), "RESTORE_FAILED");
  EXPECT_FALSE(fetches_.IsDone(*run_, 1));
}

TEST_F(BucketFetchesTest, ErrorIfNoManifestInTheBucketCanBeReadAndTheRootHasNone) {
  for (const bool has_any : {false, true}) {
    Open(AddRun(1000));
    if (has_any) OpenWith({InBucket(5, 500)});
    ends_.clear();
    Join(1);
    fetches_.Start(run_, 1);
    io_->EndList(UploadIo::Contents{{}, {"s3://bucket/run/s12: the manifest is torn"}});
    ASSERT_THAT(ends_, SizeIs(1));
    EXPECT_EQ(ends_[0].first.ok(), has_any) << ends_[0].first;
  }
}

TEST_F(BucketFetchesTest, ErrorIfTheNextOlderIsOfAnotherRunAndTheRootHasNone) {
  JoinWithRunId("mine");
  UploadIo::InBucket other = InBucket(7, 700);
  other.summary.set_run_id("theirs");
  Start({other, InBucket(12, 1200)});
  io_->EndFetch(Corrupt());
  EXPECT_THAT(Fetching(), IsEmpty());
  ASSERT_THAT(ends_, SizeIs(1));
  EXPECT_EQ(ReasonOf(ends_[0].first), "RESTORE_FAILED");
}

TEST_F(BucketFetchesTest, DamagedOneGivesWayToTheRoots) {
  OpenWith({InBucket(5, 500)});
  Start({InBucket(12, 1200)});
  io_->EndFetch(Corrupt());
  EXPECT_THAT(ends_, ElementsAre(std::pair(absl::OkStatus(), false)));
}

TEST_F(BucketFetchesTest, BucketThatIsAwayFailsTheResumeAlsoOfARootThatHasCheckpoints) {
  OpenWith({InBucket(5, 500)});
  Join(1);
  fetches_.Start(run_, 1);
  io_->EndList(ServerIsAway());
  ASSERT_THAT(ends_, SizeIs(1));
  EXPECT_EQ(ReasonOf(ends_[0].first), "RESTORE_FAILED");
  const std::string message(ends_[0].first.message());
  EXPECT_THAT(message, HasSubstr(kUrl));
  EXPECT_THAT(message, HasSubstr("no answer"));
  EXPECT_THAT(message, HasSubstr("restore=False"));
  EXPECT_FALSE(fetches_.IsDone(*run_, 1)) << "the next resume asks again";
  fetches_.Start(run_, 1);
  EXPECT_THAT(io_->lists, SizeIs(1));
}

TEST_F(BucketFetchesTest, FetchThatEndsForAnotherReasonThanDamageTakesNoOlderOne) {
  Start({InBucket(7, 700), InBucket(12, 1200)});
  io_->EndFetch(MakeError(absl::StatusCode::kResourceExhausted, "NO_SPACE", "the disk is full"));
  EXPECT_THAT(Fetching(), IsEmpty());
  ASSERT_THAT(ends_, SizeIs(1));
  EXPECT_THAT(std::string(ends_[0].first.message()), HasSubstr("the disk is full"));
  EXPECT_EQ(run_->ledger->record().last_sequence(), 0) << "the next try finds it newer again";
}

TEST_F(BucketFetchesTest, RunsWithoutUploadOrThatDoNotRestoreAskNoBucket) {
  EXPECT_TRUE(fetches_.IsDone(*run_, 1));
  Join(1);
  EXPECT_FALSE(fetches_.IsDone(*run_, 1));
  Join(1, /*no_restore=*/true);
  EXPECT_TRUE(fetches_.IsDone(*run_, 1)) << "also if it has joined otherwise before";
}

TEST_F(BucketFetchesTest, EachAttemptAsksOnce) {
  OpenWith({InBucket(5, 500)});
  Start({});
  EXPECT_TRUE(fetches_.IsDone(*run_, 1));
  Join(1);
  EXPECT_TRUE(fetches_.IsDone(*run_, 1)) << "another rank of it";
  Join(2);
  EXPECT_FALSE(fetches_.IsDone(*run_, 2)) << "the run may have gone on elsewhere meanwhile";
}

}  // namespace
}  // namespace ckptd
