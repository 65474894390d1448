// What one client can make the engine hold, in memory and in number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/engine_testing.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;

// What the process has allocated. 0 under a sanitizer, whose allocator does not say.
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
    Turn();
    EXPECT_TRUE(answer.status().ok()) << answer.status();
  }
};

TEST_F(LimitsTest, KeepsNothingForRanksThatHaveNotBegun) {
  const SessionId session = Trainer("a");
  ASSERT_TRUE(Join(session, 0, 65536, "launch").status().ok());
  const size_t before = Allocated();
  std::vector<Answer<v1::BeginResponse>> begun;
  for (int i = 0; i < 10; ++i)
    begun.push_back(Begin(session, BeginOf(0, "step_" + std::to_string(i), i, 100)));
  EXPECT_LT(Allocated(), before + 1 * kMiB);
  for (const auto& begin : begun) EXPECT_FALSE(begin.has());
  Pass(std::chrono::seconds(31));
  EXPECT_EQ(begun[0].reason(), "RANKS_MISSING");
  EXPECT_THAT(std::string(begun[0].status().message()), HasSubstr("65535"));
}

TEST_F(LimitsTest, KeepsOnlyTheSummaryOfSavesThatHaveEnded) {
  const SessionId session = Launch("launch", 1)[0];
  const size_t before = Allocated();
  for (int i = 0; i < 100; ++i) {
    const std::string tag = "step_" + std::to_string(i);
    Answer<v1::BeginResponse> begun = Begin(session, BeginOfManyFiles(tag, 2000));
    Turn([&] { return begun.has(); });
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

TEST_F(LimitsTest, TheSummaryOfACommittedSaveSaysWhatChangedSince) {
  const SessionId session = Launch("launch", 1)[0];
  SaveAll({session}, "step_1", 1);
  Turn([&] { return observer_.ended.size() == 1; });
  engine_->Tick();
  EXPECT_FALSE(Wait(session, Key(0, "step_1")).get().checkpoint().pinned());
  Answer<v1::Checkpoint> pinned;
  engine_->SetPinned(As(session), run_ + "/checkpoints/step_1", true, pinned.reply());
  Turn();
  ASSERT_TRUE(pinned.status().ok()) << pinned.status();
  const v1::Checkpoint ended = Wait(session, Key(0, "step_1")).get().checkpoint();
  EXPECT_TRUE(ended.pinned());
  EXPECT_EQ(ended.level(), v1::COMMITTED);
  EXPECT_EQ(ended.size_bytes(), 100);
  EXPECT_TRUE(ended.has_commit_time());
}

}  // namespace
}  // namespace ckptd
