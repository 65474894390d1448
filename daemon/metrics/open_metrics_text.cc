#include "daemon/metrics/open_metrics_text.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_type.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace ckptd {
namespace {

using Label = prometheus::ClientMetric::Label;

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\n", "\\n"}, {"\"", "\\\""}});
}

// With as many digits as in Prometheus' format.
std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Inf" : "+Inf";
  return absl::StrFormat("%.16g", value);
}

// The bound of a bucket: as a label its text must always be the same, and has a point.
std::string Bound(double value) {
  std::string text = Number(value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

class Writer {
 public:
  explicit Writer(double created) : created_(created) {}

  void Write(const prometheus::MetricFamily& family) {
    using prometheus::MetricType;
    if (family.type == MetricType::Counter) {
      Describe(std::string(absl::StripSuffix(family.name, "_total")), "counter", family.help);
    } else if (family.type == MetricType::Histogram) {
      Describe(family.name, "histogram", family.help);
    } else if (absl::EndsWith(family.name, "_info")) {
      Describe(std::string(absl::StripSuffix(family.name, "_info")), "info", family.help);
    } else {
      Describe(family.name, "gauge", family.help);
    }
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (family.type == MetricType::Counter) {
        Sample("_total", metric.label, Number(metric.counter.value));
        Created(metric.label);
      } else if (family.type == MetricType::Histogram) {
        Histogram(metric);
      } else {
        Sample(absl::EndsWith(family.name, "_info") ? "_info" : "", metric.label, Number(metric.gauge.value));
      }
    }
  }

  std::string Finish() && { return absl::StrCat(text_, "# EOF\n"); }

 private:
  void Describe(const std::string& name, const char* type, const std::string& help) {
    name_ = name;
    absl::StrAppend(&text_, "# TYPE ", name_, " ", type, "\n");
    for (const char* unit : {"bytes", "seconds"}) {
      if (absl::EndsWith(name_, absl::StrCat("_", unit)))
        absl::StrAppend(&text_, "# UNIT ", name_, " ", unit, "\n");
    }
    absl::StrAppend(&text_, "# HELP ", name_, " ", Escaped(help), "\n");
  }

  void Sample(const char* suffix, const std::vector<Label>& labels, const std::string& value) {
    absl::StrAppend(&text_, name_, suffix);
    const char* separator = "{";
    for (const Label& label : labels) {
      absl::StrAppend(&text_, separator, label.name, "=\"", Escaped(label.value), "\"");
      separator = ",";
    }
    absl::StrAppend(&text_, labels.empty() ? " " : "} ", value, "\n");
  }

  void Created(const std::vector<Label>& labels) {
    const auto is_run = [](const Label& label) { return label.name == "run"; };
    if (created_ == 0 || std::any_of(labels.begin(), labels.end(), is_run)) return;
    Sample("_created", labels, Number(created_));
  }

  void Histogram(const prometheus::ClientMetric& metric) {
    for (const prometheus::ClientMetric::Bucket& bucket : metric.histogram.bucket) {
      std::vector<Label> labels = metric.label;
      labels.push_back({"le", Bound(bucket.upper_bound)});
      Sample("_bucket", labels, absl::StrCat(bucket.cumulative_count));
    }
    Sample("_count", metric.label, absl::StrCat(metric.histogram.sample_count));
    Sample("_sum", metric.label, Number(metric.histogram.sample_sum));
    Created(metric.label);
  }

  const double created_;
  std::string name_;  // Of the family.
  std::string text_;
};

}  // namespace

std::string OpenMetricsText(const std::vector<prometheus::MetricFamily>& families, double created) {
  Writer writer(created);
  for (const prometheus::MetricFamily& family : families) writer.Write(family);
  return std::move(writer).Finish();
}

}  // namespace ckptd
