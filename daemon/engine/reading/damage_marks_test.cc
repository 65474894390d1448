#include "daemon/engine/reading/damage_marks.h"

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/engine/seams/authority.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class DamageMarksTest : public ClassTest {
 protected:
  static storage::v1::Damage Damage(const std::string& message) {
    storage::v1::Damage damage;
    damage.set_message(message);
    return damage;
  }
  static v1::Checkpoint Describe(const Run& run, const CommittedCheckpoint& committed) {
    return ToWire(run, committed, {});
  }

  Run* AddDamageRun(const std::vector<int64_t>& sequences) {
    Run* run = AddRun(1000, sequences);
    Authority::Hooks hooks;
    hooks.damage_changed = [this, run](int64_t sequence, const std::optional<storage::v1::Damage>& damage,
                                       absl::AnyInvocable<void()> recorded) {
      marks_.OnChanged(run, sequence, damage, std::move(recorded));
    };
    run->authority->Start(std::move(hooks));
    return run;
  }

  std::vector<std::string> events_;
  DamageMarks marks_{&clock_,
                     this,
                     Describe,
                     {.marked = [this](Run*, int64_t) { events_.push_back("marked"); },
                      .pointers_changed = [this](Run*, PointerFiles) { events_.push_back("pointers"); },
                      .recorded = [this](Run*, int64_t) { events_.push_back("recorded"); },
                      .cleared = [this](Run*) { events_.push_back("cleared"); }}};
};

TEST_F(DamageMarksTest, OffersTheCheckpointNoMoreAndAnswersOnceThatIsOnDisk) {
  Run* run = AddDamageRun({1, 2});
  marks_.Mark(run, 2, Damage("chunk 3 is wrong"), [this](const absl::Status&) { events_.push_back("done"); });
  EXPECT_EQ(run->catalog.Newest()->summary.sequence(), 1);
  EXPECT_THAT(events_, ElementsAre("marked"));
  RunCallbacks();
  EXPECT_THAT(events_, ElementsAre("marked", "pointers", "recorded", "done"));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("s1 is the latest")));
}

TEST_F(DamageMarksTest, KeepsTheFirstDescription) {
  Run* run = AddDamageRun({1});
  marks_.Mark(run, 1, Damage("first"), [](const absl::Status&) {});
  marks_.Mark(run, 1, Damage("second"), [this](const absl::Status&) { events_.push_back("done"); });
  RunCallbacks();
  EXPECT_EQ(run->catalog.Find(1)->damage->message(), "first");
  EXPECT_EQ(events_.back(), "done");
  EXPECT_THAT(warnings_, SizeIs(1));
}

TEST_F(DamageMarksTest, AMarkThatCannotBeWrittenCountsInThisDaemon) {
  Run* run = AddDamageRun({1});
  ios_.at(run)->errors["SetDamage"] = ErrnoError(EIO, "writing");
  marks_.Mark(run, 1, Damage("wrong"), [this](const absl::Status&) { events_.push_back("done"); });
  RunCallbacks();
  EXPECT_TRUE(run->catalog.IsDamaged(1));
  EXPECT_THAT(events_, ElementsAre("marked", "recorded", "done"));
  EXPECT_THAT(warnings_.back(), HasSubstr("the next daemon may offer it again"));
}

TEST_F(DamageMarksTest, ClearsAMark) {
  Run* run = AddDamageRun({1});
  marks_.Mark(run, 1, Damage("wrong"), [](const absl::Status&) {});
  RunCallbacks();
  events_.clear();
  bool damaged = true;
  marks_.Clear(run, "s1", [&](absl::StatusOr<v1::Checkpoint> answer) { damaged = answer->has_damage(); });
  RunCallbacks();
  EXPECT_FALSE(damaged);
  EXPECT_THAT(events_, ElementsAre("cleared", "pointers", "recorded"));
  absl::Status unknown;
  marks_.Clear(run, "s9", [&](absl::StatusOr<v1::Checkpoint> answer) { unknown = answer.status(); });
  EXPECT_EQ(ReasonOf(unknown), reason::kNoCheckpoint);
}

TEST_F(DamageMarksTest, OnlyProofIndicatesDamage) {
  Run* run = AddRun(1000);
  EXPECT_TRUE(IndicatesDamage(*run, MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", "chunk 1")));
  EXPECT_TRUE(IndicatesDamage(*run, MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint, "gone")));
  EXPECT_FALSE(IndicatesDamage(*run, ErrnoError(EIO, "reading")));
  EXPECT_FALSE(IndicatesDamage(*run, ErrnoError(ENODEV, "reading")));
  run->scanning = true;
  EXPECT_FALSE(IndicatesDamage(*run, MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE", "chunk 1")));
}

}  // namespace
}  // namespace ckptd
