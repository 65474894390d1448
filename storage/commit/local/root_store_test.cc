// RootStore on a real directory: saves, re-saves, recovery, eviction, records and pointer files.
//
// Longer than 500 lines because all tests share the fixture that saves and opens again.
#include "storage/commit/local/root_store.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/commit/checkpoint/verify.h"
#include "storage/format/frame.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {
namespace {

using storage::v1::RunRecord;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RootStoreTest : public ::testing::Test {
 protected:
  SaveVerdict SaveNow(const std::string& tag, int64_t sequence, int world_size = 2) {
    return Save(root_.fs(), *store_, {tag, sequence, world_size});
  }
  Staged StageNow(const SaveSpec& spec, int ranks = -1) {
    absl::StatusOr<Staged> staged = Stage(root_.fs(), *store_, spec, ranks);
    EXPECT_TRUE(staged.ok()) << staged.status();
    return staged.ok() ? *std::move(staged) : Staged{};
  }
  // Opens the store again, as the next daemon does.
  void Reopen() {
    store_.reset();
    store_ = root_.Open();
    ASSERT_NE(store_, nullptr);
  }
  std::vector<std::string> Committed() const {
    std::vector<std::string> tags;
    for (const auto& [sequence, checkpoint] : store_->committed()) {
      tags.push_back(
          absl::StrCat(checkpoint.summary.tag(), ":", sequence, checkpoint.pinned ? " pinned" : ""));
    }
    return tags;
  }
  void ExpectWhole(const SaveSpec& spec) {
    const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(root_.fs(), root_.handle(), spec.tag);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(report->problems, IsEmpty());
    EXPECT_EQ(report->manifest.summary.sequence(), spec.sequence);
    for (const auto& file : report->manifest.body.files()) {
      EXPECT_EQ(root_.Read(spec.tag + "/" + file.path()), ContentOf(spec, file.path()));
    }
  }
  void EmptyTrash(const std::vector<int64_t>& keep = {}) {
    for (int step = 0; step < 10'000; ++step) {
      const absl::StatusOr<bool> more = store_->EmptyTrashStep(keep);
      ASSERT_TRUE(more.ok()) << more.status();
      if (!*more) return;
    }
    FAIL() << "trash is never empty";
  }

  TemporaryRoot root_;
  std::unique_ptr<RootStore> store_ = root_.Open();
};

TEST_F(RootStoreTest, CommittedCheckpointIsInItsPlaceWithoutLeftovers) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  ExpectWhole({"step_10", 1});
  EXPECT_THAT(Committed(), ElementsAre("step_10:1"));
  EXPECT_THAT(root_.Names("step_10"),
              ElementsAre(".ckptd", "deep", "empty_0", "empty_1", "model_0.pt", "model_1.pt"));
  EXPECT_THAT(root_.Names("step_10/.ckptd"), ElementsAre("manifest", "part-00000", "part-00001"));
  EXPECT_THAT(root_.Names(".ckptd/nodes/local"), ElementsAre("inflight", "lock", "trash"));
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/inflight"), IsEmpty());
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), IsEmpty());
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("step_10:1"));
  EXPECT_THAT(store_->recovered(), IsEmpty());
  EXPECT_EQ(store_->highest_sequence(), 1);
}

TEST_F(RootStoreTest, ManifestHasTheValuesOfTheSave) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  const absl::StatusOr<Manifest> manifest = store_->ReadManifest("step_10", 1);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->summary.step(), 10);
  EXPECT_EQ(manifest->summary.metrics().at("loss"), 0.5);
  EXPECT_EQ(manifest->summary.file_count(), 6);
  EXPECT_GT(manifest->summary.commit_time_us(), 0);
  EXPECT_EQ(manifest->summary.SerializeAsString(), store_->committed().at(1).summary.SerializeAsString());
  EXPECT_EQ(store_->ReadManifest("step_10", 2).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RootStoreTest, CommitsAPartWithoutFiles) {
  Staged staged = StageNow({"step_10", 1, 2}, 1);
  storage::v1::PartRecord empty = staged.parts[0];
  empty.clear_files();
  empty.set_rank(1);
  ASSERT_TRUE(store_->WritePartRecord(staged.inflight, empty).ok());
  staged.parts.push_back(empty);
  EXPECT_EQ(store_->Publish(staged.inflight, SummaryOf({"step_10", 1, 2}), staged.parts).outcome,
            PublishOutcome::kCommitted);
}

TEST_F(RootStoreTest, SavesOverAnEmptyDirectory) {
  std::filesystem::create_directory(root_.path("step_10"));
  EXPECT_TRUE(store_->CheckTarget("step_10").ok());
  EXPECT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  ExpectWhole({"step_10", 1});
}

TEST_F(RootStoreTest, ResaveReplacesTheOldOneAndMovesItToTrash) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  EXPECT_TRUE(store_->CheckTarget("step_10").ok());
  ASSERT_EQ(SaveNow("step_10", 2, 3), SaveVerdict::kCommitted);
  ExpectWhole({"step_10", 2, 3});
  EXPECT_THAT(Committed(), ElementsAre("step_10:2"));
  ASSERT_THAT(root_.Names(".ckptd/nodes/local/trash"), SizeIs(1));
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash")[0], HasSubstr("step_10.1."));
  EXPECT_GT(store_->trash_bytes(), 0);
}

TEST_F(RootStoreTest, SlowSaveNeverReplacesAYoungerOne) {
  const Staged slow = StageNow({"step_10", 1});
  ASSERT_EQ(SaveNow("step_10", 2), SaveVerdict::kCommitted);
  const PublishResult result = store_->Publish(slow.inflight, SummaryOf({"step_10", 1}), slow.parts);
  EXPECT_EQ(result.outcome, PublishOutcome::kFailed);
  EXPECT_EQ(ReasonOf(result.status), "SUPERSEDED");
  ExpectWhole({"step_10", 2});
}

TEST_F(RootStoreTest, LeavesForeignDirectoriesUntouched) {
  root_.Write("dir/notes.txt", "mine");
  root_.Write("file", "mine");
  std::filesystem::create_directory(root_.path("elsewhere"));
  std::filesystem::create_directory_symlink("elsewhere", root_.path("link"));
  std::filesystem::create_symlink("nowhere", root_.path("dangling"));
  root_.Write("other_root/.ckptd/pins", "of another root");
  for (const char* tag : {"dir", "file", "link", "dangling", "other_root"}) {
    EXPECT_EQ(ReasonOf(store_->CheckTarget(tag)), "TAG_FOREIGN") << tag;
    EXPECT_EQ(SaveNow(tag, 1), SaveVerdict::kFailed) << tag;
  }
  Reopen();
  EXPECT_THAT(Committed(), IsEmpty());
  EXPECT_THAT(store_->damaged(), IsEmpty());
  EXPECT_EQ(root_.Read("dir/notes.txt"), "mine");
  EXPECT_EQ(root_.Read("file"), "mine");
  EXPECT_TRUE(std::filesystem::is_symlink(root_.path("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(root_.path("dangling")));
  EXPECT_THAT(root_.Names("elsewhere"), IsEmpty());
  EXPECT_EQ(root_.Read("other_root/.ckptd/pins"), "of another root");
}

TEST_F(RootStoreTest, RefusesToReplaceWhatAppearsDuringTheSave) {
  const Staged staged = StageNow({"step_10", 1});
  root_.Write("step_10/notes.txt", "mine");
  const PublishResult result = store_->Publish(staged.inflight, SummaryOf({"step_10", 1}), staged.parts);
  EXPECT_EQ(result.outcome, PublishOutcome::kFailed);
  EXPECT_EQ(ReasonOf(result.status), "TAG_FOREIGN");
  EXPECT_EQ(root_.Read("step_10/notes.txt"), "mine");
}

TEST_F(RootStoreTest, NeitherReplacesNorEvictsAPinnedCheckpoint) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  ASSERT_TRUE(store_->SetPinned("step_10", 1, true).ok());
  const auto expect_safe = [&] {
    EXPECT_THAT(Committed(), ElementsAre("step_10:1 pinned"));
    EXPECT_EQ(ReasonOf(store_->CheckTarget("step_10")), "PINNED");
    EXPECT_EQ(ReasonOf(store_->Evict("step_10", 1)), "PINNED");
    EXPECT_EQ(SaveNow("step_10", 2), SaveVerdict::kFailed);
    ExpectWhole({"step_10", 1});
  };
  expect_safe();
  Reopen();
  expect_safe();
  ASSERT_TRUE(store_->SetPinned("step_10", 1, false).ok());
  EXPECT_EQ(SaveNow("step_10", 3), SaveVerdict::kCommitted);
  EXPECT_EQ(store_->SetPinned("step_10", 1, true).code(), absl::StatusCode::kNotFound);
}

TEST_F(RootStoreTest, DiscardedSaveDoesNotComeBack) {
  const Staged staged = StageNow({"step_10", 1});
  ASSERT_TRUE(store_->Discard(staged.inflight).ok());
  Reopen();
  EXPECT_THAT(Committed(), IsEmpty());
  EXPECT_THAT(store_->recovered(), IsEmpty());
  EXPECT_EQ(store_->highest_sequence(), 1) << "trash counts";
}

TEST_F(RootStoreTest, NextDaemonPublishesCompleteSavesOnly) {
  StageNow({"whole", 1});
  StageNow({"half", 2, 2}, 1);
  StageNow({"none", 3, 2}, 0);
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("whole:1"));
  ExpectWhole({"whole", 1});
  ASSERT_THAT(store_->recovered(), SizeIs(3));
  EXPECT_TRUE(store_->recovered()[0].published);
  EXPECT_EQ(store_->recovered()[0].why, "complete");
  EXPECT_FALSE(store_->recovered()[1].published);
  EXPECT_EQ(store_->recovered()[1].tag, "half");
  EXPECT_EQ(store_->recovered()[1].why, "the part of rank 1 is missing");
  EXPECT_EQ(store_->recovered()[2].why, "no part of it is complete");
  EXPECT_EQ(store_->highest_sequence(), 3);
  EXPECT_FALSE(std::filesystem::exists(root_.path("half")));
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/inflight"), IsEmpty());
}

TEST_F(RootStoreTest, RecoveryIgnoresAFileWithoutItsPartRecord) {
  const Staged staged = StageNow({"step_10", 1, 2}, 1);
  ASSERT_TRUE(
      WritePart(root_.fs(), *store_, staged.inflight, {"step_10", 1, 2}, 1, /*files_only=*/true).ok());
  Reopen();
  EXPECT_THAT(Committed(), IsEmpty());
}

TEST_F(RootStoreTest, RecoveryRejectsRecordsThatDoNotFit) {
  const std::pair<const char*, std::function<void(const std::string& dir)>> cases[] = {
      {"is not there",
       [&](const std::string& dir) { std::filesystem::remove(root_.path(dir + "/model_0.pt")); }},
      {"has 5 bytes", [&](const std::string& dir) { root_.Write(dir + "/model_0.pt", "short"); }},
      {"not a regular file",
       [&](const std::string& dir) {
         std::filesystem::remove(root_.path(dir + "/model_0.pt"));
         std::filesystem::create_symlink("/etc/passwd", root_.path(dir + "/model_0.pt"));
       }},
      {"damaged part record",
       [&](const std::string& dir) { root_.FlipByte(dir + "/.ckptd/part-00001", 30); }},
      {"says that it is of rank 0",
       [&](const std::string& dir) {
         std::filesystem::copy_file(root_.path(dir + "/.ckptd/part-00000"),
                                    root_.path(dir + "/.ckptd/part-00001"),
                                    std::filesystem::copy_options::overwrite_existing);
       }},
  };
  int64_t sequence = 0;
  for (const auto& [why, spoil] : cases) {
    const Staged staged = StageNow({"step_10", ++sequence});
    spoil(absl::StrCat(".ckptd/nodes/local/inflight/", staged.inflight.name));
    Reopen();
    ASSERT_THAT(store_->recovered(), SizeIs(1)) << why;
    EXPECT_FALSE(store_->recovered()[0].published);
    EXPECT_THAT(store_->recovered()[0].why, HasSubstr(why));
    EXPECT_FALSE(std::filesystem::exists(root_.path("step_10")));
  }
}

// Each record is valid and has the right rank, but belongs to another save.
TEST_F(RootStoreTest, RecoveryRejectsAPartOfAnotherSave) {
  const auto recovered_with = [&](const std::function<void(storage::v1::PartRecord&)>& spoil) {
    Staged staged = StageNow({"step_10", 5});
    spoil(staged.parts[1]);
    root_.Write(".ckptd/nodes/local/inflight/" + staged.inflight.name + "/.ckptd/part-00001",
                EncodeFrame(kPartRecordFrame, staged.parts[1].SerializeAsString()));
    Reopen();
    EXPECT_THAT(store_->recovered(), SizeIs(1));
    EXPECT_FALSE(store_->recovered()[0].published);
    return store_->recovered()[0].why;
  };
  EXPECT_THAT(recovered_with([](auto& part) { part.mutable_checkpoint()->set_tag("step_9"); }),
              HasSubstr("is of another save"));
  EXPECT_THAT(recovered_with([](auto& part) { part.mutable_checkpoint()->set_attempt(9); }),
              HasSubstr("are of different saves"));
}

TEST_F(RootStoreTest, RecoveryPublishesTheYoungestSaveOfATagInAnyOrderOfNames) {
  StageNow({"step_10", 9});
  StageNow({"step_10", 10});  // Sorts before .9. as a name.
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("step_10:10"));
  ExpectWhole({"step_10", 10});
}

TEST_F(RootStoreTest, RecoveryTrashesAnOldGenerationInFlightEvenIfItsTagIsGone) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  // The state that an exchange leaves if the daemon dies right after it; then somebody removed the new
  // checkpoint.
  store_.reset();
  const std::string name = "step_10.2.00000000000000aa";
  std::filesystem::rename(root_.path("step_10"), root_.node("inflight/" + name));
  store_ = root_.Open();
  EXPECT_THAT(Committed(), IsEmpty());
  ASSERT_THAT(store_->recovered(), SizeIs(1));
  EXPECT_EQ(store_->recovered()[0].sequence, 1);
  EXPECT_THAT(store_->recovered()[0].why, HasSubstr("an older generation"));
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash")[0], HasSubstr("step_10.1."));
}

// A re-save by two renames that was interrupted between them: the tag is missing, and the old one is in
// trash.
class CutOffSwapTest : public RootStoreTest {
 protected:
  // Unless `new_name` is empty, leaves the new checkpoint in flight, complete with its manifest.
  void CutOff(const std::string& new_name) {
    ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
    ASSERT_EQ(SaveNow("new", 2), SaveVerdict::kCommitted);
    store_.reset();
    storage::v1::SwapIntent intent;
    intent.set_tag("step_10");
    intent.set_sequence(2);
    intent.set_inflight_name("step_10.2.00000000000000aa");
    intent.set_trash_name("step_10.1.00000000000000bb");
    root_.Write(".ckptd/nodes/local/swap", EncodeFrame(kSwapIntentFrame, intent.SerializeAsString()));
    std::filesystem::rename(root_.path("step_10"), root_.node("trash/" + intent.trash_name()));
    if (!new_name.empty()) std::filesystem::rename(root_.path("new"), root_.node("inflight/" + new_name));
  }
};

TEST_F(CutOffSwapTest, GoesBackWhenTheNewOneIsMissing) {
  CutOff("");
  store_ = root_.Open();
  EXPECT_THAT(Committed(), ElementsAre("step_10:1", "new:2"));
  ExpectWhole({"step_10", 1});
  EXPECT_FALSE(std::filesystem::exists(root_.node("swap")));
}

TEST_F(CutOffSwapTest, GoesBackWhenTheNewOneIsNotWhole) {
  CutOff("step_10.2.00000000000000aa");  // Of another tag, as its manifest says.
  store_ = root_.Open();
  EXPECT_THAT(Committed(), ElementsAre("step_10:1"));
  ExpectWhole({"step_10", 1});
}

TEST_F(CutOffSwapTest, RefusesTheRootOfADamagedIntentBeforeAnyChange) {
  CutOff("");
  root_.FlipByte(".ckptd/nodes/local/swap", 25);
  const absl::Status opened = root_.TryOpen(root_.fs()).status();
  EXPECT_EQ(ReasonOf(opened), "ROOT_UNREADABLE");
  EXPECT_THAT(std::string(opened.message()), HasSubstr(".ckptd/nodes/local/swap"));
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), SizeIs(1));
}

TEST_F(RootStoreTest, RecoveryLeavesUnknownNamesUntouched) {
  root_.Write(".ckptd/nodes/local/inflight/readme/x", "mine");
  root_.Write(".ckptd/nodes/local/inflight/step_1.1.00000000000000aa", "a file");
  root_.Write(".ckptd/nodes/local/trash/readme/x", "mine");
  root_.Write(".ckptd/nodes/other/inflight/step_1.1.00000000000000aa/.ckptd/part-00000", "another node's");
  Reopen();
  EmptyTrash();
  EXPECT_EQ(root_.Read(".ckptd/nodes/local/inflight/readme/x"), "mine");
  EXPECT_EQ(root_.Read(".ckptd/nodes/local/inflight/step_1.1.00000000000000aa"), "a file");
  EXPECT_EQ(root_.Read(".ckptd/nodes/local/trash/readme/x"), "mine");
  EXPECT_THAT(root_.Names(".ckptd/nodes/other/inflight"), SizeIs(1));
}

TEST_F(RootStoreTest, RootHasOneDaemonAtATime) {
  RunRecord record;
  record.set_path("/data/ckpts");
  ASSERT_TRUE(store_->SaveRunRecord(record).ok());
  const absl::Status second = root_.TryOpen(root_.fs()).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(second), "ROOT_LOCKED");
  EXPECT_THAT(std::string(second.message()), HasSubstr("/data/ckpts"));
  Reopen();  // The lock ends with its holder.
}

TEST_F(RootStoreTest, ListsADamagedManifestAndLeavesItUntouched) {
  ASSERT_EQ(SaveNow("good", 1), SaveVerdict::kCommitted);
  for (const char* tag : {"head", "body", "gone", "cut"}) {
    ASSERT_EQ(SaveNow(tag, store_->highest_sequence() + 1), SaveVerdict::kCommitted);
  }
  root_.FlipByte("head/.ckptd/manifest", 40);
  root_.FlipByte("body/.ckptd/manifest", 4100);  // A scan reads heads alone; reading it finds this.
  std::filesystem::remove(root_.path("gone/.ckptd/manifest"));
  std::filesystem::resize_file(root_.path("cut/.ckptd/manifest"), 4100);
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("good:1", "body:3"));
  EXPECT_EQ(ReasonOf(store_->ReadManifest("body", 3).status()), "CORRUPT_MANIFEST");
  std::vector<std::string> damaged;
  for (const DamagedCheckpoint& one : store_->damaged()) {
    damaged.push_back(one.tag);
    EXPECT_EQ(ReasonOf(one.status), "CORRUPT_MANIFEST") << one.status;
    EXPECT_EQ(ReasonOf(store_->CheckTarget(one.tag)), "TAG_FOREIGN");
    EXPECT_TRUE(std::filesystem::exists(root_.path(one.tag + "/model_0.pt")));
  }
  EXPECT_THAT(damaged, ElementsAre("cut", "gone", "head"));
}

TEST_F(RootStoreTest, DoesNotListACopiedCheckpointTwice) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  std::filesystem::copy(root_.path("step_10"), root_.path("step_10_copy"),
                        std::filesystem::copy_options::recursive);
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("step_10:1"));
  ASSERT_THAT(store_->damaged(), SizeIs(1));
  EXPECT_EQ(store_->damaged()[0].tag, "step_10_copy");
}

TEST_F(RootStoreTest, DoesNotListARenamedCheckpoint) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  std::filesystem::rename(root_.path("step_10"), root_.path("step_12"));
  Reopen();
  EXPECT_THAT(Committed(), IsEmpty());
  ASSERT_THAT(store_->damaged(), SizeIs(1));
  EXPECT_EQ(store_->damaged()[0].tag, "step_12");
}

TEST_F(RootStoreTest, RefusesARootWithANewerFormat) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  store_.reset();
  std::string bytes = root_.Read("step_10/.ckptd/manifest");
  bytes[8] = 2;
  const uint32_t crc = Crc32cOf(std::string_view(bytes).substr(0, 32));
  for (int i = 0; i < 4; ++i) bytes[32 + i] = static_cast<char>(crc >> (8 * i));
  root_.Write("step_10/.ckptd/manifest", bytes);
  const absl::Status opened = root_.TryOpen(root_.fs()).status();
  EXPECT_EQ(ReasonOf(opened), "NEWER_FORMAT") << opened;
  EXPECT_THAT(std::string(opened.message()), HasSubstr("step_10"));
}

TEST_F(RootStoreTest, DoesNotAdviseToMoveARecordOfANewerFormatAway) {
  RunRecord record;
  record.set_run_id("r");
  ASSERT_TRUE(store_->SaveRunRecord(record).ok());
  store_.reset();
  std::string bytes = root_.Read(".ckptd/nodes/local/run");
  bytes[8] = 2;
  root_.Write(".ckptd/nodes/local/run", bytes);
  const absl::Status opened = root_.TryOpen(root_.fs()).status();
  EXPECT_EQ(ReasonOf(opened), "NEWER_FORMAT") << opened;
}

TEST_F(RootStoreTest, KeepsTheRunRecordAndRefusesADamagedOne) {
  EXPECT_EQ(store_->run_record().ByteSizeLong(), 0u);
  RunRecord record;
  record.set_run_id("r");
  record.set_last_sequence(41);
  ASSERT_TRUE(store_->SaveRunRecord(record).ok());
  Reopen();
  EXPECT_EQ(store_->run_record().run_id(), "r");
  EXPECT_EQ(store_->highest_sequence(), 41);
  store_.reset();
  root_.FlipByte(".ckptd/nodes/local/run", 22);
  const absl::Status opened = root_.TryOpen(root_.fs()).status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(opened), "ROOT_UNREADABLE");
  EXPECT_THAT(std::string(opened.message()),
              HasSubstr("mv .ckptd/nodes/local/run .ckptd/nodes/local/run.damaged"));
}

TEST_F(RootStoreTest, KeepsADamageMarkUntilRepairOrReplacement) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  ASSERT_EQ(SaveNow("step_20", 2), SaveVerdict::kCommitted);
  storage::v1::Damage damage;
  damage.set_tag("step_20");
  damage.set_sequence(2);
  damage.set_message("rotten");
  ASSERT_TRUE(store_->SetDamage("step_20", 2, damage).ok());
  damage.set_message("worse");
  ASSERT_TRUE(store_->SetDamage("step_20", 2, damage).ok());
  EXPECT_EQ(store_->committed().at(2).damage->message(), "rotten") << "what was said first stays";
  EXPECT_EQ(store_->SetDamage("step_20", 1, damage).status().code(), absl::StatusCode::kNotFound);
  Reopen();
  ASSERT_TRUE(store_->committed().at(2).damage.has_value());
  EXPECT_EQ(store_->committed().at(2).damage->message(), "rotten");
  EXPECT_FALSE(store_->committed().at(1).damage.has_value());
  ASSERT_TRUE(store_->SetDamage("step_20", 2, std::nullopt).ok());
  EXPECT_FALSE(store_->committed().at(2).damage.has_value());
  Reopen();
  EXPECT_FALSE(store_->committed().at(2).damage.has_value());
  ASSERT_TRUE(store_->SetDamage("step_20", 2, damage).ok());
  ASSERT_EQ(SaveNow("step_20", 3), SaveVerdict::kCommitted);
  EXPECT_FALSE(store_->committed().at(3).damage.has_value()) << "another checkpoint";
  EmptyTrash();  // Until then the damaged one may come back.
  damage.set_tag("step_10");
  damage.set_sequence(1);
  ASSERT_TRUE(store_->SetDamage("step_10", 1, damage).ok());
  EXPECT_EQ(root_.Read(".ckptd/damaged").find("step_20"), std::string::npos) << "it is gone";
}

TEST_F(RootStoreTest, RefusesADamagedDamageRecord) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  storage::v1::Damage damage;
  damage.set_tag("step_10");
  damage.set_sequence(1);
  ASSERT_TRUE(store_->SetDamage("step_10", 1, damage).ok());
  store_.reset();
  root_.FlipByte(".ckptd/damaged", 25);
  const absl::Status refused = root_.TryOpen(root_.fs()).status();
  EXPECT_EQ(ReasonOf(refused), "ROOT_UNREADABLE");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("mv .ckptd/damaged .ckptd/damaged.damaged"));
}

TEST_F(RootStoreTest, RefusesAnEmptyOrDamagedPinRecord) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  ASSERT_TRUE(store_->SetPinned("step_10", 1, true).ok());
  store_.reset();
  root_.Write(".ckptd/pins", "");
  EXPECT_EQ(ReasonOf(root_.TryOpen(root_.fs()).status()), "ROOT_UNREADABLE");
}

TEST_F(RootStoreTest, EvictedCheckpointVanishesAtOnceAndItsReaderGoesOn) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  ASSERT_EQ(SaveNow("step_20", 2), SaveVerdict::kCommitted);
  absl::StatusOr<ScopedHandle> reader = store_->OpenCheckpoint("step_10", 1);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE(store_->Evict("step_10", 1).ok());
  EXPECT_THAT(Committed(), ElementsAre("step_20:2"));
  EXPECT_FALSE(std::filesystem::exists(root_.path("step_10")));
  const int64_t bytes = store_->trash_bytes();
  EXPECT_GT(bytes, 20'000);
  EmptyTrash({1});
  EXPECT_EQ(store_->trash_bytes(), bytes) << "kept for its reader";
  EXPECT_TRUE(ReadSmallFile(root_.fs(), reader->get(), "model_0.pt", 1 << 20).ok());
  EmptyTrash();
  EXPECT_EQ(store_->trash_bytes(), 0);
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), IsEmpty());
  EXPECT_EQ(store_->OpenCheckpoint("step_10", 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Evict("step_10", 1).code(), absl::StatusCode::kNotFound);
  ExpectWhole({"step_20", 2});
}

TEST_F(RootStoreTest, EvictionLeavesWhatWasPutInTheCheckpointsPlace) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  std::filesystem::remove_all(root_.path("step_10"));
  root_.Write("step_10/notes.txt", "mine");
  EXPECT_EQ(store_->Evict("step_10", 1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(root_.Read("step_10/notes.txt"), "mine");
  EXPECT_THAT(Committed(), IsEmpty());
}

TEST_F(RootStoreTest, HardLinkOutOfTrashKeepsItsBytes) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  std::filesystem::create_hard_link(root_.path("step_10/model_0.pt"), root_.path("kept.pt"));
  ASSERT_TRUE(store_->Evict("step_10", 1).ok());
  EmptyTrash();
  EXPECT_EQ(root_.Read("kept.pt"), ContentOf({"step_10", 1}, "model_0.pt"));
}

TEST_F(RootStoreTest, RemovesASymbolicLinkAndNotItsTarget) {
  root_.Write("outside/file", "mine");
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  std::filesystem::create_directory_symlink("../outside", root_.path("step_10/link"));
  ASSERT_TRUE(store_->Evict("step_10", 1).ok());
  EmptyTrash();
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), IsEmpty());
  EXPECT_EQ(root_.Read("outside/file"), "mine");
}

// ---- the trash as a list, and the way back

class TrashTest : public RootStoreTest {
 protected:
  std::vector<std::string> Listed() {
    std::vector<std::string> tags;
    for (const TrashedCheckpoint& trashed : store_->ListTrash())
      tags.push_back(
          absl::StrCat(trashed.checkpoint.summary.tag(), ":", trashed.checkpoint.summary.sequence()));
    return tags;
  }
  // When the checkpoint was moved to the trash.
  int64_t MovedUs(int64_t sequence) {
    for (const TrashedCheckpoint& trashed : store_->ListTrash()) {
      if (trashed.checkpoint.summary.sequence() == sequence) return trashed.moved_us;
    }
    ADD_FAILURE() << "sequence " << sequence << " is not in the trash";
    return 0;
  }
  // Waits until the clock that file systems take change times from, which ticks every few milliseconds, has
  // gone on.
  static void AwaitLaterThan(int64_t unix_us) {
    timespec now = {};
    do {
      clock_gettime(CLOCK_REALTIME_COARSE, &now);
    } while (now.tv_sec * 1'000'000 + now.tv_nsec / 1000 <= unix_us);
  }
  // A pass over the trash.
  void EmptyOn(TrashTerms terms) {
    while (true) {
      const int64_t before = store_->trash_bytes();
      const absl::StatusOr<bool> more = store_->EmptyTrashStep({}, terms);
      ASSERT_TRUE(more.ok()) << more.status();
      if (!*more) return;
      terms.room_bytes -= before - store_->trash_bytes();
    }
  }
  void SaveAndEvict(int64_t sequence) {
    const std::string tag = absl::StrCat("step_", sequence);
    ASSERT_EQ(SaveNow(tag, sequence), SaveVerdict::kCommitted);
    ASSERT_TRUE(store_->Evict(tag, sequence).ok());
  }
};

TEST_F(TrashTest, ListsWhatWasEvictedOrReplacedAndNothingElse) {
  SaveAndEvict(1);
  ASSERT_EQ(SaveNow("twice", 2), SaveVerdict::kCommitted);
  ASSERT_EQ(SaveNow("twice", 3), SaveVerdict::kCommitted);
  ASSERT_TRUE(store_->Discard(StageNow({"aborted", 4}).inflight).ok());
  EXPECT_THAT(Listed(), testing::UnorderedElementsAre("step_1:1", "twice:2"));
  Reopen();
  EXPECT_THAT(Listed(), testing::UnorderedElementsAre("step_1:1", "twice:2"));
}

// Publish has written a whole manifest before its rename fails.
TEST_F(TrashTest, DoesNotListASaveThatFailedAfterItsManifestWasWritten) {
  for (const bool killed : {false, true}) {
    FaultyFileSystem faulty(&root_.fs());
    store_.reset();
    store_ = root_.OpenWith(faulty);
    {
      const absl::StatusOr<Staged> staged = Stage(faulty, *store_, {"step", 1});
      ASSERT_TRUE(staged.ok());
      faulty.Fail({.op = FsOp::kRename, .error = EIO});
      EXPECT_EQ(store_->Publish(staged->inflight, SummaryOf({"step", 1}), staged->parts).outcome,
                PublishOutcome::kFailed);
      if (!killed) {
        EXPECT_TRUE(store_->Discard(staged->inflight).ok());
      }
    }
    if (killed) root_.Write("step", "a file of another program");  // So recovery gives the save up.
    Reopen();
    EXPECT_THAT(store_->recovered(), SizeIs(killed ? 1 : 0));
    EXPECT_GT(store_->trash_bytes(), 0);
    EXPECT_THAT(Listed(), IsEmpty());
    EmptyTrash();
  }
}

TEST_F(TrashTest, UndeletedCheckpointIsWholePinnedAndInItsOldPlace) {
  ASSERT_EQ(SaveNow("step_1", 1), SaveVerdict::kCommitted);
  ASSERT_EQ(SaveNow("step_2", 2), SaveVerdict::kCommitted);
  ASSERT_TRUE(store_->Evict("step_1", 1).ok());
  const absl::StatusOr<Undeleted> back = store_->Undelete("step_1", 0);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->checkpoint.pinned);
  EXPECT_EQ(back->checkpoint.summary.sequence(), 1);
  EXPECT_THAT(Committed(), ElementsAre("step_1:1 pinned", "step_2:2"));
  ExpectWhole({"step_1", 1});
  EXPECT_EQ(store_->trash_bytes(), 0);
  EXPECT_THAT(Listed(), IsEmpty());
  EXPECT_EQ(ReasonOf(store_->Evict("step_1", 1)), "PINNED");
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("step_1:1 pinned", "step_2:2"));
}

TEST_F(TrashTest, NothingIsChangedAnyMoreUntilAScanHasFoundWhatIsBack) {
  for (int64_t sequence : {1, 2}) SaveAndEvict(sequence);
  FaultyFileSystem faulty(&root_.fs());
  store_.reset();
  store_ = root_.OpenWith(faulty);
  for (const int nth : {1, 2}) {  // The sync of the root fails, or that of the trash.
    const std::string tag = absl::StrCat("step_", nth);
    faulty.SetHook([&](const FsCall& call) {
      if (call.op == FsOp::kRename && call.path.find("/trash/") != std::string::npos)
        faulty.Fail({.op = FsOp::kSync, .nth = nth, .error = EIO});
    });
    EXPECT_EQ(ReasonOf(store_->Undelete(tag, 0).status()), "INDETERMINATE");
    faulty.SetHook(nullptr);
    EXPECT_EQ(ReasonOf(store_->Undelete("step_2", 0).status()), "ROOT_READ_ONLY");
    ASSERT_TRUE(store_->Rescan().ok());
    EXPECT_THAT(Committed(), testing::Contains(absl::StrCat(tag, ":", nth, " pinned")));
  }
  store_.reset();  // Before its file system.
}

TEST_F(TrashTest, RefusesToBringBackWhatIsNotThereOrWhoseTagIsTaken) {
  ASSERT_EQ(SaveNow("step", 1), SaveVerdict::kCommitted);
  ASSERT_EQ(SaveNow("step", 2), SaveVerdict::kCommitted);
  const absl::Status taken = store_->Undelete("step", 1).status();
  EXPECT_EQ(ReasonOf(taken), "TAG_TAKEN");
  EXPECT_THAT(std::string(taken.message()), HasSubstr("sequence 2"));
  EXPECT_EQ(ReasonOf(store_->Undelete("step", 2).status()), "NO_CHECKPOINT");
  EXPECT_EQ(ReasonOf(store_->Undelete("other", 0).status()), "NO_CHECKPOINT");
  EXPECT_THAT(Committed(), ElementsAre("step:2"));

  ASSERT_TRUE(store_->Evict("step", 2).ok());
  root_.Write("step", "a file of another program");
  EXPECT_EQ(ReasonOf(store_->Undelete("step", 0).status()), "TAG_FOREIGN");
  EXPECT_EQ(root_.Read("step"), "a file of another program");
  std::filesystem::remove(root_.path("step"));
  std::filesystem::create_directory(root_.path("step"));
  EXPECT_EQ(store_->Undelete("step", 0)->checkpoint.summary.sequence(), 2) << "the highest sequence";
  ExpectWhole({"step", 2});
  EXPECT_THAT(Listed(), ElementsAre("step:1"));
}

TEST_F(TrashTest, LeavesACheckpointInTheTrashOfWhichAFileIsMissing) {
  SaveAndEvict(1);
  const std::string name = root_.Names(".ckptd/nodes/local/trash").at(0);
  std::filesystem::remove(root_.node("trash") / name / "model_0.pt");
  EXPECT_EQ(ReasonOf(store_->Undelete("step_1", 1).status()), "SHORT_FILE");
  EXPECT_THAT(Committed(), IsEmpty());
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), SizeIs(1));
}

TEST_F(TrashTest, WhatAStepHasBegunToRemoveIsNotOfferedAnyMore) {
  SaveAndEvict(1);
  ASSERT_TRUE(store_->NextInTrash({})->has_value());
  EXPECT_THAT(Listed(), IsEmpty());
  EXPECT_EQ(ReasonOf(store_->Undelete("step_1", 1).status()), "NO_CHECKPOINT");
  // The next daemon finds the manifest gone, however little the step has removed.
  FaultyFileSystem faulty(&root_.fs());
  store_.reset();
  store_ = root_.OpenWith(faulty);
  EXPECT_THAT(Listed(), ElementsAre("step_1:1")) << "nothing was removed yet";
  faulty.Fail({.op = FsOp::kRemove, .nth = 2, .error = EIO});
  EXPECT_FALSE(store_->EmptyTrashStep({}).ok());
  Reopen();
  EXPECT_THAT(Listed(), IsEmpty());
  EXPECT_GT(store_->trash_bytes(), 0);
}

TEST_F(TrashTest, CheckpointsStayForTheirGracePeriodAlsoAfterARestart) {
  constexpr int64_t kGrace = 60'000'000;
  SaveAndEvict(1);
  ASSERT_TRUE(store_->Discard(StageNow({"aborted", 2}).inflight).ok());
  const int64_t moved = MovedUs(1);
  EXPECT_NEAR(static_cast<double>(moved), static_cast<double>(SystemClock().UnixMicros()), 60e6);
  Reopen();
  EXPECT_EQ(MovedUs(1), moved);
  const TrashTerms early{.now_us = moved + kGrace - 1, .grace_us = kGrace};
  EmptyOn(early);
  EXPECT_THAT(Listed(), ElementsAre("step_1:1"));
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), SizeIs(1)) << "what failed has no grace period";
  EXPECT_EQ(store_->LeftInTrash(early).in_grace_bytes, store_->trash_bytes());
  EXPECT_EQ(store_->LeftInTrash(early).due_in_us, 1);
  EmptyOn({.now_us = moved + kGrace, .grace_us = kGrace});
  EXPECT_EQ(store_->trash_bytes(), 0);
  EXPECT_EQ(store_->LeftInTrash(early).due_in_us, 0);
}

TEST_F(TrashTest, GivesRoomFromTheOldestCheckpointsAndNoMoreThanAsked) {
  std::map<int64_t, int64_t> bytes;
  for (const int64_t sequence : {3, 1, 2}) {  // In this order.
    const int64_t before = store_->trash_bytes();
    SaveAndEvict(sequence);
    bytes[sequence] = store_->trash_bytes() - before;
    AwaitLaterThan(MovedUs(sequence));
  }
  TrashTerms terms{.now_us = MovedUs(2), .grace_us = 60'000'000, .room_bytes = bytes[3] + 1};
  EmptyOn(terms);
  EXPECT_THAT(Listed(), ElementsAre("step_2:2"));
}

TEST_F(TrashTest, GracePeriodEndsInTimeAlthoughTheClockWasSetBack) {
  SaveAndEvict(1);
  const int64_t year = int64_t{365} * 86400 * 1'000'000, before = MovedUs(1) - year;
  const TrashTerms terms{.now_us = before, .grace_us = 1000};
  ASSERT_EQ(store_->EmptyTrashStep({1}, terms).value(), false);
  EXPECT_EQ(store_->LeftInTrash(terms).due_in_us, 1000) << "also of a checkpoint that is being read";
  EmptyOn(terms);
  EXPECT_THAT(Listed(), ElementsAre("step_1:1"));
  EmptyOn({.now_us = before + 1000, .grace_us = 1000});
  EXPECT_THAT(Listed(), IsEmpty());
}

TEST_F(TrashTest, DamageStaysKnownOnTheWayToTheTrashAndBack) {
  SaveAndEvict(1);
  for (const int64_t sequence : {2, 3})
    ASSERT_EQ(SaveNow(absl::StrCat("step_", sequence), sequence), SaveVerdict::kCommitted);
  storage::v1::Damage damage;
  damage.set_message("bits have flipped");
  ASSERT_TRUE(store_->SetDamage("step_2", 2, damage).ok());
  ASSERT_TRUE(store_->Evict("step_2", 2).ok());
  ASSERT_TRUE(store_->SetDamage("step_3", 3, damage).ok());  // Which prunes the marks of what is gone.
  Reopen();
  ASSERT_TRUE(store_->Undelete("step_2", 2).ok());
  ASSERT_TRUE(store_->committed().at(2).damage.has_value());
  EXPECT_EQ(store_->committed().at(2).damage->message(), "bits have flipped");
}

TEST_F(RootStoreTest, CountsTheTrashOfAnEarlierDaemon) {
  ASSERT_EQ(SaveNow("step_10", 1), SaveVerdict::kCommitted);
  ASSERT_TRUE(store_->Evict("step_10", 1).ok());
  const int64_t files_alone = store_->trash_bytes();
  Reopen();
  EXPECT_GE(store_->trash_bytes(), files_alone);
  EmptyTrash();
  EXPECT_EQ(store_->trash_bytes(), 0);
}

// Directories nested without end, in places where a user can make them.
TEST(DeepRootTest, OpensARootWithDeepDirectoriesInTrashAndInFlightAndRemovesThem) {
  constexpr int kDepth = 20'000;
  TemporaryRoot root(TemporaryRoot::On::kMemory);
  FaultyFileSystem counted(&root.fs());
  int most_open = 0;  // The store's destructor closes handles, and so calls the hook.
  std::unique_ptr<RootStore> store = root.Open();
  ASSERT_EQ(Save(root.fs(), *store, {"step_10", 1}), SaveVerdict::kCommitted);
  store.reset();
  for (const char* place : {"trash/step_3.3.00000000000000aa", "inflight/step_4.4.00000000000000bb"}) {
    std::filesystem::create_directory(root.node(place));
    const auto opened = OpenScoped(root.fs(), root.handle(), absl::StrCat(".ckptd/nodes/local/", place),
                                   OpenMode::kDirectory);
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(MakeNestedDirectories(opened->get(), kDepth));
  }
  counted.SetHook([&](const FsCall&) { most_open = std::max(most_open, counted.open_handles()); });
  store = root.OpenWith(counted);
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->committed().contains(1));
  for (bool more = true; more;) {
    const absl::StatusOr<bool> step = store->EmptyTrashStep({});
    ASSERT_TRUE(step.ok()) << step.status();
    more = *step;
  }
  EXPECT_THAT(root.Names(".ckptd/nodes/local/trash"), IsEmpty());
  EXPECT_THAT(root.Names(".ckptd/nodes/local/inflight"), IsEmpty());
  EXPECT_LT(most_open, 50) << "directories open at once";
}

TEST(DeepRootTest, RefusesARootWhoseScratchDirectoryHoldsTooMuch) {
  TemporaryRoot root(TemporaryRoot::On::kMemory);
  ASSERT_NE(root.Open(), nullptr);
  std::filesystem::create_directory(root.node("scratch"));
  {
    const auto scratch =
        OpenScoped(root.fs(), root.handle(), ".ckptd/nodes/local/scratch", OpenMode::kDirectory);
    ASSERT_TRUE(scratch.ok()) << scratch.status();
    ASSERT_TRUE(MakeNestedDirectories(scratch->get(), 12'000));
  }
  const auto refused = root.TryOpen(root.fs());
  EXPECT_EQ(ReasonOf(refused.status()), "ROOT_UNSUITABLE");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("scratch"));
  EXPECT_NE(root.Open(), nullptr) << "the next try removes the rest";
}

TEST_F(RootStoreTest, LeavesOutOfTheCountWhatLiesTooDeepInTrash) {
  constexpr int kDeepest =
      static_cast<int>(kMaxOpenLevels) - 2;  // The tree's top and its `x` are levels, too.
  std::string deep = ".ckptd/nodes/local/trash/step_3.3.00000000000000aa/x";
  for (int level = 0; level < kDeepest; ++level) deep += "/d";
  root_.Write(deep + "/counted", std::string(1000, 'x'));
  root_.Write(deep + "/d/too_deep", std::string(7, 'x'));
  Reopen();
  EXPECT_EQ(store_->trash_bytes(), 1000);
  EmptyTrash();
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), IsEmpty());
}

TEST_F(RootStoreTest, RefusesBadTagsBeforeTheDisk) {
  using std::string_literals::operator""s;
  for (const std::string& tag :
       {""s, "."s, ".."s, "../x"s, "/abs"s, "a\0b"s, "latest"s, ".ckptd"s, std::string(300, 'x')}) {
    EXPECT_EQ(ReasonOf(store_->CheckTarget(tag)), "INVALID_TAG");
    EXPECT_EQ(ReasonOf(store_->CreateInflight(tag, 1, 4096).status()), "INVALID_TAG");
    EXPECT_FALSE(store_->OpenCheckpoint(tag, 1).ok());
  }
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/inflight"), IsEmpty());
  EXPECT_THAT(root_.Names(""), ElementsAre(".ckptd"));
}

TEST_F(RootStoreTest, RefusesBadPathsBeforeAnyDirectoryIsMade) {
  const Staged staged = StageNow({"step_10", 1}, 0);
  EXPECT_EQ(ReasonOf(store_->MakeParents(staged.inflight, {"ok/x", "../evil/x"})), "INVALID_PATH");
  EXPECT_FALSE(std::filesystem::exists(root_.node("inflight/" + staged.inflight.name + "/ok")));
  root_.Write(".ckptd/nodes/local/inflight/" + staged.inflight.name + "/f", "a file");
  EXPECT_EQ(ReasonOf(store_->MakeParents(staged.inflight, {"f/x"})), "FILE_CONFLICT");
}

TEST_F(RootStoreTest, DoesNotPublishPartsOfDifferentSaves) {
  const SaveSpec spec{"step_10", 1};
  const auto refused = [&](const std::function<void(Staged&)>& spoil) {
    Staged staged = StageNow(spec);
    spoil(staged);
    const PublishResult result = store_->Publish(staged.inflight, SummaryOf(spec), staged.parts);
    EXPECT_TRUE(store_->Discard(staged.inflight).ok());
    return result.outcome == PublishOutcome::kFailed && !result.status.ok();
  };
  EXPECT_TRUE(refused([](Staged& s) { s.parts.pop_back(); }));
  EXPECT_TRUE(refused([](Staged& s) { s.parts[1] = s.parts[0]; }));
  EXPECT_TRUE(refused([](Staged& s) { s.parts[1].set_sequence(2); }));
  EXPECT_TRUE(refused([](Staged& s) { s.parts[1].mutable_files(0)->set_path("model_0.pt"); }));
  EXPECT_TRUE(refused([](Staged& s) { s.parts[1].mutable_files(0)->set_size_bytes(4096); }));
  EXPECT_TRUE(refused([&](Staged& s) {
    std::filesystem::resize_file(root_.node("inflight/" + s.inflight.name + "/model_1.pt"), 3);
  }));
  EXPECT_THAT(root_.Names(""), ElementsAre(".ckptd"));
}

TEST_F(RootStoreTest, RefusesAPartRecordOfAnotherSave) {
  const Staged staged = StageNow({"step_10", 1}, 1);
  for (const SaveSpec& other : {SaveSpec{"step_11", 1}, SaveSpec{"step_10", 2}}) {
    storage::v1::PartRecord record = staged.parts[0];
    *record.mutable_checkpoint() = SummaryOf(other);
    EXPECT_EQ(ReasonOf(store_->WritePartRecord(staged.inflight, record)), "INVALID_ARGUMENT");
  }
  storage::v1::PartRecord unbelievable = staged.parts[0];
  unbelievable.mutable_files(0)->set_path("../outside");
  EXPECT_FALSE(store_->WritePartRecord(staged.inflight, unbelievable).ok());
}

TEST_F(RootStoreTest, CommitsTwoSavesInFlightIndependently) {
  const Staged one = StageNow({"step_10", 1});
  const Staged two = StageNow({"step_20", 2});
  EXPECT_EQ(store_->Publish(two.inflight, SummaryOf({"step_20", 2}), two.parts).outcome,
            PublishOutcome::kCommitted);
  EXPECT_EQ(store_->Publish(one.inflight, SummaryOf({"step_10", 1}), one.parts).outcome,
            PublishOutcome::kCommitted);
  ExpectWhole({"step_10", 1});
  ExpectWhole({"step_20", 2});
}

TEST_F(RootStoreTest, CommitsTenThousandFiles) {
  const SaveSpec spec{"many", 1, 1};
  absl::StatusOr<Inflight> inflight = store_->CreateInflight("many", 1, 1 << 20);
  ASSERT_TRUE(inflight.ok()) << inflight.status();
  storage::v1::PartRecord part;
  part.set_sequence(1);
  part.set_chunk_bytes(kTestChunkBytes);
  *part.mutable_checkpoint() = SummaryOf(spec);
  std::vector<std::string> paths;
  for (int i = 0; i < 10'000; ++i) paths.push_back(absl::StrCat("d", i % 10, "/f", i));
  ASSERT_TRUE(store_->MakeParents(*inflight, paths).ok());
  for (const std::string& path : paths) {
    ASSERT_TRUE(OpenScoped(root_.fs(), inflight->dir.get(), path, OpenMode::kCreate).ok());
    part.add_files()->set_path(path);
  }
  ASSERT_TRUE(store_->WritePartRecord(*inflight, part).ok());
  const PublishResult result = store_->Publish(*inflight, SummaryOf(spec), {part});
  ASSERT_EQ(result.outcome, PublishOutcome::kCommitted) << result.status;
  const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(root_.fs(), root_.handle(), "many");
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->problems, IsEmpty());
  EXPECT_EQ(report->manifest.body.files_size(), 10'000);
  ASSERT_TRUE(store_->Evict("many", 1).ok());
  EmptyTrash();
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/trash"), IsEmpty());
}

// The cost of a start: it reads the head of each manifest and nothing else of a checkpoint.
TEST(RootStoreScanTest, FindsAThousandCheckpointsWithFewCallsForEach) {
  TemporaryRoot root(TemporaryRoot::On::kMemory);
  for (int64_t sequence = 1; sequence <= 1000; ++sequence) {
    const Manifest manifest{SummaryOf({absl::StrCat("step_", sequence), sequence}), {}};
    const absl::StatusOr<std::string> bytes = EncodeManifest(manifest);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    root.Write(absl::StrCat("step_", sequence, "/.ckptd/manifest"), *bytes);
  }
  FaultyFileSystem fs(&root.fs());
  const std::unique_ptr<RootStore> store = root.OpenWith(fs);
  EXPECT_THAT(store->committed(), SizeIs(1000));
  EXPECT_EQ(store->committed().rbegin()->second.summary.tag(), "step_1000");
  EXPECT_LT(fs.calls().size(), 6 * 1000u);
}

// Pointer files: step 6 of the commit.
class PointerTest : public RootStoreTest {
 protected:
  using Pointers = std::map<std::string, std::string>;
  // Commits with the pointer `latest` alone; its content is the tag.
  static SaveSpec Naming(const std::string& tag, int64_t sequence) {
    return {tag, sequence, 1, {{"latest", tag}}};
  }
  PublishResult PublishNow(const SaveSpec& spec) {
    const Staged staged = StageNow(spec);
    return store_->Publish(staged.inflight, SummaryOf(spec), staged.parts);
  }
  void ExpectCommitted(const SaveSpec& spec) {
    const PublishResult result = PublishNow(spec);
    EXPECT_EQ(result.outcome, PublishOutcome::kCommitted) << result.status;
    EXPECT_THAT(result.pointers.warnings, IsEmpty());
  }
  std::vector<int64_t> Holders() const {
    return {store_->pointers().holders.begin(), store_->pointers().holders.end()};
  }
};

TEST_F(PointerTest, PointerFollowsTheNewestCheckpointThatNamesIt) {
  ExpectCommitted(Naming("a", 1));
  EXPECT_EQ(root_.Read("latest"), "a") << "without a newline";
  EXPECT_EQ(root_.Names("").size(), 3u) << "nothing else is beside it";
  EXPECT_EQ(root_.Names(".ckptd/nodes/local").size(), 3u) << "lock, inflight, trash";
  ExpectCommitted({"b", 2, 1, {{"best", "b"}}});
  EXPECT_EQ(root_.Read("latest"), "a");
  EXPECT_EQ(root_.Read("best"), "b");
  ExpectCommitted(Naming("c", 3));
  EXPECT_EQ(root_.Read("latest"), "c");
  EXPECT_THAT(Holders(), ElementsAre(2, 3));
}

TEST_F(PointerTest, PointerMovesFromADamagedCheckpointToTheNewestWholeOne) {
  for (int i : {1, 2, 3}) ExpectCommitted(Naming(absl::StrCat("s", i), i));
  EXPECT_EQ(root_.Read("latest"), "s3");
  const auto set = store_->SetDamage("s3", 3, storage::v1::Damage());
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(root_.Read("latest"), "s2");
  EXPECT_THAT(Holders(), ElementsAre(2));
  Reopen();
  EXPECT_EQ(root_.Read("latest"), "s2");
  ASSERT_TRUE(store_->SetDamage("s2", 2, storage::v1::Damage()).ok());
  ASSERT_TRUE(store_->SetDamage("s1", 1, storage::v1::Damage()).ok());
  EXPECT_EQ(root_.Read("latest"), "s3") << "where all are damaged, the newest";
  ASSERT_TRUE(store_->SetDamage("s2", 2, std::nullopt).ok());
  EXPECT_EQ(root_.Read("latest"), "s2");
  ExpectCommitted(Naming("s4", 4));
  EXPECT_EQ(root_.Read("latest"), "s4");
}

TEST_F(PointerTest, PointerOnlyGoesForwardInAnyOrderOfCommits) {
  const Staged slow = StageNow(Naming("slow", 1));
  ExpectCommitted(Naming("quick", 2));
  EXPECT_EQ(store_->Publish(slow.inflight, SummaryOf(Naming("slow", 1)), slow.parts).outcome,
            PublishOutcome::kCommitted);
  EXPECT_EQ(root_.Read("latest"), "quick");
  Reopen();
  EXPECT_EQ(root_.Read("latest"), "quick");
}

TEST_F(PointerTest, StartAndScanRepairAMissingOrWrongPointer) {
  ExpectCommitted(Naming("a", 1));
  ExpectCommitted(Naming("b", 2));
  for (const bool restart : {true, false}) {
    for (const std::string content : {"", "a", "b\n", "garbage"}) {
      std::filesystem::remove(root_.path("latest"));
      if (!content.empty()) root_.Write("latest", content);
      if (restart) {
        Reopen();
      } else {
        ASSERT_TRUE(store_->Rescan().ok());
      }
      EXPECT_EQ(root_.Read("latest"), "b") << content;
      EXPECT_THAT(store_->pointers().warnings, IsEmpty());
    }
  }
}

TEST_F(PointerTest, LeavesFilesUntouchedThatNoManifestNames) {
  root_.Write("newest", "mine");
  std::filesystem::create_symlink("nowhere", root_.path("link"));
  ExpectCommitted(Naming("a", 1));
  Reopen();
  EXPECT_EQ(root_.Read("newest"), "mine");
  EXPECT_TRUE(std::filesystem::is_symlink(root_.path("link")));
}

TEST_F(PointerTest, ReplacesASymbolicLinkWithoutFollowingIt) {
  root_.Write("outside", "mine");
  for (const bool at_start : {false, true}) {
    std::filesystem::remove(root_.path("latest"));
    std::filesystem::create_symlink("outside", root_.path("latest"));
    EXPECT_TRUE(store_->CheckTarget("a", {"latest"}).ok());
    if (at_start) {
      Reopen();
    } else {
      ExpectCommitted(Naming("a", 1));
    }
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(root_.path("latest"))));
    EXPECT_EQ(root_.Read("latest"), "a");
    EXPECT_EQ(root_.Read("outside"), "mine");
  }
}

TEST_F(PointerTest, RefusesADirectoryInThePointersPlaceAndLaterWarns) {
  std::filesystem::create_directory(root_.path("latest"));
  EXPECT_EQ(ReasonOf(store_->CheckTarget("a", {"latest"})), "POINTER_FOREIGN");
  const PublishResult result = PublishNow(Naming("a", 1));
  EXPECT_EQ(result.outcome, PublishOutcome::kCommitted);
  ASSERT_THAT(result.pointers.warnings, SizeIs(1));
  EXPECT_THAT(result.pointers.warnings[0], HasSubstr("latest"));
  Reopen();
  EXPECT_THAT(store_->pointers().warnings, SizeIs(1));
  EXPECT_TRUE(std::filesystem::is_directory(root_.path("latest")));
  std::filesystem::remove(root_.path("latest"));
  ExpectCommitted({"b", 2});
  EXPECT_EQ(root_.Read("latest"), "a") << "the next save tries it again";
}

TEST_F(PointerTest, NeitherReadsNorReplacesAPipe) {
  ASSERT_EQ(::mkfifo(root_.path("latest").c_str(), 0600), 0);
  EXPECT_EQ(ReasonOf(store_->CheckTarget("a", {"latest"})), "POINTER_FOREIGN");
  EXPECT_THAT(PublishNow(Naming("a", 1)).pointers.warnings, SizeIs(1));
  Reopen();
  EXPECT_TRUE(std::filesystem::is_fifo(root_.path("latest")));
}

TEST_F(PointerTest, WritesAPointerOverLeftoversOfAKilledDaemon) {
  root_.Write(".ckptd/nodes/local/pointer.new", "half a poin");
  ExpectCommitted(Naming("a", 1));
  EXPECT_EQ(root_.Read("latest"), "a");
}

TEST_F(PointerTest, DoesNotEvictWhatAPointerNames) {
  ExpectCommitted(Naming("a", 1));
  ExpectCommitted({"b", 2});
  EXPECT_EQ(ReasonOf(store_->Evict("a", 1)), "POINTED");
  Reopen();
  EXPECT_EQ(ReasonOf(store_->Evict("a", 1)), "POINTED");
  ExpectCommitted(Naming("c", 3));
  EXPECT_TRUE(store_->Evict("a", 1).ok());
  EXPECT_EQ(ReasonOf(store_->Evict("c", 3)), "POINTED");
}

TEST_F(PointerTest, ReleasedPointerNamesTheNewestOtherCheckpointOrIsRemoved) {
  ExpectCommitted(Naming("a", 1));
  ExpectCommitted({"b", 2, 1, {{"latest", "b"}, {"best", "b"}}});
  ASSERT_TRUE(store_->ReleasePointers("b", 2).ok());
  EXPECT_EQ(root_.Read("latest"), "a");
  EXPECT_FALSE(std::filesystem::exists(root_.path("best")));
  EXPECT_TRUE(store_->Evict("b", 2).ok());
  EXPECT_THAT(Holders(), ElementsAre(1));
  EXPECT_EQ(ReasonOf(store_->ReleasePointers("b", 2).status()), "NO_CHECKPOINT");
}

TEST_F(PointerTest, ReleaseThatNoEvictionFollowedIsUndoneByTheNextDaemon) {
  ExpectCommitted(Naming("a", 1));
  ASSERT_TRUE(store_->ReleasePointers("a", 1).ok());
  EXPECT_FALSE(std::filesystem::exists(root_.path("latest")));
  Reopen();
  EXPECT_EQ(root_.Read("latest"), "a");
}

TEST_F(PointerTest, ReleaseLeavesAFileThatAnotherProgramHasWritten) {
  ExpectCommitted(Naming("a", 1));
  root_.Write("latest", "mine");
  ASSERT_TRUE(store_->ReleasePointers("a", 1).ok());
  EXPECT_EQ(root_.Read("latest"), "mine");
}

TEST_F(PointerTest, PointerThatCannotBeMovedKeepsItsCheckpoint) {
  ExpectCommitted(Naming("a", 1));
  ExpectCommitted(Naming("b", 2));
  std::filesystem::create_directory(root_.path(".ckptd/nodes/local/pointer.new"));
  EXPECT_FALSE(store_->ReleasePointers("b", 2).ok());
  EXPECT_EQ(root_.Read("latest"), "b");
  EXPECT_EQ(ReasonOf(store_->Evict("b", 2)), "POINTED");
}

TEST_F(PointerTest, ResaveTakesOverThePointersOfWhatItReplaces) {
  ExpectCommitted(Naming("a", 1));
  ExpectCommitted(Naming("b", 2));
  ExpectCommitted({"b", 3});  // It names none.
  EXPECT_EQ(root_.Read("latest"), "b");
  EXPECT_THAT(Holders(), ElementsAre(3));
  ExpectCommitted({"a", 4});  // What it replaces is not the one that is pointed at.
  Reopen();
  EXPECT_EQ(root_.Read("latest"), "b");
  EXPECT_THAT(Holders(), ElementsAre(3));
}

TEST_F(PointerTest, ResaveTakesOverOnlyPointersThatFitBesideItsOwn) {
  SaveSpec old{"a", 1, 1, {{"latest", "a"}}}, next{"a", 2, 1, {{"latest", "a, again"}, {"p9", "a"}}};
  for (int i = 0; i < 7; ++i) old.pointers[absl::StrCat("p", i)] = "a";
  ExpectCommitted(old);
  ExpectCommitted(next);
  EXPECT_EQ(root_.Read("latest"), "a, again");
  EXPECT_EQ(store_->committed().at(2).summary.pointers_size(), 8);
  EXPECT_EQ(store_->committed().at(2).summary.pointers().at("p0"), "a");
}

TEST_F(PointerTest, NextDaemonPublishesWithThePointersOfAllRanks) {
  // A record has the pointers that were known when it was written: here each has only those of its own rank.
  SaveSpec spec{"a", 1, 2, {{"latest", "a"}}};
  const absl::StatusOr<Inflight> inflight = store_->CreateInflight("a", 1, 8192);
  ASSERT_TRUE(inflight.ok());
  ASSERT_TRUE(WritePart(root_.fs(), *store_, *inflight, spec, 0).ok());
  spec.pointers = {{"best", "a"}};
  ASSERT_TRUE(WritePart(root_.fs(), *store_, *inflight, spec, 1).ok());
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("a:1"));
  EXPECT_EQ(root_.Read("latest"), "a");
  EXPECT_EQ(root_.Read("best"), "a");
}

TEST_F(PointerTest, SuspectSaveDoesNotReplaceAGoodOneNorMoveItsPointer) {
  ExpectCommitted(Naming("a", 1));
  const PublishResult refused = PublishNow({"a", 2, 1, {}, "NaN"});
  EXPECT_EQ(refused.outcome, PublishOutcome::kFailed);
  EXPECT_EQ(ReasonOf(refused.status), "SUSPECT");
  EXPECT_FALSE(refused.retryable);
  ExpectCommitted({"b", 3, 1, {}, "NaN"});
  ExpectCommitted({"b", 4, 1, {}, "Inf"});  // A suspect one may be replaced by another one.
  EXPECT_THAT(Committed(), ElementsAre("a:1", "b:4"));
  EXPECT_EQ(root_.Read("latest"), "a");
  ExpectCommitted(Naming("b", 5));
  EXPECT_EQ(store_->committed().at(5).summary.suspect(), "");
  EXPECT_EQ(root_.Read("latest"), "b");
}

TEST_F(PointerTest, NextDaemonPublishesAsSuspectWhatOneRankFoundSuspect) {
  SaveSpec spec{"a", 1, 2, {{"latest", "a"}}};
  const absl::StatusOr<Inflight> inflight = store_->CreateInflight("a", 1, 8192);
  ASSERT_TRUE(inflight.ok());
  ASSERT_TRUE(WritePart(root_.fs(), *store_, *inflight, spec, 0).ok());
  spec = {"a", 1, 2, {}, "NaN in w"};
  ASSERT_TRUE(WritePart(root_.fs(), *store_, *inflight, spec, 1).ok());
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("a:1"));
  EXPECT_EQ(store_->committed().at(1).summary.suspect(), "NaN in w");
  EXPECT_FALSE(std::filesystem::exists(root_.path("latest")));
}

TEST_F(PointerTest, NextDaemonDiscardsASuspectSaveOfATagThatHoldsAGoodOne) {
  ExpectCommitted({"a", 1, 1});
  StageNow({"a", 2, 1, {}, "NaN"});
  Reopen();
  EXPECT_THAT(Committed(), ElementsAre("a:1"));
  EXPECT_THAT(root_.Names(".ckptd/nodes/local/inflight"), IsEmpty());
}

TEST_F(PointerTest, PointerDoesNotNameARemovedCheckpointAfterAScan) {
  ExpectCommitted(Naming("a", 1));
  ExpectCommitted(Naming("b", 2));
  std::filesystem::remove_all(root_.path("b"));
  Reopen();
  EXPECT_EQ(root_.Read("latest"), "a");
}

}  // namespace
}  // namespace ckptd
