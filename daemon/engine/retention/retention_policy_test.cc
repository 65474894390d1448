#include "daemon/engine/retention/retention_policy.h"

#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/format/retention_record.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kNow = int64_t{1'800'000'000} * 1'000'000;

RetentionPolicy Last(int last) {
  RetentionPolicy policy;
  policy.set_last(last);
  return policy;
}

RetentionPolicy Best(int last, int best, const std::string& metric, bool highest = false) {
  RetentionPolicy policy = Last(last);
  policy.set_best(best);
  policy.set_metric(metric);
  policy.set_highest(highest);
  return policy;
}

class RetentionPolicyTest : public ::testing::Test {
 protected:
  // Adds the next checkpoint. It was committed `age_seconds` ago.
  void Add(std::optional<int64_t> step, std::map<std::string, double> metrics = {}, int age_seconds = 0) {
    CommittedCheckpoint checkpoint;
    checkpoint.summary.set_sequence(static_cast<int64_t>(catalog_.committed().size()) + 1);
    if (step) checkpoint.summary.set_step(*step);
    *checkpoint.summary.mutable_metrics() = {metrics.begin(), metrics.end()};
    checkpoint.summary.set_commit_time_us(kNow - int64_t{age_seconds} * 1'000'000);
    catalog_.Add(std::move(checkpoint));
  }
  void AddWithLoss(std::initializer_list<double> losses) {
    for (double loss : losses) Add(std::nullopt, {{"loss", loss}});
  }
  void Suspect(int64_t sequence) {
    CommittedCheckpoint suspect = *catalog_.Find(sequence);
    suspect.summary.set_suspect("NaN");
    catalog_.Add(std::move(suspect));
  }
  void Damage(int64_t sequence) { catalog_.SetDamage(sequence, storage::v1::Damage()); }

  std::vector<int64_t> Kept(const RetentionPolicy& policy, bool committing = false,
                            int64_t retained_through = 0) const {
    std::vector<int64_t> kept;
    for (const auto& [sequence, why] : KeptByPolicy(policy, catalog_, kNow, committing, retained_through))
      kept.push_back(sequence);
    return kept;
  }

  Catalog catalog_;
};

TEST_F(RetentionPolicyTest, EmptyPolicyKeepsAll) {
  AddWithLoss({1, 2, 3});
  EXPECT_THAT(Kept(RetentionPolicy()), ElementsAre(1, 2, 3));
}

TEST_F(RetentionPolicyTest, CountsOnlyUndamagedCheckpointsAmongTheLast) {
  AddWithLoss({1, 1, 1, 1, 1});
  Damage(4);
  Damage(1);
  EXPECT_THAT(Kept(Last(2)), ElementsAre(3, 4, 5));
  EXPECT_THAT(Kept(Last(3)), ElementsAre(2, 3, 4, 5));
}

TEST_F(RetentionPolicyTest, KeepsEverythingWhileThereAreTooFewUndamagedOnes) {
  AddWithLoss({1, 1, 1});
  Damage(1);
  EXPECT_THAT(Kept(Last(3)), ElementsAre(1, 2, 3));
}

// The newest checkpoint is found damaged while an older one is being removed. Neither of the two counts.
TEST_F(RetentionPolicyTest, CountsNoCheckpointThatIsBeingRemoved) {
  AddWithLoss({4, 3, 2, 1});
  catalog_.BeginEviction(2);
  EXPECT_THAT(Kept(Last(2)), ElementsAre(3, 4));
  Damage(4);
  EXPECT_THAT(Kept(Last(2)), ElementsAre(1, 3, 4));
  EXPECT_THAT(Kept(Best(1, 2, "loss")), ElementsAre(1, 3, 4));
  Damage(3);
  Suspect(1);
  EXPECT_THAT(Kept(Last(1)), ElementsAre(1, 3, 4)) << "1 is the newest that stays and is not damaged";
}

TEST_F(RetentionPolicyTest, CountsTheCheckpointThatIsBeingCommitted) {
  AddWithLoss({1, 1, 1});
  EXPECT_THAT(Kept(Last(2), /*committing=*/true), ElementsAre(3));
  EXPECT_THAT(Kept(Last(1), /*committing=*/true), IsEmpty());
}

TEST_F(RetentionPolicyTest, CountsNoSuspectCheckpointAndKeepsOnlyTheNewestOfAll) {
  AddWithLoss({1, 1, 1, 1, 1});
  for (int64_t sequence : {2, 4, 5}) Suspect(sequence);
  EXPECT_THAT(Kept(Last(1)), ElementsAre(3, 5));
  EXPECT_THAT(Kept(Last(2)), ElementsAre(1, 3, 5));
  EXPECT_THAT(Kept(Last(1), /*committing=*/true), IsEmpty()) << "the next one is the newest then";
  AddWithLoss({1});
  EXPECT_THAT(Kept(Last(2)), ElementsAre(3, 6));
  EXPECT_THAT(Kept(RetentionPolicy()), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(RetentionPolicyTest, KeepsASuspectCheckpointWhileAllNewerOnesAreDamaged) {
  AddWithLoss({1, 1, 1});
  Suspect(1);
  Suspect(2);
  Damage(3);
  EXPECT_THAT(Kept(Last(1)), ElementsAre(2, 3));
}

TEST_F(RetentionPolicyTest, KeepsTheNewestCheckpointEvenIfItIsSuspectAndDamaged) {
  AddWithLoss({1, 1, 1});
  Suspect(2);
  Suspect(3);
  Damage(2);
  Damage(3);
  EXPECT_THAT(Kept(Last(1)), ElementsAre(1, 2, 3));
  AddWithLoss({1});
  EXPECT_THAT(Kept(Last(1)), ElementsAre(4));
}

TEST_F(RetentionPolicyTest, SuspectCheckpointIsNeitherBestNorKeptForItsStepOrAge) {
  Add(10, {{"loss", 0.1}}, 10);
  Add(20, {{"loss", 0.9}}, 10);
  Add(25, {{"loss", 0.5}}, 10);
  Suspect(1);
  EXPECT_THAT(Kept(Best(1, 1, "loss")), ElementsAre(3));
  RetentionPolicy steps = Last(1), age = Last(1);
  steps.set_every_steps(10);
  age.set_newer_than_us(int64_t{60} * 1'000'000);
  EXPECT_THAT(Kept(steps), ElementsAre(2, 3));
  EXPECT_THAT(Kept(age), ElementsAre(2, 3));
}

TEST_F(RetentionPolicyTest, KeepsTheBestBesidesTheLast) {
  AddWithLoss({0.5, 0.1, 0.9, 0.2, 0.7});
  EXPECT_THAT(Kept(Best(1, 2, "loss")), ElementsAre(2, 4, 5));
  EXPECT_THAT(Kept(Best(1, 2, "loss", /*highest=*/true)), ElementsAre(3, 5));
}

TEST_F(RetentionPolicyTest, PrefersTheNewerOfEqualMetricsAndTakesZerosOfBothSignsAsEqual) {
  AddWithLoss({0.0, -0.0, 1e-05, 0.0, 5});
  EXPECT_THAT(Kept(Best(1, 2, "loss")), ElementsAre(2, 4, 5));
  EXPECT_THAT(Kept(Best(1, 1, "loss")), ElementsAre(4, 5));
  EXPECT_THAT(Kept(Best(1, 4, "loss")), ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(RetentionPolicyTest, NeverCountsNanMissingOrDamagedAmongTheBest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  AddWithLoss({0.5, nan, 0.1});
  Add(std::nullopt, {{"accuracy", 0.0}});
  AddWithLoss({std::numeric_limits<double>::infinity(), 7});
  Damage(3);
  EXPECT_THAT(Kept(Best(1, 2, "loss")), ElementsAre(1, 6));
  EXPECT_THAT(Kept(Best(1, 9, "loss")), ElementsAre(1, 5, 6)) << "infinity is the worst loss, but a loss";
  EXPECT_THAT(Kept(Best(1, 9, "perplexity")), ElementsAre(6)) << "nobody gave the metric";
}

TEST_F(RetentionPolicyTest, KeepsEveryMultipleOfTheSteps) {
  for (int64_t step : {0, 500, 1000, 1500, 2000}) Add(step);
  Add(std::nullopt);
  Damage(3);
  RetentionPolicy policy;
  policy.set_every_steps(1000);
  EXPECT_THAT(Kept(policy), ElementsAre(1, 5, 6)) << "and the newest one, although it has no step";
}

TEST_F(RetentionPolicyTest, KeepsWhatIsNewerThanTheAge) {
  for (int age : {7200, 3600, 3599, 10}) Add(std::nullopt, {}, age);
  RetentionPolicy policy = Last(1);
  policy.set_newer_than_us(int64_t{3600} * 1'000'000);
  EXPECT_THAT(Kept(policy), ElementsAre(3, 4));
}

TEST_F(RetentionPolicyTest, SaysWhichPartsKeepACheckpoint) {
  Add(1000, {{"loss", 0.1}});
  Add(1500, {{"loss", 0.2}});
  Add(2000, {{"loss", 0.3}});
  RetentionPolicy policy = Best(1, 1, "loss");
  policy.set_every_steps(1000);
  auto kept = KeptByPolicy(policy, catalog_, kNow, /*committing=*/false);
  EXPECT_THAT(kept, SizeIs(2));
  EXPECT_THAT(kept[1], ElementsAre("best 1 by lowest loss", "every 1000 steps"));
  EXPECT_THAT(kept[3], ElementsAre("last 1", "every 1000 steps"));
  EXPECT_EQ(DescribePolicy(policy), "last 1, best 1 by lowest loss, every 1000 steps");
}

// A policy that keeps more must be on disk before the commit that puts it in force, or a killed daemon's
// successor evicts too much.
TEST_F(RetentionPolicyTest, KnowsWhichPolicyCannotKeepMore) {
  const RetentionPolicy all;
  EXPECT_TRUE(KeepsNoMoreThan(Last(3), all));
  EXPECT_FALSE(KeepsNoMoreThan(all, Last(3)));
  EXPECT_TRUE(KeepsNoMoreThan(Last(2), Last(3)));
  EXPECT_FALSE(KeepsNoMoreThan(Last(3), Last(2)));
  EXPECT_TRUE(KeepsNoMoreThan(Last(2), Best(3, 1, "loss")));
  EXPECT_FALSE(KeepsNoMoreThan(Best(2, 1, "loss"), Last(3)));
  EXPECT_FALSE(KeepsNoMoreThan(Best(2, 1, "loss"), Best(2, 1, "loss", /*highest=*/true)));
  EXPECT_TRUE(KeepsNoMoreThan(Best(2, 1, "loss"), Best(2, 1, "loss")));
}

TEST_F(RetentionPolicyTest, ComesBackFromARecordAsItWasStored) {
  for (const RetentionPolicy& policy : {RetentionPolicy(), Last(3), Best(2, 1, "loss", true)}) {
    storage::v1::RunRecord record;
    StoreRetention(policy, &record);
    EXPECT_TRUE(IsSamePolicy(LoadRetention(record), policy)) << DescribePolicy(policy);
  }
  storage::v1::RunRecord record;
  StoreRetention(Last(3), &record);
  EXPECT_EQ(record.num_kept_ckpts(), 3) << "which daemons before 0.2 read";
}

TEST_F(RetentionPolicyTest, StartsWithAllPoliciesThatMayBeInForce) {
  storage::v1::RunRecord record;
  StoreRetention(Last(2), &record);
  *record.add_next_retentions() = Best(1, 1, "loss");
  *record.mutable_retention_override() = Last(5);
  EXPECT_THAT(PoliciesAtStart(record), SizeIs(3));
  EXPECT_TRUE(IsSamePolicy(PolicyAfterCommit(record, Last(9)), Last(5))) << "the operator's policy wins";
  record.clear_retention_override();
  EXPECT_TRUE(IsSamePolicy(PolicyAfterCommit(record, Last(9)), Last(9)));
  EXPECT_TRUE(KeepsAll(PolicyAfterCommit(record, std::nullopt)));
}

TEST_F(RetentionPolicyTest, NeitherCountsNorRemovesCheckpointsOfAStateThatCouldNotBeResumedFrom) {
  AddWithLoss({0.1, 0.2, 0.3, 4, 5, 6});
  EXPECT_THAT(Kept(Last(2), /*committing=*/false, /*retained_through=*/3), ElementsAre(1, 2, 3, 5, 6));
  EXPECT_THAT(Kept(Last(4), false, 3), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(Kept(Best(1, 1, "loss"), false, 3), ElementsAre(1, 2, 3, 4, 6));
  EXPECT_THAT(KeptByPolicy(Last(5), catalog_, kNow, false, 3).at(3),
              ElementsAre("of a state that a later launch could not resume from"));
}

}  // namespace
}  // namespace ckptd
