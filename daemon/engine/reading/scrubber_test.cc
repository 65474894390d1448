#include "daemon/engine/reading/scrubber.h"

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ScrubberTest : public ClassTest {
 protected:
  // Gives the checkpoint one file.
  void AddFile(Run* run, int64_t sequence) {
    Manifest& manifest = disks_.at(run)->manifests[sequence];
    manifest.summary = run->catalog.Find(sequence)->summary;
    manifest.summary.set_chunk_bytes(64);
    storage::v1::FileRecord& file = *manifest.body.add_files();
    file.set_path("model.pt");
    file.set_size_bytes(100);
    disks_.at(run)->bytes[std::to_string(sequence) + "/model.pt"] = std::string(100, 'x');
  }
  // Ticks for so many seconds, one at a time.
  void Pass(Run* run, int count) {
    for (int i = 0; i < count; ++i) {
      clock_.Advance(seconds(1));
      scrubber_.OnTick(run, clock_.Now());
      RunCallbacks();
    }
  }

  bool busy_ = false;
  std::vector<int64_t> damaged_;
  Scrubber scrubber_{{hours(1), 1 << 20},
                     &clock_,
                     this,
                     {.is_busy = [this](const Run&) { return busy_; },
                      .mark_damaged =
                          [this](Run* run, int64_t sequence, storage::v1::Damage damage) {
                            run->catalog.SetDamage(sequence, damage);
                            damaged_.push_back(sequence);
                          }}};
};

TEST_F(ScrubberTest, ReadsEachCheckpointOncePerPeriod) {
  Run* run = AddRun(1000, {1, 2});
  for (int64_t sequence : {1, 2}) AddFile(run, sequence);
  Pass(run, 10);
  EXPECT_FALSE(scrubber_.LastScrubbed(*run, 1).has_value()) << "it is due one period after it was seen";
  clock_.Advance(hours(1));
  Pass(run, 20);
  EXPECT_TRUE(scrubber_.LastScrubbed(*run, 1).has_value());
  EXPECT_TRUE(scrubber_.LastScrubbed(*run, 2).has_value());
  const int reads = ios_.at(run)->calls["ReadBack"];
  EXPECT_EQ(reads, 4) << "two chunks each";
  Pass(run, 20);
  EXPECT_EQ(ios_.at(run)->calls["ReadBack"], reads);
  EXPECT_THAT(damaged_, IsEmpty());
}

TEST_F(ScrubberTest, ReadsNothingWhileTheRunIsBusy) {
  Run* run = AddRun(1000, {1});
  AddFile(run, 1);
  Pass(run, 2);
  clock_.Advance(hours(1));
  busy_ = true;
  Pass(run, 20);
  EXPECT_EQ(ios_.at(run)->calls["ReadBack"], 0);
  EXPECT_TRUE(scrubber_.IsDue(run->name, clock_.Now()));
  busy_ = false;
  Pass(run, 20);
  EXPECT_TRUE(scrubber_.LastScrubbed(*run, 1).has_value());
}

TEST_F(ScrubberTest, MarksWhatCannotBeOpenedAndReadsItNoMore) {
  Run* run = AddRun(1000, {1});
  AddFile(run, 1);
  disks_.at(run)->unreadable.insert(1);
  Pass(run, 2);
  clock_.Advance(hours(1));
  Pass(run, 20);
  clock_.Advance(hours(1));
  Pass(run, 20);
  EXPECT_THAT(damaged_, ElementsAre(1));
  EXPECT_FALSE(scrubber_.IsReading(*run));
}

TEST_F(ScrubberTest, RemembersWhatIsDueWhileTheRunIsClosed) {
  Run* run = AddRun(1000, {1});
  Pass(run, 2);
  const std::string name = run->name;
  runs_.erase(name);
  EXPECT_FALSE(scrubber_.IsDue(name, clock_.Now()));
  clock_.Advance(hours(1));
  EXPECT_TRUE(scrubber_.IsDue(name, clock_.Now()));
  scrubber_.ForgetSchedule(name);
  EXPECT_FALSE(scrubber_.IsDue(name, clock_.Now()));
}

}  // namespace
}  // namespace ckptd
