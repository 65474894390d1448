// What other programs change in a root while a store has it open: they remove its directory .ckptd, or move a
// checkpoint in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/commit/local/root_store.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RootChangesTest : public ::testing::Test {
 protected:
  SaveVerdict SaveNow(const std::string& tag, int64_t sequence) {
    return Save(root_.fs(), *store_, {tag, sequence});
  }
  std::vector<std::string> Committed() const {
    std::vector<std::string> tags;
    for (const auto& [sequence, checkpoint] : store_->committed())
      tags.push_back(absl::StrCat(checkpoint.summary.tag(), ":", sequence));
    return tags;
  }
  void RemoveOurDirectory() { std::filesystem::remove_all(root_.path(".ckptd")); }
  void Reopen() {
    store_.reset();
    store_ = root_.Open();
  }
  // A checkpoint of another root, which is moved into this one.
  void MoveIn(const std::string& tag, int64_t sequence) {
    TemporaryRoot other;
    const std::unique_ptr<RootStore> store = other.Open();
    ASSERT_EQ(Save(other.fs(), *store, {tag, sequence}), SaveVerdict::kCommitted);
    std::filesystem::copy(other.path(tag), root_.path(tag), std::filesystem::copy_options::recursive);
  }
  PublishResult Publish(const SaveSpec& spec) {
    const absl::StatusOr<Staged> staged = Stage(root_.fs(), *store_, spec);
    EXPECT_TRUE(staged.ok()) << staged.status();
    return store_->Publish(staged->inflight, SummaryOf(spec), staged->parts);
  }

  TemporaryRoot root_;
  std::unique_ptr<RootStore> store_ = root_.Open();
};

TEST_F(RootChangesTest, NextSaveCommitsAfterTheDirectoryWasRemoved) {
  ASSERT_EQ(SaveNow("a", 1), SaveVerdict::kCommitted);
  RemoveOurDirectory();
  EXPECT_EQ(SaveNow("b", 2), SaveVerdict::kCommitted);
  EXPECT_THAT(Committed(), ElementsAre("a:1", "b:2"));
  EXPECT_TRUE(store_->Evict("a", 1).ok());
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("b:2"));
}

TEST_F(RootChangesTest, RecordsAreWrittenAgainAfterTheDirectoryWasRemoved) {
  ASSERT_EQ(SaveNow("a", 1), SaveVerdict::kCommitted);
  ASSERT_EQ(SaveNow("b", 2), SaveVerdict::kCommitted);
  storage::v1::RunRecord record;
  record.set_format_version(1);
  record.set_last_sequence(7);
  ASSERT_TRUE(store_->SaveRunRecord(record).ok());
  ASSERT_TRUE(store_->SetPinned("a", 1, true).ok());
  ASSERT_TRUE(store_->SetDamage("b", 2, storage::v1::Damage()).ok());
  RemoveOurDirectory();
  ASSERT_TRUE(store_->CheckTarget("c").ok());
  Reopen();
  EXPECT_EQ(store_->run_record().last_sequence(), 7);
  EXPECT_TRUE(store_->committed().at(1).pinned);
  EXPECT_TRUE(store_->committed().at(2).damage.has_value());
}

TEST_F(RootChangesTest, EveryChangeMakesTheDirectoryAgain) {
  ASSERT_EQ(SaveNow("a", 1), SaveVerdict::kCommitted);
  ASSERT_EQ(SaveNow("b", 2), SaveVerdict::kCommitted);
  const auto expect_works = [this](const char* what, const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << what << ": " << status;
    EXPECT_TRUE(std::filesystem::exists(root_.node("lock"))) << what;
    RemoveOurDirectory();
  };
  RemoveOurDirectory();
  storage::v1::RunRecord record;
  record.set_format_version(1);
  expect_works("SaveRunRecord", store_->SaveRunRecord(record));
  expect_works("SetPinned", store_->SetPinned("a", 1, true));
  expect_works("SetDamage", store_->SetDamage("b", 2, storage::v1::Damage()).status());
  expect_works("Rescan", store_->Rescan());
  expect_works("unpin", store_->SetPinned("a", 1, false));
  expect_works("Evict", store_->Evict("a", 1));
  expect_works("NextInTrash", store_->NextInTrash({}).status());
  EXPECT_THAT(Committed(), ElementsAre("b:2"));
}

TEST_F(RootChangesTest, DirectoryIsLockedAgain) {
  RemoveOurDirectory();
  ASSERT_TRUE(store_->CheckTarget("a").ok());
  EXPECT_EQ(ReasonOf(root_.TryOpen(root_.fs()).status()), "ROOT_LOCKED");
}

TEST_F(RootChangesTest, DirectoryThatAnotherDaemonHasMadeMeanwhileIsRefused) {
  RemoveOurDirectory();
  const std::unique_ptr<RootStore> other = root_.Open();
  EXPECT_EQ(ReasonOf(store_->CheckTarget("a")), "ROOT_LOCKED");
}

TEST_F(RootChangesTest, SaveInFlightIsLostWithTheDirectoryAndTheNextOneIsNot) {
  absl::StatusOr<Staged> staged = Stage(root_.fs(), *store_, {"a", 1});
  ASSERT_TRUE(staged.ok()) << staged.status();
  RemoveOurDirectory();
  const PublishResult lost = store_->Publish(staged->inflight, SummaryOf({"a", 1}), staged->parts);
  EXPECT_EQ(lost.outcome, PublishOutcome::kFailed);
  EXPECT_FALSE(lost.retryable);
  EXPECT_EQ(ReasonOf(lost.status), "ROOT_CHANGED") << lost.status;
  EXPECT_EQ(ReasonOf(store_->WritePartRecord(staged->inflight, staged->parts[0])), "ROOT_CHANGED");
  EXPECT_EQ(ReasonOf(store_->MakeParents(staged->inflight, {"deep/file"})), "ROOT_CHANGED");
  EXPECT_TRUE(store_->Discard(staged->inflight).ok());
  EXPECT_EQ(SaveNow("a", 2), SaveVerdict::kCommitted);
  EXPECT_THAT(Committed(), ElementsAre("a:2"));
}

TEST_F(RootChangesTest, RootThatWasRemovedIsReportedAsSuch) {
  ASSERT_EQ(SaveNow("a", 1), SaveVerdict::kCommitted);
  std::filesystem::remove_all(root_.path());
  const absl::Status target = store_->CheckTarget("b");
  EXPECT_EQ(ReasonOf(target), "ROOT_CHANGED") << target;
  EXPECT_THAT(std::string(target.message()), HasSubstr("the root's directory was removed"));
  std::filesystem::create_directory(root_.path());
}

TEST_F(RootChangesTest, CheckpointThatIsMovedInIsReportedByTheNextCommit) {
  EXPECT_FALSE(Publish({"a", 1}).root_has_new_checkpoints);
  std::filesystem::create_directory(root_.path("empty"));
  root_.Write("foreign/file", "x");
  EXPECT_FALSE(Publish({"b", 2}).root_has_new_checkpoints);
  MoveIn("from_elsewhere", 100);
  const PublishResult third = Publish({"c", 3});
  EXPECT_TRUE(third.root_has_new_checkpoints);
  EXPECT_EQ(third.highest_new_sequence, 100);
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_EQ(store_->highest_sequence(), 100);
  EXPECT_FALSE(Publish({"d", 101}).root_has_new_checkpoints);
}

TEST_F(RootChangesTest, CheckpointThatIsPutBackAfterItsEvictionIsReported) {
  ASSERT_EQ(SaveNow("a", 1), SaveVerdict::kCommitted);
  std::filesystem::copy(root_.path("a"), root_.path(".ckptd/copy"), std::filesystem::copy_options::recursive);
  ASSERT_EQ(SaveNow("b", 2), SaveVerdict::kCommitted);
  ASSERT_TRUE(store_->Evict("a", 1).ok());
  EXPECT_FALSE(Publish({"c", 3}).root_has_new_checkpoints);
  std::filesystem::rename(root_.path(".ckptd/copy"), root_.path("a"));
  EXPECT_TRUE(Publish({"d", 4}).root_has_new_checkpoints);
}

TEST_F(RootChangesTest, OfTwoCheckpointsWithOneSequenceTheRunsOwnIsListed) {
  ASSERT_EQ(SaveNow("mine", 1), SaveVerdict::kCommitted);
  MoveIn("an_earlier_name", 1);
  ASSERT_TRUE(store_->Rescan().ok());
  EXPECT_THAT(Committed(), ElementsAre("mine:1"));
  ASSERT_THAT(store_->damaged(), SizeIs(1));
  EXPECT_EQ(store_->damaged()[0].tag, "an_earlier_name");
  EXPECT_THAT(std::string(store_->damaged()[0].status.message()), HasSubstr("is also that of mine"));
}

TEST_F(RootChangesTest, OfTwoCheckpointsWithOneSequenceTheOneInTheHistoryIsListed) {
  ASSERT_EQ(SaveNow("mine", 1), SaveVerdict::kCommitted);
  storage::v1::RunRecord record;
  record.set_format_version(1);
  storage::v1::Outcome& outcome = *record.add_outcomes();
  outcome.set_tag("mine");
  outcome.set_sequence(1);
  ASSERT_TRUE(store_->SaveRunRecord(record).ok());
  MoveIn("an_earlier_name", 1);
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("mine:1"));
}

}  // namespace
}  // namespace ckptd
