// The main rules of admission, without ranks and I/O. admission_test.cc has the cases with the whole engine.
#include "daemon/engine/admission/admission_queue.h"

#include <set>

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class AdmissionQueueTest : public ClassTest {
 protected:
  void SetUp() override {
    shares_ = std::make_unique<MemoryShares>(pool_.get(), &saves_, &sizes_, 100,
                                             [] { return std::map<uid_t, int64_t>(); });
    queue_of_saves_ = std::make_unique<AdmissionQueue>(
        &clock_, pool_.get(), &saves_, &sizes_, shares_.get(), &disk_, std::chrono::seconds(10),
        AdmissionQueue::Hooks{
            .fail = [this](Save* save, const absl::Status& error) { Fail(save, ReasonOf(error)); },
            .accepted =
                [this](Save* save) {
                  save->life.Admitted();
                  save->admitted_at = clock_.Now();
                  admitted_.push_back(save);
                },
            .session_of_rank = [](const Run&, int64_t, int) { return SessionId(); }});
  }

  void Fail(Save* save, const std::string& reason) {
    failed_[save] = reason;
    if (save->reservation != 0) pool_->Release(std::exchange(save->reservation, 0));
    save->life.End(v1::FAILED);
    save->disk_reserved = 0;
    gone_.push_back(saves_.Remove(save));
    queue_of_saves_->TryAdmitAll();
  }
  void End(Save* save) { Fail(save, "ended"); }
  Run* Root(uid_t uid) {
    Run* run = AddRun(uid);
    disk_.SetFreeBytes(run, int64_t{1} << 40);
    return run;
  }
  Save* Add(Run* run, int segments) {
    Save* save = AddSave(run, 1, segments * kSegment, SavePhase::kGathering);
    queue_of_saves_->Gather(save);
    return save;
  }

  ExpectedSizes sizes_;
  DiskRoom disk_{&clock_,
                 &runs_,
                 &saves_,
                 &sizes_,
                 {.may_free_room = [](const Run&) { return false; },
                  .empty_trash = [](Run*, int64_t) { return int64_t{0}; },
                  .room_changed = [] {}}};
  std::unique_ptr<MemoryShares> shares_;
  std::unique_ptr<AdmissionQueue> queue_of_saves_;
  std::vector<Save*> admitted_;
  std::map<Save*, std::string> failed_;
  std::vector<std::unique_ptr<Save>> gone_;
};

TEST_F(AdmissionQueueTest, AYoungerSaveOfTheRunWaitsForTheOlderOne) {
  Run* run = Root(1000);
  Save* large = Add(run, 8);
  Save* waiting = Add(run, 8);
  Save* small = Add(run, 1);
  EXPECT_THAT(admitted_, ElementsAre(large));
  EXPECT_EQ(waiting->waits_for, WaitsFor::kMemory);
  EXPECT_EQ(small->phase(), SavePhase::kQueued);
  End(large);
  EXPECT_THAT(admitted_, ElementsAre(large, waiting, small));
}

TEST_F(AdmissionQueueTest, AUserWithinItsShareGoesBeforeOneBeyondIt) {
  Save* first = Add(Root(1000), 6);
  Save* beyond = Add(Root(1000), 6);
  Save* within = Add(Root(2000), 4);
  EXPECT_THAT(admitted_, ElementsAre(first, within));
  EXPECT_EQ(beyond->waits_for, WaitsFor::kMemory);
}

TEST_F(AdmissionQueueTest, TakesMemoryBackFromAUserBeyondItsShareAfterTheGrace) {
  Save* greedy = Add(Root(1000), 9);
  Save* other = Add(Root(2000), 4);
  EXPECT_THAT(admitted_, ElementsAre(greedy));
  EXPECT_EQ(queue_of_saves_->NextDeadline(), clock_.Now() + std::chrono::seconds(10));
  clock_.Advance(std::chrono::seconds(10));
  queue_of_saves_->OnTick(clock_.Now());
  EXPECT_EQ(failed_[greedy], "OVER_SHARE");
  EXPECT_THAT(admitted_, ElementsAre(greedy, other));
}

TEST_F(AdmissionQueueTest, ASaveThatMustNotWaitIsSkipped) {
  Run* run = Root(1000);
  Add(run, 8);
  Save* skipped = AddSave(run, 1, 8 * kSegment, SavePhase::kGathering);
  skipped->busy = v1::SKIP;
  queue_of_saves_->Gather(skipped);
  EXPECT_EQ(failed_[skipped], "SKIPPED");
}

TEST_F(AdmissionQueueTest, ASaveThatSupersedesEndsTheOldestUnsealedOne) {
  Run* run = Root(1000);
  Save* older = Add(run, 8);
  Save* newer = AddSave(run, 1, 8 * kSegment, SavePhase::kGathering);
  newer->busy = v1::SUPERSEDE;
  queue_of_saves_->Gather(newer);
  EXPECT_EQ(failed_[older], "SUPERSEDED");
  EXPECT_THAT(admitted_, ElementsAre(older, newer));
}

TEST_F(AdmissionQueueTest, AFullDiskFailsTheSaveAndHoldsUpNobodyElse) {
  Run* full = Root(1000);
  disk_.SetFreeBytes(full, 0);
  Save* refused = Add(full, 1);
  EXPECT_EQ(failed_[refused], "NO_SPACE");
  EXPECT_THAT(admitted_, IsEmpty());
  Run* other = Root(2000);
  other->device = 2;
  EXPECT_THAT(admitted_, ElementsAre());
  Save* save = Add(other, 1);
  EXPECT_THAT(admitted_, ElementsAre(save));
}

}  // namespace
}  // namespace ckptd
