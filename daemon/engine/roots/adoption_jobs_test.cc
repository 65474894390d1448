#include "daemon/engine/roots/adoption_jobs.h"

#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class AdoptionJobsTest : public ClassTest {
 protected:
  // Adopts all foreign checkpoints. Returns the reports, as "tag outcome".
  std::vector<std::string> Adopt(Run* run) {
    std::vector<std::string> reports;
    ended_ = absl::UnknownError("no answer");
    jobs_.Start(
        run, {},
        [&reports](const v1::AdoptCheckpointsResponse& event) {
          reports.push_back(event.tag() + " " + v1::AdoptOutcome_Name(event.outcome()));
          return true;
        },
        [this](const absl::Status& status) { ended_ = status; });
    RunCallbacks();
    return reports;
  }

  absl::Status ended_;
  std::optional<int> kept_;
  std::vector<AdoptionJobs::SaveInFlight> saves_in_flight_;
  int ends_ = 0;
  AdoptionJobs jobs_{
      8 << 20,
      &clock_,
      this,
      {.describe = [](const Run& run,
                      const CommittedCheckpoint& committed) { return ToWire(run, committed, {}); },
       .check_takes_work = [] { return absl::OkStatus(); },
       .saves_in_flight = [this](const Run&) { return saves_in_flight_; },
       .kept_last = [this](const Run&) { return kept_; },
       .pointers_changed = [](Run*, PointerFiles) {},
       .rescan = [](Run*) {},
       .ended = [this](Run*) { ++ends_; }}};
};

TEST_F(AdoptionJobsTest, AdoptsOldestFirst) {
  Run* run = AddRun(1000);
  disks_.at(run)->finished = {{"b", 1}, {"a", 2}};
  EXPECT_THAT(Adopt(run), ElementsAre("b ADOPTED", "a ADOPTED"));
  EXPECT_TRUE(ended_.ok());
  EXPECT_EQ(ends_, 1);
  EXPECT_EQ(run->catalog.Newest()->summary.tag(), "a");
  EXPECT_FALSE(jobs_.IsActive(*run));
}

TEST_F(AdoptionJobsTest, RefusesATagThatIsBeingSaved) {
  Run* run = AddRun(1000);
  disks_.at(run)->finished = {{"a", 1}};
  saves_in_flight_ = {{7, "a", 1}};
  EXPECT_THAT(Adopt(run), ElementsAre("a REFUSED"));
  EXPECT_THAT(run->catalog.committed(), IsEmpty());
}

TEST_F(AdoptionJobsTest, RefusesWhatRetentionWouldEvictAtOnce) {
  Run* run = AddRun(1000);
  disks_.at(run)->finished = {{"a", 1}, {"b", 2}};
  kept_ = 1;
  EXPECT_THAT(Adopt(run), ElementsAre("a REFUSED", "b ADOPTED"));
}

TEST_F(AdoptionJobsTest, RunsOneJobAtATime) {
  Run* run = AddRun(1000);
  absl::Status second;
  jobs_.Start(
      run, {}, [](const auto&) { return true; }, [](const absl::Status&) {});
  EXPECT_TRUE(jobs_.IsActive(*run));
  EXPECT_EQ(jobs_.Start(
                run, {}, [](const auto&) { return true; },
                [&second](const absl::Status& status) { second = status; }),
            0);
  EXPECT_EQ(ReasonOf(second), reason::kAdopting);
}

}  // namespace
}  // namespace ckptd
