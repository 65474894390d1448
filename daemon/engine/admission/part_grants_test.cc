// The memory of the ranks of an admitted save: the answers to Begin and Extend, and their time.
#include "daemon/engine/admission/part_grants.h"

#include <optional>

#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class PartGrantsTest : public ClassTest {
 protected:
  struct Begun {
    std::optional<absl::StatusOr<v1::BeginResponse>> answer;
  };

  void SetUp() override {
    shares_ = std::make_unique<MemoryShares>(pool_.get(), &saves_, &sizes_, 100,
                                             [] { return std::map<uid_t, int64_t>(); });
    grants_ = std::make_unique<PartGrants>(pool_.get(), &saves_, &sizes_, shares_.get(), &disk_, &placer_,
                                           [this](Save* save, absl::Status error) { Fail(save, error); });
  }
  void Fail(Save* save, const absl::Status& error) {
    failed_ = error;
    save->life.Fail(v1::FAILED);
  }
  // An admitted save of one rank, which has begun with a file of `bytes`, and has `segments` reserved for it.
  Save* Admitted(int64_t bytes, int segments, Begun* begun, bool growing = false) {
    Run* run = AddRun(1000);
    disk_.SetFreeBytes(run, int64_t{1} << 40);
    Save* save = AddSave(run, 1, 0, SavePhase::kAdmitted);
    save->reservation = *pool_->Reserve({{0, segments}});
    Part& part = save->PartOf(0);
    part.growing = growing;
    part.reserved = segments;
    FilePlacer::Files files;
    *files.Add() = File("model.pt", bytes);
    EXPECT_TRUE(placer_.Place(save, part, files).ok());
    part.asked = FindAsked(part, files);
    if (begun != nullptr) Wait(part, begun);
    return save;
  }
  static void Wait(Part& part, Begun* begun) {
    part.begin_replies.push_back(
        {[begun](absl::StatusOr<v1::BeginResponse> answer) { begun->answer = std::move(answer); }});
  }
  static v1::FileSpec File(const std::string& path, int64_t bytes) {
    v1::FileSpec file;
    file.set_path(path);
    file.set_size_bytes(bytes);
    return file;
  }
  std::optional<absl::StatusOr<v1::ExtendResponse>> Extend(Save* save, const std::string& path,
                                                           int64_t bytes) {
    auto answer = std::make_shared<std::optional<absl::StatusOr<v1::ExtendResponse>>>();
    v1::ExtendRequest request;
    *request.add_files() = File(path, bytes);
    grants_->Extend(save, save->PartOf(0), request,
                    [answer](absl::StatusOr<v1::ExtendResponse> extended) { *answer = std::move(extended); });
    Populate();
    return *answer;
  }
  // Runs what the pool's thread posts, until no draw is under way.
  void Populate() {
    while (IsDrawing()) {
      auto work = inbox_.Take(std::chrono::seconds(30));
      ASSERT_NE(work, nullptr) << "the pool populated nothing for 30 s";
      work();
    }
  }
  bool IsDrawing() const {
    for (const auto& [id, save] : saves_.all()) {
      if (save->parts.at(0).drawing) return true;
    }
    return false;
  }

  ExpectedSizes sizes_;
  DiskRoom disk_{&clock_,
                 &runs_,
                 &saves_,
                 &sizes_,
                 {.may_free_room = [](const Run&) { return false; },
                  .empty_trash = [](Run*, int64_t) { return int64_t{0}; },
                  .room_changed = [] {}}};
  FilePlacer placer_{EngineLimits(), 8 << 20};
  std::unique_ptr<MemoryShares> shares_;
  std::unique_ptr<PartGrants> grants_;
  absl::Status failed_;
};

TEST_F(PartGrantsTest, AnswersARankWithItsSegmentsAndPlaces) {
  Begun begun;
  Save* save = Admitted(kSegment + 1, 2, &begun);
  grants_->OnAdmitted(save);
  Populate();
  ASSERT_TRUE(begun.answer.has_value());
  const v1::BeginResponse& response = begun.answer->value();
  EXPECT_EQ(response.sequence(), save->sequence);
  EXPECT_EQ(response.level(), v1::OPEN);
  EXPECT_THAT(response.segments(), SizeIs(2));
  ASSERT_THAT(response.placements(), SizeIs(1));
  EXPECT_EQ(response.placements(0).path(), "model.pt");
  EXPECT_TRUE(save->PartOf(0).granted);
}

TEST_F(PartGrantsTest, ARankThatHasNotBegunGetsNothing) {
  Save* save = Admitted(1, 1, nullptr);
  save->PartOf(0).begun = false;
  grants_->OnAdmitted(save);
  Populate();
  EXPECT_THAT(save->PartOf(0).segments, IsEmpty());
}

TEST_F(PartGrantsTest, ARetryOfBeginHasTheSameSegments) {
  Begun first, retry;
  Save* save = Admitted(1, 1, &first);
  grants_->OnAdmitted(save);
  Populate();
  Wait(save->PartOf(0), &retry);
  grants_->AnswerBegins(save, save->PartOf(0));
  ASSERT_TRUE(retry.answer.has_value());
  EXPECT_EQ(retry.answer->value().segments(0).id(), first.answer->value().segments(0).id());
}

TEST_F(PartGrantsTest, ARankThatNeedsLessThanWasReservedGivesTheRestBack) {
  Begun begun;
  Save* save = Admitted(1, 10, &begun);
  EXPECT_FALSE(pool_->Reserve({{0, 1}}).ok()) << "the pool has 10 segments";
  grants_->OnBegun(save, save->PartOf(0));
  Populate();
  EXPECT_TRUE(begun.answer.has_value());
  EXPECT_EQ(save->PartOf(0).reserved, 1);
  EXPECT_TRUE(pool_->Reserve({{0, 9}}).ok());
}

TEST_F(PartGrantsTest, AGrowingRankKeepsWhatWasReserved) {
  Begun begun;
  Save* save = Admitted(1, 10, &begun, /*growing=*/true);
  grants_->OnBegun(save, save->PartOf(0));
  EXPECT_EQ(save->PartOf(0).reserved, 10);
}

TEST_F(PartGrantsTest, ExtendGrowsTheReservationAndAnswersWithAllSegments) {
  Begun begun;
  Save* save = Admitted(kSegment, 1, &begun, /*growing=*/true);
  grants_->OnAdmitted(save);
  Populate();
  const auto extended = Extend(save, "optimizer.pt", 2 * kSegment);
  ASSERT_TRUE(extended.has_value());
  EXPECT_THAT((*extended)->segments(), SizeIs(3));
  EXPECT_EQ((*extended)->placements(0).offset(), kSegment);
  EXPECT_EQ(save->PartOf(0).reserved, 3);
}

TEST_F(PartGrantsTest, FailsTheSaveWhenThePoolHasNoRoomForAnExtend) {
  Begun begun;
  Save* save = Admitted(kSegment, 1, &begun, /*growing=*/true);
  grants_->OnAdmitted(save);
  Populate();
  const ReservationId others = *pool_->Reserve({{0, 9}});
  EXPECT_FALSE(Extend(save, "optimizer.pt", kSegment).has_value()) << "the end of the save answers it";
  EXPECT_EQ(ReasonOf(failed_), reason::kPoolExhausted);
  EXPECT_THAT(std::string(failed_.message()),
              ::testing::HasSubstr("rank 0 needs 2 segments, 1 were reserved for it"));
  pool_->Release(others);
}

TEST_F(PartGrantsTest, MemoryThatComesAfterTheSaveFailedIsIgnored) {
  Begun begun;
  Save* save = Admitted(kSegment, 1, &begun);
  grants_->OnAdmitted(save);
  save->life.Fail(v1::FAILED);
  Populate();
  EXPECT_FALSE(begun.answer.has_value());
  EXPECT_FALSE(save->PartOf(0).granted);
}

}  // namespace
}  // namespace ckptd
