// Guards of admission, fencing and retention: each of these tests fails when tools/mutate removes the guard
// that it is about.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <map>
#include <string>

#include "daemon/engine/engine.h"
#include "daemon/memory/populator.h"
#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int64_t kMiB = 1 << 20;

class GuardsTest : public EngineTest {
 protected:
  // A launch on another root than the first one; `run_` is its run from then on.
  std::vector<SessionId> LaunchOn(uint64_t inode, const std::string& launch, int world) {
    std::vector<SessionId> sessions;
    for (int rank = 0; rank < world; ++rank) {
      sessions.push_back(Trainer(launch + "/" + std::to_string(rank)));
      EXPECT_TRUE(JoinAs(sessions.back(), rank, world, launch, inode).status().ok());
    }
    return sessions;
  }
  Answer<v1::JoinRunResponse> JoinAs(SessionId session, int rank, int world, const std::string& launch,
                                     uint64_t inode = 1, const std::string& run_id = "") {
    v1::JoinRunRequest request;
    request.set_root(Attach(session, inode));
    request.set_rank(rank);
    request.set_world_size(world);
    request.set_launch_id(launch);
    request.set_run_id(run_id);
    Answer<v1::JoinRunResponse> answer;
    engine_->JoinRun(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::BeginResponse> Begun(SessionId session, const v1::BeginRequest& request) {
    Answer<v1::BeginResponse> begun = Begin(session, request);
    RunQueued([&] { return begun.has(); });
    return begun;
  }
  Answer<v1::AbortResponse> Abort(SessionId session, const v1::SaveKey& key) {
    v1::AbortRequest request;
    *request.mutable_key() = key;
    Answer<v1::AbortResponse> answer;
    engine_->Abort(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::ExtendResponse> Extend(SessionId session, const v1::SaveKey& key, const std::string& path,
                                    int64_t bytes) {
    v1::ExtendRequest request;
    *request.mutable_key() = key;
    v1::FileSpec& file = *request.add_files();
    file.set_path(path);
    file.set_size_bytes(bytes);
    Answer<v1::ExtendResponse> answer;
    engine_->Extend(As(session), request, answer.reply());
    RunQueued([&] { return answer.has(); });
    return answer;
  }
  v1::BeginRequest GrowingOf(const std::string& tag) {
    v1::BeginRequest request;
    *request.mutable_key() = Key(0, tag);
    request.set_growing(true);
    return request;
  }
  Answer<v1::SealResponse> SealWith(SessionId session, const v1::SaveKey& key,
                                    const std::vector<std::pair<std::string, int64_t>>& files,
                                    const std::string& suspect = "") {
    v1::SealRequest request;
    *request.mutable_key() = key;
    request.set_suspect(suspect);
    for (const auto& [path, bytes] : files) {
      v1::FileSpec& file = *request.add_files();
      file.set_path(path);
      file.set_size_bytes(bytes);
    }
    Answer<v1::SealResponse> answer;
    engine_->Seal(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::Checkpoint> Pin(SessionId session, const std::string& tag, bool pinned = true) {
    Answer<v1::Checkpoint> answer;
    engine_->SetPinned(As(session), run_ + "/checkpoints/" + tag, pinned, answer.reply());
    RunQueued();
    return answer;
  }
  std::string EndOf(SessionId session, const v1::SaveKey& key) {
    auto wait = Wait(session, key);
    if (!wait.has()) return "none";
    const v1::Checkpoint& checkpoint = wait.get().checkpoint();
    return checkpoint.has_error() ? checkpoint.error().reason() : v1::Level_Name(checkpoint.level());
  }
  // How many saves have been admitted in a root. Their answers would also wait for the pool's thread.
  int Admitted(uint64_t inode) { return ios_[inode]->calls["CreateInflight"]; }
  // Starts the successor of a killed daemon on the same disks.
  void Restart() { Start(16); }
};

// ---- admission

TEST_F(GuardsTest, RefusesBeginOfSessionThatHasNotJoined) {
  auto sessions = Launch("a", 1);
  SessionId stranger = Trainer("stranger");
  EXPECT_EQ(Begin(stranger, BeginOf(0, "t", 1, 100)).reason(), "NOT_JOINED");
  EXPECT_EQ(Begin(sessions[0], BeginOf(1, "t", 1, 100)).reason(), "NOT_JOINED");
}

TEST_F(GuardsTest, RefusesInvalidPointerAndLeavesNoSave) {
  auto sessions = Launch("a", 1);
  auto request = BeginOf(0, "t", 1, 100);
  (*request.mutable_pointers())["../outside"] = "t";
  EXPECT_EQ(Begin(sessions[0], request).reason(), "INVALID_POINTER");
  EXPECT_EQ(Wait(sessions[0], request.key()).reason(), "UNKNOWN_SAVE");
}

TEST_F(GuardsTest, RefusesPartWhoseTotalSizeOverflows) {
  auto sessions = Launch("a", 1);
  auto request = BeginOf(0, "t", 1, int64_t{1} << 46);
  v1::FileSpec& more = *request.add_files();
  more.set_path("more");
  more.set_size_bytes(1);
  EXPECT_EQ(Begin(sessions[0], request).reason(), "INVALID_ARGUMENT");
}

TEST_F(GuardsTest, ValidatesEveryFieldOfARequest) {
  auto sessions = Launch("a", 1);
  const auto refused = [&](const std::function<void(v1::BeginRequest&)>& change) {
    v1::BeginRequest request = BeginOf(0, "t", 1, 100);
    change(request);
    return Begin(sessions[0], request).reason();
  };
  EXPECT_EQ(refused([](auto& r) { r.mutable_key()->set_tag("../t"); }), "INVALID_TAG");
  EXPECT_EQ(refused([](auto& r) { r.mutable_key()->set_ordinal(0); }), "INVALID_ARGUMENT");
  EXPECT_EQ(refused([](auto& r) { r.mutable_files(0)->set_path("../f"); }), "INVALID_PATH");
  EXPECT_EQ(refused([](auto& r) { r.mutable_files(0)->set_size_bytes(-1); }), "INVALID_ARGUMENT");
  EXPECT_EQ(refused([](auto& r) { r.mutable_files(0)->set_size_bytes(std::numeric_limits<int64_t>::max()); }),
            "INVALID_ARGUMENT");
  EXPECT_EQ(refused([](auto& r) {  // Each may be; their sum wraps.
              for (const char* path : {"g", "h"}) {
                v1::FileSpec& file = *r.add_files();
                file.set_path(path);
                file.set_size_bytes(int64_t{1} << 62);
              }
            }),
            "INVALID_ARGUMENT");
  EXPECT_EQ(refused([](auto& r) {
              for (int i = 0; i < 33; ++i) (*r.mutable_metrics())["m" + std::to_string(i)] = 1;
            }),
            "METRICS_TOO_LARGE");
  EXPECT_EQ(refused([](auto& r) { (*r.mutable_metrics())[std::string(65, 'm')] = 1; }), "METRICS_TOO_LARGE");
  EXPECT_EQ(refused([](auto& r) { r.mutable_timeout()->set_seconds(-1); }), "INVALID_ARGUMENT");
  EXPECT_EQ(refused([](auto& r) { r.mutable_timeout()->set_seconds(86401); }), "INVALID_ARGUMENT");
  EXPECT_TRUE(Begun(sessions[0], BeginOf(0, "t", 1, 100)).status().ok());
}

TEST_F(GuardsTest, RefusesBeginAndResumeDuringRescan) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {PublishOutcome::kIndeterminate, ErrnoError(EIO, "syncing the root")};
  ios_[1]->held.insert("Rescan");
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(EndOf(sessions[0], Key(0, "one")), "INDETERMINATE");
  EXPECT_EQ(Begin(sessions[0], BeginOf(0, "two", 2, 100)).reason(), "ROOT_READ_ONLY");
  auto resumed = Resume(sessions[0], 0);
  EXPECT_FALSE(resumed.has());
  ios_[1]->publish_result = {PublishOutcome::kCommitted, absl::OkStatus()};
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(resumed.status().ok()) << resumed.status();
  SaveAll(sessions, "two", 2);
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

TEST_F(GuardsTest, RootStaysReadOnlyWhenRescanFails) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {PublishOutcome::kIndeterminate, ErrnoError(EIO, "syncing the root")};
  ios_[1]->errors["Rescan"] = ErrnoError(EIO, "listing the root");
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(Begin(sessions[0], BeginOf(0, "two", 2, 100)).reason(), "ROOT_READ_ONLY");
}

TEST_F(GuardsTest, LivingProcessesAreKnownAfterRescan) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {PublishOutcome::kIndeterminate, ErrnoError(EIO, "syncing the root")};
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(Join(Trainer("another"), 0, 1, "a").reason(), "RANK_TAKEN");
}

// "one" is INDETERMINATE while the save of "two" is on its way.
class ReadOnlyRootTest : public GuardsTest {
 protected:
  void SetUp() override {
    GuardsTest::SetUp();
    ranks_ = Launch("a", 1);
    ios_[1]->hold_publish = true;
    SaveAll(ranks_, "one", 1);
  }
  // The sync after the rename of "one" fails. The scan that follows waits until the test calls Scan.
  void LoseOne() {
    ios_[1]->publish_result = {PublishOutcome::kIndeterminate, ErrnoError(EIO, "syncing the root")};
    ios_[1]->ReleaseHeld();
    ios_[1]->held.insert("Rescan");
    RunQueued();
    EXPECT_EQ(EndOf(ranks_[0], Key(0, "one")), "INDETERMINATE");
    ios_[1]->publish_result = {PublishOutcome::kCommitted, absl::OkStatus()};
  }
  void Scan() {
    ios_[1]->ReleaseHeld();
    RunQueued();
  }
  std::vector<SessionId> ranks_;
};

TEST_F(ReadOnlyRootTest, PublishesADurableSaveAfterTheScan) {
  SaveAll(ranks_, "two", 2);
  LoseOne();
  auto wait = Wait(ranks_[0], Key(0, "two"));
  EXPECT_FALSE(wait.has()) << "it is sealed and durable";
  EXPECT_EQ(ios_[1]->calls["Discard"], 0);
  Scan();
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().level(), v1::COMMITTED);
  EXPECT_THAT(Tags(), ElementsAre("two"));
  EXPECT_THAT(ios_[1]->inflight(), IsEmpty());
}

TEST_F(ReadOnlyRootTest, PublishesASaveThatBecomesDurableMeanwhileAfterTheScan) {
  ios_[1]->hold_writes = true;
  SaveAll(ranks_, "two", 2);
  LoseOne();
  EXPECT_EQ(ios_[1]->calls["Publish"], 1) << "it would only be refused";
  Scan();
  EXPECT_EQ(EndOf(ranks_[0], Key(0, "two")), "COMMITTED");
}

TEST_F(ReadOnlyRootTest, PublishesAfterTheScanThatSucceedsAtLast) {
  SaveAll(ranks_, "two", 2);
  LoseOne();
  ios_[1]->errors["Rescan"] = ErrnoError(EIO, "listing the root");
  Scan();
  auto wait = Wait(ranks_[0], Key(0, "two"));
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_FALSE(wait.has());
  ios_[1]->errors.clear();
  AdvanceClock(std::chrono::seconds(2));
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().level(), v1::COMMITTED);
}

TEST_F(ReadOnlyRootTest, MovesTheDirectoryOfAFailedSaveAwayAfterTheScan) {
  SaveAll(ranks_, "two", 2);
  LoseOne();
  auto wait = Wait(ranks_[0], Key(0, "two"));
  Abort(ranks_[0], Key(0, "two"));
  RunQueued();
  EXPECT_FALSE(wait.has()) << "recovery could bring it back";
  Scan();
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().error().reason(), "SAVE_ABORTED");
  EXPECT_THAT(ios_[1]->inflight(), IsEmpty());
  EXPECT_THAT(Tags(), IsEmpty());
}

TEST_F(ReadOnlyRootTest, MakesTheDirectoryOfAnAdmittedSaveAfterTheScan) {
  ios_[1]->held.insert("CreateInflight");
  SaveAll(ranks_, "two", 2);
  LoseOne();
  Scan();
  EXPECT_EQ(EndOf(ranks_[0], Key(0, "two")), "COMMITTED");
}

TEST_F(GuardsTest, PublishThatWaitsIsNotRetriedAfterAScan) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {
      .outcome = PublishOutcome::kFailed, .status = ErrnoError(EIO, "reading the tag"), .retryable = true};
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(ios_[1]->calls["Publish"], 1);
  ios_[1]->publish_result = {PublishOutcome::kIndeterminate, ErrnoError(EIO, "syncing the root")};
  SaveAll(sessions, "two", 2);
  EXPECT_EQ(EndOf(sessions[0], Key(0, "two")), "INDETERMINATE");
  EXPECT_EQ(ios_[1]->calls["Rescan"], 1);
  EXPECT_EQ(ios_[1]->calls["Publish"], 2) << "the scan retries nothing before its time";
}

TEST_F(GuardsTest, RetriesPublishWithBackoffAfterReadError) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {
      .outcome = PublishOutcome::kFailed, .status = ErrnoError(EIO, "reading the tag"), .retryable = true};
  SaveAll(sessions, "one", 1);
  auto wait = Wait(sessions[0], Key(0, "one"));
  EXPECT_EQ(ios_[1]->calls["Publish"], 1);
  for (int second = 0; second < 100; ++second) AdvanceClock(std::chrono::seconds(1));
  EXPECT_FALSE(wait.has());
  EXPECT_GE(ios_[1]->calls["Publish"], 6);
  EXPECT_LE(ios_[1]->calls["Publish"], 9) << "1 s, 2 s, 4 s, ... 32 s apart";
  EXPECT_EQ(std::count_if(observer_.warnings.begin(), observer_.warnings.end(),
                          [](const std::string& said) { return said.find("tried again") != said.npos; }),
            1);
  ios_[1]->publish_result = {PublishOutcome::kCommitted, absl::OkStatus()};
  AdvanceClock(std::chrono::seconds(33));
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().level(), v1::COMMITTED);
}

TEST_F(GuardsTest, AttemptThatCannotBeRecordedNeitherBeginsNorResumes) {
  auto sessions = Launch("a", 1);
  ios_[1]->errors["SaveRunRecord"] = ErrnoError(ENOSPC, "writing the run record");
  EXPECT_EQ(Begin(sessions[0], BeginOf(0, "one", 1, 100)).reason(), "NO_SPACE");
  EXPECT_EQ(Resume(sessions[0], 0).reason(), "NO_SPACE");
  ios_[1]->errors.clear();
  SaveAll(sessions, "one", 1);
  EXPECT_THAT(Tags(), ElementsAre("one"));
}

TEST_F(GuardsTest, AttemptThatCannotBeRecordedFencesNothing) {
  auto older = Launch("a", 1);
  auto half = BeginOf(0, "one", 1, 100);
  ASSERT_TRUE(Begun(older[0], half).status().ok());
  auto newer = Launch("b", 1);
  ios_[1]->errors["SaveRunRecord"] = ErrnoError(ENOSPC, "writing the run record");
  EXPECT_EQ(Resume(newer[0], 0).reason(), "NO_SPACE");
  EXPECT_EQ(Begin(newer[0], BeginOf(0, "two", 2, 100)).reason(), "NO_SPACE");
  EXPECT_EQ(EndOf(older[0], half.key()), "none");
}

TEST_F(GuardsTest, AttemptOvertakenWhileBeingRecordedGetsNoSequence) {
  auto older = Launch("a", 1);
  auto newer = Launch("b", 1);
  ios_[1]->held.insert("SaveRunRecord");
  auto second = Begin(newer[0], BeginOf(0, "new", 1, 100));
  auto first = Begin(older[0], BeginOf(0, "old", 1, 100));  // Is not fenced off yet: that is not on disk.
  ios_[1]->ReleaseHeld();
  RunQueued([&] { return first.has() && second.has(); });
  EXPECT_EQ(first.reason(), "FENCED");
  EXPECT_THAT(observer_.ended, IsEmpty()) << "there never was a save of the older one";
  EXPECT_TRUE(second.status().ok()) << second.status();
}

// A daemon that is killed before the outcome is on disk knows nothing of it after its restart.
TEST_F(GuardsTest, AttemptFencesNothingUntilItIsRecorded) {
  auto older = Launch("a", 2);
  auto one = BeginOf(0, "one", 1, 100), other = BeginOf(1, "one", 1, 100);
  auto begun = Begin(older[0], one);
  ASSERT_TRUE(Begun(older[1], other).status().ok());
  RunQueued([&] { return begun.has(); });
  auto newer = Launch("b", 2);
  ios_[1]->held.insert("SaveRunRecord");
  Begin(newer[0], BeginOf(0, "two", 2, 100));
  EXPECT_TRUE(Seal(older[0], one).status().ok());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(Seal(older[1], other).reason(), "FENCED");
  EXPECT_EQ(EndOf(older[0], one.key()), "FENCED");
}

TEST_F(GuardsTest, FirstBeginOrResumeOfNewAttemptEndsUnsealedSavesOfOlderOne) {
  for (const bool resume : {false, true}) {
    const std::string tag = resume ? "r" : "b";
    auto older = Launch("old" + tag, 1);
    auto half = BeginOf(0, tag, 1, 100);
    ASSERT_TRUE(Begun(older[0], half).status().ok());
    auto newer = Launch("new" + tag, 1);
    EXPECT_EQ(EndOf(older[0], half.key()), "none");
    if (resume) {
      Resume(newer[0], 0);
    } else {
      Begin(newer[0], BeginOf(0, tag + "2", 2, 100));
    }
    EXPECT_EQ(EndOf(older[0], half.key()), "FENCED") << tag;
  }
}

TEST_F(GuardsTest, RefusesBeginOfSaveCommittedByEarlierDaemon) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  Restart();
  auto again = Launch("a", 1);
  EXPECT_EQ(Begin(again[0], BeginOf(0, "one", 1, 100)).reason(), "SAVE_CONFLICT");
}

TEST_F(GuardsTest, RankThatJoinsFailingSaveReceivesItsReason) {
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "zero", 0);  // So that rank 0 need not wait for the size of rank 1.
  auto one = BeginOf(0, "one", 1, 100), other = BeginOf(1, "one", 1, 100);
  ASSERT_TRUE(Begun(sessions[0], one).status().ok());
  ios_[1]->hold_writes = true;
  Seal(sessions[0], one);
  ASSERT_TRUE(Abort(sessions[0], one.key()).status().ok());  // Its write is still under way.
  EXPECT_EQ(Begin(sessions[1], other).reason(), "SAVE_ABORTED");
  EXPECT_EQ(Seal(sessions[1], other).reason(), "SAVE_ABORTED");
  EXPECT_EQ(
      ReasonOf(
          engine_->BeginWrite(As(sessions[1]), other.key(), "rank1.pt", [](const absl::Status&) {}).status()),
      "SAVE_ABORTED");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("zero"));
}

TEST_F(GuardsTest, PartBelongsToSessionThatBeganIt) {
  auto sessions = Launch("a", 1);
  auto growing = GrowingOf("one");
  ASSERT_TRUE(Begun(sessions[0], growing).status().ok());
  SessionId again =
      Trainer("a/0");  // The same process on a second connection, and the first one still lives.
  ASSERT_TRUE(Join(again, 0, 1, "a").status().ok());
  EXPECT_EQ(Begin(again, growing).reason(), "RANK_TAKEN");
  EXPECT_EQ(Extend(again, growing.key(), "f", 100).reason(), "UNKNOWN_SAVE");
}

TEST_F(GuardsTest, RefusesSecondSizeForPlacedFile) {
  auto sessions = Launch("a", 1);
  auto growing = GrowingOf("one");
  ASSERT_TRUE(Begun(sessions[0], growing).status().ok());
  ASSERT_TRUE(Extend(sessions[0], growing.key(), "f", 100).status().ok());
  ASSERT_TRUE(Extend(sessions[0], growing.key(), "f", 100).status().ok()) << "a retry";
  EXPECT_EQ(Extend(sessions[0], growing.key(), "f", 101).reason(), "SAVE_CONFLICT");
}

TEST_F(GuardsTest, FileBelowFileOfOtherRankIsConflict) {
  auto sessions = Launch("a", 2);
  auto a = Begin(sessions[0], BeginOf(0, "one", 1, 100, "model"));
  auto b = Begin(sessions[1], BeginOf(1, "one", 1, 100, "model/b.pt"));
  EXPECT_EQ(b.reason(), "FILE_CONFLICT");
  EXPECT_EQ(a.reason(), "FILE_CONFLICT");
}

TEST_F(GuardsTest, DiskWithUnknownFreeSpaceHasNone) {
  auto sessions = Launch("a", 1);
  ios_[1]->errors["FreeBytes"] = ErrnoError(EIO, "asking for free space");
  EXPECT_EQ(Begin(sessions[0], BeginOf(0, "one", 1, 100)).reason(), "IO_ERROR");
}

TEST_F(GuardsTest, DirectoryThatCannotBeCreatedFailsSave) {
  auto sessions = Launch("a", 1);
  ios_[1]->errors["CreateInflight"] = ErrnoError(ENOSPC, "making a directory");
  Begin(sessions[0], BeginOf(0, "one", 1, 100));
  RunQueued();
  EXPECT_EQ(EndOf(sessions[0], Key(0, "one")), "NO_SPACE");
}

TEST_F(GuardsTest, YoungerSaveOfRunDoesNotOvertakeOneWaitingForDisk) {
  disks_[1] = std::make_shared<FakeDisk>();
  disks_[1]->free_bytes = 5 * kMiB;
  disks_[1]->trash_bytes = 20 * kMiB;
  auto sessions = Launch("a", 1);
  disks_[1]->free_bytes = 5 * kMiB;  // What recovery emptied was taken by somebody else.
  disks_[1]->trash_bytes = 20 * kMiB;
  ios_[1]->held.insert("EmptyTrash");
  SaveAll(sessions, "zero", 0);  // Its retention is emptying the trash from now on.
  auto older = Begin(sessions[0], BeginOf(0, "large", 1, 10 * kMiB));
  auto younger = Begin(sessions[0], BeginOf(0, "small", 2, 100));
  EXPECT_EQ(Admitted(1), 1) << "zero alone";
  ios_[1]->ReleaseHeld();
  RunQueued([&] { return older.has() && younger.has(); });
  EXPECT_TRUE(older.status().ok()) << older.status();
  EXPECT_TRUE(younger.status().ok()) << younger.status();
  EXPECT_LT(older.get().sequence(), younger.get().sequence());
}

TEST_F(GuardsTest, YoungerSaveOfRunDoesNotOvertakeOneWaitingForSizes) {
  auto sessions = Launch("a", 2);
  auto older = Begin(sessions[0], BeginOf(0, "a", 1, 100));
  auto first = Begin(sessions[0], BeginOf(0, "b", 2, 100)),
       second = Begin(sessions[1], BeginOf(1, "b", 2, 100));
  EXPECT_EQ(Admitted(1), 0);
  Begin(sessions[1], BeginOf(1, "a", 1, 100));
  RunQueued([&] { return older.has() && first.has() && second.has(); });
  EXPECT_TRUE(first.status().ok()) << first.status();
}

TEST_F(GuardsTest, SaveOfOtherRunDoesNotTakeMemoryThatOlderOneWaitsFor) {
  Start(4);
  auto third = LaunchOn(3, "c", 1);
  ASSERT_TRUE(Begun(third[0], BeginOf(0, "held", 1, 2 * kSegment)).status().ok());
  auto one = LaunchOn(1, "a", 1);
  auto older = Begin(one[0], BeginOf(0, "large", 2, 4 * kSegment));
  auto two = LaunchOn(2, "b", 1);
  auto younger = Begin(two[0], BeginOf(0, "small", 1, kSegment));
  RunQueued();
  EXPECT_EQ(Admitted(1), 0);
  EXPECT_EQ(Admitted(2), 0) << "there is memory for it, but an older one waits for that";
}

TEST_F(GuardsTest, HungRootHoldsNoMemoryOrDiskOfOthers) {
  Start(4);
  auto third = LaunchOn(3, "c", 1);
  ASSERT_TRUE(Begun(third[0], BeginOf(0, "held", 1, 2 * kSegment)).status().ok());
  auto one = LaunchOn(1, "a", 1);
  disks_[1]->free_bytes = 20 * kMiB;
  Begin(one[0], BeginOf(0, "large", 2, 4 * kSegment));  // Waits for memory.
  ios_[1]->SetPendingSince(clock_.now);
  AdvanceClock(std::chrono::seconds(11));
  disks_[2] = std::make_shared<FakeDisk>();
  disks_[2]->free_bytes = 10 * kMiB;  // The same disk; 4 MiB of it are for "held", none yet for "large".
  auto two = LaunchOn(2, "b", 1);
  auto younger = Begin(two[0], BeginOf(0, "small", 1, kSegment));
  RunQueued([&] { return younger.has(); });
  EXPECT_TRUE(younger.status().ok()) << younger.status();
}

TEST_F(GuardsTest, BytesStillToBeWrittenByOtherSavesAreNotFree) {
  auto sessions = Launch("a", 1);
  disks_[1]->free_bytes = 10 * kMiB;
  auto one = BeginOf(0, "one", 1, 6 * kMiB), two = BeginOf(0, "two", 2, 6 * kMiB);
  ASSERT_TRUE(Begun(sessions[0], one).status().ok());
  auto second = Begin(sessions[0], two);
  RunQueued();
  EXPECT_EQ(Admitted(1), 1) << "the second one waits: the first one may fail";
  auto elsewhere = LaunchOn(100, "b", 1);  // Another disk.
  disks_[100]->free_bytes = 10 * kMiB;
  auto third = Begin(elsewhere[0], BeginOf(0, "three", 1, 6 * kMiB));
  RunQueued([&] { return third.has(); });
  EXPECT_TRUE(third.status().ok()) << third.status();
}

TEST_F(GuardsTest, BytesWrittenByEndedSaveAreNotFree) {
  auto sessions = Launch("a", 1);
  ios_[1]->hold_publish = true;
  auto one = BeginOf(0, "one", 1, 6 * kMiB);
  ASSERT_TRUE(Begun(sessions[0], one).status().ok());
  ASSERT_TRUE(Seal(sessions[0], one).status().ok());
  disks_[1]->free_bytes = 10 * kMiB;  // With what was written taken off.
  auto two = Begin(sessions[0], BeginOf(0, "two", 2, 12 * kMiB));
  ios_[1]->ReleaseHeld();
  RunQueued([&] { return two.has(); });
  EXPECT_EQ(two.reason(), "NO_SPACE");
}

TEST_F(GuardsTest, FindsRoomFreedByOthersWithoutPollingInALoop) {
  auto sessions = Launch("a", 1);
  disks_[1]->free_bytes = 10 * kMiB;
  ASSERT_TRUE(Begun(sessions[0], BeginOf(0, "one", 1, 6 * kMiB)).status().ok());
  const int before = ios_[1]->calls["FreeBytes"];
  auto second = Begin(sessions[0], BeginOf(0, "two", 2, 6 * kMiB));
  EXPECT_LE(ios_[1]->calls["FreeBytes"], before + 2);
  disks_[1]->free_bytes = 20 * kMiB;
  AdvanceClock(std::chrono::seconds(1));
  RunQueued([&] { return second.has(); });
  EXPECT_TRUE(second.status().ok()) << second.status();
}

// In each step that may free space: writing the history, moving the evicted checkpoint to the trash, removing
// it, and asking the file system for its free space.
TEST_F(GuardsTest, WaitsForRoomOfCheckpointBeingEvicted) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, /*keep=*/1);
  RunQueued([&] { return !observer_.ended.empty(); });
  disks_[1]->free_bytes = 5 * kMiB;
  ios_[1]->hold_publish = true;
  SaveAll(sessions, "two", 2, /*keep=*/1);
  auto three = Begin(sessions[0], BeginOf(0, "three", 3, 6 * kMiB));
  for (const char* call : {"SaveRunRecord", "Evict", "EmptyTrash", "FreeBytes"}) {
    ios_[1]->ReleaseHeld();
    ios_[1]->held.insert(call);
    RunQueued();
    for (int looks = 0; looks < 2; ++looks) AdvanceClock(std::chrono::seconds(1));
    EXPECT_FALSE(three.has()) << call << ": " << three.status();
  }
  disks_[1]->free_bytes = 20 * kMiB;
  ios_[1]->ReleaseHeld();
  RunQueued([&] { return three.has(); });
  EXPECT_TRUE(three.status().ok()) << three.status();
}

TEST_F(GuardsTest, BytesWrittenByASaveAreSubtractedOnce) {
  auto sessions = Launch("a", 1);
  disks_[1]->free_bytes = 16 * kMiB;
  auto one = BeginOf(0, "one", 1, 6 * kMiB), two = BeginOf(0, "two", 2, 6 * kMiB);
  ASSERT_TRUE(Begun(sessions[0], one).status().ok());
  ios_[1]->hold_publish = true;
  Seal(sessions[0], one);
  disks_[1]->free_bytes = 10 * kMiB;  // It is written now.
  auto second = Begin(sessions[0], two);
  RunQueued([&] { return second.has(); });
  EXPECT_TRUE(second.status().ok()) << second.status();
}

TEST_F(GuardsTest, AdmitsNothingUntilComingRoomIsFree) {
  auto sessions = Launch("a", 1);
  ios_[1]->held.insert("EmptyTrash");
  SaveAll(sessions, "zero", 0);
  disks_[1]->free_bytes = 5 * kMiB;
  disks_[1]->trash_bytes = 20 * kMiB;
  auto begun = Begin(sessions[0], BeginOf(0, "one", 1, 10 * kMiB));
  EXPECT_EQ(Admitted(1), 1) << "zero alone";
  auto skipped = BeginOf(0, "two", 2, 10 * kMiB);
  skipped.set_busy(v1::SKIP);
  AdvanceClock(std::chrono::seconds(31));  // "one" gives up.
  EXPECT_EQ(begun.reason(), "ADMISSION_TIMEOUT");
  EXPECT_EQ(Begin(sessions[0], skipped).get().level(), v1::SKIPPED);
}

TEST_F(GuardsTest, SupersedeSparesSealedSavesAndItself) {
  Start(4);
  auto sessions = Launch("a", 1);
  ios_[1]->hold_writes = true;
  auto one = BeginOf(0, "one", 1, 4 * kSegment), two = BeginOf(0, "two", 2, 4 * kSegment);
  ASSERT_TRUE(Begun(sessions[0], one).status().ok());
  Seal(sessions[0], one);
  two.set_busy(v1::SUPERSEDE);
  auto younger = Begin(sessions[0], two);
  EXPECT_FALSE(younger.has());
  ios_[1]->ReleaseHeld();
  RunQueued([&] { return younger.has(); });
  EXPECT_TRUE(younger.status().ok()) << younger.status();
  EXPECT_THAT(Tags(), ElementsAre("one"));
}

TEST_F(GuardsTest, PartThatGrowsBeyondPoolFailsItsSave) {
  Start(4);
  auto sessions = Launch("a", 1);
  auto growing = GrowingOf("one");
  ASSERT_TRUE(Begun(sessions[0], growing).status().ok());
  EXPECT_EQ(Extend(sessions[0], growing.key(), "f", 5 * kSegment).reason(), "POOL_TOO_SMALL");
  EXPECT_EQ(EndOf(sessions[0], growing.key()), "POOL_TOO_SMALL");
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(GuardsTest, PartThatGrowsBeyondDiskFailsItsSaveBeforeCopying) {
  auto sessions = Launch("a", 1);
  disks_[1]->free_bytes = 5 * kMiB;
  auto growing = GrowingOf("one");
  ASSERT_TRUE(Begun(sessions[0], growing).status().ok());
  EXPECT_TRUE(Extend(sessions[0], growing.key(), "fits", kMiB).status().ok());
  EXPECT_EQ(Extend(sessions[0], growing.key(), "does_not", 10 * kMiB).reason(), "NO_SPACE");
  EXPECT_EQ(EndOf(sessions[0], growing.key()), "NO_SPACE");
}

// The part grows by less than a segment: it needs more disk, but no more memory.
TEST_F(GuardsTest, PartThatGrowsWithinItsSegmentStillNeedsDisk) {
  auto sessions = Launch("a", 1);
  disks_[1]->free_bytes = kMiB + 200 * 1024;
  auto growing = GrowingOf("one");
  ASSERT_TRUE(Begun(sessions[0], growing).status().ok());
  ASSERT_TRUE(Extend(sessions[0], growing.key(), "fits", 100 * 1024).status().ok());
  EXPECT_EQ(Extend(sessions[0], growing.key(), "does_not", 500 * 1024).reason(), "NO_SPACE");
}

TEST_F(GuardsTest, RankWithMoreThanInLastSaveReservesDiskToo) {
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "zero", 0);
  disks_[1]->free_bytes = 5 * kMiB;
  ASSERT_TRUE(Begun(sessions[0], BeginOf(0, "one", 1, 100)).status().ok());  // Admitted by the last sizes.
  EXPECT_EQ(Begin(sessions[1], BeginOf(1, "one", 1, 10 * kMiB)).reason(), "NO_SPACE");
}

// The machine has less memory than the pool's budget.
TEST_F(GuardsTest, MissingMemoryFailsSave) {
  make_populator_ = [this](int64_t, Populator::Made made) {
    return std::make_unique<NoMemory>(&inbox_, std::move(made));
  };
  Start(4);
  auto sessions = Launch("a", 1);
  auto begun = Begin(sessions[0], BeginOf(0, "one", 1, 100));
  RunQueued([&] { return begun.has(); });
  EXPECT_EQ(begun.reason(), "POOL_EXHAUSTED");
  EXPECT_EQ(EndOf(sessions[0], Key(0, "one")), "POOL_EXHAUSTED");
}

TEST_F(GuardsTest, AnswersBeginWhenPartHasAllItsMemory) {
  auto sessions = Launch("a", 1);
  ios_[1]->held.insert("CreateInflight");
  auto request = BeginOf(0, "one", 1, 12 * kSegment);
  auto first = Begin(sessions[0], request), retry = Begin(sessions[0], request);
  RunQueued([&] { return first.has() && retry.has(); });
  EXPECT_EQ(first.get().segments_size(), 12);
  EXPECT_EQ(retry.get().segments_size(), 12);
}

TEST_F(GuardsTest, OnlyUnsealedGrowingPartAcceptsMoreFiles) {
  auto sessions = Launch("a", 2);
  auto fixed = BeginOf(1, "one", 1, 100);
  auto growing = GrowingOf("one");
  growing.set_step(1);
  auto a = Begin(sessions[0], growing), b = Begin(sessions[1], fixed);
  RunQueued([&] { return a.has() && b.has(); });
  EXPECT_EQ(Extend(sessions[1], fixed.key(), "g", 100).reason(), "SEALED");
  EXPECT_EQ(Extend(sessions[0], growing.key(), "../f", 100).reason(), "INVALID_PATH");
  ASSERT_TRUE(Extend(sessions[0], growing.key(), "f", 100).status().ok());
  ASSERT_TRUE(SealWith(sessions[0], growing.key(), {{"f", 100}}).status().ok());
  EXPECT_EQ(Extend(sessions[0], growing.key(), "h", 100).reason(), "SEALED");
}

TEST_F(GuardsTest, FilesThatRankPlacedItselfFitItsMemory) {
  auto sessions = Launch("a", 1);
  auto one = GrowingOf("one"), two = GrowingOf("two");
  ASSERT_TRUE(Begun(sessions[0], one).status().ok());
  EXPECT_EQ(SealWith(sessions[0], one.key(), {{"f", -1}}).reason(), "INVALID_ARGUMENT");
  ASSERT_TRUE(Extend(sessions[0], one.key(), "f", 100).status().ok()) << "the Seal has changed nothing";
  ASSERT_TRUE(SealWith(sessions[0], one.key(), {{"f", 100}}).status().ok());
  ASSERT_EQ(Begun(sessions[0], two).get().segments_size(), 1);
  EXPECT_EQ(SealWith(sessions[0], two.key(), {{"f", 100}, {"g", kSegment}}).reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(EndOf(sessions[0], two.key()), "INVALID_ARGUMENT");
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(GuardsTest, OnlySessionThatBeganPartPlacesItsFiles) {
  auto sessions = Launch("a", 1);
  auto growing = GrowingOf("one");
  ASSERT_TRUE(Begun(sessions[0], growing).status().ok());
  SessionId again = Trainer("a/0");
  ASSERT_TRUE(Join(again, 0, 1, "a").status().ok());
  EXPECT_EQ(SealWith(again, growing.key(), {{"f", 1}}).reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(Begin(again, growing).reason(), "RANK_TAKEN") << "the save goes on";
}

TEST_F(GuardsTest, FileThatRankPlacedItselfAndOtherRankHasIsConflict) {
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "zero", 0);
  auto fixed = BeginOf(1, "one", 1, 100, "f");
  auto growing = GrowingOf("one");
  growing.set_step(1);
  auto a = Begin(sessions[0], growing), b = Begin(sessions[1], fixed);
  RunQueued([&] { return a.has() && b.has(); });
  EXPECT_EQ(SealWith(sessions[0], growing.key(), {{"f", 100}}).reason(), "FILE_CONFLICT");
  EXPECT_EQ(EndOf(sessions[1], fixed.key()), "FILE_CONFLICT");
}

TEST_F(GuardsTest, FilesThatRankPlacedItselfCountForDisk) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "zero", 0);
  disks_[1]->free_bytes = kMiB + 3 * 4096;  // What a save of one page needs, and one file more.
  auto growing = GrowingOf("one");
  ASSERT_TRUE(Begun(sessions[0], growing).status().ok());
  EXPECT_EQ(SealWith(sessions[0], growing.key(), {{"f", 1}, {"g", 0}, {"h", 0}}).reason(), "NO_SPACE");
}

// ---- from Seal to the end of the save

TEST_F(GuardsTest, SealsOnlyPlacedAndGrantedFiles) {
  auto sessions = Launch("a", 2);
  auto one = BeginOf(0, "one", 1, 100), other = BeginOf(1, "one", 1, 100);
  Begin(sessions[0], one);
  EXPECT_EQ(Seal(sessions[0], one).reason(), "UNKNOWN_SAVE") << "Begin is not answered: rank 1 is missing";
  EXPECT_EQ(
      ReasonOf(
          engine_->BeginWrite(As(sessions[0]), one.key(), "rank0.pt", [](const absl::Status&) {}).status()),
      "UNKNOWN_FILE");
  ASSERT_TRUE(Begun(sessions[1], other).status().ok());
  const std::vector<std::vector<std::pair<std::string, int64_t>>> wrong = {
      {{"other.pt", 100}}, {{"rank0.pt", 101}}, {{"rank0.pt", 100}, {"rank0.pt", 100}}, {{"rank0.pt", -1}}};
  for (const auto& files : wrong) {
    EXPECT_EQ(SealWith(sessions[0], one.key(), files).reason(), "INVALID_ARGUMENT") << files[0].first;
  }
  const std::string long_words(301, 'x');  // They would not fit into the manifest.
  EXPECT_EQ(SealWith(sessions[0], one.key(), {{"rank0.pt", 100}}, long_words).reason(), "INVALID_ARGUMENT");
  EXPECT_TRUE(Seal(sessions[0], one).status().ok());
}

TEST_F(GuardsTest, SecondSealChangesNothing) {
  auto sessions = Launch("a", 2);
  auto one = BeginOf(0, "one", 1, 100), other = BeginOf(1, "one", 1, 100);
  auto a = Begin(sessions[0], one), b = Begin(sessions[1], other);
  ios_[1]->held.insert("CreateInflight");
  RunQueued([&] { return a.has() && b.has(); });
  ASSERT_TRUE(Seal(sessions[0], one).status().ok());
  EXPECT_EQ(SealWith(sessions[0], one.key(), {}).get().level(), v1::STAGED);
  ios_[1]->ReleaseHeld();
  RunQueued();
  ASSERT_TRUE(Seal(sessions[1], other).status().ok());
  EXPECT_THAT(Tags(), ElementsAre("one"));
  EXPECT_EQ(disks_[1]->bytes.size(), 2u);
}

TEST_F(GuardsTest, WritesSealedPartsWhenNoRankCopiesAnyLonger) {
  auto sessions = Launch("a", 2);
  auto one = BeginOf(0, "one", 1, 100), other = BeginOf(1, "one", 1, 100);
  auto a = Begin(sessions[0], one), b = Begin(sessions[1], other);
  RunQueued([&] { return a.has() && b.has(); });
  Seal(sessions[0], one);
  RunQueued();
  EXPECT_EQ(ios_[1]->calls["WritePart"], 0);
  ios_[1]->hold_writes = true;
  Seal(sessions[1], other);
  EXPECT_EQ(ios_[1]->calls["WritePart"], 2);
}

TEST_F(GuardsTest, WritesPartOnceOneSecondAfterItIsSealedIfAnotherRankStillCopies) {
  auto sessions = Launch("a", 3);
  auto one = BeginOf(0, "one", 1, 100), other = BeginOf(1, "one", 1, 100), last = BeginOf(2, "one", 1, 100);
  auto a = Begin(sessions[0], one), b = Begin(sessions[1], other), c = Begin(sessions[2], last);
  RunQueued([&] { return a.has() && b.has() && c.has(); });
  ios_[1]->hold_writes = true;
  Seal(sessions[0], one);
  AdvanceClock(std::chrono::milliseconds(990));
  EXPECT_EQ(ios_[1]->calls["WritePart"], 0);
  AdvanceClock(std::chrono::milliseconds(10));
  EXPECT_EQ(ios_[1]->calls["WritePart"], 1);
  Seal(sessions[1], other);  // The save has waited long enough.
  EXPECT_EQ(ios_[1]->calls["WritePart"], 2);
  Seal(sessions[2], last);
  EXPECT_EQ(ios_[1]->calls["WritePart"], 3);
}

TEST_F(GuardsTest, PublishesSaveWhenEveryPartIsDurable) {
  auto sessions = Launch("a", 2);
  auto one = BeginOf(0, "one", 1, 100), other = BeginOf(1, "one", 1, 100);
  auto a = Begin(sessions[0], one), b = Begin(sessions[1], other);
  RunQueued([&] { return a.has() && b.has(); });
  ios_[1]->hold_writes = true;
  Seal(sessions[0], one);
  AdvanceClock(std::chrono::seconds(1));  // Its part is being written from now on.
  ios_[1]->hold_writes = false;
  Seal(sessions[1], other);  // Durable at once, the other one is not.
  EXPECT_EQ(ios_[1]->calls["Publish"], 0);
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("one"));
}

TEST_F(GuardsTest, PublishesYoungerSaveOfTagAfterOlderOne) {
  auto sessions = Launch("a", 1);
  auto older = BeginOf(0, "t", 1, 100), younger = BeginOf(0, "t", 2, 100);
  younger.mutable_key()->set_ordinal(2);
  ASSERT_TRUE(Begun(sessions[0], older).status().ok());
  ASSERT_TRUE(Begun(sessions[0], younger).status().ok());
  ios_[1]->hold_writes = true;
  Seal(sessions[0], older);
  ios_[1]->hold_writes = false;
  Seal(sessions[0], younger);
  EXPECT_EQ(ios_[1]->calls["Publish"], 0);
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(EndOf(sessions[0], older.key()), "COMMITTED");
  EXPECT_EQ(EndOf(sessions[0], younger.key()), "COMMITTED");
  EXPECT_EQ(disks_[1]->committed.rbegin()->second.summary.step(), 2);
}

TEST_F(GuardsTest, FailedPublishIsNoCommit) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {PublishOutcome::kFailed, ErrnoError(EIO, "writing the manifest")};
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(EndOf(sessions[0], Key(0, "one")), "IO_ERROR");
  EXPECT_THAT(Tags(), IsEmpty());
}

TEST_F(GuardsTest, AnswersWaitAtItsLevel) {
  auto sessions = Launch("a", 2);
  auto one = BeginOf(0, "one", 1, 100), other = BeginOf(1, "one", 1, 100);
  auto a = Begin(sessions[0], one), b = Begin(sessions[1], other);
  RunQueued([&] { return a.has() && b.has(); });
  ios_[1]->hold_writes = true;
  auto staged = Wait(sessions[0], one.key(), v1::STAGED), sealed = Wait(sessions[0], one.key(), v1::SEALED),
       committed = Wait(sessions[0], one.key());
  Seal(sessions[0], one);
  EXPECT_TRUE(staged.has() && !sealed.has() && !committed.has());
  Seal(sessions[1], other);
  EXPECT_TRUE(sealed.has() && !committed.has());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(committed.has());
}

TEST_F(GuardsTest, FailsSaveOnlyAfterItsDirectoryIsOutOfReachOfRecovery) {
  auto sessions = Launch("a", 1);
  auto one = BeginOf(0, "one", 1, 100);
  ASSERT_TRUE(Begun(sessions[0], one).status().ok());
  ios_[1]->hold_writes = true;
  Seal(sessions[0], one);
  auto wait = Wait(sessions[0], one.key());
  ASSERT_TRUE(Abort(sessions[0], one.key()).status().ok());
  EXPECT_FALSE(wait.has());
  EXPECT_GT(pool_->usage().used_bytes, 0) << "a write still reads it";
  ios_[1]->ReleaseHeld();
  ios_[1]->held.insert("Discard");
  RunQueued();
  EXPECT_FALSE(wait.has());
  ios_[1]->ReleaseHeld();
  RunQueued();
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().error().reason(), "SAVE_ABORTED");
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(GuardsTest, CompleteSaveThatCannotBeMovedIsIndeterminateAndRootReadOnly) {
  auto sessions = Launch("a", 1);
  ios_[1]->publish_result = {PublishOutcome::kFailed, ErrnoError(EIO, "writing the manifest")};
  ios_[1]->discard_error = ErrnoError(EIO, "renaming");
  ios_[1]->held.insert("Rescan");
  SaveAll(sessions, "one", 1);
  auto wait = Wait(sessions[0], Key(0, "one"));
  ASSERT_TRUE(wait.has());
  EXPECT_EQ(wait.get().checkpoint().level(), v1::INDETERMINATE);
  EXPECT_EQ(Begin(sessions[0], BeginOf(0, "two", 2, 100)).reason(), "ROOT_READ_ONLY");
}

TEST_F(GuardsTest, MovesDirectoryOfFailedSaveAwayWhileItIsBeingCreated) {
  auto sessions = Launch("a", 1);
  ios_[1]->held.insert("CreateInflight");
  auto one = BeginOf(0, "one", 1, 100);
  ASSERT_TRUE(Begun(sessions[0], one).status().ok());
  Abort(sessions[0], one.key());
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(ios_[1]->calls["Discard"], 1);
  EXPECT_EQ(EndOf(sessions[0], one.key()), "SAVE_ABORTED");
}

TEST_F(GuardsTest, RefusesAbortOfSaveBeingPublished) {
  auto sessions = Launch("a", 1);
  ios_[1]->hold_publish = true;
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(Abort(sessions[0], Key(0, "one")).reason(), "SEALED");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(EndOf(sessions[0], Key(0, "one")), "COMMITTED");
}

TEST_F(GuardsTest, OpenWritesDelaySealAndKeepMemoryUntilRevoked) {
  auto sessions = Launch("a", 1);
  auto one = BeginOf(0, "one", 1, 100);
  ASSERT_TRUE(Begun(sessions[0], one).status().ok());
  bool revoked = false;
  const auto write = engine_->BeginWrite(As(sessions[0]), one.key(), "rank0.pt", [&](const absl::Status&) {
    EXPECT_GT(pool_->usage().used_bytes, 0);
    revoked = true;
  });
  ASSERT_TRUE(write.ok()) << write.status();
  EXPECT_THAT(std::string(Seal(sessions[0], one).status().message()), HasSubstr("WriteFile"));
  EXPECT_FALSE(revoked);
  Abort(sessions[0], one.key());
  RunQueued();
  EXPECT_TRUE(revoked) << "before the memory goes";
  EXPECT_EQ(pool_->usage().used_bytes, 0);
}

TEST_F(GuardsTest, SealedPartAcceptsNoBytes) {
  auto sessions = Launch("a", 1);
  ios_[1]->hold_writes = true;
  SaveAll(sessions, "one", 1);
  EXPECT_EQ(
      ReasonOf(engine_->BeginWrite(As(sessions[0]), Key(0, "one"), "rank0.pt", [](const absl::Status&) {})
                   .status()),
      "SEALED");
}

// ---- retention

// Otherwise a daemon killed in between would leave neither the checkpoint nor its outcome, and a late rank
// would hear that its save was lost.
TEST_F(GuardsTest, RecordsOutcomeOfSaveBeforeRetentionEvicts) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  SaveAll(sessions, "two", 2, 1);
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
  EXPECT_EQ(disks_[1]->outcomes_at_evict, 2);
}

TEST_F(GuardsTest, RetentionWaitsForHistoryThatCannotBeWritten) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ASSERT_TRUE(Pin(sessions[0], "one").status().ok());
  ios_[1]->errors["SaveRunRecord"] = ErrnoError(EIO, "writing the run record");
  SaveAll(sessions, "two", 2, 1);
  ASSERT_TRUE(Pin(sessions[0], "one", false).status().ok());
  EXPECT_THAT(disks_[1]->evicted, IsEmpty());
  EXPECT_THAT(observer_.warnings, Contains(HasSubstr("the history of /root1 could not be written")));
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_THAT(disks_[1]->evicted, IsEmpty());
  EXPECT_THAT(observer_.warnings, SizeIs(1)) << "said once";
  ios_[1]->errors.clear();
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
}

TEST_F(GuardsTest, RetentionDoesNotWaitForHistoryThatNeedsItsRoom) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ios_[1]->errors["SaveRunRecord"] = ErrnoError(ENOSPC, "writing the run record");
  SaveAll(sessions, "two", 2, 1);
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("one"));
}

TEST_F(GuardsTest, KeepsAllWhenNoNumberIsGiven) {
  auto sessions = Launch("a", 1);
  for (const char* tag : {"one", "two", "three"}) SaveAll(sessions, tag, 1);
  EXPECT_THAT(Tags(), ElementsAre("three", "two", "one"));
}

TEST_F(GuardsTest, NextDaemonKeepsSameNumber) {
  auto first = Launch("a", 1);
  SaveAll(first, "one", 1, 1);
  ASSERT_TRUE(Pin(first[0], "one").status().ok());
  SaveAll(first, "two", 2, 1);
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
  Restart();
  auto again = Launch("a", 1);
  ASSERT_TRUE(Pin(again[0], "one", false).status().ok());
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

TEST_F(GuardsTest, EvictsCheckpointOnceAndKeepsItKnownOnFailure) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ios_[1]->held.insert("Evict");
  SaveAll(sessions, "two", 2, 1);
  SaveAll(sessions, "three", 3, 2);
  EXPECT_EQ(ios_[1]->calls["Evict"], 1);
  EXPECT_EQ(Pin(sessions[0], "one").reason(), "NO_CHECKPOINT") << "it is on its way out";
  ios_[1]->errors["Evict"] = ErrnoError(EIO, "renaming");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("three", "two", "one"));
  EXPECT_THAT(observer_.warnings, Contains(HasSubstr("retention could not remove")));
}

TEST_F(GuardsTest, CheckpointBeingReadStaysInTrash) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  const int64_t sequence = disks_[1]->committed.begin()->first;
  ASSERT_TRUE(Open(sessions[0], "one").status().ok());
  auto again = BeginOf(0, "one", 2, 100);
  again.mutable_key()->set_ordinal(2);
  ASSERT_TRUE(Begun(sessions[0], again).status().ok());
  Seal(sessions[0], again);
  EXPECT_THAT(disks_[1]->kept_in_trash, ElementsAre(sequence));
}

TEST_F(GuardsTest, TrashOfReadThatOutlivesItsLeaseIsRemovedLater) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  auto opened = Open(sessions[0], "one");
  auto reader = engine_->FindReader(As(sessions[0]), opened.get().lease());  // As a ReadFile has it.
  ASSERT_TRUE(reader.ok()) << reader.status();
  Close(sessions[0], opened.get().lease());
  EXPECT_THAT(disks_[1]->kept_in_trash, SizeIs(1));
  reader->reset();
  AdvanceClock(std::chrono::seconds(2));
  EXPECT_THAT(disks_[1]->kept_in_trash, IsEmpty());
}

TEST_F(GuardsTest, CheckpointBeingOpenedIsKeptUntilOpenFails) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ios_[1]->held.insert("OpenCheckpoint");
  auto opened = Open(sessions[0], "one");
  SaveAll(sessions, "two", 2, 1);
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
  ios_[1]->errors["OpenCheckpoint"] = ErrnoError(EIO, "opening");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(opened.reason(), "IO_ERROR");
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

TEST_F(GuardsTest, EndedReaderHoldsNothing) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  SessionId reader = Trainer("reader");
  ASSERT_TRUE(Open(reader, "one").status().ok());
  SaveAll(sessions, "two", 2, 1);
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
  engine_->SessionClosed(reader, "killed");
  RunQueued();
  EXPECT_THAT(Tags(), ElementsAre("two"));
}

TEST_F(GuardsTest, PinCountsFromRequestUnlessItCannotBeRecorded) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  ios_[1]->held.insert("SetPinned");
  auto pinned = Pin(sessions[0], "one");
  SaveAll(sessions, "two", 2, 1);
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
  ios_[1]->errors["SetPinned"] = ErrnoError(ENOSPC, "writing the pins");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(pinned.reason(), "NO_SPACE");
  SaveAll(sessions, "three", 3, 1);
  EXPECT_THAT(Tags(), ElementsAre("three"));
}

// ---- permissions

TEST_F(GuardsTest, RootBeingOpenedIsUnusableAndBelongsToItsOpener) {
  disks_[1] = std::make_shared<FakeDisk>();
  disks_[1]->locked = true;
  SessionId owner = Trainer("a");
  auto opening = AttachLater(owner);
  auto stranger = AttachLater(Trainer("b", 2000), 1, 2000);
  disks_[1]->locked = false;
  AdvanceClock(std::chrono::seconds(1));
  EXPECT_EQ(stranger.reason(), "WRONG_UID");
  ASSERT_TRUE(opening.has());
  run_ = opening.get();
  v1::GetCheckpointRequest request;
  request.set_name(run_ + "/checkpoints/latest");
  Restart();
  disks_[1]->locked = true;
  AttachLater(Trainer("a"));
  Answer<v1::Checkpoint> answer;
  engine_->GetCheckpoint(Caller{0, 0, true}, request, answer.reply());
  EXPECT_EQ(answer.reason(), "UNKNOWN_RUN");
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GuardsTest, RootThatCannotBeOpenedIsNotUsed) {
  disks_[1] = std::make_shared<FakeDisk>();
  disks_[1]->open_error = ErrnoError(EIO, "listing");
  EXPECT_EQ(AttachLater(Trainer("a")).reason(), "IO_ERROR");
  disks_[1]->open_error = absl::OkStatus();
  EXPECT_TRUE(AttachLater(Trainer("a")).status().ok());
}

TEST_F(GuardsTest, RefusesAttachOfNobodyAndEndedSession) {
  EXPECT_EQ(AttachLater(Trainer("nobody", 65534), 1, 65534).reason(), "WRONG_UID");
  SessionId ended = Trainer("a");
  engine_->SessionClosed(ended, "killed");
  EXPECT_EQ(AttachLater(ended).reason(), "UNKNOWN_TOKEN");
}

TEST_F(GuardsTest, RunBelongsToItsCreatorForNextDaemonToo) {
  auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  Restart();
  ASSERT_TRUE(
      AttachLater(Trainer("root", 0), 1, 0).status().ok());  // As a daemon attaches the roots it knows.
  EXPECT_EQ(AttachLater(Trainer("b", 2000), 1, 2000).reason(), "WRONG_UID");
  EXPECT_TRUE(AttachLater(Trainer("a")).status().ok());
}

TEST_F(GuardsTest, ValidatesRankAndWorldSize) {
  EXPECT_EQ(JoinAs(Trainer("a"), 2, 2, "a").reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(JoinAs(Trainer("a"), 0, 0, "a").reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(JoinAs(Trainer("a"), 0, 1, "").reason(), "INVALID_ARGUMENT");
}

TEST_F(GuardsTest, RootHoldsOneRun) {
  ASSERT_TRUE(JoinAs(Trainer("a"), 0, 1, "a", 1, "mine").status().ok());
  EXPECT_EQ(JoinAs(Trainer("b"), 0, 1, "b", 1, "yours").reason(), "RUN_ID_MISMATCH");
}

TEST_F(GuardsTest, ProcessIsAliveUntilItsLastSessionEnds) {
  auto sessions = Launch("a", 1);
  SessionId again = Trainer("a/0");
  ASSERT_TRUE(Join(again, 0, 1, "a").status().ok());
  engine_->SessionClosed(sessions[0], "reconnected");
  EXPECT_EQ(Join(Trainer("another"), 0, 1, "a").reason(), "RANK_TAKEN");
  engine_->SessionClosed(again, "killed");
  EXPECT_EQ(Join(Trainer("another"), 0, 1, "a").get().attempt(), 2);
}

// Pointer files.
class EnginePointerTest : public EngineTest {
 protected:
  v1::BeginRequest Naming(int rank, const std::string& tag,
                          const std::map<std::string, std::string>& pointers) {
    v1::BeginRequest request = BeginOf(rank, tag, 1, 100);
    request.mutable_pointers()->insert(pointers.begin(), pointers.end());
    return request;
  }
  // A save of one rank that keeps one checkpoint.
  void SaveOne(SessionId session, const std::string& tag, const std::map<std::string, std::string>& pointers,
               int64_t ordinal = 1) {
    v1::BeginRequest request = Naming(0, tag, pointers);
    request.mutable_key()->set_ordinal(ordinal);
    request.set_num_kept_ckpts(1);
    auto begun = Begin(session, request);
    RunQueued([&] { return begun.has(); });
    ASSERT_TRUE(begun.status().ok()) << begun.status();
    ASSERT_TRUE(Seal(session, request).status().ok());
    RunQueued();
  }
  std::map<std::string, std::string> PointersOf(const std::string& tag) {
    for (const auto& entry : disks_[1]->committed) {
      const auto& summary = entry.second.summary;
      if (summary.tag() == tag) return {summary.pointers().begin(), summary.pointers().end()};
    }
    return {};
  }
};

TEST_F(EnginePointerTest, RefusesInvalidPointerAndNamesMistake) {
  auto sessions = Launch("a", 1);
  for (const char* name : {"", "a/b", ".ckptd", "..", "one"}) {
    EXPECT_EQ(Begin(sessions[0], Naming(0, "one", {{name, "one"}})).reason(), "INVALID_POINTER") << name;
  }
  EXPECT_EQ(Begin(sessions[0], Naming(0, "one", {{"latest", ""}})).reason(), "INVALID_POINTER");
  EXPECT_EQ(Begin(sessions[0], Naming(0, "one", {{"latest", std::string(2000, 'x')}})).reason(),
            "INVALID_POINTER");
}

TEST_F(EnginePointerTest, PointersOfAllRanksCountAndOneNameHasOneContent) {
  auto sessions = Launch("a", 3);
  const auto zero = Naming(0, "t", {{"latest", "t"}}), one = Naming(1, "t", {{"latest", "t"}, {"best", "t"}}),
             two = Naming(2, "t", {});
  auto a = Begin(sessions[0], zero);
  const auto other = Begin(sessions[1], Naming(1, "t", {{"latest", "u"}}));
  EXPECT_EQ(other.reason(), "SAVE_CONFLICT");
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("latest = \"u\""));
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("latest = \"t\""));
  std::map<std::string, std::string> many;
  for (int i = 0; i < 8; ++i) many["p" + std::to_string(i)] = "t";
  EXPECT_EQ(Begin(sessions[1], Naming(1, "t", many)).reason(), "INVALID_POINTER") << "nine of all ranks";
  auto b = Begin(sessions[1], one), c = Begin(sessions[2], two);
  RunQueued([&] { return a.has() && b.has() && c.has(); });
  ASSERT_TRUE(a.status().ok()) << a.status();
  ASSERT_TRUE(Seal(sessions[0], zero).status().ok());
  ASSERT_TRUE(Seal(sessions[1], one).status().ok());
  ASSERT_TRUE(Seal(sessions[2], two).status().ok());
  RunQueued();
  EXPECT_THAT(PointersOf("t"), ElementsAre(Pair("best", "t"), Pair("latest", "t")));
}

TEST_F(EnginePointerTest, RefusesDirectoryInPlaceOfPointerAtBeginOnAllRanks) {
  auto sessions = Launch("a", 1);
  disks_[1]->directories = {"latest"};
  EXPECT_EQ(Begin(sessions[0], Naming(0, "one", {{"latest", "one"}})).reason(), "POINTER_FOREIGN");
  SaveOne(sessions[0], "two", {});
  auto resave = Naming(0, "two", {{"latest", "two"}});
  resave.mutable_key()->set_ordinal(2);
  EXPECT_EQ(Begin(sessions[0], resave).reason(), "POINTER_FOREIGN") << "also where the tag is ours";
}

TEST_F(EnginePointerTest, DirectoryInPlaceOfLateRanksPointerFailsSaveForAll) {
  auto sessions = Launch("a", 2);
  SaveAll(sessions, "zero", 0);  // So that rank 0 need not wait for the size of rank 1.
  disks_[1]->directories = {"latest"};
  const auto first = Naming(0, "one", {});
  auto a = Begin(sessions[0], first);
  RunQueued([&] { return a.has(); });
  ASSERT_TRUE(a.status().ok()) << a.status();
  Begin(sessions[1], Naming(1, "one", {{"latest", "one"}}));
  auto end = Wait(sessions[0], first.key());
  ASSERT_TRUE(end.has());
  EXPECT_EQ(end.get().checkpoint().error().reason(), "POINTER_FOREIGN");
}

TEST_F(EnginePointerTest, KeepsCheckpointNamedByPointerUntilPointerMoves) {
  auto sessions = Launch("a", 1);
  SaveOne(sessions[0], "one", {{"latest", "one"}});
  SaveOne(sessions[0], "two", {});
  SaveOne(sessions[0], "three", {});
  EXPECT_THAT(Tags(), ElementsAre("three", "one"));
  EXPECT_THAT(disks_[1]->evicted, ElementsAre("two"));
  const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
  EXPECT_THAT(status.runs(0).predicted_victims(), ElementsAre("three"));
  SaveOne(sessions[0], "four", {{"latest", "four"}});
  EXPECT_THAT(Tags(), ElementsAre("four"));
  EXPECT_THAT(engine_->GetStatus(Caller{0, 0, true}).runs(0).predicted_victims(), ElementsAre("four"))
      << "the next save most likely names what this one names";
}

TEST_F(EnginePointerTest, NextDaemonKeepsCheckpointNamedByPointer) {
  auto sessions = Launch("a", 1);
  SaveOne(sessions[0], "one", {{"latest", "one"}});
  Start(16);
  sessions = Launch("b", 1);
  SaveOne(sessions[0], "two", {});
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
}

TEST_F(EnginePointerTest, UnwrittenPointerIsWarningAndKeepsItsOldTarget) {
  auto sessions = Launch("a", 1);
  SaveOne(sessions[0], "one", {{"latest", "one"}});
  ios_[1]->more_pointers = {{disks_[1]->committed.begin()->first}, {"the pointer latest is not written"}};
  const auto warnings = observer_.warnings.size();
  SaveOne(sessions[0], "two", {{"latest", "two"}});
  EXPECT_EQ(Wait(sessions[0], Key(0, "two")).get().checkpoint().level(), v1::COMMITTED);
  EXPECT_THAT(Tags(), ElementsAre("two", "one"));
  ASSERT_EQ(observer_.warnings.size(), warnings + 1);
  EXPECT_THAT(observer_.warnings.back(), HasSubstr("the pointer latest is not written"));
}

// ---- callers of other namespaces

class TenantTest : public GuardsTest {
 protected:
  static constexpr int64_t kPod = 43, kOtherPod = 57;

  SessionId TrainerOf(int64_t tenant, const std::string& instance) {
    SessionInfo info;
    info.id = next_session_++;
    info.uid = 1000;
    info.client_instance = instance;
    info.tenant = tenant;
    engine_->SessionOpened(info);
    return info.id;
  }
  // What ListCheckpoints answers a caller of uid 1000.
  std::string ListAs(SessionId session, int64_t tenant) {
    v1::ListCheckpointsRequest request;
    request.set_parent(run_);
    Answer<v1::ListCheckpointsResponse> answer;
    engine_->ListCheckpoints({.session = session, .uid = 1000, .privileged = false, .tenant = tenant},
                             request, answer.reply());
    RunQueued();
    return answer.status().ok() ? "OK" : answer.reason();
  }
  int RunsSeenBy(SessionId session, int64_t tenant) {
    return engine_->GetStatus({.session = session, .uid = 1000, .privileged = false, .tenant = tenant})
        .runs_size();
  }
};

TEST_F(TenantTest, ContainerDoesNotSeeRunOfEqualUidThatItHasNotAttached) {
  Launch("host", 1);
  const SessionId container = TrainerOf(kPod, "c");
  EXPECT_EQ(ListAs(container, kPod), "FOREIGN_NAMESPACE");
  EXPECT_EQ(ListAs(0, kPod), "FOREIGN_NAMESPACE");
  EXPECT_EQ(RunsSeenBy(container, kPod), 0);
  Attach(container);
  EXPECT_EQ(ListAs(container, kPod), "OK");
  EXPECT_EQ(RunsSeenBy(container, kPod), 1);
}

TEST_F(TenantTest, ContainerSeesRunThatItsOtherSessionHasAttached) {
  const SessionId first = TrainerOf(kPod, "a"), second = TrainerOf(kPod, "b");
  Attach(first);
  EXPECT_EQ(ListAs(second, kPod), "OK");
  EXPECT_EQ(ListAs(0, kPod), "OK");  // An operator in the same container.
  EXPECT_EQ(ListAs(TrainerOf(kOtherPod, "x"), kOtherPod), "FOREIGN_NAMESPACE");
  EXPECT_EQ(ListAs(0, kOtherPod), "FOREIGN_NAMESPACE");
  EXPECT_EQ(ListAs(0, 0), "OK");  // The user on the host.
  engine_->SessionClosed(first, "ended");
  EXPECT_EQ(ListAs(second, kPod), "FOREIGN_NAMESPACE");  // The number may be another container's now.
}

TEST_F(TenantTest, SessionsOfUnknownContainersShareNothing) {
  const SessionId first = TrainerOf(-1, "a");
  Attach(first);
  EXPECT_EQ(ListAs(first, -1), "OK");
  EXPECT_EQ(ListAs(TrainerOf(-1, "b"), -1), "FOREIGN_NAMESPACE");
  EXPECT_EQ(ListAs(0, -1), "FOREIGN_NAMESPACE");
}

TEST_F(GuardsTest, RootOfOneNodeFindsOutByItselfWhatHasBecomeOfASave) {
  LaunchOn(1, "launch", 1);
  v1::ResolveSaveRequest request;
  request.set_name(run_ + "/checkpoints/a");
  request.set_outcome(v1::ResolveSaveRequest::IS_CHECKPOINT);
  Answer<v1::ResolveSaveResponse> answer;
  engine_->ResolveSave(Caller{0, 0, true}, request, answer.reply());
  RunQueued();
  EXPECT_EQ(answer.reason(), reason::kOutcomePending);
}

}  // namespace
}  // namespace ckptd
