#include "client/ckptctl/text/why.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/ckptctl/text/history_text.h"

namespace ckptd::ctl {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kNow = 1'700'000'000 * kSecond;

v1::HistoryEntry Entry(v1::HistoryEntry::Kind kind, int64_t seconds_ago) {
  v1::HistoryEntry entry;
  entry.set_kind(kind);
  entry.mutable_time()->set_seconds(kNow / kSecond - seconds_ago);
  entry.set_tag("step_10");
  entry.set_sequence(3);
  entry.set_attempt(2);
  entry.set_size_bytes(int64_t{3} << 30);
  return entry;
}

v1::HistoryEntry Saved(int64_t seconds_ago) {
  v1::HistoryEntry entry = Entry(v1::HistoryEntry::SAVE, seconds_ago);
  entry.set_level(v1::COMMITTED);
  entry.set_stall_seconds(0.25);
  entry.set_staged_seconds(0.5);
  entry.set_written_seconds(3);
  entry.set_committed_seconds(3.5);
  entry.set_slowest_rank(1);
  return entry;
}

v1::HistoryEntry FailedSave(int64_t seconds_ago) {
  v1::HistoryEntry entry = Entry(v1::HistoryEntry::SAVE, seconds_ago);
  entry.set_level(v1::FAILED);
  entry.set_reason("RANKS_MISSING");
  entry.set_message("ranks 1 have not sealed their part");
  return entry;
}

class WhyTest : public ::testing::Test {
 protected:
  WhyTest() {
    facts_.tag = "step_10";
    facts_.now_us = kNow;
    facts_.run.set_path("/data/ckpts");
    SetCheckpoint(facts_.run.mutable_latest(), "step_20", 4);
  }
  static void SetCheckpoint(v1::Checkpoint* checkpoint, const std::string& tag, int64_t sequence) {
    checkpoint->set_tag(tag);
    checkpoint->set_sequence(sequence);
    checkpoint->set_step(sequence * 10);
    checkpoint->set_level(v1::COMMITTED);
    checkpoint->set_directory("/data/ckpts/" + tag);
    checkpoint->mutable_commit_time()->set_seconds(kNow / kSecond - 60);
  }
  v1::Checkpoint& Committed() {
    SetCheckpoint(&facts_.checkpoint.emplace(), "step_10", 3);
    facts_.decision.emplace().set_sequence(3);
    return *facts_.checkpoint;
  }
  void AddEntry(v1::HistoryEntry entry) { *facts_.history.add_entries() = std::move(entry); }

  TagFacts facts_;
};

TEST_F(WhyTest, FailedSaveHasItsReasonTheRanksAndWhatToDo) {
  AddEntry(FailedSave(120));
  const WhyAnswer answer = AnswerWhy(facts_);
  EXPECT_EQ(answer.state, "FAILED");
  EXPECT_FALSE(answer.good);
  EXPECT_THAT(answer.answer, HasSubstr("RANKS_MISSING: ranks 1 have not sealed"));
  EXPECT_THAT(answer.evidence, Contains(HasSubstr("(2 min 0 s ago)")));
  EXPECT_THAT(answer.evidence, Contains(HasSubstr("the latest checkpoint of the run is step_20")));
  EXPECT_THAT(answer.next_step, HasSubstr("log and the stack of the ranks"));
  const std::string text = RenderWhy(facts_, answer);
  EXPECT_THAT(text, HasSubstr("step_10 of /data/ckpts: FAILED\n"));
  EXPECT_THAT(text, HasSubstr("\n  -> look at"));
}

TEST_F(WhyTest, FailureHasItsMessageOnce) {
  v1::HistoryEntry entry = FailedSave(120);
  entry.set_message("told once");
  AddEntry(entry);
  const std::string text = RenderWhy(facts_, AnswerWhy(facts_));
  EXPECT_EQ(text.find("told once"), text.rfind("told once")) << text;
  EXPECT_THAT(text, HasSubstr(": FAILED: RANKS_MISSING, "));
}

TEST_F(WhyTest, CommittedOneSaysHowFarItsUploadIsOrWhereItIs) {
  v1::CheckpointUpload& upload = *Committed().mutable_upload();
  upload.set_state(v1::CheckpointUpload::UPLOADING);
  upload.set_url("s3://bucket/run/step_10");
  WhyAnswer answer = AnswerWhy(facts_);
  EXPECT_EQ(answer.state, "COMMITTED");
  EXPECT_THAT(answer.evidence, Contains("uploading, 0 B of 0 B (s3://bucket/run/step_10)"));
  EXPECT_THAT(answer.next_step, HasSubstr("ckptctl watch /data/ckpts"));
  upload.set_state(v1::CheckpointUpload::DONE);
  answer = AnswerWhy(facts_);
  EXPECT_EQ(answer.state, "UPLOADED");
  EXPECT_THAT(answer.evidence, Contains("it is in the bucket, too: s3://bucket/run/step_10"));
}

TEST_F(WhyTest, UnknownReasonLeadsToTheTable) {
  v1::HistoryEntry entry = FailedSave(1);
  entry.set_reason("SOMETHING_NEW");
  AddEntry(entry);
  EXPECT_THAT(AnswerWhy(facts_).next_step, AllOf(HasSubstr("docs/protocol.md"), HasSubstr("SOMETHING_NEW")));
}

TEST_F(WhyTest, CommittedOneSaysWhatKeepsItAndWhyItIsNotTheLatest) {
  Committed();
  facts_.decision->add_kept_by("last 3");
  facts_.decision->add_kept_by("pinned");
  AddEntry(Saved(60));
  AddEntry(FailedSave(120));
  WhyAnswer answer = AnswerWhy(facts_);
  EXPECT_TRUE(answer.good);
  EXPECT_THAT(answer.answer,
              HasSubstr("it is not the latest, which is step_20 (sequence 4): that one was begun later"));
  EXPECT_THAT(answer.evidence, Contains("retention keeps it: last 3, pinned"));
  EXPECT_THAT(answer.evidence, Contains(HasSubstr("RANKS_MISSING"))) << "its earlier save failed";
  EXPECT_EQ(answer.next_step, "");
  facts_.checkpoint->set_step(1000);
  EXPECT_THAT(AnswerWhy(facts_).answer, HasSubstr("although its step 40 is lower; the order is by sequence"));
  facts_.run.mutable_latest()->set_sequence(3);
  EXPECT_THAT(AnswerWhy(facts_).answer, HasSubstr("it is the latest"));
}

TEST_F(WhyTest, CommittedOneThatNothingKeepsCanBePinned) {
  Committed();
  const WhyAnswer answer = AnswerWhy(facts_);
  EXPECT_THAT(answer.evidence, Contains("nothing keeps it: the next commit evicts it"));
  EXPECT_EQ(answer.next_step, "to keep it: ckptctl pin /data/ckpts/step_10");
}

TEST_F(WhyTest, DamagedAndSuspectOnesAreNotTheLatest) {
  v1::Checkpoint& checkpoint = Committed();
  checkpoint.set_suspect("NaN in layers.0.weight");
  WhyAnswer answer = AnswerWhy(facts_);
  EXPECT_TRUE(answer.good);
  EXPECT_THAT(answer.answer, HasSubstr(": it is suspect"));
  EXPECT_THAT(answer.next_step, HasSubstr("allow_suspect"));
  checkpoint.mutable_damage()->set_message("chunk 3 of model.pt differs");
  answer = AnswerWhy(facts_);
  EXPECT_FALSE(answer.good);
  EXPECT_EQ(answer.state, "DAMAGED");
  EXPECT_THAT(answer.answer, HasSubstr(": it is damaged"));
  EXPECT_THAT(answer.evidence, Contains(HasSubstr("chunk 3 of model.pt differs")));
  EXPECT_THAT(answer.next_step, HasSubstr("ckptctl repaired /data/ckpts/step_10"));
}

TEST_F(WhyTest, EvictedOneSaysWhenAndHowLongItCanComeBack) {
  AddEntry(Entry(v1::HistoryEntry::RESTORE, 1));  // A late reader says nothing about its end.
  AddEntry(Entry(v1::HistoryEntry::EVICTED, 10));
  AddEntry(Saved(100));
  WhyAnswer answer = AnswerWhy(facts_);
  EXPECT_EQ(answer.state, "EVICTED");
  EXPECT_FALSE(answer.good);
  EXPECT_THAT(answer.answer, HasSubstr("(10 s ago)"));
  EXPECT_THAT(answer.next_step, HasSubstr("ckptctl pin"));
  facts_.trashed.emplace().mutable_purge_time()->set_seconds(kNow / kSecond + 3600);
  EXPECT_EQ(AnswerWhy(facts_).next_step,
            "ckptctl undelete /data/ckpts/step_10 brings it back, for another 1 h 0 min");
}

TEST_F(WhyTest, DeletedOneNamesWho) {
  v1::HistoryEntry deleted = Entry(v1::HistoryEntry::DELETED, 10);
  deleted.set_uid(1001);
  AddEntry(deleted);
  EXPECT_EQ(AnswerWhy(facts_).state, "DELETED");
  EXPECT_THAT(AnswerWhy(facts_).answer, HasSubstr("uid 1001 deleted it"));
}

TEST_F(WhyTest, OneThatNoDaemonRemovedIsGone) {
  AddEntry(Saved(100));
  EXPECT_EQ(AnswerWhy(facts_).state, "GONE");
  EXPECT_THAT(AnswerWhy(facts_).answer, HasSubstr("a program that is not ckptd"));
  EXPECT_THAT(AnswerWhy(facts_).next_step, HasSubstr("ckptctl why on the other nodes"));
}

TEST_F(WhyTest, SaveInFlightNamesTheRanksItWaitsFor) {
  v1::Checkpoint& save = Committed();
  save.set_level(v1::OPEN);
  save.set_size_bytes(4096);
  save.add_missing_ranks(1);
  save.add_missing_ranks(3);
  EXPECT_THAT(AnswerWhy(facts_).answer, HasSubstr("it waits for ranks 1,3"));
  EXPECT_TRUE(AnswerWhy(facts_).good);
  save.clear_missing_ranks();
  EXPECT_THAT(AnswerWhy(facts_).answer, HasSubstr("the daemon writes: 0 B of 4.0 KiB are on disk"));
}

TEST_F(WhyTest, UnknownTagSaysHowFarTheHistoryReaches) {
  facts_.history.mutable_begin_time()->set_seconds(kNow / kSecond - 7200);
  const WhyAnswer answer = AnswerWhy(facts_);
  EXPECT_FALSE(answer.known);
  EXPECT_THAT(answer.evidence, Contains(HasSubstr("the history begins")));
  EXPECT_THAT(answer.next_step, HasSubstr("ckptctl history /data/ckpts"));
}

TEST_F(WhyTest, TextOfADaemonCannotMoveTheCursor) {
  v1::HistoryEntry entry = FailedSave(1);
  entry.set_message("\x1b[2Jgone\nnext");
  AddEntry(entry);
  EXPECT_THAT(RenderWhy(facts_, AnswerWhy(facts_)), Not(HasSubstr("\x1b")));
  EXPECT_THAT(RenderHistory(facts_.history), Not(HasSubstr("\x1b")));
}

TEST(HistoryTextTest, HasTheTimesTheRateAndTheEndOfEachEntry) {
  v1::GetHistoryResponse history;
  *history.add_entries() = Entry(v1::HistoryEntry::EVICTED, 1);
  v1::HistoryEntry& restore = *history.add_entries() = Entry(v1::HistoryEntry::RESTORE, 2);
  restore.set_read_bytes(int64_t{1} << 30);
  restore.set_staged_seconds(2);
  *history.add_entries() = Saved(3);
  const std::string text = RenderHistory(history);
  EXPECT_THAT(text, HasSubstr("EVICTED  step_10"));
  EXPECT_THAT(text, HasSubstr("by retention"));
  EXPECT_THAT(text, HasSubstr("512 MiB/s"));
  EXPECT_THAT(text, HasSubstr("INCOMPLETE: 1.0 GiB of 3.0 GiB were read"));
  EXPECT_THAT(text, HasSubstr("1.0 GiB/s  0.25 s  0.5 s   3 s      3.5 s      1        COMMITTED"));
  EXPECT_EQ(RenderHistory({}), "nothing has happened yet\n");
}

}  // namespace
}  // namespace ckptd::ctl
