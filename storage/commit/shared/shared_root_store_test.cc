// A root that several nodes share, as its daemons use it: the life of checkpoints, with each daemon's own
// store.
#include "storage/commit/shared/shared_root_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/errors.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/steps/run_marks.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/crash_io_queue.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/shared_root_fixture.h"

namespace ckptd {
namespace {

using storage::v1::NodePartRecord;
using storage::v1::SharedRunRecord;
using ::testing::ElementsAre;

absl::StatusOr<std::unique_ptr<SharedRootStore>> TryOpen(FileSystem& fs, CrashDisk& disk, Clock& clock,
                                                         const std::string& node) {
  SharedRootStoreOptions options{.node = node};
  options.queues.uring = options.queues.threads = [&disk](int) { return CrashQueueFactory(&disk)(); };
  return SharedRootStore::Open(&fs, disk.root(), &clock, options);
}

class SharedRootStoreTest : public ::testing::Test {
 protected:
  using Store = std::unique_ptr<SharedRootStore>;

  Store Open(const std::string& node) { return OpenWith(disk_, node); }
  Store OpenWith(FileSystem& fs, const std::string& node) {
    auto store = TryOpen(fs, disk_, clock_, node);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }

  // Writes a node's part as its daemon does, and returns the digest.
  std::string WritePart(SharedRootStore& store, const SharedInflight& save, const std::string& node, int rank,
                        const std::map<std::string, std::string>& pointers = {}) {
    NodePartRecord record = SharedRecordOf(save, node, {rank}, 2, "incarnation of " + node);
    record.mutable_checkpoint()->mutable_pointers()->insert(pointers.begin(), pointers.end());
    const auto part = store.BeginPart(save, EarlierDaemon::kNone);
    EXPECT_TRUE(part.ok()) << part.status();
    if (!part.ok()) return "";
    EXPECT_TRUE(store.MakeRoomFor(*part, SharedFilesOf(rank)).ok());
    for (const std::string& path : SharedFilesOf(rank))
      EXPECT_TRUE(WriteNewFile(disk_, part->target(), path, SharedBytesOf(save, path)).ok());
    const auto digest = store.FinishPart(*part, record);
    EXPECT_TRUE(digest.ok()) << digest.status();
    return digest.value_or("");
  }

  // Two nodes write a save, and the coordinator publishes it.
  absl::StatusOr<int64_t> Publish(SharedRootStore& coordinator, const SharedInflight& save,
                                  const std::map<std::string, std::string>& pointers = {}) {
    const Store a = Open("a"), b = Open("b");
    digests_ = {{"a", WritePart(*a, save, "a", 0, pointers)}, {"b", WritePart(*b, save, "b", 1)}};
    return coordinator.Publish(save, FactsOf(save), digests_);
  }
  SharedInflight Save(SharedRootStore& coordinator, const std::string& tag, int64_t sequence,
                      const std::map<std::string, std::string>& pointers = {}) {
    const auto save = coordinator.MakeInflight(tag, sequence);
    EXPECT_TRUE(save.ok()) << save.status();
    const auto published = Publish(coordinator, *save, pointers);
    EXPECT_TRUE(published.ok() && *published == 0) << published.status();
    return *save;
  }
  static LedgerFacts FactsOf(const SharedInflight& save) {
    return {.tag = save.tag, .sequence = save.sequence, .attempt = 1, .ordinal = 1, .times = {.this_us = 7}};
  }
  void Remove(SharedRootStore& coordinator, const std::string& tag, int64_t sequence) {
    RemovalBudget budget;
    const auto gone = coordinator.Remove(tag, sequence, budget);
    EXPECT_TRUE(gone.ok() && *gone) << gone.status();
  }

  CrashDisk disk_;
  FakeClock clock_;
  std::map<std::string, std::string> digests_;
};

TEST_F(SharedRootStoreTest, SaveOfTwoNodesIsPublishedAndSeenByAll) {
  const Store coordinator = Open("a"), reader = Open("c");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  const SharedInflight save = Save(*coordinator, "step_1", 5);
  EXPECT_EQ(coordinator->Find(save).value(), SharedPlace::kPublished);
  EXPECT_EQ(coordinator->Publish(save, FactsOf(save), digests_).value(), 0) << "a second time";
  const auto scan = reader->Scan();
  ASSERT_TRUE(scan.ok()) << scan.status();
  ASSERT_EQ(scan->checkpoints.size(), 1U);
  EXPECT_EQ(scan->checkpoints.at(5).summary.commit_time_us(), 7);
  const auto opened = reader->OpenCheckpoint("step_1", 5);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->manifest.body.files_size(), 6);
  for (const int rank : {0, 1}) {
    for (const std::string& path : SharedFilesOf(rank))
      EXPECT_EQ(ReadSmallFile(disk_, opened->dir.get(), path, 1 << 20).value(), SharedBytesOf(save, path));
  }
}

TEST_F(SharedRootStoreTest, OpeningRecoversNothingTakesNoLockAndLeavesNoScratch) {
  const Store coordinator = Open("a");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  const auto save = coordinator->MakeInflight("step_1", 5);
  ASSERT_TRUE(save.ok());
  WritePart(*coordinator, *save, "a", 0);
  const uint64_t before = disk_.Fingerprint();
  FaultyFileSystem watched(&disk_);
  const Store other = OpenWith(watched, "a");
  EXPECT_EQ(disk_.Fingerprint(), before);
  for (const FsCall& call : watched.calls())
    EXPECT_TRUE(call.op != FsOp::kLock || call.path.find("scratch.a/") != std::string::npos)
        << call.ToString();
  EXPECT_FALSE(other->probe().io_backend.empty());
}

TEST_F(SharedRootStoreTest, NextCoordinatorGoesOnWithWhatAnotherLeft) {
  const Store first = Open("a"), second = Open("b");
  ASSERT_TRUE(first->BeginTerm(1).ok());
  const auto save = first->MakeInflight("step_1", 5);
  ASSERT_TRUE(save.ok());
  digests_ = {{"a", WritePart(*first, *save, "a", 0)}, {"b", WritePart(*second, *save, "b", 1)}};
  EXPECT_FALSE(second->Publish(*save, FactsOf(*save), digests_).ok()) << "it has begun no term";
  ASSERT_TRUE(second->BeginTerm(2).ok());
  EXPECT_EQ(second->Find(*save).value(), SharedPlace::kInFlight);
  EXPECT_EQ(second->Publish(*save, FactsOf(*save), digests_).value(), 0);
  EXPECT_EQ(first->Publish(*save, FactsOf(*save), digests_).value(), 0) << "by the late one";
  EXPECT_EQ(first->Find(*save).value(), SharedPlace::kPublished);
}

TEST_F(SharedRootStoreTest, RecordThatIsNotSeenYetIsLookedForAgain) {
  const Store coordinator = Open("a");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  const auto save = coordinator->MakeInflight("step_1", 5);
  ASSERT_TRUE(save.ok());
  digests_ = {{"a", WritePart(*coordinator, *save, "a", 0)}, {"b", "00000000-1"}};
  EXPECT_EQ(ReasonOf(coordinator->Publish(*save, FactsOf(*save), digests_).status()), kLookAgain);
  EXPECT_EQ(coordinator->Find(*save).value(), SharedPlace::kInFlight);
}

TEST_F(SharedRootStoreTest, FileThatIsNotSeenYetIsLookedForAgain) {
  const Store coordinator = Open("a");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  const auto save = coordinator->MakeInflight("step_1", 5);
  ASSERT_TRUE(save.ok());
  const auto published = [&] {
    const std::string path = ".ckptd/shared/inflight/" + save->name + "/state_1.pt";
    const Store b = Open("b");
    digests_ = {{"a", WritePart(*coordinator, *save, "a", 0)}, {"b", WritePart(*b, *save, "b", 1)}};
    EXPECT_TRUE(disk_.Remove(disk_.root(), path, FileType::kRegular).ok());
    const auto early = coordinator->Publish(*save, FactsOf(*save), digests_);
    disk_.Plant(path, SharedBytesOf(*save, "state_1.pt"));
    return early.status();
  }();
  EXPECT_EQ(ReasonOf(published), kLookAgain);
  EXPECT_THAT(std::string(published.message()), ::testing::HasSubstr("state_1.pt"));
  EXPECT_EQ(coordinator->Publish(*save, FactsOf(*save), digests_).value(), 0);
}

TEST_F(SharedRootStoreTest, RemovedDirectoryIsMadeAgainByAnyNodeAndOnlyWhatIsInFlightIsLost) {
  const Store coordinator = Open("a"), member = Open("b");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  const std::string run = coordinator->RunId().value_or("none");
  EXPECT_EQ(member->RunId().value_or(""), run);
  Save(*coordinator, "step_1", 1, {{"latest", "step_1"}});
  const auto in_flight = coordinator->MakeInflight("step_2", 2);
  ASSERT_TRUE(in_flight.ok());
  for (const bool member_first : {true, false}) {
    ASSERT_TRUE(RemoveTree(disk_, disk_.root(), ".ckptd").ok());
    if (member_first) {
      EXPECT_TRUE(member->CheckTarget("step_3").ok());
    }
    EXPECT_EQ(ReasonOf(coordinator->BeginPart(*in_flight, EarlierDaemon::kNone).status()), "ROOT_CHANGED");
    EXPECT_EQ(coordinator->Find(*in_flight).value(), SharedPlace::kLost);
    EXPECT_EQ(coordinator->RunId().value_or(""), run);
    EXPECT_EQ(member->RunId().value_or(""), run);
    EXPECT_TRUE(coordinator->Scan()->checkpoints.contains(1));
  }
  const SharedInflight later = Save(*coordinator, "step_3", 3, {{"latest", "step_3"}});
  EXPECT_EQ(member->Find(later).value(), SharedPlace::kPublished);
  const auto pointers = coordinator->UpdatePointers(member->Scan()->checkpoints);
  EXPECT_TRUE(pointers.ok()) << pointers.status();
  EXPECT_EQ(ReadSmallFile(disk_, disk_.root(), "latest", 100).value_or(""), "step_3");
}

TEST_F(SharedRootStoreTest, SaveThatWasPublishedIsNotLostWithTheDirectory) {
  const Store coordinator = Open("a");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  const SharedInflight published = Save(*coordinator, "step_1", 1, {});
  ASSERT_TRUE(RemoveTree(disk_, disk_.root(), "step_1").ok());
  ASSERT_TRUE(RemoveTree(disk_, disk_.root(), ".ckptd").ok());
  EXPECT_EQ(coordinator->Find(published).value(), SharedPlace::kNowhere);
}

TEST_F(SharedRootStoreTest, RootOfAnotherRunIsNotTakenForTheOneThatWasRemoved) {
  const Store first = Open("a");
  ASSERT_TRUE(first->RunId().ok());
  ASSERT_TRUE(RemoveTree(disk_, disk_.root(), ".ckptd").ok());
  const Store second = Open("b");  // It has not known the run.
  ASSERT_TRUE(second->RunId().ok());
  const absl::Status refused = first->CheckTarget("step_1");
  EXPECT_EQ(ReasonOf(refused), "ROOT_CHANGED") << refused;
}

TEST_F(SharedRootStoreTest, SaveThatEndedIsDiscardedAndRemoved) {
  const Store coordinator = Open("a");
  const auto save = coordinator->MakeInflight("step_1", 5);
  ASSERT_TRUE(save.ok());
  ASSERT_TRUE(coordinator->Discard(save->name).ok());
  EXPECT_EQ(coordinator->Find(*save).value(), SharedPlace::kInTrash);
  EXPECT_EQ(coordinator->Scan()->in_trash.size(), 1U);
  RemovalBudget budget;
  EXPECT_TRUE(coordinator->RemoveFromTrash(save->name, budget).value());
  EXPECT_EQ(coordinator->Find(*save).value(), SharedPlace::kNowhere);
}

TEST_F(SharedRootStoreTest, ReplacedCheckpointGoesFirstAndItsPointersAreInherited) {
  const Store coordinator = Open("a");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  Save(*coordinator, "step_1", 5, {{"latest", "step_1"}, {"mine", "5"}});
  const auto save = coordinator->MakeInflight("step_1", 6);
  ASSERT_TRUE(save.ok());
  EXPECT_EQ(Publish(*coordinator, *save, {{"mine", "6"}}).value(), 5);
  const auto replaced = coordinator->FindReplaced(*save, FactsOf(*save), digests_);
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ(replaced->sequence, 5);
  EXPECT_THAT(replaced->pointers, ElementsAre(::testing::Pair("latest", "step_1")));
  Remove(*coordinator, "step_1", 5);
  EXPECT_EQ(coordinator->Publish(*save, FactsOf(*save), digests_).value(), 0);
  EXPECT_EQ(coordinator->OpenCheckpoint("step_1", 5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(coordinator->OpenCheckpoint("step_1", 6).ok());
}

TEST_F(SharedRootStoreTest, TargetIsCheckedAgainstPinsAndForeignDirectories) {
  const Store coordinator = Open("a");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  Save(*coordinator, "step_1", 5);
  EXPECT_TRUE(coordinator->CheckTarget("step_1").ok());
  EXPECT_TRUE(coordinator->CheckTarget("new", {"latest"}).ok());
  PlantAt(disk_, "theirs/x", "mine");
  EXPECT_EQ(ReasonOf(coordinator->CheckTarget("theirs")), "TAG_FOREIGN");
  EXPECT_EQ(ReasonOf(coordinator->CheckTarget("new", {"theirs"})), "POINTER_FOREIGN");
  EXPECT_EQ(ReasonOf(coordinator->CheckTarget("../x")), "INVALID_TAG");
  SharedRunRecord record = coordinator->LoadRecord({}).value();
  SetPinned(record, "step_1", 5, true);
  ASSERT_TRUE(coordinator->StoreRecord(record).ok());
  EXPECT_EQ(ReasonOf(coordinator->CheckTarget("step_1")), "PINNED");
  EXPECT_TRUE(coordinator->Scan()->checkpoints.at(5).pinned);
  RemovalBudget one;
  one.names = 1;
  EXPECT_FALSE(coordinator->Remove("step_1", 5, one).value());
  EXPECT_TRUE(coordinator->CheckTarget("step_1").ok()) << "it is half removed";
}

// The record may be of an earlier time. A save that the ledger lets replace a checkpoint does so.
TEST_F(SharedRootStoreTest, WhatTheLedgerSaysOfAPinCountsMoreThanTheRecord) {
  const Store coordinator = Open("a");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  Save(*coordinator, "step_1", 5);
  const auto is_pinned = [&] { return coordinator->FindCheckpoint("step_1", 5)->pinned; };
  coordinator->SetPinned(5, true);
  EXPECT_TRUE(is_pinned());
  EXPECT_TRUE(coordinator->Scan()->checkpoints.at(5).pinned);
  EXPECT_EQ(ReasonOf(coordinator->CheckTarget("step_1")), "PINNED");
  SharedRunRecord record = coordinator->LoadRecord({}).value();
  EXPECT_TRUE(is_pinned()) << "the record was read since";
  SetPinned(record, "step_1", 5, true);
  ASSERT_TRUE(coordinator->StoreRecord(record).ok());
  coordinator->SetPinned(5, false);
  EXPECT_FALSE(is_pinned());
  EXPECT_FALSE(coordinator->Scan()->checkpoints.at(5).pinned);
  EXPECT_TRUE(coordinator->CheckTarget("step_1").ok());
}

TEST_F(SharedRootStoreTest, RecordIsSeenByOtherNodes) {
  const Store coordinator = Open("a"), other = Open("b");
  SharedRunRecord record = coordinator->LoadRecord({}).value();
  EXPECT_FALSE(coordinator->StoreRecord(record).ok()) << "it has begun no term";
  ASSERT_TRUE(coordinator->BeginTerm(4).ok());
  Save(*coordinator, "step_1", 5);
  SetDamage(record, "step_1", 5, storage::v1::Damage());
  record.mutable_run()->set_num_kept_ckpts(3);
  const auto version = coordinator->StoreRecord(record);
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, (RecordVersion{4, 1}));
  EXPECT_FALSE(other->Scan()->checkpoints.at(5).damage.has_value()) << "it has not read it yet";
  EXPECT_EQ(other->LoadRecord(*version)->run().num_kept_ckpts(), 3);
  EXPECT_TRUE(other->Scan()->checkpoints.at(5).damage.has_value());
}

// A late coordinator's pointer that has got through is put right by the next update, whoever makes it.
TEST_F(SharedRootStoreTest, PointersFollowTheNewestUndamagedCheckpoint) {
  const Store first = Open("a"), second = Open("b");
  EXPECT_FALSE(first->UpdatePointers({}).ok()) << "it has begun no term";
  ASSERT_TRUE(first->BeginTerm(1).ok());
  Save(*first, "step_1", 5, {{"latest", "step_1"}});
  auto committed = first->Scan()->checkpoints;
  EXPECT_THAT(first->UpdatePointers(committed)->holders, ElementsAre(5));
  EXPECT_EQ(disk_.Content("latest"), "step_1");
  ASSERT_TRUE(second->BeginTerm(2).ok());
  Save(*second, "step_2", 6, {{"latest", "step_2"}});
  const auto older = committed;
  committed = second->Scan()->checkpoints;
  EXPECT_THAT(second->UpdatePointers(committed)->holders, ElementsAre(6));
  EXPECT_FALSE(first->UpdatePointers(older)->warnings.empty()) << "it is late";
  EXPECT_EQ(disk_.Content("latest"), "step_2");
  disk_.Plant("latest", "step_1");
  EXPECT_TRUE(second->UpdatePointers(committed)->warnings.empty());
  EXPECT_EQ(disk_.Content("latest"), "step_2");
  committed.at(6).damage.emplace();
  EXPECT_THAT(second->UpdatePointers(committed)->holders, ElementsAre(5));
  EXPECT_EQ(disk_.Content("latest"), "step_1");
}

// What the next term removes file by file, a late coordinator may publish at any moment.
TEST_F(SharedRootStoreTest, ACheckpointThatAnEarlierCoordinatorPutsTogetherIsWholeOrMovedAway) {
  const Store first = Open("a"), second = Open("b");
  ASSERT_TRUE(first->BeginTerm(1).ok());
  const std::string name = "step_9.1.00000000000000ab";
  const auto term = OpenScoped(disk_, disk_.root(), ".ckptd/shared/term.1", OpenMode::kDirectory);
  ASSERT_TRUE(disk_.MakeDir(term->get(), name).ok());
  ASSERT_TRUE(WriteNewFile(disk_, term->get(), name + "/a", "1").ok());
  ASSERT_TRUE(WriteNewFile(disk_, term->get(), name + "/b", "2").ok());
  bool was_torn = false;
  disk_.OnChange([&](const std::string&) {
    was_torn |= disk_.Exists(".ckptd/shared/term.1/" + name) &&
                !(disk_.Exists(".ckptd/shared/term.1/" + name + "/a") &&
                  disk_.Exists(".ckptd/shared/term.1/" + name + "/b"));
  });
  ASSERT_TRUE(second->BeginTerm(2).ok());
  EXPECT_FALSE(was_torn);
  EXPECT_FALSE(disk_.Exists(".ckptd/shared/term.1"));
  EXPECT_FALSE(disk_.Rename(term->get(), name, disk_.root(), "step_9", RenameMode::kReplace).ok());
  const auto trash = second->InTrash();
  ASSERT_THAT(*trash, ::testing::SizeIs(1)) << "the next sweep removes it";
  EXPECT_EQ(trash->front().sequence, 1);
}

// ---- readers

TEST_F(SharedRootStoreTest, ReaderFindsNoCheckpointOfAnotherSequenceOrTag) {
  const Store store = Open("a");
  ASSERT_TRUE(store->BeginTerm(1).ok());
  Save(*store, "step_1", 5);
  for (const auto& [tag, sequence] : std::vector<std::pair<std::string, int64_t>>{
           {"step_1", 4}, {"step_2", 5}, {"notes", 5}, {"file", 5}}) {
    PlantAt(disk_, "notes", FileType::kDirectory);
    disk_.Plant("file", "x");
    EXPECT_EQ(ReasonOf(store->OpenCheckpoint(tag, sequence).status()), "NO_CHECKPOINT") << tag;
  }
  EXPECT_EQ(ReasonOf(store->OpenCheckpoint("../x", 5).status()), "INVALID_TAG");
}

TEST_F(SharedRootStoreTest, MissingFileIsDamageAndARemovalIsNot) {
  const Store store = Open("a");
  ASSERT_TRUE(store->BeginTerm(1).ok());
  Save(*store, "step_1", 5);
  ASSERT_TRUE(disk_.Remove(disk_.root(), "step_1/state_0.pt", FileType::kRegular).ok());
  EXPECT_EQ(ReasonOf(store->OpenCheckpoint("step_1", 5).status()), "SHORT_FILE");
  RemovalBudget one;
  one.names = 1;
  EXPECT_FALSE(store->Remove("step_1", 5, one).value());
  EXPECT_EQ(ReasonOf(store->OpenCheckpoint("step_1", 5).status()), "NO_CHECKPOINT");
}

// On NFS, a node goes on to see for some time what another one has removed.
TEST_F(SharedRootStoreTest, DirectoryThatIsStaleIsOpenedAnewForTheNextSave) {
  FaultyFileSystem faulty(&disk_);
  const Store store = OpenWith(faulty, "a");
  ASSERT_TRUE(store->BeginTerm(1).ok());
  const auto before = store->MakeInflight("step_1", 1);
  ASSERT_TRUE(before.ok()) << before.status();
  faulty.Fail({.op = FsOp::kMakeDir, .error = ESTALE});
  const auto made = store->MakeInflight("step_2", 2);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(store->Find(*made).value(), SharedPlace::kInFlight);
  EXPECT_EQ(store->Find(*before).value(), SharedPlace::kInFlight) << "it is the same directory still";
}

TEST_F(SharedRootStoreTest, DirectoryThatIsStaleIsOpenedAnewForTheNextPart) {
  const Store coordinator = Open("a");
  ASSERT_TRUE(coordinator->BeginTerm(1).ok());
  FaultyFileSystem faulty(&disk_);
  const Store member = OpenWith(faulty, "b");
  const auto save = coordinator->MakeInflight("step_1", 1);
  ASSERT_TRUE(save.ok()) << save.status();
  const int before = faulty.Count(FsOp::kOpen);
  faulty.Fail({.op = FsOp::kStat, .error = ESTALE});
  const auto part = member->BeginPart(*save, EarlierDaemon::kNone);
  EXPECT_TRUE(part.ok()) << part.status();
  EXPECT_GT(faulty.Count(FsOp::kOpen) - before, 3) << ".ckptd was not opened anew";
}

// A removal between any two calls of a reader that has not asked the ledger.
TEST_F(SharedRootStoreTest, RemovalWhileAReaderOpensIsNoDamage) {
  for (int at = 1;; ++at) {
    const Store store = Open("a");
    ASSERT_TRUE(store->BeginTerm(at).ok());
    Save(*store, "step_1", at);
    FaultyFileSystem faulty(&disk_);
    const Store reader = OpenWith(faulty, "b");
    int calls = 0;
    faulty.SetHook([&](const FsCall&) {
      if (++calls == at) Remove(*store, "step_1", at);
    });
    const auto opened = reader->OpenCheckpoint("step_1", at);
    faulty.SetHook(nullptr);
    if (calls < at) {
      EXPECT_TRUE(opened.ok()) << opened.status();
      EXPECT_GT(at, 8);
      return;
    }
    if (opened.ok()) continue;
    EXPECT_EQ(ReasonOf(opened.status()), "NO_CHECKPOINT") << at << ": " << opened.status();
  }
}

TEST_F(SharedRootStoreTest, ErrorOfTheDiskIsNeitherAbsenceNorDamage) {
  const Store store = Open("a");
  ASSERT_TRUE(store->BeginTerm(1).ok());
  Save(*store, "step_1", 5);
  for (const FsOp operation : {FsOp::kOpen, FsOp::kStat, FsOp::kReadAt}) {
    for (int nth = 1;; ++nth) {
      FaultyFileSystem faulty(&disk_);
      const Store reader = OpenWith(faulty, "b");
      const int before = faulty.Count(operation);
      faulty.Fail({.op = operation, .nth = nth, .error = EIO});
      const auto opened = reader->OpenCheckpoint("step_1", 5);
      if (faulty.Count(operation) - before < nth) {
        EXPECT_TRUE(opened.ok()) << opened.status();
        EXPECT_GT(nth, 1) << FsOpName(operation);
        break;
      }
      EXPECT_EQ(ErrnoOf(opened.status()), EIO) << FsOpName(operation) << " " << nth;
    }
  }
}

}  // namespace
}  // namespace ckptd
