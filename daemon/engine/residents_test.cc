// Resident copies of committed checkpoints: who may read them, and when they are dropped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ResidentsTest : public EngineTest {
 protected:
  void SetUp() override {
    resident_segments_ = 16;
    Start(16);
  }
  Answer<v1::LocateFilesResponse> LocateLater(SessionId session, const std::string& lease, bool map = false) {
    v1::LocateFilesRequest request;
    request.set_lease(lease);
    request.set_map(map);
    Answer<v1::LocateFilesResponse> answer;
    engine_->LocateFiles(As(session), request, answer.reply());
    return answer;
  }
  Answer<v1::LocateFilesResponse> Locate(SessionId session, const std::string& lease, bool map = false) {
    auto answer = LocateLater(session, lease, map);
    RunQueued();
    if (map) RunQueued([&] { return answer.has(); });
    return answer;
  }
  int64_t UsedSegments() { return pool_->usage().used_bytes / kSegment; }
  int Checks() { return ios_[1]->calls["CheckImages"]; }
  bool Resident(const std::string& tag) {
    v1::GetCheckpointRequest request;
    request.set_name(run_ + "/checkpoints/" + tag);
    Answer<v1::Checkpoint> answer;
    engine_->GetCheckpoint(Caller{0, 0, true}, request, answer.reply());
    RunQueued();
    return answer.get().resident();
  }
  int64_t ResidentSegments() { return pool_->usage().resident_bytes / kSegment; }
  void End(const std::vector<SessionId>& sessions) {
    for (SessionId session : sessions) engine_->SessionClosed(session, "ended");
    RunQueued();
  }
  // One checkpoint of a job of two ranks that has ended.
  void SaveAndEnd(const std::string& tag) {
    const auto sessions = Launch("before " + tag, 2);
    SaveAll(sessions, tag, 1);
    RunQueued([&] { return Tags() == std::vector<std::string>{tag}; });
    End(sessions);
  }
};

TEST_F(ResidentsTest, RestartedJobReadsResidentCopyOfEndedJob) {
  SaveAndEnd("one");
  EXPECT_TRUE(Resident("one"));
  EXPECT_EQ(ResidentSegments(), 2);
  EXPECT_EQ(Checks(), 2) << "each part once, as soon as its writer had ended";
  const auto sessions = Launch("after", 2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto resumed = Resume(sessions[rank], rank);
    const auto located = Locate(sessions[rank], resumed.get().lease());
    ASSERT_TRUE(located.status().ok()) << located.status();
    ASSERT_THAT(located.get().parts(), SizeIs(2));
    const v1::ResidentPart& part = located.get().parts(1);
    EXPECT_EQ(part.rank(), 1);
    ASSERT_THAT(part.placements(), SizeIs(1));
    EXPECT_EQ(part.placements(0).path(), "rank1.pt");
    EXPECT_EQ(part.placements(0).size_bytes(), 100);
    ASSERT_THAT(part.segments(), SizeIs(1));
    auto found = pool_->directory().Find(sessions[rank], part.segments(0).id(), SegmentAccess::kRead);
    ASSERT_TRUE(found.ok()) << found.status();
    ::close(found->fd);
    EXPECT_EQ(found->size, part.segments(0).size_bytes());
  }
  EXPECT_EQ(Checks(), 2) << "and never again";
}

TEST_F(ResidentsTest, MemoryGoesBackToTheMachineWhenNothingAsksForAny) {
  engine_options_.idle_pool = std::chrono::minutes(10);
  Start(16);
  const auto sessions = Launch("a", 2);
  const auto save = [&](const std::string& tag, int step) {
    SaveAll(sessions, tag, step);
    RunQueued([&] { return Tags().front() == tag; });
    engine_->Tick();
  };
  const auto lent = [&] { return pool_->usage().lent_bytes / kSegment; };
  save("one", 1);
  AdvanceClock(std::chrono::minutes(9));
  save("two", 2);
  AdvanceClock(std::chrono::minutes(9));
  EXPECT_EQ(lent(), 2) << "the save of 9 minutes ago counts";
  EXPECT_TRUE(Resident("two"));
  const SessionId reader = Trainer("reader");
  const auto opened = Open(reader, "two");
  ASSERT_TRUE(Locate(reader, opened.get().lease()).status().ok());
  AdvanceClock(std::chrono::minutes(11));
  EXPECT_TRUE(Resident("two")) << "it is being read";
  End({reader});
  engine_->Tick();
  AdvanceClock(std::chrono::minutes(11));
  EXPECT_EQ(lent(), 0);
  EXPECT_FALSE(Resident("two"));
  save("three", 3);
  EXPECT_TRUE(Resident("three"));
}

TEST_F(ResidentsTest, ReadOfOneFileChecksOnlyItsRank) {
  const auto sessions = Launch("a", 2);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  const SessionId reader = Trainer("reader");
  const auto opened = Open(reader, "one");
  v1::LocateFilesRequest request;
  request.set_lease(opened.get().lease());
  for (const auto& [path, rank] :
       {std::pair("rank1.pt", 1), std::pair("rank0.pt", 0), std::pair("none", -1)}) {
    request.set_path(path);
    Answer<v1::LocateFilesResponse> answer;
    engine_->LocateFiles(As(reader), request, answer.reply());
    RunQueued();
    ASSERT_TRUE(answer.status().ok()) << answer.status();
    ASSERT_THAT(answer.get().parts(), SizeIs(rank < 0 ? 0 : 1)) << path;
    for (const v1::ResidentPart& part : answer.get().parts()) EXPECT_EQ(part.rank(), rank);
  }
  EXPECT_EQ(Checks(), 2);
}

TEST_F(ResidentsTest, MappedMemoryIsHeldUntilReadersSessionEnds) {
  SaveAndEnd("one");
  const SessionId reader = Trainer("reader");
  const auto opened = Open(reader, "one");
  const auto located = Locate(reader, opened.get().lease(), /*map=*/true);
  EXPECT_TRUE(located.get().may_map());
  EXPECT_THAT(located.get().parts(), SizeIs(2));
  EXPECT_TRUE(Locate(reader, opened.get().lease(), /*map=*/true).get().may_map()) << "asked again";
  Close(reader, opened.get().lease());
  EXPECT_EQ(UsedSegments(), 2) << "nobody sees whether it maps it still";
  End({reader});
  EXPECT_EQ(UsedSegments(), 0);
  EXPECT_EQ(ResidentSegments(), 2) << "for others, nothing has changed";
}

TEST_F(ResidentsTest, MapsNothingThatItsWriterCouldChange) {
  const auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  const SessionId reader = Trainer("reader");
  const auto opened = Open(reader, "one");
  const auto located = Locate(reader, opened.get().lease(), /*map=*/true);
  EXPECT_THAT(located.get().parts(), SizeIs(1)) << "to be copied";
  EXPECT_FALSE(located.get().may_map());
}

TEST_F(ResidentsTest, ReaderThatMapsNoMemoryHoldsNone) {
  const auto sessions = Launch("a", 2);
  SaveAll(sessions, "warm", 1);
  const auto full = BeginOf(0, "one", 2, 100);
  auto empty = BeginOf(1, "one", 2, 0);
  const auto begun = Begin(sessions[0], full), begun_empty = Begin(sessions[1], empty);
  RunQueued([&] { return begun.has() && begun_empty.has(); });
  Seal(sessions[0], full);
  Seal(sessions[1], empty);
  RunQueued([&] { return Tags().front() == "one"; });
  End(sessions);
  const SessionId reader = Trainer("reader");
  Attach(reader);
  const auto opened = Open(reader, "one");
  v1::LocateFilesRequest request;
  request.set_lease(opened.get().lease());
  request.set_path("rank1.pt");
  request.set_map(true);
  Answer<v1::LocateFilesResponse> located;
  engine_->LocateFiles(As(reader), request, located.reply());
  RunQueued([&] { return located.has(); });
  ASSERT_THAT(located.get().parts(), SizeIs(1));
  EXPECT_THAT(located.get().parts(0).segments(), IsEmpty());
  EXPECT_FALSE(located.get().may_map());
  Close(reader, opened.get().lease());
  EXPECT_EQ(UsedSegments(), 0) << "the reader has none of the copy's memory";
}

TEST_F(ResidentsTest, ReleasesCopyWhenMappingIsRefused) {
  const auto sessions = Launch("a", 2);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  End({sessions[0]});  // And rank 1 lives, and could write to its part of the copy.
  const SessionId reader = Trainer("reader");
  Attach(reader);
  const auto opened = Open(reader, "one");
  v1::LocateFilesRequest request;
  request.set_lease(opened.get().lease());
  request.set_path("rank0.pt");
  request.set_map(true);
  Answer<v1::LocateFilesResponse> located;
  engine_->LocateFiles(As(reader), request, located.reply());
  RunQueued([&] { return located.has(); });
  EXPECT_THAT(located.get().parts(), SizeIs(1));
  EXPECT_FALSE(located.get().may_map());
  v1::CloseCheckpointRequest close;
  close.set_lease(opened.get().lease());
  Answer<v1::CloseCheckpointResponse> closed;
  engine_->CloseCheckpoint(As(reader), close, closed.reply());
  RunQueued([&] { return closed.has(); });
  EXPECT_EQ(UsedSegments(), 0) << "until its session ends";
}

// Otherwise the save would have to wait until the reader ends.
TEST_F(ResidentsTest, MapsNoMemoryThatSaveNeedsEvenForResume) {
  const auto sessions = Launch("a", 2);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  End(sessions);
  const auto others = Launch("b", 1);
  const auto resumed = Resume(others[0], 0);
  const auto held = pool_->Reserve({{others[0], 13}});
  ASSERT_TRUE(held.ok()) << held.status();
  const auto located = Locate(others[0], resumed.get().lease(), /*map=*/true);
  EXPECT_THAT(located.get().parts(), SizeIs(2));
  EXPECT_FALSE(located.get().may_map());
}

TEST_F(ResidentsTest, RequestDuringCheckIsAnsweredAfterIt) {
  const auto sessions = Launch("a", 2);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  ios_[1]->held.insert("CheckImages");
  End(sessions);
  const auto after = Launch("b", 2);
  const auto resumed = Resume(after[0], 0);
  const auto located = Locate(after[0], resumed.get().lease());
  EXPECT_FALSE(located.has());
  ios_[1]->ReleaseHeld();
  RunQueued();
  ASSERT_TRUE(located.status().ok()) << located.status();
  EXPECT_THAT(located.get().parts(), SizeIs(2));
  EXPECT_EQ(Checks(), 2);
}

TEST_F(ResidentsTest, ChecksCopyEachTimeWhileItsWriterLives) {
  const auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  EXPECT_EQ(Checks(), 0);
  const SessionId reader = Trainer("reader");
  for (int times = 1; times <= 2; ++times) {
    const auto opened = Open(reader, "one");
    EXPECT_THAT(Locate(reader, opened.get().lease()).get().parts(), SizeIs(1));
    EXPECT_EQ(Checks(), times);
    Close(reader, opened.get().lease());
  }
  End(sessions);
  EXPECT_EQ(Checks(), 3);
  const auto opened = Open(reader, "one");
  EXPECT_THAT(Locate(reader, opened.get().lease()).get().parts(), SizeIs(1));
  EXPECT_EQ(Checks(), 3);
}

TEST_F(ResidentsTest, ChecksAgainWhenWriterEndsDuringCheck) {
  const auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  const SessionId reader = Trainer("reader");
  const auto opened = Open(reader, "one");
  ios_[1]->held.insert("CheckImages");
  const auto located = Locate(reader, opened.get().lease());
  End(sessions);
  ios_[1]->ReleaseHeld();
  RunQueued();
  EXPECT_THAT(located.get().parts(), SizeIs(1));
  EXPECT_EQ(Checks(), 2);
  EXPECT_THAT(Locate(reader, opened.get().lease()).get().parts(), SizeIs(1));
  EXPECT_EQ(Checks(), 2);
}

TEST_F(ResidentsTest, ReadsFromDiskWhenMemoryDiffersFromSave) {
  const auto sessions = Launch("a", 1);
  auto request = BeginOf(0, "one", 1, 100);
  const auto begun = Begin(sessions[0], request);
  RunQueued([&] { return begun.has(); });
  auto found = pool_->directory().Find(sessions[0], begun.get().segments(0).id(), SegmentAccess::kWrite);
  ASSERT_TRUE(found.ok());
  Seal(sessions[0], request);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  ASSERT_EQ(pwrite(found->fd, "late", 4, 0), 4);  // A client that breaks its word.
  ::close(found->fd);
  End(sessions);
  EXPECT_FALSE(Resident("one"));
  ASSERT_THAT(observer_.warnings, SizeIs(1));
  EXPECT_THAT(observer_.warnings[0], HasSubstr("is read from the disk"));
  const auto after = Launch("b", 1);
  const auto resumed = Resume(after[0], 0);
  ASSERT_TRUE(resumed.status().ok()) << resumed.status();
  EXPECT_FALSE(resumed.get().checkpoint().has_damage()) << "the disk has what was saved";
  EXPECT_THAT(Locate(after[0], resumed.get().lease()).get().parts(), IsEmpty());
  EXPECT_EQ(ResidentSegments(), 0);
}

TEST_F(ResidentsTest, CopyBeingReadStaysUntilLeaseEndsWhenItsTagIsSavedAgain) {
  SaveAndEnd("one");
  const SessionId reader = Trainer("reader");
  Attach(reader);
  const auto opened = Open(reader, "one");
  const auto located = Locate(reader, opened.get().lease());
  ASSERT_THAT(located.get().parts(), SizeIs(2));
  const SegmentId id = located.get().parts(0).segments(0).id();
  const auto sessions = Launch("b", 2);
  SaveAll(sessions, "one", 2);
  RunQueued([&] { return disks_[1]->committed.rbegin()->first > 1; });
  auto found = pool_->directory().Find(reader, id, SegmentAccess::kRead);
  ASSERT_TRUE(found.ok()) << found.status();
  ::close(found->fd);
  Close(reader, opened.get().lease());
  EXPECT_FALSE(pool_->directory().Find(reader, id, SegmentAccess::kRead).ok());
  EXPECT_EQ(ResidentSegments(), 0) << "nobody can open the old one any more";
}

TEST_F(ResidentsTest, RetentionEvictsCopyWithCheckpoint) {
  const auto sessions = Launch("a", 1);
  SaveAll(sessions, "one", 1, 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  End(sessions);
  EXPECT_EQ(ResidentSegments(), 1);
  const auto after = Launch("b", 1);
  SaveAll(after, "two", 2, 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"two"}; });
  EXPECT_EQ(ResidentSegments(), 0);
  EXPECT_TRUE(Resident("two"));
}

TEST_F(ResidentsTest, DamagedCheckpointIsNotOfferedFromMemory) {
  SaveAndEnd("one");
  const auto after = Launch("b", 1);
  v1::ReportDamageRequest request;
  request.set_name(run_ + "/checkpoints/one");
  request.set_sequence(disks_[1]->committed.begin()->first);
  request.mutable_damage()->set_message("rotten");
  Answer<v1::ReportDamageResponse> answer;
  engine_->ReportDamage(As(after[0]), request, answer.reply());
  RunQueued();
  ASSERT_TRUE(answer.status().ok()) << answer.status();
  EXPECT_FALSE(Resident("one"));
  EXPECT_EQ(ResidentSegments(), 0);
}

TEST_F(ResidentsTest, EmptyCheckpointHasNoCopy) {
  const auto sessions = Launch("a", 1);
  const auto request = BeginOf(0, "one", 1, 100);
  const auto begun = Begin(sessions[0], request);
  RunQueued([&] { return begun.has(); });
  v1::BeginRequest nothing = request;
  nothing.clear_files();
  Seal(sessions[0], nothing);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  EXPECT_FALSE(Resident("one"));
  const auto opened = Open(sessions[0], "one");
  const auto located = Locate(sessions[0], opened.get().lease());
  ASSERT_TRUE(located.status().ok()) << located.status();
  EXPECT_THAT(located.get().parts(), IsEmpty());
}

TEST_F(ResidentsTest, EvictsCopyForSaveThatNeedsMemory) {
  Start(4);
  const auto sessions = Launch("a", 2);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  End(sessions);
  const auto after = Launch("b", 4);
  SaveAll(after, "two", 2);
  RunQueued([&] { return Tags().size() == 2; });
  EXPECT_FALSE(Resident("one"));
  EXPECT_TRUE(Resident("two"));
}

TEST_F(ResidentsTest, EvictsCopyAfterAllRanksHaveReadItWhenFirstSaveNeedsMemory) {
  for (const int segments : {4, 6}) {
    disks_.clear();
    Start(segments);
    const auto sessions = Launch("a", 2);
    auto begin = BeginOf(0, "one", 1, 100);
    begin.mutable_files(0)->set_size_bytes(2 * kSegment);
    const auto begun = Begin(sessions[0], begin);
    const auto other = BeginOf(1, "one", 1, 100);
    const auto begun_too = Begin(sessions[1], other);
    RunQueued([&] { return begun.has() && begun_too.has(); });
    Seal(sessions[0], begin);
    Seal(sessions[1], other);
    RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
    End(sessions);
    EXPECT_EQ(ResidentSegments(), 3);
    const auto after = Launch("b", 2);
    std::vector<Answer<v1::FinishResumeResponse>> finished(2);
    for (int rank = 0; rank < 2; ++rank) {
      const auto resumed = Resume(after[rank], rank);
      v1::FinishResumeRequest finish;
      finish.set_run(run_);
      finish.set_rank(rank);
      finish.set_sequence(resumed.get().checkpoint().sequence());
      engine_->FinishResume(As(after[rank]), finish, finished[rank].reply());
      RunQueued();
    }
    ASSERT_TRUE(finished[0].status().ok()) << finished[0].status();
    EXPECT_EQ(Resident("one"), segments == 6);
  }
}

TEST_F(ResidentsTest, ReaderWithoutResumeDelaysNoSave) {
  engine_options_.max_reader_pool_percent_per_user = 100;
  for (const int segments : {4, 5}) {
    disks_.clear();
    Start(segments);
    const auto sessions = Launch("a", 1);
    auto begin = BeginOf(0, "one", 1, 2 * kSegment + 1);  // Three segments.
    begin.mutable_files(0)->set_size_bytes(segments == 4 ? 2 * kSegment + 1 : 2 * kSegment);
    const auto begun = Begin(sessions[0], begin);
    RunQueued([&] { return begun.has(); });
    Seal(sessions[0], begin);
    RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
    const SessionId reader = Trainer("reader");
    Attach(reader);
    const auto opened = Open(reader, "one");
    const auto located = Locate(reader, opened.get().lease());
    EXPECT_THAT(located.get().parts(), SizeIs(segments == 4 ? 0 : 1));
    auto next = begin;
    next.mutable_key()->set_tag("two");
    const auto saved = Begin(sessions[0], next);
    RunQueued([&] { return saved.has(); });
    EXPECT_TRUE(saved.status().ok()) << saved.status();
  }
}

TEST_F(ResidentsTest, SecondReaderOfSameCopyTakesNoMoreMemory) {
  Start(5);
  const auto sessions = Launch("a", 1);
  const auto begin = BeginOf(0, "one", 1, 2 * kSegment);
  const auto begun = Begin(sessions[0], begin);
  RunQueued([&] { return begun.has(); });
  Seal(sessions[0], begin);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  for (const char* name : {"reader", "second"}) {
    const SessionId reader = Trainer(name);
    Attach(reader);
    const auto opened = Open(reader, "one");
    EXPECT_THAT(Locate(reader, opened.get().lease()).get().parts(), SizeIs(1)) << name;
  }
  auto next = begin;
  next.mutable_key()->set_tag("two");
  const auto saved = Begin(sessions[0], next);
  RunQueued([&] { return saved.has(); });
  EXPECT_TRUE(saved.status().ok()) << saved.status();
}

TEST_F(ResidentsTest, ReleasesCopyReadByAllRanksForFirstSaveDespiteOpenLease) {
  engine_options_.max_reader_pool_percent_per_user = 100;
  Start(4);
  const auto sessions = Launch("a", 1);
  auto begin = BeginOf(0, "one", 1, 3 * kSegment);
  const auto begun = Begin(sessions[0], begin);
  RunQueued([&] { return begun.has(); });
  Seal(sessions[0], begin);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  End(sessions);
  const auto after = Launch("b", 1);
  const auto resumed = Resume(after[0], 0);
  EXPECT_THAT(Locate(after[0], resumed.get().lease()).get().parts(), SizeIs(1))
      << "it saves nothing meanwhile";
  v1::FinishResumeRequest finish;
  finish.set_run(run_);
  finish.set_sequence(resumed.get().checkpoint().sequence());
  Answer<v1::FinishResumeResponse> finished;
  engine_->FinishResume(As(after[0]), finish, finished.reply());
  RunQueued();
  ASSERT_TRUE(finished.status().ok()) << finished.status();
  auto next = begin;
  next.mutable_key()->set_tag("two");
  const auto saved = Begin(after[0], next);
  RunQueued([&] { return saved.has(); });
  EXPECT_TRUE(saved.status().ok()) << saved.status();
}

TEST_F(ResidentsTest, RankOfFencedAttemptKeepsWhatItReadsUntilItsLeaseEnds) {
  engine_options_.max_reader_pool_percent_per_user = 100;
  Start(4);
  const auto sessions = Launch("a", 1);
  auto begin = BeginOf(0, "one", 1, 2 * kSegment);
  const auto begun = Begin(sessions[0], begin);
  RunQueued([&] { return begun.has(); });
  Seal(sessions[0], begin);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  End(sessions);
  const auto fenced = Launch("b", 1);
  const auto reads = Resume(fenced[0], 0);
  EXPECT_THAT(Locate(fenced[0], reads.get().lease()).get().parts(), SizeIs(1));
  const auto after = Launch("c", 1);
  v1::FinishResumeRequest finish;
  finish.set_run(run_);
  finish.set_sequence(Resume(after[0], 0).get().checkpoint().sequence());
  Answer<v1::FinishResumeResponse> finished;
  engine_->FinishResume(As(after[0]), finish, finished.reply());
  RunQueued();
  ASSERT_TRUE(finished.status().ok()) << finished.status();
  EXPECT_EQ(UsedSegments(), 2) << "the fenced rank has not been told yet, and still reads";
  End(fenced);
  EXPECT_EQ(UsedSegments(), 0);
}

TEST_F(ResidentsTest, AnswersOnlySessionThatHoldsLease) {
  SaveAndEnd("one");
  const SessionId reader = Trainer("reader"), thief = Trainer("thief");
  Attach(reader);
  const auto opened = Open(reader, "one");
  EXPECT_EQ(Locate(thief, opened.get().lease()).reason(), "UNKNOWN_LEASE");
  Close(reader, opened.get().lease());
  EXPECT_EQ(Locate(reader, opened.get().lease()).reason(), "UNKNOWN_LEASE");
}

TEST_F(ResidentsTest, ReleasesCopyWhenReaderEndsWhileWaiting) {
  const auto sessions = Launch("a", 2);
  SaveAll(sessions, "one", 1);
  RunQueued([&] { return Tags() == std::vector<std::string>{"one"}; });
  ios_[1]->held.insert("CheckImages");
  End(sessions);
  const SessionId reader = Trainer("reader");
  Attach(reader);
  const auto opened = Open(reader, "one");
  const auto located = Locate(reader, opened.get().lease());
  engine_->SessionClosed(reader, "ended");
  ios_[1]->ReleaseHeld();
  RunQueued();
  ASSERT_TRUE(located.has());
  EXPECT_THAT(located.get().parts(), IsEmpty());
  EXPECT_EQ(pool_->usage().used_bytes, 0);
  EXPECT_EQ(ResidentSegments(), 2);
}

}  // namespace
}  // namespace ckptd
