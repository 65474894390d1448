#include "storage/base/memory/measured_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace ckptd {
namespace {

// Stand-in loops: each moves a stand-in clock on by its own time for each KiB, and counts its calls.
int64_t now = 0;
int64_t cost[3] = {};
bool works[3] = {};
int calls[3] = {};
bool was_touched = false;  // The target of the last copy had been written to before.

template <int kLoop>
void Copy(char* to, const char* from, size_t size) {
  was_touched = *to == *from;
  std::memcpy(to, from, size);
  now += cost[kLoop] * static_cast<int64_t>(size >> 10);
  ++calls[kLoop];
}

template <int kLoop>
bool Works() {
  return works[kLoop];
}

std::span<const CopyLoop> StandIns() {
  static constexpr CopyLoop kLoops[] = {
      {"first", Works<0>, Copy<0>}, {"second", Works<1>, Copy<1>}, {"third", Works<2>, Copy<2>}};
  return kLoops;
}

int64_t Now() { return now; }

class MeasuredCopyTest : public testing::Test {
 protected:
  MeasuredCopyTest() { SetUpLoops({100, 100, 100}); }

  static void SetUpLoops(std::vector<int64_t> costs) {
    now = 0;
    for (int i = 0; i < 3; ++i) {
      cost[i] = costs[static_cast<size_t>(i)];
      works[i] = true;
      calls[i] = 0;
    }
  }

  // Copies so many bytes, and checks them.
  void CopyBytes(size_t size) {
    std::string from(size, '\0'), to(size, '#');
    for (size_t i = 0; i < size; ++i) from[i] = static_cast<char>(i * 31 + i / 251);
    copy_.Copy(to.data(), from.data(), size);
    ASSERT_EQ(to, from);
  }

  // Copies so many bytes in long pieces.
  void CopyLong(size_t size) {
    static constexpr size_t kPiece = MeasuredCopy::kPause / 4;
    static std::string from(kPiece, '#'), to(kPiece, ' ');
    for (; size > 0; size -= std::min(size, kPiece))
      copy_.Copy(to.data(), from.data(), std::min(size, kPiece));
  }

  std::string Fastest() const { return copy_.fastest() == nullptr ? "none" : copy_.fastest()->name; }

  static constexpr size_t kEnough = 3 * MeasuredCopy::kRounds * MeasuredCopy::kSlice;

  MeasuredCopy copy_{StandIns, Now};
};

TEST_F(MeasuredCopyTest, TakesTheFastestLoop) {
  SetUpLoops({100, 100, 50});
  CopyBytes(kEnough);
  EXPECT_EQ(Fastest(), "third");
  calls[0] = calls[1] = calls[2] = 0;
  CopyBytes(kEnough);
  EXPECT_EQ(calls[0] + calls[1], 0);
  EXPECT_EQ(calls[2], 1);
}

TEST_F(MeasuredCopyTest, KeepsThePreferredLoopInATie) {
  SetUpLoops({102, 100, 100});
  CopyBytes(kEnough);
  EXPECT_EQ(Fastest(), "first");
}

TEST_F(MeasuredCopyTest, NeverCallsALoopThatTheProcessorDoesNotHave) {
  SetUpLoops({1, 100, 90});
  works[0] = false;
  CopyBytes(kEnough + 12345);
  EXPECT_EQ(calls[0], 0);
  EXPECT_EQ(Fastest(), "third");
}

TEST_F(MeasuredCopyTest, TakesTheLastLoopWhereNoOtherWorks) {
  works[0] = works[1] = false;
  CopyBytes(kEnough);
  EXPECT_EQ(calls[0] + calls[1], 0);
  EXPECT_EQ(Fastest(), "third");
}

TEST_F(MeasuredCopyTest, OneSlowTurnOfTheFastestLoopChangesNothing) {
  SetUpLoops({100, 100, 5'000});
  CopyBytes(3 * MeasuredCopy::kSlice);  // The first turn of each: the third was interrupted.
  cost[2] = 50;
  CopyBytes(kEnough);
  EXPECT_EQ(Fastest(), "third");
}

TEST_F(MeasuredCopyTest, ChoosesAnewWhenAnotherLoopHasBecomeFaster) {
  SetUpLoops({100, 100, 50});
  CopyBytes(kEnough);
  EXPECT_EQ(Fastest(), "third");
  cost[1] = 40;
  CopyLong(3 * MeasuredCopy::kPause);
  EXPECT_EQ(Fastest(), "third");  // Two or three of the last seven rounds are no majority.
  CopyLong(2 * MeasuredCopy::kPause);
  EXPECT_EQ(Fastest(), "second");
}

TEST_F(MeasuredCopyTest, LaterRoundsCopyOneSliceByEachLoop) {
  SetUpLoops({100, 100, 50});
  CopyBytes(kEnough);
  calls[0] = calls[1] = calls[2] = 0;
  CopyLong(MeasuredCopy::kPause);
  EXPECT_EQ(calls[0] + calls[1], 0);
  CopyLong(MeasuredCopy::kPause);
  EXPECT_EQ(calls[0], 1);
  EXPECT_EQ(calls[1], 1);
}

TEST_F(MeasuredCopyTest, OnlyTheFirstRoundsFaultThePagesInBeforeTheyMeasure) {
  SetUpLoops({100, 100, 50});
  const std::string from(MeasuredCopy::kSlice, '#');
  const auto copy = [&] {
    std::string to(MeasuredCopy::kSlice, ' ');
    copy_.Copy(to.data(), from.data(), to.size());
  };
  for (int i = 0; i < 3 * MeasuredCopy::kRounds; ++i) {
    copy();
    EXPECT_TRUE(was_touched) << i;
  }
  CopyLong(MeasuredCopy::kPause);
  calls[0] = 0;
  copy();
  EXPECT_EQ(calls[0], 1) << "it is measured";
  EXPECT_FALSE(was_touched);
}

TEST_F(MeasuredCopyTest, CountsTheTimeForAByteAndNotForASlice) {
  SetUpLoops({100, 60, 100});
  for (int i = 0; i < MeasuredCopy::kRounds; ++i) {
    CopyBytes(MeasuredCopy::kLeastSlice);
    CopyBytes(MeasuredCopy::kSlice);
    CopyBytes(MeasuredCopy::kLeastSlice);
  }
  EXPECT_EQ(Fastest(), "second");
}

TEST_F(MeasuredCopyTest, CopiesSlicesThatAreTooSmallToTimeByThePreferredLoop) {
  SetUpLoops({100, 50, 50});
  for (int i = 0; i < 100; ++i) CopyBytes(MeasuredCopy::kLeastSlice - 1);
  EXPECT_EQ(Fastest(), "none");
  EXPECT_EQ(calls[0], 100);
  EXPECT_EQ(calls[1] + calls[2], 0);
}

TEST_F(MeasuredCopyTest, CopiesNothingAndFewBytes) {
  copy_.Copy(nullptr, nullptr, 0);
  for (const size_t size : {1u, 4095u, 4096u, 4097u}) CopyBytes(size);
}

int64_t SystemTime() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

TEST(MeasuredCopy, ThreadsThatCopyDuringTheTrialCopyEveryByte) {
  MeasuredCopy copy{CopyLoops, SystemTime};
  const size_t size = 2 * CopyLoops().size() * MeasuredCopy::kRounds * MeasuredCopy::kSlice + 4321;
  std::string from(size, '\0'), to(size, '#');
  for (size_t i = 0; i < size; ++i) from[i] = static_cast<char>(i * 31 + i / 251);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) {
    const size_t begin = size * i / 3, end = size * (i + 1) / 3;
    threads.emplace_back([&, begin, end] { copy.Copy(to.data() + begin, from.data() + begin, end - begin); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(to == from);
  ASSERT_NE(copy.fastest(), nullptr);
  EXPECT_TRUE(copy.fastest()->works_here());
}

}  // namespace
}  // namespace ckptd
