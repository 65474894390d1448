#include "daemon/metrics/open_metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>

#include <limits>

namespace ckptd {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Family(const char* name, MetricType type, const ClientMetric& metric) {
  MetricFamily family;
  family.name = name;
  family.help = "What it is.";
  family.type = type;
  family.metric = {metric};
  return family;
}

TEST(OpenMetricsText, NamesTheFamilyOfACounterWithoutTotal) {
  ClientMetric metric;
  metric.label = {{"reason", "X"}};
  metric.counter.value = 3;
  EXPECT_EQ(OpenMetricsText({Family("ckptd_saves_total", MetricType::Counter, metric)}, 1700000000.25),
            "# TYPE ckptd_saves counter\n"
            "# HELP ckptd_saves What it is.\n"
            "ckptd_saves_total{reason=\"X\"} 3\n"
            "ckptd_saves_created{reason=\"X\"} 1700000000.25\n"
            "# EOF\n");
}

TEST(OpenMetricsText, DoesNotTellTheStartThatIsNotKnownOrOfARun) {
  ClientMetric metric;
  const MetricFamily counter = Family("ckptd_saves_total", MetricType::Counter, metric);
  EXPECT_THAT(OpenMetricsText({counter}, 0), ::testing::Not(::testing::HasSubstr("_created")));
  metric.label = {{"outcome", "failed"}, {"run", "runs/1"}};
  const MetricFamily of_run = Family("ckptd_run_saves_total", MetricType::Counter, metric);
  EXPECT_THAT(OpenMetricsText({of_run}, 1), ::testing::Not(::testing::HasSubstr("_created")));
}

TEST(OpenMetricsText, TellsTheUnitAtTheEndOfTheName) {
  ClientMetric metric;
  metric.gauge.value = 67108864;
  metric.counter.value = 0.5;
  EXPECT_EQ(OpenMetricsText({Family("ckptd_pool_used_bytes", MetricType::Gauge, metric),
                             Family("ckptd_wait_seconds_total", MetricType::Counter, metric),
                             Family("ckptd_megabytes", MetricType::Gauge, metric)},
                            0),
            "# TYPE ckptd_pool_used_bytes gauge\n"
            "# UNIT ckptd_pool_used_bytes bytes\n"
            "# HELP ckptd_pool_used_bytes What it is.\n"
            "ckptd_pool_used_bytes 67108864\n"
            "# TYPE ckptd_wait_seconds counter\n"
            "# UNIT ckptd_wait_seconds seconds\n"
            "# HELP ckptd_wait_seconds What it is.\n"
            "ckptd_wait_seconds_total 0.5\n"
            "# TYPE ckptd_megabytes gauge\n"
            "# HELP ckptd_megabytes What it is.\n"
            "ckptd_megabytes 67108864\n"
            "# EOF\n");
}

TEST(OpenMetricsText, GivesInfoItsType) {
  ClientMetric metric;
  metric.label = {{"version", "0.1.0"}};
  metric.gauge.value = 1;
  EXPECT_EQ(OpenMetricsText({Family("ckptd_build_info", MetricType::Gauge, metric)}, 1700000000),
            "# TYPE ckptd_build info\n"
            "# HELP ckptd_build What it is.\n"
            "ckptd_build_info{version=\"0.1.0\"} 1\n"
            "# EOF\n");
}

TEST(OpenMetricsText, WritesTheBoundsOfBucketsWithAPoint) {
  ClientMetric metric;
  metric.histogram.bucket = {{1, 0.0025}, {2, 1}, {3, 1800}, {4, std::numeric_limits<double>::infinity()}};
  metric.histogram.sample_count = 4;
  metric.histogram.sample_sum = 2000.5;
  EXPECT_EQ(OpenMetricsText({Family("ckptd_save_seconds", MetricType::Histogram, metric)}, 1700000000),
            "# TYPE ckptd_save_seconds histogram\n"
            "# UNIT ckptd_save_seconds seconds\n"
            "# HELP ckptd_save_seconds What it is.\n"
            "ckptd_save_seconds_bucket{le=\"0.0025\"} 1\n"
            "ckptd_save_seconds_bucket{le=\"1.0\"} 2\n"
            "ckptd_save_seconds_bucket{le=\"1800.0\"} 3\n"
            "ckptd_save_seconds_bucket{le=\"+Inf\"} 4\n"
            "ckptd_save_seconds_count 4\n"
            "ckptd_save_seconds_sum 2000.5\n"
            "ckptd_save_seconds_created 1700000000\n"
            "# EOF\n");
}

TEST(OpenMetricsText, EscapesLabelsAndHelp) {
  ClientMetric metric;
  metric.label = {{"root", "/a\\b\"c\nd"}, {"run", "r"}};
  MetricFamily family = Family("x", MetricType::Gauge, metric);
  family.help = "Say \"why\".\nTwice \\.";
  EXPECT_EQ(OpenMetricsText({family}, 0),
            "# TYPE x gauge\n"
            "# HELP x Say \\\"why\\\".\\nTwice \\\\.\n"
            "x{root=\"/a\\\\b\\\"c\\nd\",run=\"r\"} 0\n"
            "# EOF\n");
}

TEST(OpenMetricsText, IsItsEndAloneWithoutMetrics) { EXPECT_EQ(OpenMetricsText({}, 0), "# EOF\n"); }

}  // namespace
}  // namespace ckptd
