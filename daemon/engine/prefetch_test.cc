// Prefetch: committed checkpoints are read into memory before a job restores them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class PrefetchTest : public EngineTest {
 protected:
  void SetUp() override {
    resident_segments_ = 8;
    Start(16);
  }
  // Saves checkpoints with a job of two ranks and restarts the daemon, so that they are only on disk.
  void SaveAndRestart(const std::vector<std::string>& tags) {
    const auto sessions = Launch("before", 2);
    for (const std::string& tag : tags) {
      SaveAll(sessions, tag, 1);
      RunQueued([&] { return !Tags().empty() && Tags().front() == tag; });
    }
    Start(16);
    Attach(Trainer("looks"));
  }
  Answer<v1::Checkpoint> Prefetch(const std::string& tag, const Caller& caller = As(0, 1000)) {
    Answer<v1::Checkpoint> answer;
    engine_->Prefetch(caller, run_ + "/checkpoints/" + tag, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::Checkpoint> Prefetched(const std::string& tag) {
    auto answer = Prefetch(tag);
    RunQueued([&] { return answer.has(); });
    return answer;
  }
  Answer<v1::LocateFilesResponse> Locate(SessionId session, const std::string& lease, bool map = false) {
    v1::LocateFilesRequest request;
    request.set_lease(lease);
    request.set_map(map);
    Answer<v1::LocateFilesResponse> answer;
    engine_->LocateFiles(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  std::string ContentOf(SessionId reader, const v1::ResidentPart& part) {
    auto found = pool_->directory().Find(reader, part.segments(0).id(), SegmentAccess::kRead);
    if (!found.ok()) return std::string(found.status().message());
    std::string bytes(static_cast<size_t>(part.placements(0).size_bytes()), 'x');
    EXPECT_EQ(pread(found->fd, bytes.data(), bytes.size(), part.placements(0).offset()), std::ssize(bytes));
    ::close(found->fd);
    return bytes;
  }
  int Reads() { return ios_[1]->calls["ReadFiles"]; }
  int64_t Used() { return pool_->usage().used_bytes / kSegment; }
  int64_t Resident() { return pool_->usage().resident_bytes / kSegment; }
};

TEST_F(PrefetchTest, NextJobReadsPrefetchedCheckpointFromMemory) {
  SaveAndRestart({"one", "two"});
  const auto prefetched = Prefetched("latest");
  ASSERT_TRUE(prefetched.status().ok()) << prefetched.status();
  EXPECT_EQ(prefetched.get().tag(), "two");
  EXPECT_TRUE(prefetched.get().resident());
  EXPECT_EQ(Resident(), 2);
  const auto sessions = Launch("after", 2);
  const auto resumed = Resume(sessions[1], 1);
  const auto located = Locate(sessions[1], resumed.get().lease());
  ASSERT_TRUE(located.status().ok()) << located.status();
  ASSERT_THAT(located.get().parts(), SizeIs(2));
  for (int rank = 0; rank < 2; ++rank) {
    const std::string path = "rank" + std::to_string(rank) + ".pt";
    EXPECT_EQ(ContentOf(sessions[1], located.get().parts(rank)),
              disks_[1]->bytes.at(std::to_string(resumed.get().checkpoint().sequence()) + "/" + path));
  }
  EXPECT_EQ(ios_[1]->calls["CheckImages"], 0) << "they were checked when they were read";
}

TEST_F(PrefetchTest, RepeatedPrefetchWaitsForTheFirstAndReadsOnce) {
  SaveAndRestart({"one"});
  ios_[1]->held.insert("ReadFiles");
  const auto first = Prefetch("one"), second = Prefetch("latest");
  RunQueued([&] { return Reads() == 1; });
  const SessionId reader = Trainer("reader");
  const auto opened = Open(reader, "one");
  const auto located = Locate(reader, opened.get().lease());
  EXPECT_FALSE(first.has() || second.has() || located.has());
  ios_[1]->held.clear();
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(first.status().ok()) << first.status();
  EXPECT_TRUE(second.status().ok()) << second.status();
  EXPECT_THAT(located.get().parts(), SizeIs(2));
  EXPECT_TRUE(Prefetched("one").status().ok());
  EXPECT_EQ(Reads(), 1);
}

TEST_F(PrefetchTest, PrefetchedMemoryIsMappedAtOnce) {
  SaveAndRestart({"one"});
  ASSERT_TRUE(Prefetched("one").status().ok());
  const SessionId reader = Trainer("reader");
  const auto opened = Open(reader, "one");
  EXPECT_TRUE(Locate(reader, opened.get().lease(), /*map=*/true).get().may_map());
}

TEST_F(PrefetchTest, RecordsDamageAndReturnsMemory) {
  SaveAndRestart({"one", "two"});
  ios_[1]->errors["ReadFiles"] =
      MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", "chunk 3", {{"path", "rank0.pt"}});
  const auto prefetched = Prefetched("two");
  EXPECT_EQ(prefetched.reason(), "CORRUPT_FILE");
  EXPECT_EQ(Used() + Resident(), 0);
  ios_[1]->errors.clear();
  EXPECT_EQ(Prefetched("latest").get().tag(), "one") << "the next older one is what a job would resume from";
  EXPECT_EQ(Prefetch("two").reason(), "CHECKPOINT_DAMAGED");
}

TEST_F(PrefetchTest, DiskErrorMarksNothingDamaged) {
  SaveAndRestart({"one"});
  ios_[1]->errors["ReadFiles"] = ErrnoError(EIO, "reading");
  const auto prefetched = Prefetched("one");
  EXPECT_EQ(prefetched.reason(), "IO_ERROR");
  EXPECT_EQ(Used() + Resident(), 0);
  ios_[1]->errors.clear();
  EXPECT_TRUE(Prefetched("one").status().ok());
}

// Otherwise a trainer would have to fault its memory in again, or a save would have to wait.
TEST_F(PrefetchTest, TakesNoMemoryThatSaveNeeds) {
  SaveAndRestart({"one"});
  const auto trainers = Launch("trains", 1);
  const auto lent = pool_->Reserve({{trainers[0], 13}});
  ASSERT_TRUE(lent.ok());
  const auto refused = Prefetch("one");
  EXPECT_EQ(refused.reason(), "POOL_EXHAUSTED");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("pool.bytes"));
  pool_->Release(*lent);
  EXPECT_TRUE(Prefetched("one").status().ok());
}

TEST_F(PrefetchTest, EvictsOtherCopyBeforeTakingLentMemory) {
  SaveAndRestart({"one"});
  const SessionId trains = Launch("trains", 1)[0], ends = Trainer("ends");
  const auto commit = [this](SessionId session, int segments) {
    const auto save = pool_->Reserve({{session, segments}});
    ASSERT_TRUE(save.ok());
    bool drawn = false;
    pool_->Draw(*save, session, session, segments, [&drawn](auto) { drawn = true; });
    RunQueued([&drawn] { return drawn; });
    pool_->Settle(*save);
  };
  commit(trains, 12);
  commit(ends, 4);
  pool_->SessionEnded(ends);
  const int64_t lent = pool_->usage().lent_bytes;
  ASSERT_EQ(lent, 12 * kSegment);
  ASSERT_EQ(Resident(), 4);
  ASSERT_TRUE(Prefetched("one").status().ok());
  EXPECT_EQ(pool_->usage().lent_bytes, lent) << "although that was unused for longer";
}

TEST_F(PrefetchTest, StaysWithinBudgetOfResidentCopies) {
  resident_segments_ = 1;
  SaveAndRestart({"one"});
  EXPECT_EQ(Prefetch("one").reason(), "POOL_EXHAUSTED");
  EXPECT_EQ(Reads(), 0);
}

TEST_F(PrefetchTest, ReturnsItsMemoryWhenPoolRunsOut) {
  SaveAndRestart({"one"});
  make_populator_ = [this](int64_t, Populator::Made made) {
    return std::make_unique<NoMemory>(&inbox_, std::move(made));
  };
  Start(16);
  Attach(Trainer("looks"));
  const auto failed = Prefetched("one");
  EXPECT_EQ(failed.reason(), "POOL_EXHAUSTED") << failed.status();
  EXPECT_EQ(Used(), 0);
}

TEST_F(PrefetchTest, RefusesSecondPrefetchAndRunsOfOtherUsers) {
  SaveAndRestart({"one", "two"});
  EXPECT_EQ(Prefetch("three").reason(), "NO_CHECKPOINT");
  EXPECT_FALSE(Prefetch("one", Caller{0, 2000, false}).status().ok());
  ios_[1]->held.insert("ReadFiles");
  const auto first = Prefetch("two");
  RunQueued([&] { return Reads() == 1; });
  EXPECT_EQ(Prefetch("one").reason(), "PREFETCH_BUSY");
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_TRUE(first.status().ok()) << first.status();
}

TEST_F(PrefetchTest, DropsCheckpointThatIsReplacedMeanwhile) {
  SaveAndRestart({"one"});
  ios_[1]->held.insert("ReadFiles");
  const auto prefetched = Prefetch("one");
  RunQueued([&] { return Reads() == 1; });
  SaveAll(Launch("again", 2), "one", 2);
  RunQueued([&] { return observer_.ended.size() == 2; });
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_EQ(prefetched.reason(), "NO_CHECKPOINT");
  EXPECT_EQ(Resident(), 0);
}

}  // namespace
}  // namespace ckptd
