#include "daemon/metrics/metrics_format.h"

#include <gtest/gtest.h>

#include <string>

namespace ckptd {
namespace {

constexpr MetricsFormat kOpen = MetricsFormat::kOpenMetrics, kText = MetricsFormat::kPrometheusText;

TEST(MetricsFormat, IsPrometheusTextUnlessTheRequestNamesOpenMetrics) {
  for (const char* accept :
       {"", "*/*", "text/plain", "text/html", "application/*", "application/json, */*;q=0.1",
        "application/*;q=1, text/plain;q=0.1", ",;,=;q", "openmetrics-text"}) {
    EXPECT_EQ(NegotiateFormat(accept), kText) << accept;
  }
}

TEST(MetricsFormat, IsOpenMetricsForThePrometheusServer) {
  // Of version 2.
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;"
                            "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"),
            kOpen);
  // Of version 3.
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
                            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;"
                            "escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"),
            kOpen);
  // With scrape_protocols: [PrometheusText0.0.4, OpenMetricsText1.0.0].
  EXPECT_EQ(NegotiateFormat("text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,"
                            "*/*;q=0.4"),
            kText);
}

TEST(MetricsFormat, FollowsTheQualities) {
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;q=0.4, text/plain;q=0.5"), kText);
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;q=0.5, text/plain;q=0.5"), kOpen);
  EXPECT_EQ(NegotiateFormat("text/plain, application/openmetrics-text"), kOpen);
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;q=0.5, text/*;q=0.6"), kText);
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;q=0.5, */*;q=0.6"), kText);
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;q=0"), kText);
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;q=0, */*"), kText);
}

TEST(MetricsFormat, PrefersTheQualityOfTheMostPreciseRange) {
  // The range with a version is more precise than that without, wherever it stands.
  EXPECT_EQ(
      NegotiateFormat("application/openmetrics-text;version=1.0.0;q=0.1, application/openmetrics-text;q=0.9,"
                      "text/plain;q=0.5"),
      kText);
  EXPECT_EQ(NegotiateFormat("*/*;q=0.9, text/plain;q=0.1, application/openmetrics-text;q=0.5"), kOpen);
  EXPECT_EQ(NegotiateFormat("text/plain;q=0.1, application/openmetrics-text;q=0.5, */*;q=0.9"), kOpen);
}

TEST(MetricsFormat, IgnoresVersionsThatAreNotServed) {
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;version=0.0.1"), kText);
  EXPECT_EQ(NegotiateFormat("application/openmetrics-text;version=2.0.0, text/plain;q=0.1"), kText);
  // Text of version 1.0.0 is another format.
  EXPECT_EQ(NegotiateFormat("text/plain;version=1.0.0;q=0.9, application/openmetrics-text;q=0.5"), kOpen);
}

TEST(MetricsFormat, ReadsSpacesCaseAndQuotes) {
  EXPECT_EQ(NegotiateFormat(" Application/OpenMetrics-Text ; Version = \"1.0.0\" ; charset=utf-8 ; Q=0.9 , "
                            "text/plain;q=0.5"),
            kOpen);
}

TEST(MetricsFormat, IgnoresAnElementWhoseQualityIsNoNumberFrom0To1) {
  for (const char* quality : {"nan", "2", "-1", "x", "", "inf"}) {
    EXPECT_EQ(NegotiateFormat("application/openmetrics-text;q=" + std::string(quality)), kText) << quality;
  }
}

}  // namespace
}  // namespace ckptd
