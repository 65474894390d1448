// Bounds on the memory and the objects that one client can make the engine hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;

// Bytes that the process has allocated. 0 under a sanitizer, whose allocator does not report them.
size_t Allocated() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

class LimitsTest : public EngineTest {
 protected:
  v1::BeginRequest BeginOfManyFiles(const std::string& tag, int files) {
    v1::BeginRequest request;
    *request.mutable_key() = Key(0, tag);
    for (int i = 0; i < files; ++i) {
      v1::FileSpec& file = *request.add_files();
      file.set_path("layer" + std::to_string(i) + "/weights.bin");
      file.set_size_bytes(0);
    }
    return request;
  }
  void Abort(SessionId session, const std::string& tag) {
    v1::AbortRequest request;
    *request.mutable_key() = Key(0, tag);
    Answer<v1::AbortResponse> answer;
    engine_->Abort(As(session), request, answer.reply());
    RunQueued();
    EXPECT_TRUE(answer.status().ok()) << answer.status();
  }
};

TEST_F(LimitsTest, KeepsNothingForRanksThatHaveNotBegun) {
  engine_options_.limits.ranks_per_run = 65536;
  Start(16);
  const SessionId session = Trainer("a");
  ASSERT_TRUE(Join(session, 0, 65536, "launch").status().ok());
  const size_t before = Allocated();
  std::vector<Answer<v1::BeginResponse>> begun;
  for (int i = 0; i < 10; ++i)
    begun.push_back(Begin(session, BeginOf(0, "step_" + std::to_string(i), i, 100)));
  EXPECT_LT(Allocated(), before + 1 * kMiB);
  for (const auto& begin : begun) EXPECT_FALSE(begin.has());
  AdvanceClock(std::chrono::seconds(31));
  EXPECT_EQ(begun[0].reason(), "RANKS_MISSING");
  EXPECT_THAT(std::string(begun[0].status().message()), HasSubstr("65535"));
}

TEST_F(LimitsTest, KeepsOnlySummaryOfEndedSaves) {
  const SessionId session = Launch("launch", 1)[0];
  const size_t before = Allocated();
  for (int i = 0; i < 100; ++i) {
    const std::string tag = "step_" + std::to_string(i);
    Answer<v1::BeginResponse> begun = Begin(session, BeginOfManyFiles(tag, 2000));
    RunQueued([&] { return begun.has(); });
    ASSERT_TRUE(begun.status().ok()) << begun.status();
    Abort(session, tag);
    engine_->Tick();
  }
  EXPECT_LT(Allocated(), before + 4 * kMiB);
  const auto ended = Wait(session, Key(0, "step_0"));
  ASSERT_TRUE(ended.has());
  EXPECT_EQ(ended.get().checkpoint().level(), v1::FAILED);
  EXPECT_EQ(ended.get().checkpoint().error().reason(), "SAVE_ABORTED");
  EXPECT_EQ(ended.get().checkpoint().file_count(), 2000);
  EXPECT_EQ(ended.get().checkpoint().missing_ranks_size(), 1);
}

TEST_F(LimitsTest, SummaryOfCommittedSaveShowsLaterChanges) {
  const SessionId session = Launch("launch", 1)[0];
  SaveAll({session}, "step_1", 1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  engine_->Tick();
  EXPECT_FALSE(Wait(session, Key(0, "step_1")).get().checkpoint().pinned());
  Answer<v1::Checkpoint> pinned;
  engine_->SetPinned(As(session), run_ + "/checkpoints/step_1", true, pinned.reply());
  RunQueued();
  ASSERT_TRUE(pinned.status().ok()) << pinned.status();
  const v1::Checkpoint ended = Wait(session, Key(0, "step_1")).get().checkpoint();
  EXPECT_TRUE(ended.pinned());
  EXPECT_EQ(ended.level(), v1::COMMITTED);
  EXPECT_EQ(ended.size_bytes(), 100);
  EXPECT_TRUE(ended.has_commit_time());
}

TEST_F(LimitsTest, RefusesRunOfTooManyRanks) {
  engine_options_.limits.ranks_per_run = 8;
  Start(16);
  const SessionId session = Trainer("a");
  const auto refused = Join(session, 0, 9, "launch");
  EXPECT_EQ(refused.reason(), "LIMIT_EXCEEDED");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("limit of 8 ranks"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("limits.ranks_per_run"));
  EXPECT_EQ(DetailsOf(refused.status()).at("limit"), "limits.ranks_per_run");
  EXPECT_TRUE(Join(session, 0, 8, "launch").status().ok());
}

TEST_F(LimitsTest, RefusesPartOfTooManyFiles) {
  engine_options_.limits.files_per_part = 10;
  Start(16);
  const SessionId session = Launch("launch", 1)[0];
  EXPECT_EQ(Begin(session, BeginOfManyFiles("step_1", 11)).reason(), "LIMIT_EXCEEDED");
  Answer<v1::BeginResponse> begun = Begin(session, BeginOfManyFiles("step_2", 10));
  RunQueued([&] { return begun.has(); });
  EXPECT_TRUE(begun.status().ok()) << begun.status();
}

TEST_F(LimitsTest, CountsFilesOfUserUntilItsSavesEnd) {
  engine_options_.limits.files_per_uid = 25;
  Start(16);
  const SessionId session = Launch("launch", 1)[0];
  for (const char* tag : {"step_1", "step_2"}) {
    Answer<v1::BeginResponse> begun = Begin(session, BeginOfManyFiles(tag, 10));
    RunQueued([&] { return begun.has(); });
    EXPECT_TRUE(begun.status().ok()) << begun.status();
  }
  const auto refused = Begin(session, BeginOfManyFiles("step_3", 10));
  EXPECT_EQ(refused.reason(), "LIMIT_EXCEEDED");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("uid 1000"));
  Abort(session, "step_1");
  Answer<v1::BeginResponse> begun = Begin(session, BeginOfManyFiles("step_4", 10));
  RunQueued([&] { return begun.has(); });
  EXPECT_TRUE(begun.status().ok()) << begun.status();
}

TEST_F(LimitsTest, LongNameCountsAsSeveralFiles) {
  engine_options_.limits.files_per_uid = 3;
  Start(16);
  const SessionId session = Launch("launch", 1)[0];
  v1::BeginRequest request = BeginOf(0, "step_1", 1, 100,
                                     std::string(200, 'a') + "/" + std::string(200, 'b') + "/" +
                                         std::string(200, 'c') + "/" + std::string(200, 'd'));
  EXPECT_EQ(Begin(session, request).reason(), "LIMIT_EXCEEDED");
}

TEST_F(LimitsTest, RefusesSaveWhoseManifestWouldBeTooLarge) {
  engine_options_.chunk_bytes = 1 << 16;
  Start(16);
  const SessionId session = Launch("launch", 1)[0];
  // This limit is checked before the pool's: 2^25 checksums fit into no manifest.
  const auto refused = Begin(session, BeginOf(0, "step_1", 1, int64_t{1} << 41));
  EXPECT_EQ(refused.reason(), "LIMIT_EXCEEDED");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("io.chunk_bytes"));
}

TEST_F(LimitsTest, RefusesSavesInFlightAboveUserLimit) {
  engine_options_.limits.saves_per_uid = 2;
  Start(16);
  const std::vector<SessionId> sessions = Launch("launch", 2);  // Rank 1 never comes.
  const auto first = Begin(sessions[0], BeginOf(0, "step_1", 1, 100));
  const auto second = Begin(sessions[0], BeginOf(0, "step_2", 2, 100));
  const auto refused = Begin(sessions[0], BeginOf(0, "step_3", 3, 100));
  EXPECT_EQ(refused.reason(), "LIMIT_EXCEEDED");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("limits.saves_per_uid"));
  Abort(sessions[0], "step_2");
  EXPECT_NE(Begin(sessions[0], BeginOf(0, "step_4", 4, 100)).reason(), "LIMIT_EXCEEDED");
}

TEST_F(LimitsTest, RefusesLeasesAboveUserLimit) {
  engine_options_.limits.leases_per_uid = 2;
  Start(16);
  const SessionId session = Launch("launch", 1)[0];
  SaveAll({session}, "step_1", 1);
  RunQueued([&] { return observer_.ended.size() == 1; });
  const auto first = Open(session, "step_1");
  ASSERT_TRUE(first.status().ok()) << first.status();
  EXPECT_TRUE(Open(session, "step_1").status().ok());
  const auto refused = Open(session, "step_1");
  EXPECT_EQ(refused.reason(), "LIMIT_EXCEEDED");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("limits.leases_per_uid"));
  Close(session, first.get().lease());
  EXPECT_TRUE(Open(session, "step_1").status().ok());
}

TEST_F(LimitsTest, RefusesLeasesWhoseManifestsTakeTooMuchMemory) {
  engine_options_.limits.manifest_bytes_per_uid = 300 << 10;
  Start(16);
  const SessionId session = Launch("launch", 1)[0];
  const v1::BeginRequest request = BeginOfManyFiles("step_1", 1000);
  Answer<v1::BeginResponse> begun = Begin(session, request);
  RunQueued([&] { return begun.has(); });
  Seal(session, request);
  RunQueued([&] { return observer_.ended.size() == 1; });
  const auto first = Open(session, "step_1");
  ASSERT_TRUE(first.status().ok()) << first.status();
  Answer<v1::OpenCheckpointResponse> refused;
  for (int i = 0; i < 3 && refused.reason().empty(); ++i) refused = Open(session, "step_1");
  EXPECT_EQ(refused.reason(), "LIMIT_EXCEEDED");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("limits.manifest_bytes_per_uid"));
}

TEST_F(LimitsTest, RefusesWatchesAboveUserLimit) {
  engine_options_.limits.watches_per_uid = 1;
  Start(16);
  const auto ignore = [](const v1::WatchResponse&) { return true; };
  absl::Status refused;
  const int64_t first = engine_->AddWatcher(As(1), v1::WatchRequest(), ignore, &refused);
  EXPECT_TRUE(refused.ok()) << refused;
  engine_->AddWatcher(As(1), v1::WatchRequest(), ignore, &refused);
  EXPECT_EQ(ReasonOf(refused), "LIMIT_EXCEEDED");
  engine_->AddWatcher(As(2, 1001), v1::WatchRequest(), ignore, &refused);
  EXPECT_TRUE(refused.ok()) << refused;
  engine_->RemoveWatcher(first);
  engine_->AddWatcher(As(1), v1::WatchRequest(), ignore, &refused);
  EXPECT_TRUE(refused.ok()) << refused;
}

}  // namespace
}  // namespace ckptd
