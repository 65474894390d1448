#include "daemon/engine/save/ended_saves.h"

#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Property;
using ::testing::SizeIs;

class EndedSavesTest : public ClassTest {
 protected:
  // A save that has ended, with this key.
  const Save* End(Run* run, const SaveId& key) {
    Save* save = AddSave(run, 1, 100, SavePhase::kEnded);
    save->key = key;
    ended_saves_.Add(saves_.Remove(save));
    return save;
  }
  static v1::Checkpoint Failure(const std::string& tag, int64_t attempt, int64_t ordinal, int64_t sequence) {
    v1::Checkpoint failure;
    failure.set_tag(tag);
    failure.set_attempt(attempt);
    failure.set_ordinal(ordinal);
    failure.set_sequence(sequence);
    return failure;
  }

  int described_ = 0;
  EndedSaves ended_saves_{{.describe_save =
                               [this](const Save& save) {
                                 ++described_;
                                 EXPECT_THAT(save.parts, SizeIs(1)) << "a summary is made of the whole save";
                                 v1::Checkpoint checkpoint;
                                 checkpoint.set_tag(save.key.tag);
                                 checkpoint.set_level(v1::FAILED);
                                 return checkpoint;
                               },
                           .describe_committed =
                               [](const Run&, const CommittedCheckpoint& committed) {
                                 v1::Checkpoint checkpoint;
                                 checkpoint.set_tag(committed.summary.tag());
                                 checkpoint.set_level(v1::COMMITTED);
                                 return checkpoint;
                               }}};
};

TEST_F(EndedSavesTest, FindsASaveByItsKeyAndTheNewestByItsTag) {
  Run* run = AddRun(1000);
  const Save* first = End(run, {1, "t", 1});
  const Save* second = End(run, {1, "t", 2});
  EXPECT_EQ(ended_saves_.Find(run, {1, "t", 1}), first);
  EXPECT_EQ(ended_saves_.FindNewest(run, "t"), second);
  EXPECT_EQ(ended_saves_.Find(run, {2, "t", 1}), nullptr) << "another attempt";
  EXPECT_EQ(ended_saves_.FindNewest(AddRun(1000), "t"), nullptr) << "another run";
}

TEST_F(EndedSavesTest, KeepsTheLast256SavesOfARun) {
  Run* run = AddRun(1000);
  for (int ordinal = 1; ordinal <= 257; ++ordinal) End(run, {1, "t", ordinal});
  EXPECT_EQ(ended_saves_.Find(run, {1, "t", 1}), nullptr);
  EXPECT_NE(ended_saves_.Find(run, {1, "t", 2}), nullptr);
  ended_saves_.OnTick();
  EXPECT_EQ(described_, 256) << "the save that was dropped is not touched any more";
}

TEST_F(EndedSavesTest, ATickReplacesPartsByASummaryOnce) {
  Run* run = AddRun(1000);
  const Save* save = End(run, {1, "t", 1});
  EXPECT_THAT(save->parts, SizeIs(1));
  EXPECT_EQ(save->summary, nullptr);
  ended_saves_.OnTick();
  EXPECT_THAT(save->parts, IsEmpty());
  ASSERT_NE(save->summary, nullptr);
  EXPECT_EQ(save->summary->tag(), "t");
  ended_saves_.OnTick();
  EXPECT_EQ(described_, 1);
}

// The saves of a closed run are freed. A tick that still knew them would write into freed memory, which
// AddressSanitizer reports.
TEST_F(EndedSavesTest, ATickAfterARunIsForgottenTouchesOnlyTheOtherRuns) {
  Run* closed = AddRun(1000);
  Run* open = AddRun(1000);
  End(closed, {1, "t", 1});
  const Save* other = End(open, {1, "t", 1});
  ended_saves_.AddFailure(closed, Failure("t", 1, 1, 5));
  ended_saves_.Forget(closed);
  ended_saves_.OnTick();
  EXPECT_EQ(described_, 1);
  EXPECT_NE(other->summary, nullptr);
  EXPECT_EQ(ended_saves_.Find(closed, {1, "t", 1}), nullptr);
  EXPECT_THAT(ended_saves_.failures(*closed), IsEmpty());
}

TEST_F(EndedSavesTest, PastAsksTheDaemonThenTheDiskThenTheHistory) {
  Run* run = AddRun(1000, {7});
  CommittedCheckpoint committed = *run->catalog.Find(7);
  committed.summary.set_attempt(1);
  committed.summary.set_ordinal(7);
  run->catalog.Remove(7);
  run->catalog.Add(committed);
  storage::v1::Outcome outcome;
  outcome.set_tag("lost");
  outcome.set_attempt(1);
  outcome.set_ordinal(3);
  outcome.set_level(v1::FAILED);
  outcome.set_reason("NO_SPACE");
  storage::v1::RunRecord record;
  *record.add_outcomes() = outcome;
  run->SetLedger(std::make_unique<LocalLedger>(
      record, 0, [](const storage::v1::RunRecord&, absl::AnyInvocable<void(absl::Status)>) {}));
  End(run, {1, "t", 1});

  EXPECT_EQ(ended_saves_.Past(*run, {1, "t", 1})->level(), v1::FAILED);
  EXPECT_EQ(ended_saves_.Past(*run, {1, "s7", 7})->level(), v1::COMMITTED);
  EXPECT_EQ(ended_saves_.Past(*run, {1, "lost", 3})->error().reason(), "NO_SPACE");
  EXPECT_FALSE(ended_saves_.Past(*run, {1, "s7", 8}).has_value()) << "a save in flight, or unknown";
}

// A root that was lost begins its attempts anew: the checkpoint of the bucket may have the name of a new save.
TEST_F(EndedSavesTest, ACheckpointThatWasBroughtBackIsNoSaveOfThisRecord) {
  Run* run = AddRun(1000);
  CommittedCheckpoint fetched;
  fetched.summary.set_tag("t");
  fetched.summary.set_sequence(12);
  fetched.summary.set_attempt(1);
  fetched.summary.set_ordinal(1);
  run->catalog.Add(fetched);
  EXPECT_TRUE(ended_saves_.Past(*run, {1, "t", 1}).has_value());
  storage::v1::UploadRecord uploads;
  uploads.set_fetched_sequence(12);
  run->ledger->SetUploads(uploads);
  EXPECT_FALSE(ended_saves_.Past(*run, {1, "t", 1}).has_value());
}

TEST_F(EndedSavesTest, KeepsTheLast64FailuresOfARun) {
  Run* run = AddRun(1000);
  for (int i = 1; i <= 65; ++i) ended_saves_.AddFailure(run, Failure("t" + std::to_string(i), 1, i, i));
  ASSERT_THAT(ended_saves_.failures(*run), SizeIs(64));
  EXPECT_EQ(ended_saves_.failures(*run).front().tag(), "t2");
}

TEST_F(EndedSavesTest, ForgetsALostSaveOfTheAttemptButNoFailureWithAnOrdinal) {
  Run* run = AddRun(1000);
  ended_saves_.AddFailure(run, Failure("t", 1, 0, 11));
  ended_saves_.AddFailure(run, Failure("t", 2, 0, 12));
  ended_saves_.AddFailure(run, Failure("t", 1, 4, 13));
  EXPECT_EQ(ended_saves_.ForgetLost(run, 1, "t"), 11);
  EXPECT_EQ(ended_saves_.ForgetLost(run, 1, "t"), 0) << "it is forgotten already";
  EXPECT_THAT(ended_saves_.failures(*run),
              ElementsAre(Property(&v1::Checkpoint::sequence, 12), Property(&v1::Checkpoint::sequence, 13)));
}

}  // namespace
}  // namespace ckptd
