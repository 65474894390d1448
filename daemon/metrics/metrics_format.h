// The text formats of /metrics, and which of them a request gets.
#ifndef CKPTD_DAEMON_METRICS_METRICS_FORMAT_H_
#define CKPTD_DAEMON_METRICS_METRICS_FORMAT_H_

#include <string_view>

namespace ckptd {

enum class MetricsFormat {
  kPrometheusText,  // Version 0.0.4.
  kOpenMetrics,     // Version 1.0.0.
};

// Returns the format that the header Accept asks for (RFC 9110, 12.5.1). Requests that do not name OpenMetrics
// get kPrometheusText, also those that accept neither. Of equal preferences OpenMetrics wins.
MetricsFormat NegotiateFormat(std::string_view accept);

// The value of the header Content-Type.
const char* ContentTypeOf(MetricsFormat format);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_METRICS_METRICS_FORMAT_H_
