#include "client/ckptctl/debug/metrics_text.h"

#include <chrono>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/ckptctl/debug/daemon_process.h"
#include "storage/base/status_macros.h"
#include "storage/object/http_client.h"

namespace ckptd::ctl {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(10);

}  // namespace

absl::StatusOr<std::string> ReadMetrics(const config::v1::MetricsConfig& metrics) {
  HttpRequest request;
  request.method = "GET";
  request.unix_socket = metrics.socket_path();
  if (!metrics.socket_path().empty()) {
    request.url = "http://localhost/metrics";
  } else if (metrics.port() >= 0) {
    request.url = absl::StrCat("http://127.0.0.1:", metrics.port(), "/metrics");
  } else {
    return absl::FailedPreconditionError(
        "the daemon serves no counters (metrics.port: -1, no metrics.socket_path)");
  }
  if (!metrics.token_file().empty()) {
    CKPTD_ASSIGN_OR_RETURN(const std::string token, ReadSmallFile(metrics.token_file()));
    request.headers.push_back(
        absl::StrCat("Authorization: Bearer ", std::string(absl::StripAsciiWhitespace(token))));
  }
  CKPTD_ASSIGN_OR_RETURN(HttpResponse answer, HttpClient("").Send(request, kTimeout));
  if (answer.IsSuccess()) return std::move(answer.body);
  return absl::UnavailableError(absl::StrCat("/metrics answered ", answer.status, ", not the counters"));
}

}  // namespace ckptd::ctl
