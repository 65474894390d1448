#include "daemon/metrics/metrics_format.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ckptd {
namespace {

// One element of the header, such as `text/plain;version=0.0.4;q=0.5`, in lower case.
struct MediaRange {
  std::string type;     // Such as "text/plain" or "text/*".
  std::string version;  // Empty: every version.
  double quality = 1;   // Negative: not a valid element.
};

MediaRange ParseRange(const std::string& element) {
  const std::vector<std::string> parts = absl::StrSplit(element, ';');
  MediaRange range;
  range.type = std::string(absl::StripAsciiWhitespace(parts[0]));
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> parameter = absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    const std::string name(absl::StripAsciiWhitespace(parameter.first));
    std::string value(absl::StripAsciiWhitespace(parameter.second));
    if (value.size() >= 2 && value.front() == '"' && value.back() == '"') {
      value = value.substr(1, value.size() - 2);
    }
    if (name == "version") range.version = value;
    // NaN is not in the range, either.
    if (name == "q" &&
        !(absl::SimpleAtod(value, &range.quality) && range.quality >= 0 && range.quality <= 1)) {
      range.quality = -1;
    }
  }
  return range;
}

// How much a client wants one format.
struct Preference {
  int precision = 0;   // Of the range that decides: 0: none, 1: */*, 2: type/*, 3: the type, 4: its version.
  double quality = 0;  // 0: it is not accepted.
};

Preference PreferenceFor(const std::vector<MediaRange>& ranges, const std::string& type,
                         const std::string& version) {
  Preference best;
  for (const MediaRange& range : ranges) {
    int precision = 0;
    if (range.type == type && (range.version.empty() || range.version == version)) {
      precision = range.version.empty() ? 3 : 4;
    } else if (range.type == type.substr(0, type.find('/')) + "/*") {
      precision = 2;
    } else if (range.type == "*/*") {
      precision = 1;
    }
    if (precision == 0 || precision < best.precision || range.quality < 0) continue;
    if (precision > best.precision) best = {precision, 0};
    best.quality = std::max(best.quality, range.quality);
  }
  return best;
}

}  // namespace

MetricsFormat NegotiateFormat(std::string_view accept) {
  std::string lower(accept);
  absl::AsciiStrToLower(&lower);
  std::vector<MediaRange> ranges;
  for (const std::string& element : std::vector<std::string>(absl::StrSplit(lower, ','))) {
    ranges.push_back(ParseRange(element));
  }
  const Preference open_metrics = PreferenceFor(ranges, "application/openmetrics-text", "1.0.0");
  const Preference text = PreferenceFor(ranges, "text/plain", "0.0.4");
  const bool is_named = open_metrics.precision >= 3;
  return is_named && open_metrics.quality > 0 && open_metrics.quality >= text.quality
             ? MetricsFormat::kOpenMetrics
             : MetricsFormat::kPrometheusText;
}

const char* ContentTypeOf(MetricsFormat format) {
  return format == MetricsFormat::kOpenMetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                               : "text/plain; version=0.0.4; charset=utf-8";
}

}  // namespace ckptd
