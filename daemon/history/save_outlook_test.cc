#include "daemon/history/save_outlook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::HistoryEntry Save(int64_t time, int64_t attempt, int64_t bytes, double stall, double committed,
                      v1::Level level = v1::COMMITTED) {
  v1::HistoryEntry entry;
  entry.set_kind(v1::HistoryEntry::SAVE);
  entry.set_level(level);
  entry.mutable_time()->set_seconds(time);
  entry.set_attempt(attempt);
  entry.set_size_bytes(bytes);
  entry.set_stall_seconds(stall);
  entry.set_committed_seconds(committed);
  return entry;
}

// The time that a second of work takes in the mean, with its share of saves and of work done again (Daly's model).
double TimeFor(double interval, double cost, double between_failures) {
  return (std::exp((interval + cost) / between_failures) - 1) * between_failures / interval;
}

TEST(DalyInterval, IsTheBestOfAllIntervals) {
  for (const double between_failures : {600.0, 3600.0, 86400.0}) {
    for (const double cost : {0.25, 5.0, 60.0}) {
      const double best = DalyInterval(cost, between_failures);
      EXPECT_LT(TimeFor(best, cost, between_failures), TimeFor(best * 1.3, cost, between_failures)) << cost;
      EXPECT_LT(TimeFor(best, cost, between_failures), TimeFor(best / 1.3, cost, between_failures)) << cost;
      EXPECT_NEAR(best, std::sqrt(2 * cost * between_failures), best * 0.25) << "Young's";
    }
  }
  EXPECT_EQ(DalyInterval(100, 10), 10) << "a save takes longer than the job lives";
}

TEST(SaveOutlook, MeasuresStallDurabilityIntervalAndRestarts) {
  OutlookMaker maker;
  for (int i = 0; i < 10; ++i) maker.Add(Save(1000 + 600 * i, 1, 1000, 0.25, i == 3 ? 9 : 3));
  maker.Add(Save(50000, 2, 1000, 0.25, 3));  // A night later.
  maker.Add(Save(50600, 2, 1000, 0.25, 3));
  maker.Add(Save(50700, 2, 1000, 30, 100, v1::FAILED));
  const v1::SaveOutlook outlook = *maker.Make(0);
  EXPECT_EQ(outlook.saves(), 12);
  EXPECT_EQ(outlook.stall_seconds(), 0.25);
  EXPECT_EQ(outlook.durable_seconds(), 3) << "one of twelve was slower";
  EXPECT_EQ(outlook.interval_seconds(), 600);
  EXPECT_EQ(outlook.restarts(), 1);
  EXPECT_EQ(outlook.running_seconds(), 6000) << "the night does not count";
  EXPECT_EQ(outlook.seconds_between_failures(), 6000);
  EXPECT_NEAR(outlook.advised_interval_seconds(), std::sqrt(2 * 0.25 * 6000), 1);
  EXPECT_THAT(outlook.advice(),
              HasSubstr("a save every 55 s loses the least time (now every 10 min): one stalls "
                        "training for 0.25 s and is durable after 3 s, and the job fails every "
                        "100 min (1 restart in 100 min)"));
}

TEST(SaveOutlook, TakesTheFailureRateThatItIsTold) {
  OutlookMaker maker;
  maker.Add(Save(1000, 1, 1000, 5, 60));
  maker.Add(Save(1600, 1, 1000, 5, 60));
  const v1::SaveOutlook outlook = *maker.Make(86400);
  EXPECT_EQ(outlook.seconds_between_failures(), 86400);
  EXPECT_NEAR(outlook.advised_interval_seconds(), std::sqrt(2 * 5 * 86400), 10);
  EXPECT_THAT(outlook.advice(), Not(HasSubstr("restart")));
  EXPECT_THAT(maker.Make(0)->advice(), HasSubstr("supposed: it has not restarted in that time"));
}

TEST(SaveOutlook, AdvisesNoIntervalThatIsShorterThanASaveTakes) {
  OutlookMaker maker;
  maker.Add(Save(1000, 1, 1000, 0, 300));
  maker.Add(Save(1600, 1, 1000, 0, 300));
  EXPECT_EQ(maker.Make(3600)->advised_interval_seconds(), 300);
}

TEST(SaveOutlook, AdvisesNoIntervalFromMinutesOfTraining) {
  OutlookMaker maker;
  maker.Add(Save(1000, 1, 1000, 0.01, 0.1));
  maker.Add(Save(1003, 1, 1000, 0.01, 0.1));
  const v1::SaveOutlook outlook = *maker.Make(0);
  EXPECT_EQ(outlook.advised_interval_seconds(), 0);
  EXPECT_EQ(
      outlook.advice(),
      "how often to save shows after 10 min of training (now 3 s); or name the time between two failures: "
      "ckptctl history --mtbf=7d");
  EXPECT_GT(maker.Make(86400)->advised_interval_seconds(), 1);
}

TEST(SaveOutlook, ExpectsThatALargerCheckpointTakesLonger) {
  OutlookMaker maker;
  maker.Add(Save(1000, 1, 1000, 1, 10));
  maker.Add(Save(1600, 1, 4000, 1, 11));
  EXPECT_EQ(maker.Make(0)->durable_seconds(), 40);
}

TEST(SaveOutlook, SaysNothingWithoutACommittedSaveAndAdvisesNothingWithoutATimeBetweenTwo) {
  OutlookMaker maker;
  EXPECT_FALSE(maker.Make(3600));
  maker.Add(Save(1000, 1, 1000, 1, 10, v1::FAILED));
  EXPECT_FALSE(maker.Make(3600));
  maker.Add(Save(1000, 1, 1000, 1, 10));
  EXPECT_EQ(maker.Make(0)->advised_interval_seconds(), 0);
  EXPECT_EQ(maker.Make(0)->advice(), "");
  EXPECT_EQ(maker.Make(0)->durable_seconds(), 10);
}

}  // namespace
}  // namespace ckptd
