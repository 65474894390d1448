// Metrics in the text format of OpenMetrics 1.0, for which prometheus-cpp has no serializer.
// https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
#ifndef CKPTD_DAEMON_METRICS_OPEN_METRICS_TEXT_H_
#define CKPTD_DAEMON_METRICS_OPEN_METRICS_TEXT_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace ckptd {

// Returns the text of counters, gauges and histograms. The series have the names that they have in Prometheus'
// format; those that end with _info have the type info, and the unit is that at the end of the name.
//
// Counters and histograms have counted since `created`, in seconds of Unix time; 0: it is not known. Those with a
// label `run` do not tell it: the counters of uploads count since the root was opened, and one more series for
// each counter of each run would be many.
std::string OpenMetricsText(const std::vector<prometheus::MetricFamily>& families, double created);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_METRICS_OPEN_METRICS_TEXT_H_
