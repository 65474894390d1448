// Tests of SegmentPool. One file of more than 500 lines, because all tests use the same fixtures and mailbox.
#include "daemon/memory/segment_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

constexpr int64_t kSegment = 2 << 20;
using Refs = absl::StatusOr<std::vector<SegmentRef>>;

// Stands for the engine's thread: the test runs the work posted to it.
class Mailbox {
 public:
  void Post(absl::AnyInvocable<void()> work) {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(work));
    changed_.Signal();
  }

  // Runs posted work until `condition` holds; false if it does not within a minute.
  bool RunUntil(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      absl::AnyInvocable<void()> work;
      {
        MutexLock lock(mutex_);
        while (posted_.empty()) {
          const auto left = deadline - std::chrono::steady_clock::now();
          if (left.count() <= 0) return false;
          changed_.WaitFor(mutex_, left);
        }
        work = std::move(posted_.front());
        posted_.pop_front();
      }
      work();
    }
    return true;
  }

  bool RunOne() {
    absl::AnyInvocable<void()> work;
    {
      MutexLock lock(mutex_);
      if (posted_.empty()) return false;
      work = std::move(posted_.front());
      posted_.pop_front();
    }
    work();
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<absl::AnyInvocable<void()>> posted_ ABSL_GUARDED_BY(mutex_);
};

class SegmentPoolTest : public testing::Test {
 protected:
  void Make(int segments, int ahead, PagePolicy pages = PagePolicy::kPlain) {
    SegmentPoolOptions options;
    options.bytes = segments * kSegment;
    options.segment_bytes = kSegment;
    options.populate_ahead_bytes = ahead * kSegment;
    options.resident_bytes = resident_ * kSegment;
    options.pages = pages;
    pool_ = SegmentPool::Start(
        options, [this](absl::AnyInvocable<void()> work) { mailbox_.Post(std::move(work)); },
        [this](std::string warning) { warnings_.push_back(std::move(warning)); });
  }

  void SetBudget(int segments, int ahead) {
    pool_->SetBudget({segments * kSegment, ahead * kSegment, resident_ * kSegment});
  }

  ReservationId Reserve(std::vector<SegmentDemand> demands) {
    absl::StatusOr<ReservationId> id = pool_->Reserve(demands);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }

  std::shared_ptr<std::optional<Refs>> StartDraw(ReservationId id, SessionId reserved_for, SessionId session,
                                                 int count) {
    auto answer = std::make_shared<std::optional<Refs>>();
    pool_->Draw(id, reserved_for, session, count, [answer](Refs refs) {
      ASSERT_FALSE(answer->has_value()) << "answered twice";
      *answer = std::move(refs);
    });
    return answer;
  }

  std::vector<SegmentRef> Draw(ReservationId id, SessionId reserved_for, SessionId session, int count) {
    auto answer = StartDraw(id, reserved_for, session, count);
    EXPECT_TRUE(mailbox_.RunUntil([&] { return answer->has_value(); }));
    if (!answer->has_value()) return {};
    EXPECT_TRUE((*answer)->ok()) << (*answer)->status();
    return (*answer)->value_or(std::vector<SegmentRef>());
  }

  std::vector<SegmentId> Ids(const std::vector<SegmentRef>& refs) {
    std::vector<SegmentId> ids;
    for (const SegmentRef& ref : refs) ids.push_back(ref.id);
    return ids;
  }

  UniqueFd Fetch(SessionId session, SegmentId id) {
    auto found = pool_->directory().Find(session, id, SegmentAccess::kWrite);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? UniqueFd(found->fd) : UniqueFd();
  }

  std::string FetchReason(SessionId session, SegmentId id) {
    auto found = pool_->directory().Find(session, id, SegmentAccess::kWrite);
    if (!found.ok()) return ReasonOf(found.status());
    UniqueFd closed(found->fd);
    return "";
  }

  int resident_ = 0;  // For Make.
  Mailbox mailbox_;
  std::vector<std::string> warnings_;
  std::unique_ptr<SegmentPool> pool_;
};

int64_t BytesHeld(int fd) {
  struct stat info {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return info.st_blocks * 512;
}

TEST_F(SegmentPoolTest, PopulatesNoMoreThanTheAheadTarget) {
  Make(8, 3);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 3 * kSegment; }));
  EXPECT_EQ(pool_->usage().total_bytes, 8 * kSegment);
  EXPECT_EQ(pool_->usage().pages, "plain");
  EXPECT_EQ(pool_->usage().used_bytes, 0);
  EXPECT_TRUE(warnings_.empty()) << warnings_[0];  // The policy is kPlain.
  EXPECT_EQ(pool_->SegmentsFor(0), 0);
  EXPECT_EQ(pool_->SegmentsFor(1), 1);
  EXPECT_EQ(pool_->SegmentsFor(kSegment), 1);
  EXPECT_EQ(pool_->SegmentsFor(kSegment + 1), 2);
}

TEST_F(SegmentPoolTest, LendsZeroedSizeLockedSharedMemory) {
  Make(4, 4);
  const auto refs = Draw(Reserve({{1, 1}}), 1, 1, 1);
  ASSERT_EQ(refs.size(), 1u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(refs[0].data) % kSegment, 0u);
  EXPECT_TRUE(
      std::all_of(refs[0].data, refs[0].data + kSegment, [](std::byte b) { return b == std::byte{0}; }));
  UniqueFd fd = Fetch(1, refs[0].id);
  EXPECT_EQ(fcntl(fd.get(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(ftruncate(fd.get(), 0), 0);
  EXPECT_NE(ftruncate(fd.get(), 2 * kSegment), 0);
  EXPECT_EQ(BytesHeld(fd.get()), kSegment);
  ASSERT_EQ(pwrite(fd.get(), "hello", 5, 4096), 5);
  EXPECT_EQ(std::memcmp(refs[0].data + 4096, "hello", 5), 0);
  EXPECT_TRUE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
}

TEST_F(SegmentPoolTest, WarnsOnceWhenPagesArePlainAgainstThePolicy) {
  Make(4, 4, PagePolicy::kAuto);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 4 * kSegment; }));
  RecordProperty("pages", pool_->usage().pages);
  if (pool_->usage().pages == "plain") {
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_THAT(warnings_[0], testing::HasSubstr("shmem_enabled"));
    EXPECT_THAT(warnings_[0], testing::HasSubstr("nr_hugepages=4"));
  } else {
    EXPECT_TRUE(warnings_.empty()) << warnings_[0];
  }
  const auto refs = Draw(Reserve({{1, 1}}), 1, 1, 1);
  auto found = pool_->directory().Find(1, refs.at(0).id, SegmentAccess::kWrite);
  ASSERT_TRUE(found.ok());
  UniqueFd fd(found->fd);
  EXPECT_EQ(found->huge, pool_->usage().pages != "plain");
}

TEST_F(SegmentPoolTest, LendsASessionItsOwnIdleSegmentsLowestIdFirst) {
  Make(6, 6);
  const ReservationId first = Reserve({{1, 3}});
  const std::vector<SegmentId> ids = Ids(Draw(first, 1, 1, 3));
  pool_->Release(first);
  EXPECT_EQ(pool_->usage().lent_bytes, 3 * kSegment);
  const ReservationId second = Reserve({{1, 2}});
  EXPECT_EQ(Ids(Draw(second, 1, 1, 2)), (std::vector<SegmentId>{ids[0], ids[1]}));
  EXPECT_THAT(pool_->TakeRetired(1), testing::IsEmpty());
}

TEST_F(SegmentPoolTest, NeverLendsASegmentToASecondSession) {
  Make(4, 4);
  std::map<SegmentId, SessionId> owner;
  for (int round = 0; round < 6; ++round) {
    for (SessionId session = 1; session <= 3; ++session) {
      const ReservationId id = Reserve({{session, 3}});
      for (const SegmentRef& ref : Draw(id, session, session, 3)) {
        EXPECT_EQ(owner.try_emplace(ref.id, session).first->second, session);
        // No byte that another session wrote.
        for (int64_t offset = 0; offset < kSegment; offset += 4096) {
          const int written = static_cast<int>(ref.data[offset]);
          EXPECT_TRUE(written == 0 || written == session) << written << " in session " << session;
          ref.data[offset] = static_cast<std::byte>(session);
        }
        for (SessionId other = 1; other <= 3; ++other) {
          EXPECT_EQ(FetchReason(other, ref.id), other == session ? "" : "UNKNOWN_SEGMENT");
        }
      }
      pool_->Release(id);
    }
  }
}

TEST_F(SegmentPoolTest, PunchesReclaimedMemoryOutWhileTheClientHoldsTheMemfd) {
  Make(4, 4);
  const ReservationId first = Reserve({{1, 4}});
  const auto refs = Draw(first, 1, 1, 4);
  UniqueFd held = Fetch(1, refs.back().id);
  void* mapped = mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, held.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memset(refs.back().data, 7, kSegment);
  pool_->Release(first);
  EXPECT_EQ(pool_->usage().lent_bytes, 4 * kSegment);

  const ReservationId second = Reserve({{2, 1}});  // Session 1 holds the whole pool, idle.
  const auto taken = Draw(second, 2, 2, 1);
  // The old memory was freed before the new one was made.
  EXPECT_EQ(BytesHeld(held.get()), 0);
  EXPECT_EQ(static_cast<char*>(mapped)[0], 0);  // No SIGBUS.
  munmap(mapped, kSegment);
  EXPECT_THAT(pool_->TakeRetired(1), testing::ElementsAre(refs.back().id));
  EXPECT_THAT(pool_->TakeRetired(1), testing::IsEmpty());
  EXPECT_THAT(pool_->TakeRetired(2), testing::IsEmpty());
  EXPECT_EQ(FetchReason(1, refs.back().id), "UNKNOWN_SEGMENT");
  EXPECT_EQ(FetchReason(1, refs.front().id), "");
  EXPECT_EQ(pool_->usage().lent_bytes, 3 * kSegment);
}

TEST_F(SegmentPoolTest, ReclaimsFromUnnamedSessionsFirst) {
  Make(4, 4);
  const ReservationId one = Reserve({{1, 2}});
  const ReservationId two = Reserve({{2, 2}});
  Draw(one, 1, 1, 2);
  Draw(two, 2, 2, 2);
  pool_->Release(one);  // Idle for longer than those of session 2.
  pool_->Release(two);
  Reserve({{1, 1}, {3, 2}});
  EXPECT_THAT(pool_->TakeRetired(1), testing::IsEmpty());
  EXPECT_THAT(pool_->TakeRetired(2), testing::SizeIs(2));
}

TEST_F(SegmentPoolTest, ReclaimsSurplusOfANamedSessionLast) {
  Make(4, 4);
  const ReservationId before = Reserve({{1, 4}});
  Draw(before, 1, 1, 4);
  pool_->Release(before);
  const ReservationId after = Reserve({{1, 1}, {2, 3}});
  EXPECT_THAT(pool_->TakeRetired(1), testing::SizeIs(3));
  EXPECT_THAT(Draw(after, 2, 2, 3), testing::SizeIs(3));
  EXPECT_THAT(Draw(after, 1, 1, 1), testing::SizeIs(1));
}

TEST_F(SegmentPoolTest, RefusesWithPoolTooSmallOrPoolExhausted) {
  Make(4, 0);
  absl::Status never = pool_->Reserve({{1, 3}, {2, 2}}).status();
  EXPECT_EQ(never.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(never), "POOL_TOO_SMALL");
  EXPECT_THAT(std::string(never.message()), testing::HasSubstr("5 segments (10 MiB)"));
  EXPECT_EQ(pool_->usage().used_bytes, 0);  // A refused Reserve reserves nothing.

  const ReservationId id = Reserve({{1, 3}});
  absl::Status now = pool_->Reserve({{2, 2}}).status();
  EXPECT_EQ(now.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(now), "POOL_EXHAUSTED");
  EXPECT_EQ(ReasonOf(pool_->Grow(id, {1, 2})), "POOL_TOO_SMALL");
  EXPECT_TRUE(pool_->Grow(id, {1, 1}).ok());
  EXPECT_EQ(pool_->usage().used_bytes, 4 * kSegment);
  const ReservationId empty = Reserve({});
  EXPECT_EQ(ReasonOf(pool_->Grow(empty, {2, 1})), "POOL_EXHAUSTED");
}

TEST_F(SegmentPoolTest, CallsOnRoomAfterReleaseShrinkAndSessionEnd) {
  Make(4, 0);
  int room = 0;
  pool_->OnRoom([&] { ++room; });
  const ReservationId one = Reserve({{1, 2}});
  const ReservationId two = Reserve({{2, 2}});
  Draw(two, 2, 2, 2);
  EXPECT_EQ(room, 0);
  pool_->Shrink(one, 1, 1);
  EXPECT_EQ(room, 0) << "inside the call";
  EXPECT_TRUE(mailbox_.RunUntil([&] { return room == 1; }));
  Reserve({{3, 1}});
  pool_->Release(one);
  EXPECT_TRUE(mailbox_.RunUntil([&] { return room == 2; }));
  pool_->Release(two);
  EXPECT_TRUE(mailbox_.RunUntil([&] { return room == 3; }));
  pool_->SessionEnded(2);
  EXPECT_TRUE(mailbox_.RunUntil([&] { return room == 4; }));
  EXPECT_EQ(pool_->usage().lent_bytes, 0);
}

// A trainer that saves no more does not keep its memory from the machine: neither what it could save into,
// nor the copies. What is reserved, drawn or held stays.
TEST_F(SegmentPoolTest, FreesWhatNoSaveAndNoReaderUses) {
  resident_ = 16;
  Make(16, 0);
  const ReservationId ended = Reserve({{1, 2}});  // A copy whose session has ended.
  Draw(ended, 1, 1, 2);
  pool_->Settle(ended);
  pool_->SessionEnded(1);
  const ReservationId copy = Reserve({{2, 2}});  // A copy whose session lives, and two idle segments.
  Draw(copy, 2, 2, 2);
  const ReservationId idle = Reserve({{2, 2}});
  const std::vector<SegmentId> idle_ids = Ids(Draw(idle, 2, 2, 2));
  pool_->Settle(copy);
  pool_->Release(idle);
  const ReservationId held = Reserve({{3, 2}});  // A copy that a reader holds.
  Draw(held, 3, 3, 2);
  pool_->Settle(held);
  ASSERT_TRUE(pool_->Hold(held, 9));
  const ReservationId next = Reserve({{2, 1}});  // The next save, which has claimed an idle segment.
  const ReservationId drawn = Reserve({{4, 1}});
  Draw(drawn, 4, 4, 1);
  const UniqueFd map = Fetch(2, idle_ids[1]);
  EXPECT_GT(BytesHeld(map.get()), 0);

  pool_->FreeUnused();
  EXPECT_FALSE(pool_->HasCopy(ended));
  EXPECT_FALSE(pool_->HasCopy(copy));
  EXPECT_TRUE(pool_->HasCopy(held));
  EXPECT_EQ(pool_->usage().resident_bytes, 0);
  EXPECT_EQ(pool_->usage().lent_bytes, 0);
  EXPECT_EQ(pool_->usage().used_bytes, 4 * kSegment);
  EXPECT_THAT(pool_->TakeRetired(2), testing::SizeIs(3));
  EXPECT_THAT(Draw(next, 2, 2, 1), testing::SizeIs(1));
  EXPECT_THAT(Draw(Reserve({{2, 12}}), 2, 2, 12), testing::SizeIs(12)) << "all of the rest can be used again";
  EXPECT_EQ(BytesHeld(map.get()), 0);
}

TEST_F(SegmentPoolTest, CancelsAWaitingDrawOnRelease) {
  Make(4, 0);
  const ReservationId id = Reserve({{1, 4}});
  auto answer = StartDraw(id, 1, 1, 4);
  ASSERT_FALSE(answer->has_value());  // The mailbox has not run, so no segment has been reported.
  pool_->Release(id);
  ASSERT_TRUE(answer->has_value());
  EXPECT_EQ((*answer)->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(pool_->usage().used_bytes, 0);
  EXPECT_THAT(Draw(Reserve({{2, 4}}), 2, 2, 4), testing::SizeIs(4));
}

TEST_F(SegmentPoolTest, CancelsAWaitingDrawWhenItsSessionEnds) {
  Make(4, 0);
  const ReservationId id = Reserve({{0, 4}});
  auto gone = StartDraw(id, 0, 1, 2);
  auto stays = StartDraw(id, 0, 2, 2);
  pool_->SessionEnded(1);
  ASSERT_TRUE(gone->has_value());
  EXPECT_EQ((*gone)->status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(mailbox_.RunUntil([&] { return stays->has_value(); }));
  EXPECT_TRUE((*stays)->ok());
  // The claim is back in the reservation: the rank's next process can draw it.
  EXPECT_THAT(Draw(id, 0, 3, 2), testing::SizeIs(2));
}

TEST_F(SegmentPoolTest, KeepsDrawnSegmentsAfterTheirSessionEndsUntilRelease) {
  Make(4, 0);
  const ReservationId id = Reserve({{1, 2}});
  const auto refs = Draw(id, 1, 1, 2);
  refs[0].data[0] = std::byte{9};
  UniqueFd held = Fetch(1, refs[0].id);
  pool_->SessionEnded(1);
  EXPECT_EQ(FetchReason(1, refs[0].id), "UNKNOWN_SEGMENT");
  EXPECT_EQ(refs[0].data[0], std::byte{9});
  EXPECT_EQ(pool_->usage().used_bytes, 2 * kSegment);
  EXPECT_EQ(ReasonOf(pool_->Reserve({{2, 3}}).status()), "POOL_EXHAUSTED");
  pool_->Release(id);
  EXPECT_EQ(pool_->usage().used_bytes, 0);
  EXPECT_EQ(pool_->usage().lent_bytes, 0);
  EXPECT_THAT(Draw(Reserve({{2, 4}}), 2, 2, 4), testing::SizeIs(4));
  EXPECT_EQ(BytesHeld(held.get()), 0);
}

// A trainer stalls in its copy and writes again long after the save has ended.
TEST_F(SegmentPoolTest, RetiresARevokedSegmentSoThatNobodySeesALateWrite) {
  Make(4, 0);
  const ReservationId id = Reserve({{1, 2}});
  const auto refs = Draw(id, 1, 1, 2);
  ASSERT_EQ(refs.size(), 2u);
  UniqueFd held = Fetch(1, refs[0].id);
  void* late = mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, held.get(), 0);
  ASSERT_NE(late, MAP_FAILED);
  pool_->Revoke(refs[0].id);
  pool_->Revoke(refs[0].id);
  pool_->Revoke(12345);  // No-op for an unknown segment.
  pool_->Release(id);
  EXPECT_THAT(pool_->TakeRetired(1), testing::ElementsAre(refs[0].id));
  EXPECT_EQ(FetchReason(1, refs[0].id), "UNKNOWN_SEGMENT");
  EXPECT_EQ(pool_->usage().lent_bytes, kSegment);
  for (SessionId session : {1, 2}) {
    const auto next = Draw(Reserve({{session, 2}}), session, session, 2);
    std::memset(late, 0xee, kSegment);
    for (const SegmentRef& ref : next) {
      EXPECT_NE(ref.id, refs[0].id);
      EXPECT_TRUE(std::all_of(ref.data, ref.data + kSegment, [](std::byte b) { return b == std::byte{0}; }));
    }
  }
  munmap(late, kSegment);
}

TEST_F(SegmentPoolTest, LetsASuccessorDrawWhatAnEndedSessionReserved) {
  Make(4, 4);
  const ReservationId before = Reserve({{1, 4}});
  const std::vector<SegmentId> old_ids = Ids(Draw(before, 1, 1, 4));
  pool_->Release(before);
  const ReservationId id = Reserve({{1, 3}});
  pool_->SessionEnded(1);
  const auto refs = Draw(id, 1, 2, 3);
  ASSERT_EQ(refs.size(), 3u);
  for (const SegmentRef& ref : refs) EXPECT_THAT(old_ids, testing::Not(testing::Contains(ref.id)));
}

TEST_F(SegmentPoolTest, DrawsIdleSegmentsOfTheSessionFirst) {
  Make(4, 0);
  const ReservationId before = Reserve({{1, 2}});
  const std::vector<SegmentId> ids = Ids(Draw(before, 1, 1, 2));
  const ReservationId unknown = Reserve({{0, 2}});  // The session was not known yet.
  pool_->Release(before);
  EXPECT_EQ(Ids(Draw(unknown, 0, 1, 2)), ids);
  EXPECT_EQ(pool_->usage().used_bytes, 2 * kSegment);
}

TEST_F(SegmentPoolTest, RefusesADrawOfMoreThanIsReserved) {
  Make(4, 0);
  const ReservationId id = Reserve({{1, 2}});
  for (auto answer :
       {StartDraw(id, 1, 1, 3), StartDraw(id, 2, 2, 1), StartDraw(id, 1, 1, -1), StartDraw(99, 1, 1, 1)}) {
    ASSERT_TRUE(answer->has_value());
    EXPECT_FALSE((*answer)->ok());
  }
  EXPECT_THAT(Draw(id, 1, 1, 0), testing::IsEmpty());
  EXPECT_THAT(Draw(id, 1, 1, 2), testing::SizeIs(2));
}

TEST_F(SegmentPoolTest, FailsTheDrawWhenMemoryRunsOutAndRecovers) {
  Make(4, 1);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == kSegment; }));
  // No descriptor is left for a memfd, which the pool treats like missing memory.
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  UniqueFd lowest(dup(0));
  const rlimit none{static_cast<rlim_t>(lowest.get()), limit.rlim_max};
  lowest.reset();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const ReservationId needy = Reserve({{3, 4}});
  auto refused = StartDraw(needy, 3, 3, 4);
  EXPECT_TRUE(mailbox_.RunUntil([&] { return refused->has_value(); }));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE((*refused)->ok());
  EXPECT_EQ((*refused)->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf((*refused)->status()), "POOL_EXHAUSTED");
  EXPECT_THAT(std::string((*refused)->status().message()), testing::HasSubstr("memfd_create"));
  EXPECT_THAT(warnings_, testing::SizeIs(1));
  EXPECT_EQ(pool_->usage().used_bytes, 4 * kSegment);  // It is still reserved.
  EXPECT_THAT(Draw(needy, 3, 3, 4), testing::SizeIs(4));
}

TEST_F(SegmentPoolTest, EndsWhileDrawsWaitForThePopulator) {
  Make(64, 64);
  const ReservationId id = Reserve({{1, 64}});
  auto answer = StartDraw(id, 1, 1, 64);
  pool_.reset();
  while (mailbox_.RunOne()) {
  }
  EXPECT_FALSE(answer->has_value() && (*answer)->ok());
}

// ---- a budget that changes

TEST_F(SegmentPoolTest, PopulatesAndLendsMoreWhenTheBudgetGrows) {
  Make(4, 4);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 4 * kSegment; }));
  EXPECT_EQ(ReasonOf(pool_->Reserve({SegmentDemand{1, 8}}).status()), "POOL_TOO_SMALL");
  int calls = 0;
  pool_->OnRoom([&] { ++calls; });
  SetBudget(8, 6);
  EXPECT_EQ(pool_->capacity(), 8);
  EXPECT_EQ(pool_->usage().total_bytes, 8 * kSegment);
  EXPECT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 6 * kSegment && calls == 1; }));
  EXPECT_THAT(Draw(Reserve({{1, 8}}), 1, 1, 8), testing::SizeIs(8));
}

TEST_F(SegmentPoolTest, FreesIdleAndReadyMemoryAndCopiesAtOnceWhenTheBudgetShrinks) {
  resident_ = 8;
  Make(12, 12);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 12 * kSegment; }));
  const ReservationId copy = Reserve({{1, 3}});
  Draw(copy, 1, 1, 3);
  pool_->Settle(copy);
  pool_->SessionEnded(1);
  const ReservationId idle = Reserve({{2, 4}});
  Draw(idle, 2, 2, 4);
  pool_->Release(idle);
  SetBudget(5, 5);
  EXPECT_EQ(pool_->capacity(), 5);
  const PoolUsage usage = pool_->usage();
  EXPECT_EQ(usage.total_bytes, 5 * kSegment);
  EXPECT_LE(usage.lent_bytes + usage.ready_bytes + usage.resident_bytes, 5 * kSegment);
  EXPECT_FALSE(pool_->HasCopy(copy)) << "the longest unused goes first";
  EXPECT_THAT(Draw(Reserve({{2, 5}}), 2, 2, 5), testing::SizeIs(5));
}

TEST_F(SegmentPoolTest, KeepsMemoryInUseUntilItComesBackWhenTheBudgetShrinks) {
  Make(8, 0);
  const ReservationId save = Reserve({{1, 6}});
  Draw(save, 1, 1, 3);
  SetBudget(4, 0);
  EXPECT_EQ(pool_->usage().total_bytes, 6 * kSegment) << "what is in use counts";
  EXPECT_EQ(ReasonOf(pool_->Reserve({SegmentDemand{2, 1}}).status()), "POOL_EXHAUSTED");
  EXPECT_EQ(ReasonOf(pool_->Reserve({SegmentDemand{2, 5}}).status()), "POOL_TOO_SMALL");
  EXPECT_THAT(Draw(save, 1, 1, 3), testing::SizeIs(3)) << "what was promised is lent";
  pool_->Release(save);
  EXPECT_EQ(pool_->usage().total_bytes, 4 * kSegment);
  EXPECT_LE(pool_->usage().lent_bytes, 4 * kSegment);
  EXPECT_THAT(Draw(Reserve({{2, 4}}), 2, 2, 4), testing::SizeIs(4));
}

TEST_F(SegmentPoolTest, HasAtLeastFourSegmentsWhateverTheBudget) {
  Make(8, 0);
  SetBudget(1, 0);
  EXPECT_EQ(pool_->capacity(), 4);
}

// ---- random operations against a model

// The pool's invariants, stated without its implementation.
class Model {
 public:
  int capacity = 8;
  struct Reservation {
    std::map<SessionId, int> reserved;
    std::map<SegmentId, SessionId> drawn;
  };
  std::map<ReservationId, Reservation> reservations;
  std::map<SegmentId, SessionId> owner;  // The session of every segment that was ever lent.
  std::set<SessionId> ended;

  int Used() const {
    int used = 0;
    for (const auto& [id, reservation] : reservations) {
      used += static_cast<int>(reservation.drawn.size());
      for (const auto& [session, count] : reservation.reserved) used += count;
    }
    return used;
  }
};

class SegmentPoolRandomTest : public SegmentPoolTest, public testing::WithParamInterface<int> {
 protected:
  int Random(int below) { return static_cast<int>(random_() % below); }
  SessionId AnyLiving() {
    SessionId session = 0;
    do {
      session = first_session_ + Random(4);
    } while (model_.ended.contains(session));
    return session;
  }
  ReservationId AnyReservation() {
    auto it = model_.reservations.begin();
    std::advance(it, Random(static_cast<int>(model_.reservations.size())));
    return it->first;
  }

  void DoReserve() {
    std::vector<SegmentDemand> demands;
    int wanted = 0;
    for (int i = Random(3); i >= 0; --i) {
      demands.push_back({Random(3) == 0 ? 0 : AnyLiving(), Random(5)});
      wanted += demands.back().count;
    }
    const int used = model_.Used();
    absl::StatusOr<ReservationId> id = pool_->Reserve(demands);
    ASSERT_EQ(id.ok(), wanted == 0 || wanted + used <= model_.capacity)
        << id.status() << " wanted " << wanted << " used " << used;
    if (!id.ok()) return;
    Model::Reservation& reservation = model_.reservations[*id];
    for (const SegmentDemand& demand : demands) reservation.reserved[demand.session] += demand.count;
  }

  void DoGrow() {
    const ReservationId id = AnyReservation();
    const SegmentDemand demand{AnyLiving(), Random(4)};
    const bool fits = demand.count == 0 || demand.count + model_.Used() <= model_.capacity;
    ASSERT_EQ(pool_->Grow(id, demand).ok(), fits);
    if (fits) model_.reservations[id].reserved[demand.session] += demand.count;
  }

  void DoShrink() {
    const ReservationId id = AnyReservation();
    for (auto& [session, count] : model_.reservations[id].reserved) {
      const int less = Random(count + 1);
      pool_->Shrink(id, session, less);
      count -= less;
    }
  }

  void DoDraw() {
    const ReservationId id = AnyReservation();
    for (auto& [reserved_for, count] : model_.reservations[id].reserved) {
      if (count == 0) continue;
      const bool itself = reserved_for != 0 && !model_.ended.contains(reserved_for) && Random(4) > 0;
      const SessionId session = itself ? reserved_for : AnyLiving();
      const int taken = 1 + Random(count);
      auto refs = std::make_shared<std::optional<Refs>>(std::nullopt);
      *refs = Draw(id, reserved_for, session, taken);
      ASSERT_EQ((**refs)->size(), static_cast<size_t>(taken));
      count -= taken;
      for (const SegmentRef& ref : ***refs) {
        ASSERT_EQ(model_.owner.try_emplace(ref.id, session).first->second, session)
            << "a segment changed session";
        for (const auto& [other, reservation] : model_.reservations)
          ASSERT_FALSE(reservation.drawn.contains(ref.id));
        model_.reservations[id].drawn[ref.id] = session;
        ASSERT_TRUE(ref.data[0] == std::byte{0} || ref.data[0] == std::byte(session % 255 + 1));
        ref.data[0] = std::byte(session % 255 + 1);
      }
      return;
    }
  }

  void DoSetBudget() {
    model_.capacity = SegmentPool::kLeastSegments + Random(8);
    SetBudget(model_.capacity, Random(model_.capacity + 1));
    ASSERT_EQ(pool_->capacity(), model_.capacity);
  }

  void DoEndSession() {
    const SessionId session = AnyLiving();
    pool_->SessionEnded(session);
    model_.ended.insert(session);
    while (model_.ended.contains(first_session_)) ++first_session_;
  }

  void Check() {
    const PoolUsage usage = pool_->usage();
    ASSERT_EQ(usage.used_bytes, model_.Used() * kSegment);
    ASSERT_GE(usage.lent_bytes, 0);
    ASSERT_GE(usage.ready_bytes, 0);
    int drawn = 0;
    for (const auto& [id, reservation] : model_.reservations)
      drawn += static_cast<int>(reservation.drawn.size());
    ASSERT_LE(usage.lent_bytes + usage.ready_bytes + drawn * kSegment,
              std::max(model_.capacity, model_.Used()) * kSegment);
    for (const auto& [id, reservation] : model_.reservations) {
      for (const auto& [segment, session] : reservation.drawn) {
        ASSERT_EQ(FetchReason(session, segment), model_.ended.contains(session) ? "UNKNOWN_SEGMENT" : "");
      }
    }
  }

  std::mt19937 random_{static_cast<unsigned>(GetParam())};
  Model model_;
  SessionId first_session_ = 1;
};

TEST_P(SegmentPoolRandomTest, AccountsForEverySegmentAfterRandomCalls) {
  Make(model_.capacity, Random(model_.capacity + 1));
  for (int step = 0; step < 400; ++step) {
    const int what = Random(21);
    if (what < 6 || model_.reservations.empty()) {
      DoReserve();
    } else if (what < 8) {
      DoGrow();
    } else if (what < 9) {
      DoShrink();
    } else if (what < 15) {
      DoDraw();
    } else if (what < 19) {
      const ReservationId id = AnyReservation();
      pool_->Release(id);
      model_.reservations.erase(id);
    } else if (what < 20) {
      DoSetBudget();
    } else {
      DoEndSession();
    }
    while (Random(2) == 0 && mailbox_.RunOne()) {
    }
    Check();
    if (HasFatalFailure()) FAIL() << "at step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SegmentPoolRandomTest, testing::Range(1, 9));

// ---- from one daemon to the next

// A descriptor store that records its calls in order.
class WrittenStore : public DescriptorStore {
 public:
  absl::Status Put(const std::string& name, int) override {
    MutexLock lock(mutex_);
    asked_.push_back("put " + name);
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& name) override {
    MutexLock lock(mutex_);
    asked_.push_back("remove " + name);
    return removes_;
  }
  void FailRemoves() {
    MutexLock lock(mutex_);
    removes_ = absl::UnavailableError("the manager is not there");
  }
  std::vector<std::string> asked() {
    MutexLock lock(mutex_);
    return asked_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> asked_ ABSL_GUARDED_BY(mutex_);
  absl::Status removes_ ABSL_GUARDED_BY(mutex_);
};

// A segment of an earlier daemon that begins with a given byte. The test keeps `watch`, a second descriptor.
KeptSegment Kept(SegmentId id, UniqueFd* watch = nullptr, int64_t size = kSegment) {
  UniqueFd fd(memfd_create("kept", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::string bytes(static_cast<size_t>(size), static_cast<char>('a' + id));
  EXPECT_EQ(pwrite(fd.get(), bytes.data(), bytes.size(), 0), size);
  if (watch != nullptr) watch->reset(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  return {id, std::move(fd), size};
}

int64_t MemoryOf(const UniqueFd& fd) {
  struct stat info {};
  EXPECT_EQ(fstat(fd.get(), &info), 0);
  return info.st_blocks * 512;
}

class InheritingPoolTest : public SegmentPoolTest {
 protected:
  void Inherit(int segments, int ahead, std::vector<KeptSegment> used, std::vector<KeptSegment> unused) {
    PoolSuccession succession;
    succession.store = &store_;
    succession.used = std::move(used);
    succession.unused = std::move(unused);
    pool_ = SegmentPool::Start(
        {.bytes = segments * kSegment,
         .segment_bytes = kSegment,
         .populate_ahead_bytes = ahead * kSegment,
         .pages = PagePolicy::kPlain},
        [this](absl::AnyInvocable<void()> work) { mailbox_.Post(std::move(work)); },
        [this](std::string warning) { warnings_.push_back(std::move(warning)); }, std::move(succession));
  }
  void TearDown() override { pool_.reset(); }  // The pool must be destroyed before the store.
  WrittenStore store_;
};

TEST_F(InheritingPoolTest, FreesUnusedInheritedMemoryBeforePopulating) {
  UniqueFd five, six;
  std::vector<KeptSegment> unused;
  unused.push_back(Kept(5, &five));
  unused.push_back(Kept(6, &six));
  Inherit(4, 2, {}, std::move(unused));
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 2 * kSegment; }));
  // New ids continue after the inherited ones, so that a name is never used twice.
  EXPECT_THAT(store_.asked(), testing::ElementsAre("remove ckptd-segment-5", "remove ckptd-segment-6",
                                                   "put ckptd-segment-7", "put ckptd-segment-8"));
  EXPECT_EQ(MemoryOf(five) + MemoryOf(six), 0);
}

TEST_F(InheritingPoolTest, InheritsUsedSegmentsOnceAndFreesThemOnRelease) {
  UniqueFd three;
  std::vector<KeptSegment> used;
  used.push_back(Kept(3, &three));
  used.push_back(Kept(9));
  Inherit(4, 4, std::move(used), {});
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 2 * kSegment; }));
  EXPECT_EQ(pool_->usage().lent_bytes, 2 * kSegment);
  auto inherited = pool_->Inherit({9, 3});
  ASSERT_TRUE(inherited.ok()) << inherited.status();
  ASSERT_EQ(inherited->segments.size(), 2u);
  EXPECT_EQ(inherited->segments[0].id, 9);
  EXPECT_EQ(inherited->segments[1].data[kSegment - 1], static_cast<std::byte>('a' + 3));
  EXPECT_TRUE(inherited->segments[1].kept);
  EXPECT_FALSE(pool_->Inherit({3}).ok()) << "it is taken";
  EXPECT_EQ(pool_->usage().used_bytes, 2 * kSegment);
  EXPECT_EQ(MemoryOf(three), kSegment);
  pool_->Release(inherited->reservation);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 4 * kSegment; }));
  EXPECT_EQ(pool_->usage().used_bytes, 0);
  EXPECT_EQ(MemoryOf(three), 0);
}

TEST_F(InheritingPoolTest, FreesTheOtherSegmentsWhenOneIsMissing) {
  UniqueFd three;
  std::vector<KeptSegment> used;
  used.push_back(Kept(3, &three));
  Inherit(4, 4, std::move(used), {});
  EXPECT_EQ(pool_->Inherit({3, 4}).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 4 * kSegment; }));
  EXPECT_EQ(MemoryOf(three), 0);
}

TEST_F(InheritingPoolTest, CountsInheritedSegmentsOfAnotherSizeByTheirSize) {
  std::vector<KeptSegment> used;
  used.push_back(Kept(1, nullptr, 3 * kSegment));
  Inherit(4, 4, std::move(used), {});
  auto inherited = pool_->Inherit({1});
  ASSERT_TRUE(inherited.ok());
  EXPECT_EQ(pool_->usage().used_bytes, 3 * kSegment);
  EXPECT_EQ(ReasonOf(pool_->Reserve({SegmentDemand{0, 2}}).status()), "POOL_EXHAUSTED");
  pool_->Release(inherited->reservation);
  EXPECT_TRUE(pool_->Reserve({SegmentDemand{0, 4}}).ok());
}

// ---- copies of committed checkpoints

class CopiesTest : public SegmentPoolTest {
 protected:
  // Makes a committed checkpoint of one session; each of its segments begins with `mark`.
  ReservationId Commit(SessionId session, int segments, char mark) {
    const ReservationId id = Reserve({{session, segments}});
    for (const SegmentRef& ref : Draw(id, session, session, segments)) {
      ref.data[0] = static_cast<std::byte>(mark);
      last_ = ref;
    }
    pool_->Settle(id);
    return id;
  }
  char ReadAs(SessionId reader, SegmentId id) {
    auto found = pool_->directory().Find(reader, id, SegmentAccess::kRead);
    if (!found.ok()) return '!';
    UniqueFd fd(found->fd);
    char mark = 0;
    EXPECT_EQ(pread(fd.get(), &mark, 1, 0), 1);
    return mark;
  }
  SegmentRef last_;
};

TEST_F(CopiesTest, KeepsACopyAfterItsSessionEndsForAnotherReader) {
  resident_ = 8;
  Make(8, 8);
  const ReservationId copy = Commit(1, 2, 'x');
  EXPECT_EQ(pool_->usage().lent_bytes, 2 * kSegment);
  EXPECT_EQ(pool_->usage().resident_bytes, 0);
  pool_->SessionEnded(1);
  EXPECT_EQ(pool_->usage().resident_bytes, 2 * kSegment);
  EXPECT_EQ(pool_->usage().lent_bytes, 0);
  EXPECT_EQ(ReadAs(2, last_.id), '!') << "nobody holds it";
  ASSERT_TRUE(pool_->Hold(copy, 2));
  EXPECT_EQ(pool_->usage().used_bytes, 2 * kSegment);
  EXPECT_EQ(ReadAs(2, last_.id), 'x');
  EXPECT_EQ(ReadAs(3, last_.id), '!') << "another session";
  EXPECT_EQ(FetchReason(2, last_.id), "UNKNOWN_SEGMENT") << "a reader gets no descriptor to write with";
  pool_->Unhold(copy, 2);
  EXPECT_EQ(ReadAs(2, last_.id), '!');
  EXPECT_TRUE(pool_->HasCopy(copy));
}

TEST_F(CopiesTest, GivesReadersADescriptorThatCannotBeMadeWritable) {
  resident_ = 4;
  Make(4, 4);
  const ReservationId copy = Commit(1, 1, 'x');
  ASSERT_TRUE(pool_->Hold(copy, 2));
  auto found = pool_->directory().Find(2, last_.id, SegmentAccess::kRead);
  ASSERT_TRUE(found.ok()) << found.status();
  UniqueFd fd(found->fd);
  EXPECT_EQ(found->size, kSegment);
  EXPECT_NE(pwrite(fd.get(), "y", 1, 0), 1);
  EXPECT_EQ(mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  EXPECT_EQ(fcntl(fd.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
  struct stat info {};
  ASSERT_EQ(fstat(fd.get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u) << "else another user could open it for writing through /proc";
}

TEST_F(CopiesTest, DrawsSegmentsOfTheSessionsOldestCopyFirst) {
  resident_ = 8;
  Make(8, 8);
  const ReservationId first = Reserve({{1, 2}}), second = Reserve({{1, 2}});
  const auto one = Ids(Draw(first, 1, 1, 2)), two = Ids(Draw(second, 1, 1, 2));
  pool_->Settle(second);
  pool_->Settle(first);  // The newer copy, with the lower ids.
  const ReservationId third = Reserve({{1, 2}});
  EXPECT_EQ(Ids(Draw(third, 1, 1, 2)), two);
  EXPECT_FALSE(pool_->HasCopy(second));
  EXPECT_TRUE(pool_->HasCopy(first));
  EXPECT_FALSE(pool_->Hold(second, 2));
}

TEST_F(CopiesTest, DropsTheLongestUnusedCopyFirst) {
  resident_ = 4;
  Make(4, 4);
  const ReservationId old = Commit(1, 2, 'o'), young = Commit(2, 2, 'y');
  pool_->SessionEnded(2);
  pool_->SessionEnded(1);
  EXPECT_EQ(pool_->usage().resident_bytes, 4 * kSegment);
  const ReservationId save = Reserve({{3, 2}});
  EXPECT_FALSE(pool_->HasCopy(old));
  EXPECT_TRUE(pool_->HasCopy(young));
  for (const SegmentRef& ref : Draw(save, 3, 3, 2)) {
    EXPECT_EQ(ref.data[0], std::byte{0}) << "what one session wrote is never lent to another";
  }
}

TEST_F(CopiesTest, ReclaimsOnlyCopiesWhenLentSegmentsAreSpared) {
  resident_ = 4;
  Make(6, 6);
  Commit(1, 2, 'l');
  const ReservationId copy = Commit(2, 3, 'c');
  pool_->SessionEnded(2);
  const auto refused = pool_->Reserve({SegmentDemand{0, 5}}, /*spares_lent=*/true);
  EXPECT_EQ(ReasonOf(refused.status()), "POOL_EXHAUSTED");
  EXPECT_TRUE(pool_->HasCopy(copy));
  ASSERT_TRUE(pool_->Reserve({SegmentDemand{0, 4}}, /*spares_lent=*/true).ok());
  EXPECT_FALSE(pool_->HasCopy(copy));
  EXPECT_EQ(pool_->usage().lent_bytes, 2 * kSegment) << "unused for longer, and warm for the next save";
}

TEST_F(CopiesTest, KeepsAHeldCopyWhenMemoryIsNeeded) {
  resident_ = 4;
  Make(4, 4);
  const ReservationId copy = Commit(1, 3, 'x');
  pool_->SessionEnded(1);
  ASSERT_TRUE(pool_->Hold(copy, 2));
  ASSERT_TRUE(pool_->Hold(copy, 0));
  EXPECT_EQ(ReasonOf(pool_->Reserve({SegmentDemand{3, 2}}).status()), "POOL_EXHAUSTED");
  pool_->Unhold(copy, 2);
  EXPECT_EQ(ReasonOf(pool_->Reserve({SegmentDemand{3, 2}}).status()), "POOL_EXHAUSTED");
  pool_->Unhold(copy, 0);
  EXPECT_TRUE(pool_->Reserve({SegmentDemand{3, 2}}).ok());
  EXPECT_FALSE(pool_->HasCopy(copy)) << "a part of a copy is none";
}

TEST_F(CopiesTest, RefusesToHoldACopyThatASaveHasClaimed) {
  resident_ = 4;
  Make(4, 4);
  const ReservationId copy = Commit(1, 3, 'x');
  const ReservationId save = Reserve({{1, 3}});
  EXPECT_FALSE(pool_->Hold(copy, 2));
  EXPECT_EQ(Draw(save, 1, 1, 3).size(), 3u);
  EXPECT_FALSE(pool_->HasCopy(copy));
}

TEST_F(CopiesTest, KeepsAHeldCopyWhenItsSessionEnds) {
  resident_ = 4;
  Make(4, 4);
  const ReservationId copy = Commit(1, 2, 'x');
  ASSERT_TRUE(pool_->Hold(copy, 2));
  pool_->SessionEnded(1);
  EXPECT_EQ(ReadAs(2, last_.id), 'x');
  EXPECT_EQ(FetchReason(1, last_.id), "UNKNOWN_SEGMENT");
  pool_->Unhold(copy, 2);
  EXPECT_EQ(pool_->usage().resident_bytes, 2 * kSegment);
}

TEST_F(CopiesTest, DropsAReleasedCopyAtTheLastUnhold) {
  resident_ = 4;
  Make(4, 4);
  const ReservationId copy = Commit(1, 2, 'x');
  pool_->SessionEnded(1);
  ASSERT_TRUE(pool_->Hold(copy, 2));
  pool_->Release(copy);
  EXPECT_FALSE(pool_->HasCopy(copy)) << "nobody else begins to read it";
  EXPECT_FALSE(pool_->Hold(copy, 3));
  EXPECT_EQ(ReadAs(2, last_.id), 'x');
  pool_->Unhold(copy, 2);
  EXPECT_EQ(pool_->usage().resident_bytes, 0);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 4 * kSegment; }));
}

// A reader's mapping of a segment, for as long as this object lives.
class Mapping {
 public:
  Mapping(SegmentPool& pool, SessionId reader, SegmentId id) {
    auto found = pool.directory().Find(reader, id, SegmentAccess::kRead);
    EXPECT_TRUE(found.ok()) << found.status();
    const UniqueFd fd(found->fd);
    at_ = mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd.get(), 0);
    EXPECT_NE(at_, MAP_FAILED);
  }
  ~Mapping() { munmap(at_, kSegment); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char first() const { return *static_cast<char*>(at_); }

 private:
  void* at_ = nullptr;
};

TEST_F(CopiesTest, KeepsMappedBytesAfterTheCopyIsDropped) {
  resident_ = 4;
  Make(4, 4);
  const ReservationId copy = Commit(1, 1, 'x');
  pool_->SessionEnded(1);
  ASSERT_TRUE(pool_->Hold(copy, 2));
  bool may = false;
  pool_->Retire(copy, [&](bool answer) { may = answer; });
  ASSERT_TRUE(may);
  const Mapping mapping(*pool_, 2, last_.id);
  pool_->Release(copy);
  pool_->Unhold(copy, 2);
  pool_->SessionEnded(2);
  EXPECT_FALSE(pool_->HasCopy(copy));
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 4 * kSegment; }));
  EXPECT_EQ(mapping.first(), 'x');
  const ReservationId next = Reserve({{3, 4}});
  for (const SegmentRef& ref : Draw(next, 3, 3, 4)) {
    EXPECT_NE(ref.id, last_.id);
    ref.data[0] = std::byte{'y'};
  }
  pool_.reset();
  EXPECT_EQ(mapping.first(), 'x');
}

TEST_F(CopiesTest, RefusesToRetireACopyThatIsWritableOrNotHeld) {
  resident_ = 4;
  Make(4, 4);
  const ReservationId copy = Commit(1, 1, 'x');
  std::vector<bool> answers;
  const auto answer = [&](bool may) { answers.push_back(may); };
  ASSERT_TRUE(pool_->Hold(copy, 2));
  pool_->Retire(copy, answer);  // The session that wrote it still lives.
  pool_->SessionEnded(1);
  pool_->Retire(copy, answer);
  pool_->Unhold(copy, 2);
  pool_->Retire(copy, answer);  // No reader holds it.
  EXPECT_EQ(answers, (std::vector<bool>{false, true, false}));
}

// A prefetch: the daemon fills the segments from disk.
TEST_F(CopiesTest, SettlesSegmentsDrawnForNoSessionAsACopy) {
  resident_ = 4;
  Make(4, 4);
  const ReservationId copy = Reserve({{0, 2}});
  const std::vector<SegmentRef> drawn = Draw(copy, 0, 0, 2);
  ASSERT_EQ(drawn.size(), 2u);
  EXPECT_EQ(FetchReason(1, drawn[0].id), "UNKNOWN_SEGMENT");
  drawn[0].data[0] = std::byte{'z'};
  pool_->Settle(copy);
  EXPECT_EQ(pool_->usage().resident_bytes, 2 * kSegment);
  EXPECT_EQ(pool_->usage().lent_bytes, 0);
  ASSERT_TRUE(pool_->Hold(copy, 3));
  EXPECT_EQ(ReadAs(3, drawn[0].id), 'z');
  bool may = false;
  pool_->Retire(copy, [&](bool answer) { may = answer; });
  EXPECT_TRUE(may) << "no session could write there";
  pool_->Unhold(copy, 3);
  pool_->Release(copy);
  EXPECT_EQ(pool_->usage().resident_bytes, 0);
  EXPECT_EQ(Ids(Draw(Reserve({{1, 4}}), 1, 1, 4)).size(), 4u) << "and all of it is there for others";
}

TEST_F(InheritingPoolTest, RemovesMappedSegmentsFromTheStore) {
  Inherit(4, 4, {}, {});
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 4 * kSegment; }));
  const ReservationId copy = Reserve({{1, 1}});
  const SegmentId id = Ids(Draw(copy, 1, 1, 1)).front();
  pool_->Settle(copy);
  ASSERT_TRUE(pool_->Hold(copy, 2));
  pool_->SessionEnded(1);
  std::vector<std::string> asked_before;
  std::optional<bool> may;
  pool_->Retire(copy, [&](bool answer) {
    asked_before = store_.asked();
    may = answer;
  });
  EXPECT_FALSE(may.has_value()) << "it is with the manager still";
  ASSERT_TRUE(mailbox_.RunUntil([&] { return may.has_value(); }));
  EXPECT_TRUE(*may);
  EXPECT_EQ(asked_before.back(), "remove " + SegmentName(id));
}

TEST_F(InheritingPoolTest, RefusesToRetireWhenTheStoreDoesNotForget) {
  Inherit(4, 4, {}, {});
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 4 * kSegment; }));
  store_.FailRemoves();
  const ReservationId copy = Reserve({{1, 1}});
  (void)Draw(copy, 1, 1, 1);
  pool_->Settle(copy);
  ASSERT_TRUE(pool_->Hold(copy, 2));
  pool_->SessionEnded(1);
  std::optional<bool> may;
  pool_->Retire(copy, [&](bool answer) { may = answer; });
  ASSERT_TRUE(mailbox_.RunUntil([&] { return may.has_value(); }));
  EXPECT_FALSE(*may);
}

TEST_F(CopiesTest, KeepsCopiesWithinTheResidentBudget) {
  resident_ = 3;
  Make(8, 8);
  const ReservationId old = Commit(1, 2, 'o'), young = Commit(2, 2, 'y');
  pool_->SessionEnded(1);
  EXPECT_TRUE(pool_->HasCopy(old));
  pool_->SessionEnded(2);
  EXPECT_FALSE(pool_->HasCopy(old));
  EXPECT_TRUE(pool_->HasCopy(young));
  EXPECT_EQ(pool_->usage().resident_bytes, 2 * kSegment);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 6 * kSegment; }));
}

TEST_F(CopiesTest, DropsCopiesAtSessionEndWithoutABudget) {
  Make(4, 4);
  const ReservationId copy = Commit(1, 2, 'x');
  ASSERT_TRUE(pool_->Hold(copy, 2)) << "while it lives";
  pool_->Unhold(copy, 2);
  pool_->SessionEnded(1);
  EXPECT_FALSE(pool_->HasCopy(copy));
}

TEST_F(CopiesTest, KeepsThePoolBudgetAfterRandomCalls) {
  resident_ = 5;
  Make(9, 9);
  std::mt19937 random(7);
  std::vector<ReservationId> copies;
  std::vector<std::pair<ReservationId, SessionId>> held;
  SessionId newest = 3;
  std::vector<SessionId> alive = {1, 2, 3};
  for (int step = 0; step < 3000; ++step) {
    const SessionId session = alive[random() % alive.size()];
    switch (random() % 6) {
      case 0: {
        pool_->SessionEnded(session);
        for (auto hold = held.begin(); hold != held.end();) {
          if (hold->second != session) {
            ++hold;
            continue;
          }
          pool_->Unhold(hold->first, session);
          hold = held.erase(hold);
        }
        std::replace(alive.begin(), alive.end(), session, ++newest);
        break;
      }
      case 1:
        if (!copies.empty()) {
          const ReservationId copy = copies[random() % copies.size()];
          if (pool_->Hold(copy, session)) held.emplace_back(copy, session);
        }
        break;
      case 2:
        if (!held.empty()) {
          pool_->Unhold(held.back().first, held.back().second);
          held.pop_back();
        }
        break;
      case 3:
        if (!copies.empty()) pool_->Release(copies[random() % copies.size()]);
        break;
      default: {
        const int count = 1 + static_cast<int>(random() % 4);
        absl::StatusOr<ReservationId> save = pool_->Reserve({SegmentDemand{session, count}});
        if (!save.ok()) break;
        EXPECT_EQ(Draw(*save, session, session, count).size(), static_cast<size_t>(count));
        if (random() % 4 == 0) {
          pool_->Release(*save);
        } else {
          pool_->Settle(*save);
          copies.push_back(*save);
        }
      }
    }
    while (mailbox_.RunOne()) {
    }
    const PoolUsage usage = pool_->usage();
    ASSERT_GE(usage.lent_bytes, 0);
    ASSERT_GE(usage.resident_bytes, 0);
    ASSERT_LE(usage.resident_bytes, 5 * kSegment);
    ASSERT_LE(usage.used_bytes + usage.lent_bytes + usage.resident_bytes + usage.ready_bytes, 9 * kSegment);
  }
  for (const auto& [copy, session] : held) pool_->Unhold(copy, session);
  for (ReservationId copy : copies) pool_->Release(copy);
  for (SessionId session : alive) pool_->SessionEnded(session);
  ASSERT_TRUE(mailbox_.RunUntil([&] { return pool_->usage().ready_bytes == 9 * kSegment; }))
      << "everything comes back";
}

}  // namespace
}  // namespace ckptd
